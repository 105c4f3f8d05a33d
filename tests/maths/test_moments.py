"""Moments of parts, merged, against numpy over all rows put together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passel.maths.moments import EPS, Moments, merge_moments, moments_of, update_moments
from passel.types import Array

seeds = st.integers(0, 10_000)


def assert_moments(found: Moments, rows: Array, rtol: float = 1e-9) -> None:
    """`rtol` is of the mean's difference from 0 in standard deviations, and of the variance."""
    scale = rows.std(axis=0, dtype=np.float64)
    assert found.count == len(rows)
    np.testing.assert_allclose((found.mean - rows.mean(axis=0, dtype=np.float64)) / scale, 0, atol=rtol)
    np.testing.assert_allclose(found.var, rows.var(axis=0, dtype=np.float64), rtol=rtol)


@given(seeds, st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_merged_parts_have_the_moments_of_all_rows(seed: int, sizes: list[int]) -> None:
    """However the rows are split; a part may be empty, and any part may be the large one."""
    rng = np.random.default_rng(seed)
    parts = [rng.normal(part, 1 + part, (size, 3)) for part, size in enumerate([*sizes, 2])]
    assert_moments(merge_moments([moments_of(part) for part in parts]), np.concatenate(parts))


@given(seeds, st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_updated_one_part_after_the_other_they_are_the_same(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(-3, 2, (size, 2)) for size in [2, *sizes]]
    found = moments_of(np.empty((0, 2)))
    for part in parts:
        found = update_moments(found, part)
    assert_moments(found, np.concatenate(parts))


@given(seeds, st.permutations(range(5)))
def test_the_order_of_the_parts_does_not_matter(seed: int, order: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [moments_of(rng.normal(size=(size + 1, 2))) for size in range(5)]
    one, other = merge_moments(parts), merge_moments([parts[i] for i in order])
    assert one.count == other.count
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(one.m2, other.m2, rtol=1e-12)


@pytest.mark.parametrize("parts", [1, 2, 64])
@pytest.mark.parametrize(("mean", "std"), [(1e6, 1e-3), (-1e9, 1.0), (0.0, 1e-12), (1e-30, 1e15)])
def test_a_mean_far_larger_than_the_spread_costs_no_digits(mean: float, std: float, parts: int) -> None:
    """E[x^2] - E[x]^2 would be zero, or negative: 1e12 and 1e-6 are more than 16 digits apart."""
    rows = np.random.default_rng(0).normal(mean, std, (4096, 2))
    found = merge_moments([moments_of(part) for part in np.split(rows, parts)])
    # What is left is the rounding of the data and of the mean themselves, in units of the spread.
    rounding = 1e-9 + 100 * np.finfo(np.float64).eps * abs(mean) / std
    assert_moments(found, rows, rtol=rounding)


def test_equal_means_are_not_rounded() -> None:
    third = Moments(3.0, np.array([1 / 3]), np.array([1.0]))
    assert merge_moments([third] * 7).mean.tolist() == [1 / 3]


def test_float32_rows_are_counted_in_double_precision() -> None:
    rows = np.random.default_rng(0).normal(1000, 1, (100_000, 1)).astype(np.float32)
    assert_moments(moments_of(rows), rows.astype(np.float64))


def test_without_rows_the_deviation_is_1_and_of_still_rows_it_is_not_0() -> None:
    nothing = merge_moments([moments_of(np.empty((0, 2)))] * 3)
    assert (nothing.count, nothing.mean.tolist(), nothing.std.tolist()) == (0.0, [0.0, 0.0], [1.0, 1.0])
    still = moments_of(np.full((5, 1), 7.0))
    assert still.std.tolist() == [np.sqrt(EPS)]
