"""Uniform replay: every transition that is kept is as likely as any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from passel.arena import Spec
from passel.data.frames import open_ring
from passel.data.ring import Fetched, Ring
from passel.types import Array, Batch, Ints, PasselError, Transitions


class Replay:
    """A ring of transitions, sampled uniformly and with replacement.

    Runs in: every process that adds or samples. Shared: all of it, if the tensors are. With one writer it is a worker's
    own memory; with several it is the memory of them all, each writing to its stripe, everybody reading everything.
    Nobody ever waits: see `passel.data.ring` for why a sample is whole all the same.
    """

    @staticmethod
    def specs(
        capacity: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype[Any], writers: int = 1, *, paged: bool = False
    ) -> dict[str, Spec]:
        return Ring.specs(capacity, obs_shape, obs_dtype, writers, paged=paged)

    def __init__(self, tensors: Mapping[str, Tensor], writer: int = 0) -> None:
        self._ring = open_ring(tensors, writer)

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def capacity(self) -> int:
        return self._ring.capacity

    def add(self, transitions: Transitions, td_abs: Array | None = None) -> None:
        """Keep these; in a full stripe the oldest go."""
        self._ring.append(transitions)

    def sample(self, n: int, rng: np.random.Generator, beta: float = 1.0) -> Batch:
        """`n` transitions. Where all are equally likely every weight is 1, whatever `beta` is, so none are given."""
        return self._ring.batch(self._fetch(n, rng))

    def sample_many(self, k: int, n: int, rng: np.random.Generator, beta: float = 1.0) -> list[Batch]:
        """`k` batches of `n`, distributed as `k` calls of `sample`, for little more than the price of one."""
        return split(self._ring.batch(self._fetch(k * n, rng)), k)

    def update_priorities(self, index: Ints | None, td_abs: Array) -> None:
        """Nothing to do: here no transition has a priority."""

    def own_window(self) -> tuple[int, int]:
        """What may be read of our own stripe: low <= count < high."""
        return self._ring.window_of(self._ring.writer)

    def forget_before(self, count: int) -> None:
        """Give up our own rows with lower counts: what they refer to is about to go."""
        self._ring.give_up(count)

    def check_valid(self) -> None:
        """Raise AssertionError, with the reason, where the memory contradicts itself."""
        self._ring.check_valid()

    def _fetch(self, n: int, rng: np.random.Generator) -> Fetched:
        stripe, count = self._draw(n, rng)
        fetched, _ = self._ring.expand(self._ring.gather(self._ring.slots(stripe, count)), stripe, count)
        torn = self._ring.overwritten(stripe, count).nonzero()[0]
        if len(torn):
            fetched.replace(torn, self._fetch(len(torn), rng))
        return fetched

    def _draw(self, n: int, rng: np.random.Generator) -> tuple[Ints | int, Ints]:
        """Stripes and counts of `n` rows that may be read."""
        if self._ring.writers == 1:
            low, high = self._ring.window_of(0)
            return 0, low + _uniform(high - low, n, rng)
        window = self._ring.window()
        ends = window.sizes.cumsum()
        drawn = _uniform(int(ends[-1]), n, rng)
        stripe = ends.searchsorted(drawn, side="right")
        return stripe, drawn + (window.high - ends)[stripe]


def _uniform(total: int, n: int, rng: np.random.Generator) -> Ints:
    """`n` whole numbers from 0 to `total` - 1; half the price of `rng.integers`, and as even as 53 bits can make it."""
    if total <= 0:
        raise PasselError("the memory is empty, so nothing can be sampled. Add transitions first.")
    return (rng.random(n) * total).astype(np.int64)


def split(batch: Batch, k: int) -> list[Batch]:
    """The batch in `k` equal parts: views, no copies."""
    fields = (batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs)
    indices = [None] * k if batch.index is None else _parts(batch.index, k)
    weights = [None] * k if batch.weight is None else _parts(batch.weight, k)
    return [Batch(*part) for part in zip(*(_parts(field, k) for field in fields), indices, weights, strict=True)]


def _parts(field: Array, k: int) -> list[Array]:
    size = len(field) // k
    return [field[start : start + size] for start in range(0, len(field), size)]
