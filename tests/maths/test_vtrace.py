"""V-trace against the double sum of the paper, and against what it must be where nothing has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passel.maths.policy_gradient import gae
from passel.maths.vtrace import vtrace
from passel.testing import oracles
from passel.types import Array

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
seeds = st.integers(0, 10_000)


def rollout(seed: int, steps: int, envs: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    reward, value = rng.standard_normal((2, steps, envs), np.float32)
    discount = np.where(rng.random((steps, envs)) < 0.3, 0, 0.9).astype(np.float32)
    return {"reward": reward, "discount": discount, "value": value, "last_value": rng.standard_normal(envs, np.float32)}


@given(
    seeds,
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from([(1.0, 1.0), (2.0, 1.0), (0.5, 0.5), (1e9, 1e9), (3.0, 0.2)]),
)
def test_it_is_the_double_sum_of_the_paper(seed: int, steps: int, envs: int, clips: tuple[float, float]) -> None:
    data, rng = rollout(seed, steps, envs), np.random.default_rng(seed + 1)
    pi, mu = rng.uniform(0.05, 1, (2, steps, envs))
    said = vtrace(np.log(pi / mu).astype(np.float32), **data, rho_clip=clips[0], c_clip=clips[1])
    target, factor = oracles.vtrace(
        pi.tolist(),
        mu.tolist(),
        *(data[name].tolist() for name in ("reward", "discount", "value", "last_value")),
        *clips,
    )
    np.testing.assert_allclose(said.target, target, **CLOSE)
    np.testing.assert_allclose(said.advantage, factor, **CLOSE)
    np.testing.assert_allclose(said.rho, np.minimum(pi / mu, clips[0]), **CLOSE)


@given(seeds, st.integers(1, 7), st.sampled_from([1.0, 1.5]))
def test_on_policy_it_is_the_n_step_return_and_its_advantage(seed: int, steps: int, clip: float) -> None:
    data = rollout(seed, steps, 2)
    said = vtrace(np.zeros((steps, 2), np.float32), **data, rho_clip=clip, c_clip=clip)
    returns = oracles.n_step_return(*(data[name].tolist() for name in ("reward", "discount", "last_value")))
    np.testing.assert_allclose(said.target, returns, **CLOSE)
    np.testing.assert_allclose(said.advantage, gae(*data.values(), lam=1.0), **CLOSE)


@given(seeds, st.floats(0, 1))
def test_on_policy_lambda_shortens_the_targets_as_in_gae(seed: int, lam: float) -> None:
    data = rollout(seed, 6, 2)
    said = vtrace(np.zeros((6, 2), np.float32), **data, lam=lam)
    np.testing.assert_allclose(said.target, data["value"] + gae(*data.values(), lam=lam), **CLOSE)


def test_nothing_crosses_the_end_of_an_episode() -> None:
    data, log_ratio = rollout(3, 6, 1), np.random.default_rng(0).standard_normal((6, 1)).astype(np.float32)
    data["discount"][:] = 0.9
    data["discount"][2] = 0
    before = vtrace(log_ratio, **data)
    later = {name: array.copy() for name, array in data.items()}
    later["reward"][3:] += 100
    later["last_value"] += 100
    after = vtrace(log_ratio, **later)
    np.testing.assert_array_equal(after.target[:3], before.target[:3])
    np.testing.assert_array_equal(after.advantage[:3], before.advantage[:3])
    assert (np.abs(after.target[3:] - before.target[3:]) > 1).all()


def test_an_action_that_the_policy_would_never_take_teaches_nothing() -> None:
    """Neither does what came after it teach those before it anything: the trace is cut there."""
    data = rollout(4, 5, 1)
    data["discount"][:] = 0.9
    log_ratio = np.zeros((5, 1), np.float32)
    log_ratio[2] = -np.inf
    said = vtrace(log_ratio, **data)
    assert said.advantage[2] == 0
    assert said.target[2] == data["value"][2]
    assert said.target[1] == pytest.approx(data["reward"][1] + 0.9 * data["value"][2], rel=1e-5)


def test_shapes_are_checked() -> None:
    data = rollout(0, 4, 2)
    with pytest.raises(ValueError, match="shape"):
        vtrace(np.zeros((4, 3), np.float32), **data)
