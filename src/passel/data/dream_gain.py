"""Whether dreams still help: what updates from imagined experience do to the TD error of real steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from torch import Tensor, float64

from passel.arena import Spec
from passel.data.memory import Memory
from passel.types import Batch, Floats

#: One imagined update in so many is measured.
EVERY = 8
#: Measurements that are judged together, and how many such windows in a row must show no gain until dreaming ends.
WINDOW, WINDOWS = 1_000, 2
#: A gain counts from this number of its standard errors on.
CLEAR = 1.0
TINY = 1e-30  # no error is divided by less


class Values(Protocol):
    """What the gain is measured of."""

    def targets(self, batch: Batch) -> Floats: ...
    def td_error(self, batch: Batch, targets: Floats) -> float: ...


class DreamGain:
    """Measures imagined updates by real steps, and says when they no longer help.

        gain = (e - e') / e,     e = mean |y - Q(s, a)| before the update, e' after it

    over real steps that are drawn anew for each measurement, with targets y from before the update. Each worker sums
    the gains of its own imagined updates; the one that acts judges them, WINDOW at a time. Dreaming ends after WINDOWS
    windows in a row whose mean gain is not above CLEAR standard errors.

    Runs in: every worker of Dyna.
    """

    @staticmethod
    def specs(workers: int) -> dict[str, Spec]:
        return {"sums": Spec((workers, 4), float64), "judged": Spec((6,), float64)}

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        rank: int,
        values: Values,
        memory: Memory,
        *,
        rows: int,
        seed: int,
    ) -> None:
        every = tensors["sums"].numpy()
        #: Of all workers; and of this one: imagined updates, measurements, the sum of their gains and of the squares.
        self._sums, self._own = every, every[rank]
        #: The sums at the end of the last window, windows in a row without a gain, the step at which dreaming ended,
        #: and the mean gain of the last window.
        self._judged = tensors["judged"].numpy()
        self._values, self._memory, self._rows, self._seed = values, memory, rows, (seed, rank)

    @contextmanager
    def measured(self, pull: Callable[[], None]) -> Iterator[None]:
        """Around one imagined update. `pull` brings the parameters up to date after it."""
        due = self._own[0] % EVERY == 0 and len(self._memory) >= self._rows
        self._own[0] += 1
        if not due:
            yield
            return
        # A stream of its own, which the count tells: what is learnt from does not depend on what is measured.
        batch = self._memory.sample(self._rows, np.random.default_rng((*self._seed, int(self._own[0]))))
        targets = self._values.targets(batch)
        before = self._values.td_error(batch, targets)
        yield
        pull()
        gain = (before - self._values.td_error(batch, targets)) / max(before, TINY)
        if math.isfinite(gain):
            self._own[1:] += 1, gain, gain * gain

    def judge(self, step: int) -> None:
        """Judge the window if it is full. Runs in: the worker that acts."""
        total = self._sums[:, 1:].sum(axis=0)
        count, gain, square = total - self._judged[:3]
        if count < WINDOW or self.ended_at:
            return
        mean = gain / count
        error = math.sqrt(max(square / count - mean * mean, 0.0) / count)
        without = 0 if mean > CLEAR * error else self._judged[3] + 1
        self._judged[:] = [*total, without, step if without >= WINDOWS else 0, mean]

    @property
    def ended_at(self) -> int:
        """The step at which dreaming ended; 0 while it goes on."""
        return ended_at(self._judged)

    @property
    def last(self) -> float:
        """The mean gain of the last window; nan before there is one."""
        return float(self._judged[5]) if self._judged[0] else math.nan


def ended_at(judged: Floats) -> int:
    return int(judged[4])
