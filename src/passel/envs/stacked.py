"""The last few frames as one observation, put together on our side of a boundary that sends each frame once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from passel.envs.base import Envs
from passel.types import Array, EnvSpec, Ints, Step


def stacked_spec(spec: EnvSpec, frames: int) -> EnvSpec:
    """What is seen of [C, H, W]: [frames * C, H, W], the newest last."""
    return replace(spec, obs_shape=(frames * spec.obs_shape[0], *spec.obs_shape[1:]), frames=frames)


class Stacked(Envs):
    """Pictures [C, H, W] seen with those before them. An episode's first stack is its first picture again and again."""

    def __init__(self, envs: Envs, frames: int) -> None:
        self._envs, self.n = envs, envs.n
        self.spec = stacked_spec(envs.spec, frames)
        self._channels = envs.spec.obs_shape[0]
        self._last: Array = np.empty(0)

    def reset(self) -> Array:
        return self._begin(self._envs.reset())

    def restore(self) -> Array:
        return self._begin(self._envs.restore())

    def step(self, actions: Ints) -> Step:
        step = self._envs.step(actions)
        next_obs = np.concatenate([self._last[:, self._channels :], step.next_obs], axis=1)
        begun = np.flatnonzero(step.ended | ~step.real)
        obs = next_obs
        if len(begun):
            obs = next_obs.copy()
            obs[begun] = self._repeated(step.obs[begun])
        self._last = obs
        return replace(step, obs=obs, next_obs=next_obs)

    def close(self) -> None:
        self._envs.close()

    def _begin(self, first: Array) -> Array:
        self._last = self._repeated(first)
        return self._last

    def _repeated(self, first: Array) -> Array:
        return np.tile(first, (1, self.spec.frames, 1, 1))
