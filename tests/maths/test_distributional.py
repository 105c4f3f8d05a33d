"""Distributions of returns: the projection against the paper's loops, the loss against autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from passel.maths.distributional import categorical_projection, expected, support, weighted_kl_and_slope
from passel.testing import oracles
from passel.types import Floats
from rounding import assert_rounded

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


@st.composite
def cases(draw: Any) -> tuple[Floats, Floats, Floats, Floats]:
    """Distributions, rewards, discounts and atoms; rewards often such that atoms fall on atoms, or beyond the ends."""
    rows, atoms = draw(st.integers(1, 6)), draw(st.integers(2, 12))
    v_min, width = draw(st.sampled_from([-10.0, -1.0, 0.0, 3.0])), draw(st.sampled_from([1.0, 2.0, 20.0]))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    p = rng.dirichlet(np.full(atoms, draw(st.sampled_from([0.1, 1.0, 10.0]))), rows).astype(np.float32)
    whole = draw(st.booleans())
    z = support(v_min, v_min + width, atoms)
    r = rng.integers(-3, 4, rows) * (z[1] - z[0]) if whole else rng.standard_normal(rows) * width
    discount = rng.choice([0.0, 0.5, 0.9, 1.0], rows)
    return p, r.astype(np.float32), discount.astype(np.float32), z


@given(cases())
def test_the_projection_is_the_paper_s(case: tuple[Floats, Floats, Floats, Floats]) -> None:
    p, r, discount, z = case
    by_loops = oracles.categorical_projection(p.tolist(), r.tolist(), discount.tolist(), z.tolist())
    # An atom's position, (r + discount z - v_min) / dz, has the error of its largest term, over dz; the distance dz of
    # float32 atoms that of the ends, over as many atoms as it is counted. Shares of mass follow it.
    atoms, dz = len(z), (float(z[-1]) - float(z[0])) / (len(z) - 1)
    size = 1 + atoms + (np.abs(r) + np.abs(z).max() * (2 + 2 * atoms)) / dz
    assert_rounded(categorical_projection(p, r, discount, z), by_loops, 6, size[:, None])


@given(cases())
def test_no_mass_is_lost(case: tuple[Floats, Floats, Floats, Floats]) -> None:
    found = categorical_projection(*case)
    np.testing.assert_allclose(found.sum(axis=1), 1, **CLOSE)
    assert (found >= -1e-6).all()


@given(cases())
def test_the_mean_moves_as_a_value_would_where_nothing_is_cut_off(case: tuple[Floats, Floats, Floats, Floats]) -> None:
    p, r, discount, _ = case
    wide = support(-1000.0, 1000.0, 4001)
    spread = np.zeros((len(p), 4001), np.float32)
    spread[:, 1990 : 1990 + p.shape[1]] = p
    found = expected(categorical_projection(spread, r, discount, wide), wide)
    np.testing.assert_allclose(found, r + discount * expected(spread, wide), rtol=1e-3, atol=2e-3)


def test_after_a_termination_the_reward_is_all_there_is() -> None:
    z, p = support(-1.0, 1.0, 5), np.full((2, 5), 0.2, np.float32)
    found = categorical_projection(p, np.array([0.5, 0.25], np.float32), np.zeros(2, np.float32), z)
    np.testing.assert_allclose(found, [[0, 0, 0, 1, 0], [0, 0, 0.5, 0.5, 0]], atol=1e-6)


def test_beyond_the_ends_everything_is_at_the_ends() -> None:
    z, p = support(-1.0, 1.0, 5), np.full((2, 5), 0.2, np.float32)
    found = categorical_projection(p, np.array([9.0, -9.0], np.float32), np.ones(2, np.float32), z)
    np.testing.assert_allclose(found, [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]], atol=1e-6)


def test_what_is_no_number_stays_none() -> None:
    z, p = support(-1.0, 1.0, 5), np.full((2, 5), 0.2, np.float32)
    found = categorical_projection(p, np.array([np.nan, 0.0], np.float32), np.ones(2, np.float32), z)
    assert np.isnan(found[0]).any()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_slope_is_autograd_s(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    logits, weight = 3 * rng.standard_normal((6, 11), np.float32), rng.random(6, np.float32)
    target = rng.dirichlet(np.full(11, 0.3), 6).astype(np.float32)
    target[0] = np.eye(11)[4]
    at = torch.from_numpy(logits).requires_grad_()
    goal = torch.from_numpy(target)
    each = torch.nn.functional.kl_div(at.log_softmax(1), goal, reduction="none").sum(1)
    (each * torch.from_numpy(weight) if weighted else each).mean().backward()
    loss, slope, surprise = weighted_kl_and_slope(logits, target, weight if weighted else None)
    np.testing.assert_allclose(surprise, each.detach(), **CLOSE)
    assert loss == pytest.approx(float(np.mean(surprise * weight if weighted else surprise)), rel=1e-5)
    assert at.grad is not None
    np.testing.assert_allclose(slope, at.grad, **CLOSE)


def test_nothing_to_learn_is_no_surprise() -> None:
    logits = np.random.default_rng(0).standard_normal((4, 7), np.float32)
    target = torch.from_numpy(logits).softmax(1).numpy()
    loss, slope, surprise = weighted_kl_and_slope(logits, target)
    assert loss == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(slope, 0, atol=1e-6)
    np.testing.assert_allclose(surprise, 0, atol=1e-6)


def test_shapes_are_checked() -> None:
    z, p, one = support(-1.0, 1.0, 5), np.full((2, 5), 0.2, np.float32), np.ones(2, np.float32)
    with pytest.raises(ValueError, match="expected"):
        categorical_projection(p, one[:1], one, z)
    with pytest.raises(ValueError, match="expected"):
        categorical_projection(p, one, one, z[:4])
    with pytest.raises(ValueError, match="expected"):
        weighted_kl_and_slope(p, p[:, :4])


def test_a_divergence_is_never_negative_though_float32_rounds_below_zero() -> None:
    """Where the prediction is the target, half of the sums round below 0, and a priority must not be negative."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4096, 51), np.float32) * 3
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    target = np.exp(log_p)
    assert ((target * (np.log(target) - log_p)).sum(axis=1) < 0).any(), "the case that the clamp is for"
    loss, _, divergence = weighted_kl_and_slope(logits, target)
    assert (divergence >= 0).all()
    assert 0 <= loss < 1e-6
    assert weighted_kl_and_slope(logits, target, np.ones(4096, np.float32))[0] >= 0
