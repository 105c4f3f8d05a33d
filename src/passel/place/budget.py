"""The one place that decides how many threads a process may use: the machine is never oversubscribed."""

from __future__ import annotations

from collections.abc import Sequence

from passel.nets.torsos import is_image
from passel.run.card import usable_cores

__all__ = ["threads_per_worker", "usable_cores"]


def threads_per_worker(workers: int, obs_shape: Sequence[int], asked: int = 0) -> int:
    """One thread for a small perceptron, where a second one costs more in waiting than it brings (measured:
    docs/placements.md); for images an equal part of the cores.
    """
    if asked:
        return asked
    return max(1, usable_cores() // workers) if is_image(obs_shape) else 1
