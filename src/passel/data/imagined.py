"""Imagined experience: a memory of its own, in which every transition says which version of the model made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec
from passel.data.replay import Replay
from passel.data.ring import Fetched, Ring, Window
from passel.types import Ints, PasselError, Transitions


class DatedRing(Ring):
    """Rows that say how many updates the model had seen that made them."""

    def __init__(self, tensors: Mapping[str, Tensor], writer: int) -> None:
        super().__init__(tensors, writer)
        self.made: Ints = tensors["made"].view(-1).numpy()
        self.version = 0

    def _write(self, transitions: Transitions, start: int, stop: int, slot: int) -> None:
        super()._write(transitions, start, stop, slot)
        row = self.writer * self.stripe + slot
        self.made[row : row + stop - start] = self.version

    def first_since(self, stripe: int, low: int, high: int, version: int) -> int:
        """The first count from `low` on whose row is of `version` or later. A writer's versions only grow, so this is
        found by halving.
        """
        while low < high:
            middle = (low + high) // 2
            if self.made[stripe * self.stripe + middle % self.stripe] < version:
                low = middle + 1
            else:
                high = middle
        return low


class Imagined(Replay):
    """What dreamers dreamt, each in its own stripe; everybody draws from all of it that is not too old.

    A row may be drawn while the model has seen at most `age` updates since it was made. `newest` says how many it has
    seen. Runs in: every dreamer, and every worker that learns from dreams.
    """

    @staticmethod
    def dated_specs(capacity: int, obs_shape: tuple[int, ...], dreamers: int) -> dict[str, Spec]:
        return {
            **Ring.specs(capacity, obs_shape, np.dtype(np.float32), dreamers),
            "made": Spec((dreamers, capacity // dreamers), torch.int64),
        }

    def __init__(self, tensors: Mapping[str, Tensor], writer: int, newest: Callable[[], int], age: int) -> None:
        self._dated = self._ring = DatedRing(tensors, writer)
        self._newest, self._age = newest, age
        self._looked_at: int | None = None

    def remember(self, transitions: Transitions, version: int) -> None:
        """Keep what a model of this version dreamt."""
        self._dated.version = version
        self.add(transitions)

    def fresh(self) -> Window:
        """The counts that may be drawn now, of every stripe."""
        return self._fresh(self._newest())

    def _fresh(self, newest: int) -> Window:
        window, oldest = self._ring.window(), newest - self._age
        low = [
            self._dated.first_since(stripe, int(low), int(high), oldest)
            for stripe, (low, high) in enumerate(zip(window.low, window.high, strict=True))
        ]
        return Window(np.array(low, np.int64), window.high)

    def fresh_rows(self) -> int:
        """How many may be drawn. The next draw goes by the same moment: between the two another dreamer may teach the
        models, and what was enough would be none.
        """
        self._looked_at = self._newest()
        return int(self._fresh(self._looked_at).sizes.sum())

    def _fetch(self, n: int, rng: np.random.Generator) -> Fetched:
        """Rows that were overwritten meanwhile are drawn anew by the same moment, for the same reason."""
        if self._looked_at is None:
            self._looked_at = self._newest()
        try:
            return super()._fetch(n, rng)
        finally:
            self._looked_at = None

    def _draw(self, n: int, rng: np.random.Generator) -> tuple[Ints | int, Ints]:
        window = self.fresh() if self._looked_at is None else self._fresh(self._looked_at)
        ends = window.sizes.cumsum()
        if not ends[-1]:
            raise PasselError("every imagined transition is too old to be drawn. Dream first.")
        drawn = (rng.random(n) * int(ends[-1])).astype(np.int64)
        stripe = ends.searchsorted(drawn, side="right")
        return stripe, drawn + (window.high - ends)[stripe]
