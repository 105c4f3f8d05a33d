"""Replay between actors and a learner: one memory, which all actors fill and the learner draws from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
from torch import Tensor

from passel.arena import Spec
from passel.data.lag import Lag
from passel.data.limiter import Limiter
from passel.data.memory import Memory
from passel.data.nstep import NStep
from passel.data.stacks import Stacks
from passel.types import Array, Batch, Floats, Ints, Step


class Appraiser(Protocol):
    """Whoever acts: it knows what it expected of its actions, and what it expects now."""

    def appraise(self, actions: Ints, step: Step) -> tuple[Floats, Floats]:
        """The value of each action that was taken, and of the state that followed it: [N] each."""


class Surprise:
    """The error of each n-step transition by the actor's own values, in the order in which NStep gives them out.

        |R + discount V(s_{t+m}) - Q(s_t, a_t)|

    The values walk through windows of their own, as the observations do beside them. Runs in: each actor.
    """

    @staticmethod
    def specs(n: int, envs: int) -> dict[str, Spec]:
        return NStep.specs(n, envs, (1,), np.dtype(np.float32))

    def __init__(self, tensors: Mapping[str, Tensor], *, n: int, gamma: float) -> None:
        self._windows = NStep(tensors, n=n, gamma=gamma)

    def keep_step_with(self, nstep: NStep) -> None:
        """A worker that died may have left these windows a step ahead of the others."""
        self._windows.keep_step_with(nstep)

    def push(self, actions: Ints, step: Step, value: Floats, following: Floats) -> Floats:
        """What came of the transitions that this step completed."""
        done = self._windows.push(value[:, None], actions, replace(step, next_obs=following[:, None]))
        error: Floats = np.abs(done.reward + done.discount * done.next_obs[:, 0] - done.obs[:, 0])
        return error


class ReplayInlet:
    """An actor's side: n-step transitions, each with how surprising it was, as far as the limiter lets them in.

    Without `surprise` a memory has no use for that. With `stacks`, references to frames walk through the windows and
    the memory's rows in place of observations. Runs in: each actor.
    """

    def __init__(
        self,
        nstep: NStep,
        memory: Memory,
        limiter: Limiter,
        appraiser: Appraiser,
        surprise: Surprise | None = None,
        stacks: Stacks | None = None,
    ) -> None:
        self._nstep, self._memory, self._limiter = nstep, memory, limiter
        self._appraiser, self._surprise, self._stacks = appraiser, surprise, stacks
        if surprise is not None:
            surprise.keep_step_with(nstep)

    def room(self) -> bool:
        return self._limiter.may_insert()

    def push(self, obs: Array, actions: Ints, step: Step, steps_so_far: int) -> int:
        """Keep what came out of one step. Returns how many real transitions there were."""
        error = None
        if self._surprise is not None:
            error = self._surprise.push(actions, step, *self._appraiser.appraise(actions, step))
        if self._stacks is not None:
            obs, step = self._stacks.keep(obs, step)
        transitions = self._nstep.push(obs, actions, step)
        if len(transitions):
            self._memory.add(transitions, error)
        self._limiter.inserted(len(transitions))
        return int(np.count_nonzero(step.real))

    def park(self) -> None:
        """Nothing to do: everything is in the arena."""


class ReplayOutlet:
    """The learner's side: batches, as often as the limiter lets them out. Runs in: the learner."""

    lag: Lag | None = None

    def __init__(
        self,
        memory: Memory,
        limiter: Limiter,
        rng: np.random.Generator,
        *,
        batch: int,
        beta: Callable[[int], float],
    ) -> None:
        self._memory, self._limiter, self._rng, self._batch, self._beta = memory, limiter, rng, batch, beta

    def due(self) -> bool:
        return self._limiter.may_sample()

    def unlearnt(self) -> bool:
        """No: the memory keeps what it holds, and the limiter what is owed."""
        return False

    def batch(self, steps_so_far: int) -> Batch:
        self._limiter.sampled()
        return self._memory.sample(self._batch, self._rng, self._beta(steps_so_far))

    def feedback(self, batch: Batch, td_abs: Floats | None) -> None:
        if batch.index is not None and td_abs is not None:
            self._memory.update_priorities(batch.index, td_abs)

    def abandon(self) -> None:
        """Nothing to do: a batch stands alone."""

    def park(self) -> None:
        """Nothing to do: nothing is drawn ahead."""

    def scalars(self) -> list[float]:
        return [self._limiter.samples_per_insert, self._limiter.owed]
