"""What an environment returned, read as the numbers that its spaces promise.

A back-end recognizes the usual values by their type and reads them itself; all others are read here. What passes is
converted without loss; anything else is an `OutcomeError`: a cause and a cure, to which the back-end adds where it
happened.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from passel.types import Array, PasselError

NUMBERS = "biuf"  # kinds of numpy types that are numbers
LARGEST = float(np.finfo(np.float32).max)  # rewards are learnt from in single precision


class OutcomeError(Exception):
    """A value that an environment must not return."""

    def __init__(self, cause: str, cure: str) -> None:
        super().__init__(cause)
        self.cause, self.cure = cause, cure


class NotFiniteError(OutcomeError):
    """NaN or infinity among the observations of several copies; `row` is the first copy that returned it."""

    def __init__(self, row: int) -> None:
        super().__init__(
            "the environment's observations hold NaN or infinity", "Correct the environment, or clip what it returns."
        )
        self.row = row


def read_reset(returned: Any) -> Any:
    """The observation of a reset."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise OutcomeError(f"reset() returned {_brief(returned)}", "Return the tuple (observation, info).")
    return returned[0]


def not_five(returned: Any) -> OutcomeError:
    """A step that is not five values."""
    return OutcomeError(
        f"step() returned {_brief(returned)}",
        "Return five values: observation, reward, terminated, truncated, info.",
    )


def read_observation(given: Any, row: Array) -> None:
    """Write an observation to its row, if it has the row's shape and its numbers fit into the row's type."""
    try:
        array = np.asarray(given)
    except ValueError:
        raise _no_numbers(given) from None
    if array.dtype.kind not in NUMBERS:
        raise _no_numbers(given)
    if array.shape != row.shape:
        raise OutcomeError(
            f"the observation has shape {array.shape}, and its observation_space has {row.shape}",
            "Return observations of the shape that the space declares.",
        )
    if row.dtype.kind != "f":
        _check_whole(array, row.dtype)
    with np.errstate(over="ignore"):  # infinity then, which check_finite names
        row[...] = array


def read_reward(given: Any) -> float:
    """A finite number, also if it comes as an array of one."""
    if isinstance(given, (int, float, np.number, np.bool_)):
        reward = float(given)
    else:
        array = _array_of_one(given)
        if array is None:
            raise OutcomeError(f"the reward is {_brief(given)}", "Return one number.")
        reward = float(array.item())
    if not -LARGEST <= reward <= LARGEST:  # NaN is in no range
        raise OutcomeError(f"the environment's reward is {reward}", "Correct the environment, or clip what it returns.")
    return reward


def read_end(name: str, given: Any) -> bool:
    """Whether an episode is over: True or False, also as a number or an array of one."""
    if isinstance(given, (bool, np.bool_)):
        return bool(given)
    array = _array_of_one(given)
    if array is None or array.item() not in (0, 1):
        raise OutcomeError(f"{name} is {_brief(given)}", f"Return True or False as {name}.")
    return bool(array.item())


def check_finite(obs: Array) -> None:
    """Refuse NaN and infinity. A sum of squares is finite only if every number is: one call of BLAS."""
    if math.isfinite(np.vdot(obs, obs)) or np.isfinite(obs).all():
        return
    raise NotFiniteError(int(np.argwhere(~np.isfinite(obs))[0][0]))


def check_batch(obs: Array, reward: Array, where: str) -> None:
    """The same of one step of many copies, whose back-end has read their types and shapes.

    Raises:
        PasselError: naming `where` it happened.
    """
    try:
        check_finite_rewards(reward)
        if obs.dtype.kind == "f":
            check_finite(obs)
    except OutcomeError as error:
        raise PasselError(f"{error.cause} ({where}). {error.cure}") from None


def check_finite_rewards(reward: Array) -> None:
    """Refuse NaN, infinity and what single precision takes for it among the rewards of one step."""
    if np.vdot(reward, reward) <= LARGEST or (np.abs(reward) <= LARGEST).all():  # NaN is in no range
        return
    row = int(np.flatnonzero(~(np.abs(reward) <= LARGEST))[0])
    raise OutcomeError(
        f"the environment's reward is {float(reward[row])} in copy {row}",
        "Correct the environment, or clip what it returns.",
    )


def _check_whole(array: Array, dtype: np.dtype[Any]) -> None:
    """Whole numbers within the range of `dtype`, whatever type they come in."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    smallest, largest = array.min(), array.max()
    if not (smallest >= low and largest <= high):
        raise OutcomeError(
            f"the observation has numbers from {smallest} to {largest}, and its observation_space holds {dtype}",
            f"Return numbers from {low} to {high}, or declare another dtype.",
        )
    if array.dtype.kind == "f" and not (array == np.trunc(array)).all():
        raise OutcomeError(
            f"the observation has fractions, and its observation_space holds {dtype}",
            "Declare the space as float32, or return whole numbers.",
        )


def _array_of_one(given: Any) -> Array | None:
    try:
        array = np.asarray(given)
    except ValueError:
        return None
    return array if array.size == 1 and array.dtype.kind in NUMBERS else None


def _no_numbers(given: Any) -> OutcomeError:
    return OutcomeError(
        f"the observation is {_brief(given)}, not an array of numbers",
        "Return an array of the shape that the space declares.",
    )


def _brief(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    text = repr(value)
    return text if value is None or len(text) <= 40 else f"a {type(value).__name__}"
