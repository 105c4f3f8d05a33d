"""Dreaming: steps that were never taken, from real states, in a model of the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    def act_greedily(self, obs: Array) -> Array: ...


@dataclass(frozen=True)
class Layer:
    """What was kept of one step of many dreams, and which of its rows the next layer's go on from."""

    rows: Transitions
    continued: Ints


class Dreams:
    """Rollouts of at most `depth` steps from real states into a memory of their own. The first action is the present
    policy's, exploration included, or what `starts` says; all others are greedy.

        r_t + gamma_t r_{t+1} + ... ,     gamma_t = gamma times the chance that it goes on at t

    So a step is kept with the sum of the rewards up to the end of its dream: what greedy play makes of it, with nothing
    to correct, however many steps that are. A rollout ends where it more likely than not would terminate, and stops
    short of a step on which the models disagree too much. Nothing is ever truncated in a dream. `limiter` counts what
    was dreamt and what was learnt from it; `version` is of the model that is dreamt in.

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
        if action is None:
            action = self._policy.act(obs, steps_so_far, self._rng)
        seen = self._world.imagine(obs, action)
        doubt = float(np.median(seen.doubt))
        layers = [self._layer(obs, action, seen, (seen.doubt <= self._limit) | _least_doubted(seen.doubt))]
        while len(layers) < self._depth and len(layers[-1].continued):
            obs = layers[-1].rows.next_obs[layers[-1].continued]
            action = self._policy.act_greedily(obs)
            seen = self._world.imagine(obs, action)
            good = seen.doubt <= self._limit
            layers[-1] = replace(layers[-1], continued=layers[-1].continued[good])
            layers.append(self._layer(obs, action, seen, good))
        for rows in summed(layers):
            self._memory.remember(rows, version)
            self._limiter.inserted(len(rows))
        return doubt

    def _layer(self, obs: Floats, action: Array, seen: Vision, good: Bools) -> Layer:
        discount = np.float32(self._gamma) * (1 - seen.over[good])
        rows = Transitions(obs[good], action[good], seen.reward[good], discount, seen.next_obs[good])
        return Layer(rows, np.flatnonzero(seen.over[good] < 0.5))


def summed(layers: Sequence[Layer]) -> list[Transitions]:
    """The steps of each layer, the last one first, with the rewards of all that followed in the same dream."""
    after = layers[-1].rows
    done = [after]
    for layer in reversed(layers[:-1]):
        here, on = layer.rows, layer.continued
        reward, discount, next_obs = here.reward.copy(), here.discount.copy(), here.next_obs.copy()
        reward[on] += here.discount[on] * after.reward
        discount[on] *= after.discount
        next_obs[on] = after.next_obs
        after = Transitions(here.obs, here.action, reward, discount, next_obs)
        done.append(after)
    return done


def _least_doubted(doubt: Floats) -> Bools:
    count = max(1, int(LEAST_KEPT * len(doubt)))
    chosen = np.zeros(len(doubt), np.bool_)
    chosen[np.argsort(doubt, kind="stable")[:count]] = True
    return chosen
