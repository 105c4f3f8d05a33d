"""The one place that decides what a process may cost: how many threads it uses, and how it treats tiny numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from passel.nets.torsos import is_image
from passel.run.card import usable_cores
from passel.types import counted

__all__ = ["at_most", "oversubscribed", "threads_of_learner", "threads_per_worker", "tiny_is_zero", "usable_cores"]


def threads_per_worker(workers: int, obs_shape: Sequence[int], asked: int = 0) -> int:
    """One thread for a small perceptron, where a second one costs more in waiting than it brings (measured:
    docs/placements.md); for images an equal part of the cores.
    """
    if asked:
        return asked
    return max(1, usable_cores() // workers) if is_image(obs_shape) else 1


def oversubscribed(workers: int, threads: int) -> str:
    """A sentence if the workers' threads are more than the cores that may be used; empty if not."""
    cores = usable_cores()
    if workers * threads <= cores:
        return ""
    each = f" with {threads} threads each" if threads > 1 else ""
    fits = max(1, cores // threads)
    cure = f"Use --workers {fits}." if fits < workers else f"Use --threads {cores}."
    return f"{counted(workers, 'worker')}{each} on {counted(cores, 'core')}: slower and with staler parameters. {cure}"


def threads_of_learner(actors: int, learners: int, each: int, obs_shape: Sequence[int], asked: int = 0) -> int:
    """Where learners only learn, they have what the actors, with `each` threads, leave them of the cores."""
    if asked or not is_image(obs_shape):
        return each
    return max(each, (usable_cores() - actors * each) // learners)


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """torch and numpy use so many threads in this process, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def tiny_is_zero() -> Iterator[None]:
    """Numbers too small for float32's usual form are zero in this thread. The squared gradients of units that hardly
    ever fire are such numbers, and computing with them takes many times as long: without this, Adam takes 7 to 9 % of
    the time of a 256-256 network's training, with it 5 %.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
