"""Running normalization of observations and rewards, with one statistic for all workers.

Every actor counts the moments of what it sees: observations, and the discounted returns of its environments. What it
normalizes with are the moments of all actors, merged: exactly those of their data put together. The statistic of an
actor changes between two rollouts and is frozen within one, learning from it included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec, cells, fence
from passel.maths.moments import Doubles, Moments, merge_moments, update_moments
from passel.types import Array, Batch, EnvSpec, Floats, Step

#: Normalized numbers are clipped to [-CLIP, CLIP].
CLIP = 10.0
#: Snapshots of an actor's moments that are kept: see Statistics.
SNAPSHOTS = 3
#: Where the statistics are in the arena; and what an actor keeps for itself, below its own prefix.
PREFIX = "normalizer"


def _clipped(numbers: Doubles) -> Floats:
    """Within [-CLIP, CLIP]; changes `numbers`. Faster than np.clip on the few numbers of a step."""
    np.minimum(numbers, CLIP, out=numbers)
    np.maximum(numbers, -CLIP, out=numbers)
    return numbers.astype(np.float32)


@dataclass(frozen=True)
class Scaling:
    """Observations brought to mean 0 and standard deviation 1: clip((obs - mean) / std, -CLIP, CLIP)."""

    mean: Doubles
    std: Doubles

    def __call__(self, obs: Array) -> Floats:
        apart = obs - self.mean
        apart /= self.std
        return _clipped(apart)


@dataclass(frozen=True)
class Normalized:
    """What of an environment is normalized. A row of the statistic is an observation, flat, and a discounted return, or
    one of the two.
    """

    obs: bool
    reward: bool
    obs_shape: tuple[int, ...]

    @classmethod
    def by(cls, choice: str, spec: EnvSpec) -> Normalized | None:
        """What --normalize asks for; None: nothing."""
        found = cls("obs" in choice.split(","), "reward" in choice.split(","), spec.obs_shape)
        return found if found.width else None

    @property
    def obs_size(self) -> int:
        return math.prod(self.obs_shape) if self.obs else 0

    @property
    def width(self) -> int:
        return self.obs_size + self.reward

    def scaling(self, moments: Moments) -> Scaling | None:
        """How observations are normalized by these moments; None where they are not."""
        if not self.obs:
            return None
        size = self.obs_size
        return Scaling(moments.mean[:size].reshape(self.obs_shape), moments.std[:size].reshape(self.obs_shape))


class Statistics:
    """The moments of every actor, in the arena: each one's are written by that actor alone and merged by all.

    The moments after an actor's rollout number n are its snapshot n, kept at n % SNAPSHOTS; `number` is the newest that
    is complete. The data lands first, then the number. Snapshot n is overwritten by n + 3, which is begun when the
    number is n + 2: a copy is whole if, after it was made, the number is at most n + 1.
    """

    @staticmethod
    def specs(actors: int, width: int) -> dict[str, Spec]:
        return {
            "number": Spec((actors,), torch.int64),
            "moments": Spec((actors, SNAPSHOTS, 1 + 2 * width), torch.float64),
        }

    @staticmethod
    def tensors_of(moments: Moments) -> dict[str, Tensor]:
        """The statistics of one actor that has seen all of this."""
        specs = Statistics.specs(1, len(moments.mean))
        tensors = {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}
        Statistics(tensors).begin_with(moments)
        return tensors

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._number, self._moments = tensors["number"].numpy(), tensors["moments"].numpy()
        self._width = self._moments.shape[2] // 2

    def number(self, actor: int) -> int:
        """The actor's newest snapshot."""
        return int(self._number[actor])

    def publish(self, actor: int, moments: Moments) -> None:
        """The actor's next snapshot."""
        number = self.number(actor) + 1
        self._write(actor, number, moments)
        fence()
        self._number[actor] = number

    def begin_with(self, moments: Moments) -> None:
        """What was counted by another run, before any actor has counted: the first actor's, for there is one sum."""
        self._write(0, 0, moments)

    def _write(self, actor: int, number: int, moments: Moments) -> None:
        row = self._moments[actor, number % SNAPSHOTS]
        row[0] = moments.count
        row[1 : 1 + self._width], row[1 + self._width :] = moments.mean, moments.m2

    def of(self, actor: int, number: int | None = None) -> Moments:
        """The actor's snapshot `number`, if that is its newest or the one before; else its newest."""
        while True:
            newest = self.number(actor)
            taken = number if number is not None and newest - 1 <= number <= newest else newest
            fence()
            row = self._moments[actor, taken % SNAPSHOTS].copy()
            fence()
            if self.number(actor) <= taken + 1:
                return Moments(float(row[0]), row[1 : 1 + self._width], row[1 + self._width :])

    def merged(self, number: int | None = None) -> Moments:
        """The moments of what all actors have seen; with `number`, as of that rollout where they are still there.

        Where learners make every update together, all of them have ended n rollouts when one begins its next, and none
        has ended n + 2: they all merge the same snapshots, and normalize with the same statistic.
        """
        return merge_moments([self.of(actor, number) for actor in range(len(self._number))])


def why_not(found: Mapping[str, Tensor], normalized: Normalized) -> str | None:
    """Why these tensors of a checkpoint are not the statistics of such an environment; None if they are."""
    number, moments = found.get("number"), found.get("moments")
    if number is None or moments is None:
        return "it has no statistics to normalize observations or rewards with"
    actors = len(number) if number.dim() == 1 else 0
    for name, tensor, spec in (
        (name, found[name], spec) for name, spec in Statistics.specs(actors, normalized.width).items()
    ):
        if not actors or tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
            return f"{PREFIX}/{name} is {tensor.dtype} {tuple(tensor.shape)}"
    count, m2 = moments[..., 0], moments[..., 1 + normalized.width :]
    if not torch.isfinite(moments).all() or (count < 0).any() or (m2 < 0).any() or (number < 0).any():
        return f"{PREFIX}/moments are no moments of anything"
    return None


class Normalizer:
    """Normalizes what one actor sees, and counts it. The loop that calls it:

        obs = normalizer.observe(raw)                   # what to act on
        actions = algo.act(obs, ...)
        step = envs.step(actions)
        kept, step = normalizer.step(step)              # what to keep
        sink.push(kept, actions, step)

    A reward is divided by the standard deviation of the discounted return G = gamma G + r of each environment, which is
    0 at the start of an episode; it is not centered. Rows that are no transition are not counted.
    After every `horizon` steps, a rollout, what was seen is added to the actor's moments; before the next step the
    merged moments of all actors are frozen for the next rollout. Before there are any, numbers are only clipped.

    What is kept is normalized, for it is learnt from at once. With `later`, it is kept as it is, in a memory, and what
    is drawn from there is normalized by the statistic of that moment: `batch`. A rollout is any number of steps then.

    Runs in: each actor.
    """

    @staticmethod
    def specs(normalized: Normalized, horizon: int, envs: int) -> dict[str, Spec]:
        """What an actor must find again: the rollout so far, the returns so far, and the statistic in use."""
        return {
            "filled": Spec((1,), torch.int64),
            "seen": Spec((horizon, envs, normalized.width), torch.float64),
            "real": Spec((horizon, envs), torch.bool),
            "returns": Spec((envs if normalized.reward else 0,), torch.float64),
            "frozen": Spec((2, normalized.width), torch.float64),
        }

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        statistics: Statistics,
        actor: int,
        normalized: Normalized,
        *,
        gamma: float,
        later: bool = False,
    ) -> None:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._filled = cells(arrays["filled"])
        self._seen, self._real, self._returns = arrays["seen"], arrays["real"], arrays["returns"]
        self._frozen = arrays["frozen"]
        self._horizon, self._envs = self._real.shape
        self._statistics, self._actor, self._normalized, self._gamma = statistics, actor, normalized, gamma
        self._size, self._later = normalized.obs_size, later
        #: What is acted on, as it came and normalized; the same of what will be acted on next, where that is known.
        self._raw: Array = np.empty(0)
        self._shown: Array = self._raw
        self._next: Array = self._raw
        self._next_raw: Array | None = None
        self._use_frozen()

    @staticmethod
    def interrupt(tensors: Mapping[str, Tensor]) -> None:
        """Episodes begin anew: the rollout is left, and nothing is summed across the gap."""
        tensors["filled"].zero_()
        tensors["returns"].zero_()

    def observe(self, obs: Array) -> Array:
        """The observations [N, ...] to act on, normalized. At the start of a rollout the statistic is renewed."""
        if self._filled[0] == 0:
            self._freeze()
        self._raw = self._shown = obs
        if self._scaling is not None:
            self._shown = self._next if obs is self._next_raw else self._scaling(obs)
        return self._shown

    def step(self, step: Step) -> tuple[Array, Step]:
        """What to keep of acting on the last observations: these, and what came of it. It is counted as it is."""
        t = self._filled[0]
        seen, raw = self._seen[t], self._raw
        self._real[t] = step.real
        if self._size:
            seen[:, : self._size] = raw.reshape(self._envs, self._size)
        if self._normalized.reward:
            returns = self._returns
            returns *= self._gamma
            returns += step.reward
            seen[:, self._size] = returns
            returns[step.ended] = 0
        kept = (raw, step) if self._later else (self._shown, self._normal(step))
        self._filled[0] = t + 1
        if t + 1 == self._horizon:
            self._count()
        return kept

    def batch(self, batch: Batch) -> Batch:
        """What was drawn from a memory, normalized."""
        scaling, reward = self._scaling, self._normal_reward(batch.reward)
        if scaling is None:
            return replace(batch, reward=reward)
        return replace(batch, obs=scaling(batch.obs), next_obs=scaling(batch.next_obs), reward=reward)

    def _normal(self, step: Step) -> Step:
        obs, next_obs = step.obs, step.next_obs
        if self._scaling is not None:
            next_obs = self._scaling(step.next_obs)
            obs = next_obs if step.obs is step.next_obs else self._scaling(step.obs)
            self._next_raw, self._next = step.obs, obs
        reward = self._normal_reward(step.reward)
        return Step(obs, next_obs, reward, step.discount, step.truncated, step.real, step.episodes)

    def _normal_reward(self, reward: Floats) -> Floats:
        if not self._normalized.reward:
            return reward
        return _clipped(reward / self._return_std)

    def _count(self) -> None:
        """A rollout is whole: add what was seen to the moments of this actor."""
        before = self._statistics.of(self._actor)
        self._statistics.publish(self._actor, update_moments(before, self._seen[self._real]))
        self._filled[0] = 0

    def _freeze(self) -> None:
        moments = self._statistics.merged(self._statistics.number(self._actor))
        self._frozen[0], self._frozen[1] = moments.mean, moments.std
        self._next_raw = None
        self._use_frozen()

    def _use_frozen(self) -> None:
        """Take the statistic that is frozen."""
        mean, std = self._frozen.copy()
        self._scaling: Scaling | None = None
        if self._size:
            shape = self._normalized.obs_shape
            self._scaling = Scaling(mean[: self._size].reshape(shape), std[: self._size].reshape(shape))
        self._return_std = std[-1]
