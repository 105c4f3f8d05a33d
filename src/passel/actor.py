"""The actor: turns environments into experience."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from passel.algos.base import Algorithm
from passel.clock import Clock
from passel.envs.base import Envs
from passel.normalizer import Normalizer
from passel.types import Array, Episode, Step


class Sink(Protocol):
    """Where experience goes."""

    def push(self, obs: Array, actions: Array, step: Step, steps_so_far: int) -> int: ...


class Actor:
    """Steps N environments at once with an algorithm's acting rule, on normalized observations if it has a normalizer.

    Runs in: each worker.
    """

    def __init__(
        self,
        envs: Envs,
        obs: Array,
        algo: Algorithm,
        sink: Sink,
        rng: np.random.Generator,
        clock: Clock,
        report: Callable[[list[Episode]], None],
        normalizer: Normalizer | None = None,
    ) -> None:
        self._envs, self._obs, self._algo, self._sink = envs, obs, algo, sink
        self._rng, self._clock, self._report = rng, clock, report
        self._normalizer = normalizer

    def collect(self, steps_so_far: int) -> int:
        """One step in every environment. Returns how many real transitions came of it."""
        normalizer = self._normalizer
        obs = self._obs if normalizer is None else normalizer.observe(self._obs)
        actions = self._algo.act(obs, steps_so_far, self._rng)
        self._clock.mark("act")
        step = self._envs.step(actions)
        self._clock.mark("env")
        kept, outcome = (obs, step) if normalizer is None else normalizer.step(step)
        real = self._sink.push(kept, actions, outcome, steps_so_far)
        self._obs = step.obs
        if step.episodes:
            self._report(step.episodes)
        self._clock.mark("store")
        return real
