"""Real and imagined experience side by side: two memories that are never mixed, and the one throttle between them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from passel.data.experience import ReplayExperience
from passel.data.imagined import Imagined
from passel.data.limiter import Limiter
from passel.data.memory import Memory
from passel.data.running_scale import RunningScale
from passel.data.trail import Trail
from passel.types import Array, Batch, Floats, Step


class Waking:
    """What comes of real steps: the replay memory of DQN, the trail that models learn from, and the scale of things.

    `models` is the limiter of the models' lessons, None where there are no models. Runs in: the one worker that acts.
    """

    def __init__(self, replay: ReplayExperience, trail: Trail, scale: RunningScale, models: Limiter | None) -> None:
        self.replay = replay
        self._trail, self._scale, self._models = trail, scale, models

    def push(self, obs: Array, actions: Array, step: Step, steps_so_far: int) -> int:
        """Keep what came out of one step. Returns how many real transitions there were."""
        self._trail.follow(obs, actions, step)
        self._scale.add(obs, step)
        real = self.replay.push(obs, actions, step, steps_so_far)
        if self._models is not None:
            self._models.inserted(real)
        return real


class TwoMemories:
    """Batches for the values: real ones when they are due by the steps that were taken, imagined ones when they are due
    by the real ones that were learnt from.

        real:       so many updates for each real step, as in DQN
        imagined:   so many for each real one (`ratio`), however many workers there are

    The limiter `ratio` counts real transitions learnt from as inserts, and imagined ones as samples: neither side can
    run away from the other. `reuse` counts imagined transitions made and learnt from. `waking` is None in a worker that
    does not act. From the moment that `over` says so, batches of `real` take the place of imagined ones: the same
    updates, shared by the same workers. Runs in: every worker.
    """

    def __init__(
        self,
        waking: Waking | None,
        imagined: Imagined,
        real: Memory,
        ratio: Limiter,
        reuse: Limiter,
        rng: np.random.Generator,
        *,
        batch: int,
        dreams: bool,
        over: Callable[[], bool] = lambda: False,
        beta: Callable[[int], float] = lambda _: 1.0,
    ) -> None:
        self._replay = waking.replay if waking else None
        self._imagined, self._ratio, self._reuse, self._rng = imagined, ratio, reuse, rng
        self.real = real
        self._batch, self._dreams, self._beta = batch, dreams, beta
        #: Whether dreaming has ended.
        self.over = over

    @property
    def dream_ratio(self) -> float:
        """Imagined transitions learnt from for each real one, so far."""
        return self._ratio.samples_per_insert

    def room(self) -> bool:
        """Whether real experience may go on."""
        return not self._dreams or self._ratio.may_insert()

    def real_due(self) -> bool:
        return self._replay is not None and self._replay.due()

    def imagined_due(self) -> bool:
        """Whether an update is due that is imagined, or takes the place of one."""
        if not self._owed():
            return False
        return self.over() or (self._reuse.may_sample() and self._imagined.fresh_rows() >= self._batch)

    def dream_due(self) -> bool:
        """Whether more should be dreamt: what is there was learnt from often enough, or has become too old."""
        if not self._owed() or self.over():
            return False
        return self._reuse.may_insert() or self._imagined.fresh_rows() < self._batch

    def _owed(self) -> bool:
        return self._dreams and self._ratio.may_sample()

    def batch(self, steps_so_far: int) -> Batch:
        """A real one if it is due, else an imagined one, or what takes its place."""
        if self._replay is not None and self._replay.due():
            self._ratio.inserted(self._batch)
            return self._replay.batch(steps_so_far)
        self._ratio.sampled()
        if self.over():
            return self.real.sample(self._batch, self._rng, self._beta(steps_so_far))
        self._reuse.sampled()
        return self._imagined.sample(self._batch, self._rng)

    def feedback(self, batch: Batch, td_abs: Floats | None) -> None:
        if batch.index is not None and td_abs is not None:
            self.real.update_priorities(batch.index, td_abs)

    def abandon(self) -> None:
        """Nothing to do: a batch stands alone."""

    def park(self) -> None:
        if self._replay is not None:
            self._replay.park()


class ModelLessons:
    """Batches for the models: single real steps, as often as the limiter lets them out. Runs in: each dreamer."""

    def __init__(self, trail: Trail, limiter: Limiter, rng: np.random.Generator, *, rows: int) -> None:
        self._trail, self._limiter, self._rng, self._rows = trail, limiter, rng, rows

    def due(self) -> bool:
        return self._limiter.may_sample()

    def batch(self, steps_so_far: int) -> Batch:
        self._limiter.sampled()
        return self._trail.sample(self._rows, self._rng)

    def feedback(self, batch: Batch, td_abs: Floats | None) -> None:
        """Nothing to do: every step is as likely as any other."""

    def abandon(self) -> None:
        """Nothing to do: a batch stands alone."""
