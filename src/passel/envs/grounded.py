"""A copy of the environment that can be put into any state that was seen: a perfect model, for comparison.

Only where an observation tells the whole state: a copy is set to it, takes one step, and says what came of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from passel.envs.build import Factory, build
from passel.types import Array, Floats, Ints, Vision


def _as_seen(obs: Floats) -> Array:
    return obs.astype(np.float64)


def _angles(obs: Floats) -> Array:
    """Acrobot shows cosines and sines of its two angles, and their speeds."""
    one, two = math.atan2(obs[1], obs[0]), math.atan2(obs[3], obs[2])
    return np.array([one, two, obs[4], obs[5]], np.float64)


#: From an observation to the state, by the name of the environment's class in Gymnasium's classic control.
STATES: dict[str, Callable[[Floats], Array]] = {
    "CartPoleEnv": _as_seen,
    "MountainCarEnv": _as_seen,
    "AcrobotEnv": _angles,
}


class GroundedWorld:
    """Takes single steps from given states in a copy of the environment."""

    def __init__(self, env: str | Factory, env_args: Mapping[str, Any] | None = None) -> None:
        self._inner: Any = build(env, env_args).unwrapped
        self._state_of = STATES[type(self._inner).__name__]
        self._inner.reset(seed=0)

    def imagine(self, obs: Floats, action: Ints) -> Vision:
        """What does come of these actions. Nothing is truncated: the time limit is no part of the dynamics."""
        next_obs, reward = np.empty_like(obs), np.empty(len(obs), np.float32)
        over = np.empty(len(obs), np.float32)
        for row, chosen in enumerate(action.tolist()):
            self._inner.state = self._state_of(obs[row])
            if hasattr(self._inner, "steps_beyond_terminated"):
                self._inner.steps_beyond_terminated = None  # CartPole counts what comes after the end
            next_obs[row], reward[row], over[row], _, _ = self._inner.step(chosen)
        return Vision(next_obs, reward, over, doubt=np.zeros(len(obs), np.float32))


def why_not(env: str | Factory, env_args: Mapping[str, Any] | None = None) -> str | None:
    """Why this environment cannot be put into a state, in one sentence with the cure; None if it can."""
    made = build(env, env_args)
    inner = type(made.unwrapped)
    made.close()
    if inner.__name__ in STATES and inner.__module__.startswith("gymnasium.envs.classic_control"):
        return None
    return (
        f"--grounded puts a copy of the environment into states that were seen, and {inner.__name__} cannot be put "
        "into one by what it shows. Use CartPole, Acrobot or MountainCar, or leave it out."
    )
