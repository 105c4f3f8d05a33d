"""Transitions that carry a number in every field, so that a test can tell each one, and see if it was torn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from passel.types import Transitions

Numbered = Callable[..., Transitions]


@pytest.fixture(scope="session")
def numbered() -> Numbered:
    def make(start: int, count: int, obs_shape: tuple[int, ...] = (3,), dtype: str = "float32") -> Transitions:
        number = np.arange(start, start + count)
        obs = np.broadcast_to(number.reshape(-1, *[1] * len(obs_shape)), (count, *obs_shape)).astype(dtype)
        reward = number.astype(np.float32)
        return Transitions(obs, number, reward, np.full(count, 0.5, np.float32), obs + np.ones(1, dtype))

    return make
