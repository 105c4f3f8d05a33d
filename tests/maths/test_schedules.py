"""Schedules, against a walk of equal strides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passel.maths.schedules import linear
from passel.testing import oracles

ends = st.floats(-10, 10)


@given(ends, ends, st.integers(0, 300), st.integers(0, 200))
def test_linear(start: float, end: float, step: int, over: int) -> None:
    assert linear(start, end, step, over) == pytest.approx(oracles.linear(start, end, step, over), abs=1e-9)


@given(ends, ends, st.integers(1, 10**9))
def test_linear_begins_and_ends_exactly(start: float, end: float, over: int) -> None:
    assert linear(start, end, 0, over) == start
    assert linear(start, end, over, over) == end
    assert linear(start, end, 10 * over, over) == end


@given(ends, ends, st.integers(0, 100))
def test_linear_stays_between_its_ends(start: float, end: float, step: int) -> None:
    assert min(start, end) - 1e-12 <= linear(start, end, step, 100) <= max(start, end) + 1e-12


def test_no_steps_at_all_means_the_end_at_once() -> None:
    assert linear(1.0, 0.1, 0, 0) == 0.1
