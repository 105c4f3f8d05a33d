"""Policies over a choice and over vectors: likelihood, entropy, slopes and draws, against torch's own distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as dist

from passel.maths.policies import Categorical, Gaussian
from passel.maths.policy_gradient import clipped_surrogate_and_slope, policy_gradient_and_slope
from passel.types import Array

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
MIDDLE, REACH = np.array([0.5, -2.0, 0.0], np.float32), np.array([2.0, 0.5, 10.0], np.float32)
seeds = st.integers(0, 10_000)


def outputs_and_actions(seed: int, size: int, numbers: int) -> tuple[Array, Array]:
    """Log-spreads before means, and actions of which some lie far out."""
    rng = np.random.default_rng(seed)
    log_std = rng.uniform(-2, 1, (size, numbers)).astype(np.float32)
    mean = rng.standard_normal((size, numbers), np.float32)
    action = MIDDLE[:numbers] + REACH[:numbers] * (mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32))
    return np.concatenate([log_std, mean], axis=1), action


def head(outputs: Array) -> Gaussian:
    numbers = outputs.shape[1] // 2
    return Gaussian(outputs, MIDDLE[:numbers], REACH[:numbers])


def torch_gaussian(outputs: Tensor) -> dist.Distribution:
    numbers = outputs.shape[1] // 2
    middle, reach = torch.from_numpy(MIDDLE[:numbers]), torch.from_numpy(REACH[:numbers])
    log_std, mean = outputs[:, :numbers], outputs[:, numbers:]
    return dist.Independent(dist.Normal(middle + reach * mean, reach * log_std.exp()), 1)


def torch_categorical(outputs: Tensor) -> dist.Distribution:
    return dist.Categorical(logits=outputs)


@given(seeds, st.integers(1, 6), st.integers(1, 3))
def test_a_gaussian_is_as_likely_and_as_uncertain_as_torch_s(seed: int, size: int, numbers: int) -> None:
    outputs, action = outputs_and_actions(seed, size, numbers)
    expected, policy = torch_gaussian(torch.from_numpy(outputs)), head(outputs)
    np.testing.assert_allclose(policy.logp(action), expected.log_prob(torch.from_numpy(action)).numpy(), **CLOSE)
    np.testing.assert_allclose(policy.entropy(), expected.entropy().numpy(), **CLOSE)
    np.testing.assert_allclose(policy.best(), expected.mean.numpy(), **CLOSE)


@given(seeds, st.integers(1, 6), st.integers(1, 4))
def test_a_choice_is_as_likely_and_as_uncertain_as_torch_s(seed: int, size: int, actions: int) -> None:
    rng = np.random.default_rng(seed)
    logits, action = rng.standard_normal((size, actions), np.float32), rng.integers(0, actions, size)
    expected, policy = torch_categorical(torch.from_numpy(logits)), Categorical(logits)
    np.testing.assert_allclose(policy.logp(action), expected.log_prob(torch.from_numpy(action)).numpy(), **CLOSE)
    np.testing.assert_allclose(policy.entropy(), expected.entropy().numpy(), **CLOSE)
    assert (policy.best() == logits.argmax(axis=1)).all()


def weighted(seed: int, size: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed + 1)
    weight = (rng.random(size) < 0.8).astype(np.float32)
    weight[0] = 1
    return {"advantage": rng.standard_normal(size, np.float32) * 2, "weight": weight}


@given(seeds, st.integers(1, 9), st.integers(1, 3), st.sampled_from([0.0, 0.1]))
def test_the_policy_gradient_of_a_gaussian(seed: int, size: int, numbers: int, bonus: float) -> None:
    outputs, action = outputs_and_actions(seed, size, numbers)
    rows = weighted(seed, size)
    leaf = torch.from_numpy(outputs.copy()).requires_grad_(True)
    policy = torch_gaussian(leaf)
    weight, advantage = torch.from_numpy(rows["weight"]), torch.from_numpy(rows["advantage"])
    gain = advantage * policy.log_prob(torch.from_numpy(action)) + bonus * policy.entropy()
    loss = -(weight * gain).sum() / weight.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    found = policy_gradient_and_slope(outputs, action, **rows, entropy_bonus=bonus, head=head)
    assert found.value == pytest.approx(loss.item(), rel=1e-4, abs=1e-4)
    assert leaf.grad is not None
    np.testing.assert_allclose(found.slope, leaf.grad.numpy(), rtol=1e-3, atol=1e-4)
    assert found.slope.dtype == np.float32


@given(seeds, st.integers(1, 9), st.integers(1, 3), st.sampled_from([0.1, 0.3]))
def test_the_clipped_surrogate_of_a_gaussian(seed: int, size: int, numbers: int, clip: float) -> None:
    outputs, action = outputs_and_actions(seed, size, numbers)
    rows = weighted(seed, size)
    moved = np.random.default_rng(seed + 2).normal(0, 0.3, size).astype(np.float32)
    old = head(outputs).logp(action) - moved
    leaf = torch.from_numpy(outputs.copy()).requires_grad_(True)
    policy = torch_gaussian(leaf)
    ratio = (policy.log_prob(torch.from_numpy(action)) - torch.from_numpy(old)).exp()
    weight, advantage = torch.from_numpy(rows["weight"]), torch.from_numpy(rows["advantage"])
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    loss = -(weight * (surrogate + 0.01 * policy.entropy())).sum() / weight.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    found = clipped_surrogate_and_slope(outputs, action, old_logp=old, **rows, clip=clip, entropy_bonus=0.01, head=head)
    assert found.value == pytest.approx(loss.item(), rel=1e-3, abs=1e-3)
    assert leaf.grad is not None
    near = np.minimum(np.abs(np.exp(moved) - 1 - clip), np.abs(np.exp(moved) - 1 + clip)) < 1e-3  # either side is right
    np.testing.assert_allclose(found.slope[~near], leaf.grad.numpy()[~near], rtol=1e-2, atol=1e-3)


def test_draws_are_from_the_gaussian() -> None:
    outputs = np.tile(np.array([[-1.0, 0.5, 0.3, -0.7]], np.float32), (50_000, 1))
    drawn = head(outputs).draw(np.random.default_rng(0))
    assert drawn.dtype == np.float32
    middle, reach = MIDDLE[:2], REACH[:2]
    np.testing.assert_allclose(drawn.mean(axis=0), middle + reach * [0.3, -0.7], atol=0.02)
    np.testing.assert_allclose(drawn.std(axis=0), reach * np.exp([-1.0, 0.5]), rtol=0.02)


def test_draws_are_from_the_choice() -> None:
    logits = np.tile(np.log(np.array([[0.1, 0.6, 0.3]], np.float32)), (50_000, 1))
    drawn = Categorical(logits).draw(np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(drawn) / 50_000, [0.1, 0.6, 0.3], atol=0.01)


def test_actions_of_a_shape_that_would_broadcast_are_refused() -> None:
    outputs, action = outputs_and_actions(0, 4, 2)
    with pytest.raises(ValueError, match="shape"):
        head(outputs).logp(action[:, :1])
    with pytest.raises(ValueError, match="shape"):
        Categorical(outputs).logp(np.zeros((4, 1), np.int64))
