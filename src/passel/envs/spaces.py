"""What an agent must know of an environment's spaces, and the sentence for those that passel cannot act in."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from passel.types import Bounds, PasselError


class Spaces(NamedTuple):
    """An environment's two spaces, as numbers."""

    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype[Any]
    n_actions: int
    first_action: int


def read_spaces(name: str, observation: gym.Space[Any], action: gym.Space[Any], cure: str = "") -> Spaces:
    """The numbers, or a PasselError that ends with `cure` if the actions are of another kind."""
    if not isinstance(action, Discrete):
        raise PasselError(
            f"passel's algorithms act in Discrete action spaces, and {name} has {_brief(action)}. "
            + (cure or _discrete_cure(name))
        )
    if not isinstance(observation, Box):
        raise PasselError(
            f"passel reads observations that are one Box of numbers, and {name} has {_brief(observation)}. Give a "
            f'factory instead of the id: lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make("{name}")).'
        )
    return Spaces(observation.shape, _boundary_dtype(observation.dtype), int(action.n), int(action.start))


def read_bounds(observation: gym.Space[Any]) -> Bounds | None:
    """The bounds of a vector, if every one of them is finite and leaves some room."""
    if not isinstance(observation, Box) or len(observation.shape) != 1 or observation.dtype.kind != "f":
        return None
    low, high = observation.low.astype(np.float64), observation.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        return None
    return tuple(map(float, low)), tuple(map(float, high))


def _boundary_dtype(declared: np.dtype[Any]) -> np.dtype[Any]:
    """Networks compute in float32: to carry and store float64 would cost twice the memory and buy nothing."""
    return np.dtype(np.float32) if np.issubdtype(declared, np.floating) else np.dtype(declared)


def _discrete_cure(name: str) -> str:
    discrete = name.rpartition(":")[2].replace("Continuous", "")
    if discrete != name and discrete in gym.registry:
        return f"Use {discrete}."
    return "Choose an environment with Discrete actions, or give a factory that wraps this one so that it has them."


def _brief(space: gym.Space[Any]) -> str:
    """The space on one line: a Box with many bounds would otherwise print them all."""
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
