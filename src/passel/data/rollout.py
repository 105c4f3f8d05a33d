"""On-policy experience: T steps of N environments, learnt from while they are fresh, and then forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec, cells
from passel.data.ring import torch_dtype
from passel.types import Array, Floats, Ints, Judgement, Minibatch, Step


class Judge(Protocol):
    """Whoever knows what states are worth: the algorithm."""

    def values(self, obs: Array) -> Floats:
        """[B, ...] -> [B]."""

    def judge(self, obs: Array, action: Ints, reward: Floats, discount: Floats, last_obs: Array) -> Judgement: ...


class RolloutExperience:
    """Collects T steps, has them judged, and gives them out `epochs` times in `minibatches` shuffled parts.

        experience.push(obs, actions, step, steps_so_far)    # the actor, T times
        while experience.due():                              # the learner, epochs * minibatches times
            batch = experience.batch(steps_so_far)

    Where an episode was truncated, the discounted value of its true last observation is added to the reward, so that
    from there on every end is an end. All of it is in tensors: a run that is resumed in mid-epoch goes on there.

    Runs in: each worker.
    """

    @staticmethod
    def specs(horizon: int, envs: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype[Any]) -> dict[str, Spec]:
        dtype, grid = torch_dtype(np.dtype(obs_dtype)), (horizon, envs)
        numbers = ("reward", "discount", "weight", "value", "logp", "advantage")
        return {
            "obs": Spec((*grid, *obs_shape), dtype),
            "last_obs": Spec((envs, *obs_shape), dtype),
            "action": Spec(grid, torch.int64),
            **{name: Spec(grid) for name in numbers},
            "order": Spec((horizon * envs,), torch.int64),
            "counts": Spec((2,), torch.int64),
        }

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        judge: Judge,
        rng: np.random.Generator,
        *,
        gamma: float,
        epochs: int = 1,
        minibatches: int = 1,
    ) -> None:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._obs, self._last_obs = arrays["obs"], arrays["last_obs"]
        self._action: Ints = arrays["action"]
        self._reward, self._discount, self._weight = arrays["reward"], arrays["discount"], arrays["weight"]
        self._value, self._logp, self._advantage = arrays["value"], arrays["logp"], arrays["advantage"]
        self._order: Ints = arrays["order"]
        #: Steps that are filled in, and parts that were given out.
        self._counts = cells(arrays["counts"])
        self._judge, self._rng, self._gamma = judge, rng, np.float32(gamma)
        self._horizon = len(self._obs)
        self._minibatches, self._parts = minibatches, epochs * minibatches
        #: The part that was given out last, by its place in the epoch.
        self.given = 0

    def push(self, obs: Array, actions: Ints, step: Step, steps_so_far: int) -> int:
        """Keep what came out of one step. Returns how many real transitions there were."""
        t = self._counts[0]
        self._obs[t], self._action[t] = obs, actions
        self._reward[t], self._weight[t] = step.reward, step.real
        self._discount[t] = self._gamma * step.discount
        cut = np.flatnonzero(step.truncated & (step.discount > 0) & step.real)
        if len(cut):
            self._reward[t, cut] += self._gamma * self._judge.values(step.next_obs[cut])
        lost = np.flatnonzero(step.truncated & ~step.real)
        if len(lost):
            # The episode ended with the step before, which bootstraps from here: this row must add nothing to that.
            self._reward[t, lost] = self._judge.values(obs[lost])
        self._discount[t, step.ended] = 0
        self._discount[t, ~step.real] = 0
        self._last_obs[:] = step.obs
        self._counts[0] = t + 1
        return int(np.count_nonzero(step.real))

    def due(self) -> bool:
        return bool(self._counts[0] == self._horizon)

    def batch(self, steps_so_far: int) -> Minibatch:
        """The next part; with the last one of the last epoch the rollout is forgotten."""
        part = self._counts[1]
        if part == 0:
            self._settle()
        if part % self._minibatches == 0:
            self._order[:] = self._rng.permutation(len(self._order))
        self.given = part % self._minibatches
        rows = self.rows(self.given)
        self._counts[1] = part + 1
        if part + 1 == self._parts:
            self.forget()
        return rows

    def abandon(self) -> None:
        """Leave a rollout that was begun to be learnt from: the policy has moved too far from it."""
        if self._counts[1]:
            self.forget()

    def forget(self) -> None:
        """Begin a new rollout."""
        self._counts[0] = self._counts[1] = 0

    def feedback(self, batch: Minibatch, td_abs: Floats | None) -> None:
        """Nothing to do: nothing is kept for longer."""

    def park(self) -> None:
        """Nothing to do: everything is in the arena."""

    def _settle(self) -> None:
        said = self._judge.judge(self._obs, self._action, self._reward, self._discount, self._last_obs)
        self._value[:], self._logp[:], self._advantage[:] = said.value, said.logp, said.advantage

    def rows(self, part: int) -> Minibatch:
        """One part of the present epoch."""
        size = len(self._order) // self._minibatches
        rows = self._order[part * size : (part + 1) * size]

        def flat(grid: Array) -> Array:
            return grid.reshape(len(self._order), *grid.shape[2:]).take(rows, axis=0)

        advantage, value = flat(self._advantage), flat(self._value)
        return Minibatch(
            flat(self._obs),
            flat(self._action),
            advantage,
            advantage + value,
            flat(self._logp),
            value,
            flat(self._weight),
        )
