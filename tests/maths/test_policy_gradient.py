"""Advantages against loops that look like the papers; losses and their slopes against autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from passel.maths.policy_gradient import (
    clipped_surrogate_and_slope,
    explained_variance,
    gae,
    log_softmax,
    normalised,
    policy_gradient_and_slope,
    shares,
    value_loss_and_slope,
)
from passel.testing import oracles
from passel.types import Array

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
seeds = st.integers(0, 10_000)


def rollout(seed: int, steps: int, envs: int) -> tuple[Array, ...]:
    rng = np.random.default_rng(seed)
    reward, value = rng.standard_normal((2, steps, envs), np.float32)
    discount = np.where(rng.random((steps, envs)) < 0.3, 0, 0.9).astype(np.float32)
    return reward, discount, value, rng.standard_normal(envs, np.float32)


@given(seeds, st.integers(1, 7), st.integers(1, 3), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae(seed: int, steps: int, envs: int, lam: float) -> None:
    reward, discount, value, last = rollout(seed, steps, envs)
    expected = oracles.gae(reward.tolist(), discount.tolist(), value.tolist(), last.tolist(), lam)
    np.testing.assert_allclose(gae(reward, discount, value, last, lam), expected, **CLOSE)


@given(seeds, st.integers(1, 7))
def test_with_lambda_one_it_is_the_n_step_return_of_a3c(seed: int, steps: int) -> None:
    reward, discount, value, last = rollout(seed, steps, 2)
    expected = oracles.n_step_return(reward.tolist(), discount.tolist(), last.tolist())
    np.testing.assert_allclose(gae(reward, discount, value, last, 1.0) + value, expected, **CLOSE)


def test_gae_in_closed_form() -> None:
    """Rewards of 1, no values, no end: A_t = sum of (gamma lambda)^k."""
    ones, zeros = np.ones((5, 1), np.float32), np.zeros((5, 1), np.float32)
    found = gae(ones, 0.9 * ones, zeros, np.zeros(1, np.float32), 0.5)
    np.testing.assert_allclose(found[:, 0], [(1 - 0.45**k) / 0.55 for k in (5, 4, 3, 2, 1)], rtol=1e-5)


def test_nothing_crosses_the_end_of_an_episode() -> None:
    reward, discount, value, last = rollout(3, 6, 1)
    discount[:] = 0.9
    discount[2] = 0
    before = gae(reward, discount, value, last, 0.95)
    reward[3:], value[3:], last[:] = 100, -50, 7
    after = gae(reward, discount, value, last, 0.95)
    assert (before[:3] == after[:3]).all()
    assert (before[3:] != after[3:]).all()


def minibatch(seed: int, size: int, actions: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    weight = (rng.random(size) < 0.8).astype(np.float32)
    weight[0] = 1
    return {
        "logits": rng.standard_normal((size, actions), np.float32) * 2,
        "action": rng.integers(0, actions, size),
        "advantage": rng.standard_normal(size, np.float32) * 2,
        "old_logp": -rng.random(size, np.float32) * 2,
        "weight": weight,
    }


def by_autograd(made: dict[str, Array], loss: Any) -> tuple[float, Array]:
    tensors = {name: torch.from_numpy(array) for name, array in made.items()}
    logits = tensors["logits"].requires_grad_(True)
    value: Tensor = loss(tensors, torch.log_softmax(logits, dim=1))
    value.backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    return value.item(), logits.grad.numpy()


def entropy(logp: Tensor) -> Tensor:
    return -(logp.exp() * logp).sum(dim=1)


@given(seeds, st.integers(1, 9), st.integers(1, 4), st.sampled_from([0.0, 0.1]))
def test_policy_gradient_and_its_slope(seed: int, size: int, actions: int, bonus: float) -> None:
    made = minibatch(seed, size, actions)

    def loss(t: dict[str, Tensor], logp: Tensor) -> Tensor:
        gain = t["advantage"] * logp[range(size), t["action"]] + bonus * entropy(logp)
        return -(t["weight"] * gain).sum() / t["weight"].sum()

    value, slope = by_autograd(made, loss)
    del made["old_logp"]
    found = policy_gradient_and_slope(**made, entropy_bonus=bonus)
    assert found.value == pytest.approx(value, rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(found.slope, slope, **CLOSE)


@given(seeds, st.integers(1, 9), st.integers(1, 4), st.sampled_from([0.1, 0.3]), st.sampled_from([0.0, 0.1]))
def test_clipped_surrogate_and_its_slope(seed: int, size: int, actions: int, clip: float, bonus: float) -> None:
    made = minibatch(seed, size, actions)

    def loss(t: dict[str, Tensor], logp: Tensor) -> Tensor:
        ratio = (logp[range(size), t["action"]] - t["old_logp"]).exp()
        surrogate = torch.minimum(ratio * t["advantage"], ratio.clamp(1 - clip, 1 + clip) * t["advantage"])
        return -(t["weight"] * (surrogate + bonus * entropy(logp))).sum() / t["weight"].sum()

    value, slope = by_autograd(made, loss)
    found = clipped_surrogate_and_slope(**made, clip=clip, entropy_bonus=bonus)
    assert found.value == pytest.approx(value, rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(found.slope, slope, **CLOSE)
    assert found.kl >= -1e-6
    assert 0 <= found.clipped <= 1 + 1e-6


def test_where_the_policy_has_not_moved_the_surrogate_has_the_policy_gradient() -> None:
    made = minibatch(1, 20, 3)
    made["old_logp"] = log_softmax(made["logits"])[np.arange(20), made["action"]]
    surrogate = clipped_surrogate_and_slope(**made, clip=0.2, entropy_bonus=0.01)
    del made["old_logp"]
    np.testing.assert_allclose(surrogate.slope, policy_gradient_and_slope(**made, entropy_bonus=0.01).slope, **CLOSE)
    assert surrogate.kl == pytest.approx(0, abs=1e-6)
    assert surrogate.clipped == 0


def test_the_clip_acts_on_a_ratio_that_went_too_far_the_right_way_and_on_no_other() -> None:
    """A row for each sign of the advantage and each direction: only two of the four have no slope."""
    logp = np.log(np.float32(0.5))
    made = {
        "logits": np.zeros((4, 2), np.float32),
        "action": np.zeros(4, np.int64),
        "advantage": np.array([1, 1, -1, -1], np.float32),
        "old_logp": logp - np.log(np.array([1.5, 0.5, 1.5, 0.5], np.float32)),
        "weight": np.ones(4, np.float32),
    }
    slope = clipped_surrogate_and_slope(**made, clip=0.2, entropy_bonus=0.0).slope
    assert (slope.any(axis=1) == [False, True, True, False]).all()


@given(seeds, st.integers(1, 9), st.sampled_from([None, 0.2]))
def test_value_loss_and_its_slope(seed: int, size: int, clip: float | None) -> None:
    rng = np.random.default_rng(seed)
    value, target, old = rng.standard_normal((3, size), np.float32)
    weight = minibatch(seed, size, 2)["weight"]
    v = torch.from_numpy(value.copy()).requires_grad_(True)
    error = (v - torch.from_numpy(target)).square()
    if clip is not None:
        near = torch.from_numpy(old) + (v - torch.from_numpy(old)).clamp(-clip, clip)
        error = torch.maximum(error, (near - torch.from_numpy(target)).square())
    loss = (torch.from_numpy(weight) * error).sum() / weight.sum() / 2
    loss.backward()  # type: ignore[no-untyped-call]
    found, slope = value_loss_and_slope(value, target, weight, old, clip)
    assert found == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    assert v.grad is not None
    np.testing.assert_allclose(slope, v.grad.numpy(), **CLOSE)


def test_rows_that_are_no_transition_count_for_nothing() -> None:
    made = minibatch(2, 10, 3)
    made["weight"] = np.array([1, 0] * 5, np.float32)
    before = clipped_surrogate_and_slope(**made, clip=0.2, entropy_bonus=0.01)
    made["advantage"][1::2], made["logits"][1::2] = 1e3, 5
    after = clipped_surrogate_and_slope(**made, clip=0.2, entropy_bonus=0.01)
    assert after.value == before.value
    assert not after.slope[1::2].any()
    advantage = np.array([1, 1e6, 3, 1e6], np.float32)
    assert normalised(advantage, np.array([1, 0, 1, 0], np.float32))[::2].tolist() == pytest.approx([-1, 1])


@given(seeds)
def test_log_softmax_is_a_distribution_even_of_large_logits(seed: int) -> None:
    logits = np.random.default_rng(seed).standard_normal((5, 3), np.float32) * 100
    np.testing.assert_allclose(np.exp(log_softmax(logits)).sum(axis=1), 1, rtol=1e-5)


def test_shapes_that_would_broadcast_are_refused() -> None:
    made = minibatch(0, 4, 2)
    with pytest.raises(ValueError, match="shape"):
        clipped_surrogate_and_slope(**{**made, "advantage": made["advantage"][:, None]}, clip=0.2, entropy_bonus=0.0)
    with pytest.raises(ValueError, match="shape"):
        gae(np.ones((3, 2)), np.ones((3, 2)), np.ones((3, 1)), np.ones(2), 0.9)


def test_where_no_row_counts_losses_and_slopes_are_zero() -> None:
    """A minibatch may hold nothing but rows that were spent on resets."""
    rng = np.random.default_rng(0)
    logits, action = rng.standard_normal((5, 3), np.float32), rng.integers(0, 3, 5)
    advantage, logp, value = rng.standard_normal((3, 5), np.float32)
    none = np.zeros(5, np.float32)
    assert (normalised(1e35 * advantage, none) == 0).all()
    assert (normalised(advantage, none, np.array([0, 0, 1, 1, 1])) == 0).all()
    plain = policy_gradient_and_slope(logits, action, advantage, none, 0.01)
    clipped = clipped_surrogate_and_slope(logits, action, advantage, logp, none, 0.2, 0.01)
    for said in (plain, clipped):
        assert (said.value, said.entropy, said.kl, said.clipped) == (0, 0, 0, 0)
        assert (said.slope == 0).all()
    for clip in (None, 0.1):
        loss, slope = value_loss_and_slope(value, advantage, none, logp, clip)
        assert loss == 0
        assert (slope == 0).all()


@given(seeds, st.integers(1, 9))
def test_where_any_row_counts_the_shares_are_the_plain_quotient_to_the_bit(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.random(size) < 0.5).astype(np.float32)
    weight[0] = 1
    np.testing.assert_array_equal(shares(weight), weight / weight.sum())


@given(seeds, st.integers(2, 9), st.integers(2, 4), st.sampled_from([0.0, 0.1]))
def test_the_parts_of_a_policy_s_loss_add_up(seed: int, size: int, actions: int, bonus: float) -> None:
    made = minibatch(seed, size, actions)
    clipped = clipped_surrogate_and_slope(**made, clip=0.2, entropy_bonus=bonus)
    without = clipped_surrogate_and_slope(**made, clip=0.2, entropy_bonus=0.0)
    assert clipped.policy == without.value
    assert clipped.policy - bonus * clipped.entropy == pytest.approx(clipped.value, rel=1e-5, abs=1e-6)
    del made["old_logp"]
    plain = policy_gradient_and_slope(**made, entropy_bonus=bonus)
    assert plain.policy == policy_gradient_and_slope(**made, entropy_bonus=0.0).value
    assert plain.policy - bonus * plain.entropy == pytest.approx(plain.value, rel=1e-5, abs=1e-6)


def test_the_clip_fraction_is_the_share_of_ratios_beyond_the_clip() -> None:
    """Ratios of 1.5, 1.1, 0.5 and 3 at a clip of 0.2; the last row is no transition."""
    ratio = np.array([1.5, 1.1, 0.5, 3.0], np.float32)
    said = clipped_surrogate_and_slope(
        logits=np.zeros((4, 2), np.float32),
        action=np.zeros(4, np.int64),
        advantage=np.array([1, 1, 1, 1], np.float32),
        old_logp=np.log(np.float32(0.5)) - np.log(ratio),
        weight=np.array([1, 1, 1, 0], np.float32),
        clip=0.2,
        entropy_bonus=0.0,
    )
    assert said.clipped == pytest.approx(2 / 3)
    assert said.kl == pytest.approx(np.mean(ratio[:3] - 1 - np.log(ratio[:3])), rel=1e-5)
    assert said.policy == pytest.approx(-(1.2 + 1.1 + 0.5) / 3, rel=1e-5)


@given(seeds, st.integers(2, 30), st.floats(-100, 100))
def test_explained_variance_is_one_minus_the_variance_that_is_left(seed: int, size: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    value, target = rng.standard_normal((2, size, 3), np.float32) + np.float32(shift)
    weight = (rng.random((size, 3)) < 0.7).astype(np.float32)
    weight[:2] = 1
    counts = weight > 0
    wanted, said = target[counts].astype(float), value[counts].astype(float)
    expected = 1 - np.var(wanted - said) / np.var(wanted)
    assert explained_variance(value, target, weight) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert explained_variance(target, target, weight) == pytest.approx(1)
    assert explained_variance(np.zeros_like(value), target, weight) == pytest.approx(0, abs=1e-6)


def test_where_returns_do_not_vary_nothing_is_explained() -> None:
    ones = np.ones(7, np.float32)
    assert np.isnan(explained_variance(np.arange(7, dtype=np.float32), np.float32(0.1) * ones, ones))
    assert np.isnan(explained_variance(ones, np.arange(7, dtype=np.float32), 0 * ones)), "no row counts"
