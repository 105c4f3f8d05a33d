"""What an agent must know of an environment's spaces, and the sentence for those that passel cannot act in."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from passel.types import Array, Bounds, EnvSpec, PasselError


class Spaces(NamedTuple):
    """An environment's two spaces, as numbers."""

    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype[Any]
    n_actions: int
    first_action: int
    action_bounds: Bounds | None = None
    obs_scale: float = 1.0


def read_spaces(name: str, observation: gym.Space[Any], action: gym.Space[Any]) -> Spaces:
    """The numbers, or a PasselError that names the space that passel cannot use."""
    if not isinstance(observation, Box):
        raise PasselError(
            f"passel reads observations that are one Box of numbers, and {name} has {_brief(observation)}. "
            + wrapped(name, "gymnasium.wrappers.FlattenObservation({})")
        )
    shape, dtype = observation.shape, _boundary_dtype(observation.dtype)
    if 0 in (len(shape), *shape):
        raise PasselError(
            f"passel reads observations with at least one axis and one number, and {name} has {_brief(observation)}. "
            "Give a factory that wraps it, for a single number: "
            f'lambda: gymnasium.wrappers.ReshapeObservation(gymnasium.make("{name}"), (1,)).'
        )
    scale = _scale(observation)
    if isinstance(action, Discrete):
        return Spaces(shape, dtype, int(action.n), int(action.start), obs_scale=scale)
    bounds = read_bounds(action)
    if bounds is None:
        raise PasselError(
            f"passel acts in Discrete action spaces and in Boxes that are vectors with finite bounds, and {name} has "
            f"{_brief(action)}. Choose another environment, or give a factory that wraps this one so that it has one "
            "of the two."
        )
    return Spaces(shape, dtype, 0, 0, bounds, scale)


def wrapped(name: str, expression: str) -> str:
    """The cure for an environment that needs a wrapper: `expression`, around whatever makes this one."""
    made = f'gymnasium.make("{name}")' if name.rpartition(":")[2] in gym.registry else f"{name}()"
    return (
        f"Use a function that wraps it, def make_env(): return {expression.format(made)}, as env, or on the command "
        "line as --env my_module:make_env."
    )


def read_bounds(space: gym.Space[Any]) -> Bounds | None:
    """The bounds of a vector, if every one of them is finite and leaves some room."""
    if not isinstance(space, Box) or len(space.shape) != 1 or space.dtype.kind != "f":
        return None
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        return None
    return tuple(map(float, low)), tuple(map(float, high))


def _boundary_dtype(declared: np.dtype[Any]) -> np.dtype[Any]:
    """Networks compute in float32: to carry and store float64 would cost twice the memory and buy nothing."""
    return np.dtype(np.float32) if np.issubdtype(declared, np.floating) else np.dtype(declared)


def _scale(space: Box) -> float:
    """What bytes are divided by before a network sees them: the largest that they can be."""
    return max(1.0, float(space.high.max())) if space.dtype == np.uint8 else 1.0


def discrete_sibling(name: str) -> str | None:
    """The environment of the same name with Discrete actions, if Gymnasium has one."""
    discrete = name.rpartition(":")[2].replace("Continuous", "")
    return discrete if discrete != name and discrete in gym.registry else None


def random_actions(spec: EnvSpec, n: int, rng: np.random.Generator) -> Array:
    """`n` actions, each as likely as any other."""
    if spec.action_bounds is None:
        return rng.integers(0, spec.n_actions, n)
    low, high = spec.action_bounds
    return rng.uniform(low, high, (n, len(low))).astype(np.float32)


def _brief(space: gym.Space[Any]) -> str:
    """The space on one line: a Box with many bounds would otherwise print them all."""
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
