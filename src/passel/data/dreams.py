"""Dreaming: steps that were never taken, from real states, in a model of the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from passel.data.imagined import Imagined
from passel.data.limiter import Limiter
from passel.data.starts import Starts
from passel.types import Array, Bools, Floats, Ints, Transitions, Vision

#: Of the first steps of a dream at least this part is kept, whatever the models think of them: where they disagree
#: everywhere, the steps on which they disagree least are better than none.
LEAST_KEPT = 0.25


class World(Protocol):
    """Something to dream in: a learnt model, or a copy of the environment."""

    def imagine(self, obs: Floats, action: Ints) -> Vision: ...


class Dreamt(Protocol):
    """Whoever decides what to do in a dream."""

    def act(self, obs: Array, step: int, rng: np.random.Generator) -> Array: ...


class Dreams:
    """Rollouts of at most `depth` steps from real states, by the present policy, into a memory of their own.

    Where it is not clear whether an episode would end, the value of going on counts by the chance of it. A rollout ends
    where it more likely than not would terminate, and stops short of a step on which the models disagree too much.
    Nothing is ever truncated in a dream. `limiter` counts what was dreamt and what was learnt from it; `version` is of
    the model that is dreamt in.

    Runs in: each dreamer.
    """

    def __init__(
        self,
        starts: Starts,
        world: World,
        policy: Dreamt,
        memory: Imagined,
        limiter: Limiter,
        rng: np.random.Generator,
        *,
        gamma: float,
        rollouts: int,
        depth: int,
        limit: float,
        version: Callable[[], int],
    ) -> None:
        self._starts, self._world, self._policy, self._memory, self._limiter = starts, world, policy, memory, limiter
        self._rng, self._gamma, self._rollouts, self._depth, self._limit = rng, gamma, rollouts, depth, limit
        self._version = version

    def dream(self, steps_so_far: int) -> float:
        """Dream once. Returns the median doubt of the first steps."""
        version = self._version()
        obs, action = self._starts.choose(self._rollouts, self._rng)
        doubt = 0.0
        for depth in range(self._depth):
            if action is None:
                action = self._policy.act(obs, steps_so_far, self._rng)
            seen = self._world.imagine(obs, action)
            good = seen.doubt <= self._limit
            if not depth:
                doubt = float(np.median(seen.doubt))
                good |= _least_doubted(seen.doubt)
            discount = np.float32(self._gamma) * (1 - seen.over)
            rows = Transitions(obs[good], action[good], seen.reward[good], discount[good], seen.next_obs[good])
            self._memory.remember(rows, version)
            self._limiter.inserted(len(rows))
            obs, action = seen.next_obs[good & (seen.over < 0.5)], None
            if not len(obs):
                break
        return doubt


def _least_doubted(doubt: Floats) -> Bools:
    count = max(1, int(LEAST_KEPT * len(doubt)))
    chosen = np.zeros(len(doubt), np.bool_)
    chosen[np.argsort(doubt, kind="stable")[:count]] = True
    return chosen
