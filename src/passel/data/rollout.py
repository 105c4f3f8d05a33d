"""On-policy experience: T steps of N environments, learnt from while they are fresh, and then forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec, cells
from passel.data.ring import torch_dtype
from passel.types import Array, EnvSpec, Floats, Grid, Ints, Judgement, Minibatch, Opinion, Step


@dataclass(frozen=True)
class RolloutShape:
    """T steps of N environments, and what a step holds. With an `action_shape` actions are vectors of floats; without,
    whole numbers.
    """

    horizon: int
    envs: int
    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype[Any]
    frames: int = 1
    action_shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, spec: EnvSpec, horizon: int, envs: int) -> RolloutShape:
        return cls(horizon, envs, spec.obs_shape, spec.obs_dtype, spec.frames, spec.action_shape)


class Judge(Protocol):
    """Whoever knows what states are worth: the algorithm."""

    #: Whether it has an opinion of each step when it acts, so that nothing needs to be looked at again.
    judges_by_acting: bool

    @property
    def opinion(self) -> Opinion:
        """Of the step that was taken last, if it judges by acting."""

    def values(self, obs: Array) -> Floats:
        """[B, ...] -> [B]."""

    def judge(self, obs: Grid, action: Array, reward: Floats, discount: Floats, last_obs: Array) -> Judgement:
        """The whole rollout [T, N], as it looks now."""

    def advantage(self, reward: Floats, discount: Floats, value: Floats, last_obs: Array) -> Floats:
        """The same of a rollout whose values are known: [T, N]."""


class Values(Protocol):
    def __call__(self, obs: Array) -> Floats:
        """What states [B, ...] are worth: [B]."""


class Recording:
    """T steps of N environments, written down as they come.

    Where an episode was truncated, the discounted value of its true last observation is added to the reward, so that
    from there on every end is an end. Where an observation is a stack of `frames`, each frame is kept once.
    """

    @staticmethod
    def specs(shape: RolloutShape) -> dict[str, Spec]:
        dtype, grid = torch_dtype(np.dtype(shape.obs_dtype)), (shape.horizon, shape.envs)
        return {
            **Frames.specs(*grid, shape.obs_shape, dtype, shape.frames),
            "last_obs": Spec((shape.envs, *shape.obs_shape), dtype),
            "action": Spec((*grid, *shape.action_shape), torch.float32 if shape.action_shape else torch.int64),
            **{name: Spec(grid) for name in ("reward", "discount", "weight")},
        }

    def __init__(self, arrays: Mapping[str, Array], values: Values, *, gamma: float, reward_scale: float = 1.0) -> None:
        self.last_obs = arrays["last_obs"]
        self.obs = Frames(arrays["obs"], arrays.get("born"), self.last_obs.shape[1:])
        self.action = arrays["action"]
        self.reward, self.discount, self.weight = arrays["reward"], arrays["discount"], arrays["weight"]
        self._values, self._gamma, self._reward_scale = values, np.float32(gamma), np.float32(reward_scale)

    def write(self, t: int, obs: Array, actions: Array, step: Step) -> int:
        """Keep what came out of one step, at time t. Returns how many real transitions there were."""
        self.obs.keep(t, obs, self.discount[t - 1] == 0)
        self.action[t] = actions
        self.reward[t], self.weight[t] = step.reward * self._reward_scale, step.real
        self.discount[t] = self._gamma * step.discount
        cut = np.flatnonzero(step.truncated & (step.discount > 0) & step.real)
        if len(cut):
            self.reward[t, cut] += self._gamma * self._values(step.next_obs[cut])
        lost = np.flatnonzero(step.truncated & ~step.real)
        if len(lost):
            # The episode ended with the step before, which bootstraps from here: this row must add nothing to that.
            self.reward[t, lost] = self._values(obs[lost])
        self.discount[t, step.ended] = 0
        self.discount[t, ~step.real] = 0
        self.last_obs[:] = step.obs
        return int(np.count_nonzero(step.real))


def minibatches_of(rows: int, batch: int) -> int:
    """Into how many equal parts so many rows fall, each of `batch` rows or, where that divides nothing, of the next
    larger size.
    """
    return next(parts for parts in range(max(rows // batch, 1), 0, -1) if rows % parts == 0)


class RolloutExperience:
    """Collects T steps, has them judged (if acting has not done so), and gives them out `epochs` times in `minibatches`
    shuffled parts.

        experience.push(obs, actions, step, steps_so_far)    # the actor, T times
        while experience.due():                              # the learner, epochs * minibatches times
            batch = experience.batch(steps_so_far)

    All of it is in tensors: a run that is resumed in mid-epoch goes on there.

    With `groups`, which say which rows are of one level, every part has the same number of steps of every row, and
    weights such that every level counts the same.

    Runs in: each worker.
    """

    @staticmethod
    def specs(shape: RolloutShape) -> dict[str, Spec]:
        return {
            **Recording.specs(shape),
            **{name: Spec((shape.horizon, shape.envs)) for name in ("value", "logp", "advantage")},
            "order": Spec((shape.horizon * shape.envs,), torch.int64),
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
        groups: Ints | None = None,
        reward_scale: float = 1.0,
    ) -> None:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._steps = Recording(arrays, judge.values, gamma=gamma, reward_scale=reward_scale)
        self._value, self._logp, self._advantage = arrays["value"], arrays["logp"], arrays["advantage"]
        self._order: Ints = arrays["order"]
        #: Steps that are filled in, and parts that were given out.
        self._counts = cells(arrays["counts"])
        self._judge, self._rng, self._groups = judge, rng, groups
        self._horizon, self._envs = self._value.shape
        self._minibatches, self._parts = minibatches, epochs * minibatches
        #: The part that was given out last, by its place in the epoch.
        self.given = 0
        self._settled = False

    def push(self, obs: Array, actions: Array, step: Step, steps_so_far: int) -> int:
        """Keep what came out of one step. Returns how many real transitions there were."""
        t = self._counts[0]
        real = self._steps.write(t, obs, actions, step)
        if self._judge.judges_by_acting:
            said = self._judge.opinion
            self._value[t], self._logp[t] = said.value, said.logp
        self._counts[0] = t + 1
        return real

    @property
    def rewards(self) -> Floats:
        """As they are learnt from, [T, N]: with the value of the last observation where an episode was truncated."""
        return self._steps.reward

    def due(self) -> bool:
        return bool(self._counts[0] == self._horizon)

    def unlearnt(self) -> bool:
        """Whether a whole rollout has parts left: the next one would be collected by a policy that lacks them."""
        return self.due()

    def batch(self, steps_so_far: int) -> Minibatch:
        """The next part; with the last one of the last epoch the rollout is forgotten."""
        part = self._counts[1]
        if part == 0:
            self._settle()
        if part % self._minibatches == 0:
            self._order[:] = self._shuffled()
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

    def judged(self) -> tuple[Floats, Floats, Floats] | None:
        """Values, returns and weights of the rollout that is learnt from, or was last, [T, N]. None where there is
        none, or where the next one is being written over it.
        """
        filled, given = self._counts
        whole = filled == 0 or (filled == self._horizon and given > 0)
        if not (self._settled and whole):
            return None
        return self._value, self._value + self._advantage, self._steps.weight

    def _settle(self) -> None:
        self._settled = True
        steps = self._steps
        if self._judge.judges_by_acting:
            self._advantage[:] = self._judge.advantage(steps.reward, steps.discount, self._value, steps.last_obs)
            return
        said = self._judge.judge(steps.obs, steps.action, steps.reward, steps.discount, steps.last_obs)
        self._value[:], self._logp[:], self._advantage[:] = said.value, said.logp, said.advantage

    def _shuffled(self) -> Ints:
        """The order of an epoch. With levels apart, the times of each row are shuffled, and every part has all rows."""
        if self._groups is None:
            return self._rng.permutation(len(self._order))
        times = np.tile(np.arange(self._horizon)[:, None], (1, self._envs))
        order: Ints = self._rng.permuted(times, axis=0) * self._envs + np.arange(self._envs)
        return order.ravel()

    def rows(self, part: int) -> Minibatch:
        """One part of the present epoch."""
        size = len(self._order) // self._minibatches
        rows = self._order[part * size : (part + 1) * size]

        def flat(grid: Array) -> Array:
            return grid.reshape(len(self._order), *grid.shape[2:]).take(rows, axis=0)

        advantage, value, weight = flat(self._advantage), flat(self._value), flat(self._steps.weight)
        group = None if self._groups is None else self._groups[rows % self._envs]
        return Minibatch(
            self._steps.obs.take(rows),
            flat(self._steps.action),
            advantage,
            advantage + value,
            flat(self._logp),
            value,
            weight if group is None else _evenly(weight, group),
            group,
        )


class Frames:
    """Observations [T, N, ...] of a rollout. Stacks of frames overlap in time, so each frame is kept once.

    The first stack of a rollout is kept whole, and then the newest frame of each. An episode's first stack is its first
    frame again and again: `born` is the place from which on frames are of the same episode, and no stack looks behind.
    """

    @staticmethod
    def specs(horizon: int, envs: int, obs_shape: tuple[int, ...], dtype: torch.dtype, frames: int) -> dict[str, Spec]:
        if frames == 1:
            return {"obs": Spec((horizon, envs, *obs_shape), dtype)}
        channels = obs_shape[0] // frames
        return {
            "obs": Spec((horizon + frames - 1, envs, channels, *obs_shape[1:]), dtype),
            "born": Spec((horizon, envs), torch.int64),
        }

    def __init__(self, kept: Array, born: Array | None, obs_shape: tuple[int, ...]) -> None:
        self._kept, self._born = kept, born
        self._frames = 1 if born is None else obs_shape[0] // kept.shape[2]
        self.shape = (len(kept) - self._frames + 1, kept.shape[1], *obs_shape)

    def keep(self, t: int, obs: Array, cut: Array) -> None:
        """The observations [N, ...] of time t. `cut` says where a new episode may have begun since the last."""
        if self._born is None:
            self._kept[t] = obs
            return
        stacks = obs.reshape(len(obs), self._frames, *self._kept.shape[2:])
        if t == 0:
            self._kept[: self._frames] = stacks.swapaxes(0, 1)
            self._born[0] = 0
            return
        newest = t + self._frames - 1
        self._kept[newest] = stacks[:, -1]
        self._born[t] = self._born[t - 1]
        for row in np.flatnonzero(cut):
            if (stacks[row] == stacks[row, -1]).all():
                self._born[t, row] = newest

    def take(self, rows: Ints) -> Array:
        """The observations of rows of the grid, counted through: [B, ...]."""
        if self._born is None:
            return self._kept.reshape(-1, *self.shape[2:]).take(rows, axis=0)
        t, n = np.divmod(rows, self.shape[1])
        places = np.maximum(t[:, None] + np.arange(self._frames), self._born[t, n][:, None])
        stacks: Array = self._kept[places, n[:, None]].reshape(len(rows), *self.shape[2:])
        return stacks

    def __getitem__(self, times: slice, /) -> Array:
        if self._born is None:
            return self._kept[times]
        rows = np.arange(self.shape[0] * self.shape[1]).reshape(self.shape[:2])[times]
        return self.take(rows.ravel()).reshape(*rows.shape, *self.shape[2:])


def _evenly(weight: Floats, group: Ints) -> Floats:
    """Weights that add up to 1 in each group that has any."""
    totals = np.bincount(group, weight)
    even: Floats = (weight / np.maximum(totals, 1)[group]).astype(np.float32)
    return even
