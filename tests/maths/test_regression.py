"""TD(lambda) against the sum over all n-step returns; the weights of AWR against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passel.maths.policy_gradient import gae
from passel.maths.regression import advantage_weights, lambda_returns
from passel.testing import oracles
from passel.types import Array

seeds = st.integers(0, 10_000)


def trajectories(seed: int, steps: int, envs: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    reward, next_value = rng.standard_normal((2, steps, envs), np.float32)
    discount = np.where(rng.random((steps, envs)) < 0.2, 0, 0.9).astype(np.float32)
    return reward, discount, next_value


@given(seeds, st.integers(1, 20), st.integers(1, 3), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_lambda_returns(seed: int, steps: int, envs: int, lam: float) -> None:
    made = trajectories(seed, steps, envs)
    expected = oracles.lambda_returns(*(grid.tolist() for grid in made), lam)
    found = lambda_returns(*made, lam)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@given(seeds, st.sampled_from([1, 2, 63, 64, 65, 1000]))
def test_they_are_the_value_and_the_generalised_advantage_together(seed: int, steps: int) -> None:
    """Whatever the length: joined two by two, a chain is the same as step by step."""
    reward, discount, next_value = trajectories(seed, steps, 2)
    value = np.concatenate([np.zeros((1, 2), np.float32), next_value[:-1]])
    expected = gae(reward, discount, value, next_value[-1], 0.95) + value
    np.testing.assert_allclose(lambda_returns(reward, discount, next_value, 0.95), expected, rtol=1e-3, atol=1e-4)


def test_nothing_is_changed_in_place() -> None:
    made = trajectories(1, 9, 2)
    before = [grid.copy() for grid in made]
    lambda_returns(*made, 0.9)
    assert all((grid == was).all() for grid, was in zip(made, before, strict=True))


def test_shapes_that_would_broadcast_are_refused() -> None:
    reward, discount, next_value = trajectories(1, 9, 2)
    with pytest.raises(ValueError, match="shape"):
        lambda_returns(reward, discount, next_value[:, :1], 0.9)


def test_weights_grow_by_e_with_every_beta_and_end_at_the_clip() -> None:
    advantage = np.array([-1e9, -1, 0, 0.5, 1, 1.4, 1.6, 1e9], np.float32)
    found = advantage_weights(advantage, beta=0.5, clip=20.0)
    e = np.e
    np.testing.assert_allclose(found, [0, e**-2, 1, e, e**2, e**2.8, 20, 20], rtol=1e-5)
    assert found.dtype == np.float32
