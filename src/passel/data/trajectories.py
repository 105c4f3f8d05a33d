"""Old trajectories: the last steps of each environment as they happened, one after the other, learnt from for long.

What a step led to is asked anew before every lesson, for the critic that says what an unfinished episode is worth has
learnt since. So episodes are kept whole, not as loose transitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec, cells
from passel.data.ring import torch_dtype
from passel.types import Account, Array, Floats, Ints, PasselError, Recollection, Step

#: What the critic is asked about at once: so many states, and so many numbers, for images become large in it.
STATES_AT_ONCE, NUMBERS_AT_ONCE = 4096, 1 << 22


class Historian(Protocol):
    """Whoever knows what old trajectories are worth: the algorithm."""

    def values(self, obs: Array) -> Floats:
        """[B, ...] -> [B]."""

    def recount(self, reward: Floats, discount: Floats, value: Floats, last_value: Floats, weight: Floats) -> Account:
        """All [T, N], but for last_value [N], which is of the state after the last; an end is a discount of zero."""


class Trajectories:
    """A ring of `length` entries for each of N environments, each ring with a count of its own.

    An entry is a step, or a *last look*: the observation at which an episode was cut off, of which nothing is known but
    what the critic says. So the step before it bootstraps from the true last observation, by the critic of the day, and
    nothing reaches across. Where an episode terminated the discount is zero, and no last look is needed.

    All of it is in tensors. Runs in: each worker, with trajectories of its own.
    """

    @staticmethod
    def specs(
        length: int, envs: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype[Any], action_shape: tuple[int, ...] = ()
    ) -> dict[str, Spec]:
        """With an `action_shape` actions are vectors of floats; without, whole numbers."""
        dtype, grid = torch_dtype(np.dtype(obs_dtype)), (length, envs)
        return {
            "obs": Spec((*grid, *obs_shape), dtype),
            "last_obs": Spec((envs, *obs_shape), dtype),
            "action": Spec((*grid, *action_shape), torch.float32 if action_shape else torch.int64),
            **{name: Spec(grid) for name in ("reward", "discount", "weight", "target", "advantage")},
            "count": Spec((envs,), torch.int64),
        }

    def __init__(self, tensors: Mapping[str, Tensor], *, gamma: float, reward_scale: float = 1.0) -> None:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._obs, self._last_obs, self._action = arrays["obs"], arrays["last_obs"], arrays["action"]
        self._reward, self._discount = arrays["reward"], arrays["discount"]
        #: 1 for a step, 0 for a last look, and for an entry that was never written.
        self._weight = arrays["weight"]
        self._target, self._advantage = arrays["target"], arrays["advantage"]
        self._count: Ints = arrays["count"]
        self._gamma, self._reward_scale = np.float32(gamma), np.float32(reward_scale)
        self._length, self._envs = self._weight.shape
        self._steps: Ints | None = None

    def add(self, obs: Array, actions: Array, step: Step) -> None:
        """One step of every environment."""
        self._end_what_was_interrupted(obs)
        rows = np.flatnonzero(step.real)
        slots = self._next(rows)
        self._obs[slots, rows], self._action[slots, rows] = obs[rows], actions[rows]
        self._reward[slots, rows] = step.reward[rows] * self._reward_scale
        self._discount[slots, rows] = step.discount[rows] * self._gamma
        self._weight[slots, rows] = 1
        self._count[rows] += 1
        cut = step.truncated & (step.discount > 0)
        if cut.any():
            self._look(np.flatnonzero(cut & step.real), step.next_obs)
            # A back-end that has lost an episode says so with a row that is none: what was acted on there was the end.
            self._look(np.flatnonzero(cut & ~step.real), obs)
        self._last_obs[:] = step.obs

    def recount(self, historian: Historian) -> None:
        """Ask what every step led to, as the critic sees it now."""
        filled = min(int(self._count.max()), self._length)
        value = np.zeros_like(self._weight)
        flat, states = value[:filled].reshape(-1), self._obs[:filled].reshape(-1, *self._obs.shape[2:])
        stride = max(1, min(STATES_AT_ONCE, NUMBERS_AT_ONCE // math.prod(self._obs.shape[2:])))
        for some in (slice(start, start + stride) for start in range(0, len(flat), stride)):
            flat[some] = historian.values(states[some])

        # From the oldest to the newest; in a ring that is not full yet, the empty entries come first, and mean nothing.
        order = (self._count + np.arange(self._length)[:, None]) % self._length
        reward, discount, weight, known = (
            np.take_along_axis(grid, order, axis=0) for grid in (self._reward, self._discount, self._weight, value)
        )
        look = weight == 0
        reward[look], discount[look] = known[look], 0
        said = historian.recount(reward, discount, known, historian.values(self._last_obs), weight)
        np.put_along_axis(self._target, order, said.target, axis=0)
        np.put_along_axis(self._advantage, order, said.advantage, axis=0)

    def draw(self, network: str, size: int, rng: np.random.Generator) -> Recollection:
        """`size` steps, each as likely as any other, with replacement."""
        if self._steps is None:
            self._steps = np.flatnonzero(self._weight)
        if not len(self._steps):
            raise PasselError("there are no trajectories yet, so nothing can be drawn. Add some first.")
        drawn = self._steps[(rng.random(size) * len(self._steps)).astype(np.int64)]

        def flat(grid: Array) -> Array:
            return grid.reshape(-1, *grid.shape[2:]).take(drawn, axis=0)

        return Recollection(network, *map(flat, (self._obs, self._action, self._target, self._advantage)))

    @property
    def rewards(self) -> Floats:
        rewards: Floats = self._reward
        return rewards

    def __len__(self) -> int:
        return int(np.count_nonzero(self._weight))

    def _next(self, rows: Ints) -> Ints:
        """Where the next entry of each of these rings goes."""
        self._steps = None
        slots: Ints = self._count[rows] % self._length
        return slots

    def _look(self, rows: Ints, obs: Array) -> None:
        slots = self._next(rows)
        self._obs[slots, rows], self._weight[slots, rows] = obs[rows], 0
        self._count[rows] += 1

    def _end_what_was_interrupted(self, obs: Array) -> None:
        """Where the present observation is not the one that the newest step led to, its episode ended unseen: the run
        was resumed with new episodes, or a worker died between a step and its record.
        """
        if np.array_equal(obs, self._last_obs):
            return
        other = (obs != self._last_obs).reshape(self._envs, -1).any(axis=1)
        self._look(np.flatnonzero(other & (self._count > 0)), self._last_obs)


class TrajectoryExperience:
    """Collects T steps of N environments, and then gives out batches from all that is kept, for one network after the
    other: first the critic, and when it has learnt, the policy.

        experience.push(obs, actions, step, steps_so_far)    # the actor, T times
        while experience.due():                              # the learner, critic_updates + policy_updates times
            batch = experience.batch(steps_so_far)

    Every worker has as many lessons of each kind in the same order, so learners that wait for each other always learn
    the same network. Runs in: each worker.
    """

    @staticmethod
    def specs() -> dict[str, Spec]:
        return {"counts": Spec((2,), torch.int64)}

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        trajectories: Trajectories,
        historian: Historian,
        rng: np.random.Generator,
        *,
        horizon: int,
        batch: int,
        critic_updates: int,
        policy_updates: int,
    ) -> None:
        #: Steps since the last lesson, and updates that were made of this one.
        self._counts = cells(tensors["counts"].numpy())
        self._trajectories, self._historian, self._rng = trajectories, historian, rng
        self._horizon, self._batch = horizon, batch
        self._critic_updates, self._updates = critic_updates, critic_updates + policy_updates

    def push(self, obs: Array, actions: Array, step: Step, steps_so_far: int) -> int:
        """Keep what came out of one step. Returns how many real transitions there were."""
        self._trajectories.add(obs, actions, step)
        self._counts[0] += 1
        return int(np.count_nonzero(step.real))

    @property
    def rewards(self) -> Floats:
        """Of all that is kept, [T, N]."""
        return self._trajectories.rewards

    def due(self) -> bool:
        return bool(self._counts[0] >= self._horizon)

    def unlearnt(self) -> bool:
        """Whether a lesson has updates left."""
        return self.due()

    def batch(self, steps_so_far: int) -> Recollection:
        made = self._counts[1]
        if made in (0, self._critic_updates):
            self._trajectories.recount(self._historian)
        batch = self._trajectories.draw("value" if made < self._critic_updates else "policy", self._batch, self._rng)
        self._counts[1] = made + 1
        if made + 1 == self._updates:
            self._counts[0] = self._counts[1] = 0
        return batch

    def feedback(self, batch: Recollection, td_abs: Floats | None) -> None:
        """Nothing to do: every step is as likely as any other."""

    def abandon(self) -> None:
        """Nothing to do: nobody asks for it."""

    def park(self) -> None:
        """Nothing to do: everything is in the arena."""
