"""Targets and losses of Q-learning, against loops that look like the papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from passel.maths.q_learning import (
    double_q_learning_target,
    dueling,
    q_learning_target,
    q_of_action,
    weighted_huber_and_slope,
)
from passel.testing import oracles
from passel.types import Array
from rounding import assert_rounded

#: Both sides start from the same float32 numbers; the oracle goes on in double precision.
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}

#: A shape is refused by our own check, or by numpy where numpy already does: never broadcast.
REFUSED = (ValueError, RuntimeError, IndexError)

numbers = st.floats(-100, 100, width=32)
deltas = st.sampled_from([0.5, 1.0, 2.0])


@st.composite
def matrices(draw: Any, count: int) -> list[Array]:
    """`count` matrices [B, A] of one shape."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    size = rows * columns
    return [
        np.array(draw(st.lists(numbers, min_size=size, max_size=size)), np.float32).reshape(rows, columns)
        for _ in range(count)
    ]


@st.composite
def vectors(draw: Any, count: int) -> list[Array]:
    """`count` vectors [B] of one length."""
    size = draw(st.integers(1, 8))
    return [np.array(draw(st.lists(numbers, min_size=size, max_size=size)), np.float32) for _ in range(count)]


def first_column(matrix: Array) -> Array:
    return matrix[:, 0].copy()


def size_of_target(r_t: Array, discount_t: Array, q_t: Array) -> Array:
    """Of the sum r + discount * q: a product and an addition."""
    size: Array = np.abs(r_t) + discount_t.astype(np.float64) * np.abs(q_t).max(axis=1)
    return size


@given(matrices(2))
def test_q_learning_target(made: list[Array]) -> None:
    q_t, other = made
    r_t, discount_t = first_column(other), np.abs(first_column(other)) / 100
    expected = oracles.q_learning_target(r_t.tolist(), discount_t.tolist(), q_t.tolist())
    assert_rounded(q_learning_target(r_t, discount_t, q_t), expected, 2, size_of_target(r_t, discount_t, q_t))


@given(matrices(3))
def test_double_q_learning_target(made: list[Array]) -> None:
    q_t_value, q_t_selector, other = made
    r_t, discount_t = first_column(other), np.abs(first_column(other)) / 100
    expected = oracles.double_q_learning_target(
        r_t.tolist(), discount_t.tolist(), q_t_value.tolist(), q_t_selector.tolist()
    )
    found = double_q_learning_target(r_t, discount_t, q_t_value, q_t_selector)
    assert_rounded(found, expected, 2, size_of_target(r_t, discount_t, q_t_value))


@given(matrices(2))
def test_double_q_learning_never_asks_for_more_than_q_learning(made: list[Array]) -> None:
    q_t_value, q_t_selector = made
    r_t, discount_t = np.zeros(len(q_t_value)), np.full(len(q_t_value), 0.9)
    double = double_q_learning_target(r_t, discount_t, q_t_value, q_t_selector)
    assert (double <= q_learning_target(r_t, discount_t, q_t_value)).all()


@given(matrices(1))
def test_the_two_targets_agree_where_one_network_does_both(made: list[Array]) -> None:
    (q_t,) = made
    r_t, discount_t = np.ones(len(q_t)), np.full(len(q_t), 0.5)
    double = double_q_learning_target(r_t, discount_t, q_t, q_t)
    assert (double == q_learning_target(r_t, discount_t, q_t)).all()


@given(matrices(2))
def test_dueling_of_tensors_is_that_of_arrays(made: list[Array]) -> None:
    advantage, other = made
    found = dueling(torch.from_numpy(other[:, :1]), torch.from_numpy(advantage))
    np.testing.assert_allclose(found, dueling(other[:, :1], advantage), rtol=1e-5, atol=1e-4)


def test_termination_is_a_discount_of_zero() -> None:
    r_t, q_t = np.array([1.0, 1.0]), np.array([[50.0, 70.0], [50.0, 70.0]])
    assert q_learning_target(r_t, np.array([0.0, 0.5]), q_t).tolist() == [1.0, 36.0]


@given(matrices(1), st.data())
def test_q_of_action(made: list[Array], data: Any) -> None:
    (q,) = made
    actions = data.draw(st.lists(st.integers(0, q.shape[1] - 1), min_size=len(q), max_size=len(q)))
    assert q_of_action(q, np.array(actions)).tolist() == oracles.q_of_action(q.tolist(), actions)


@given(vectors(3), deltas, st.booleans())
def test_weighted_huber_and_its_slope(made: list[Array], delta: float, weighted: bool) -> None:
    value, target, other = made
    weight = np.abs(other) if weighted else None
    loss, slope = weighted_huber_and_slope(value, target, weight, delta)
    given_ = value.tolist(), target.tolist(), None if weight is None else weight.tolist(), delta
    assert loss == pytest.approx(oracles.weighted_huber(*given_), rel=1e-4, abs=1e-4)
    np.testing.assert_allclose(slope, oracles.weighted_huber_gradient(*given_), **CLOSE)


@given(vectors(2), deltas)
def test_weights_of_one_change_nothing(made: list[Array], delta: float) -> None:
    value, target = made
    plain, weighted = (weighted_huber_and_slope(value, target, w, delta) for w in (None, np.ones_like(value)))
    assert weighted[0] == pytest.approx(plain[0])
    np.testing.assert_allclose(weighted[1], plain[1])


@given(matrices(2))
def test_dueling(made: list[Array]) -> None:
    advantage, other = made
    value = other[:, :1]
    expected = oracles.dueling(value[:, 0].tolist(), advantage.tolist())
    np.testing.assert_allclose(dueling(value, advantage), expected, rtol=1e-5, atol=1e-4)


@given(matrices(2))
def test_dueling_takes_the_state_value_as_the_mean_and_keeps_the_order_of_actions(made: list[Array]) -> None:
    advantage, other = made
    q = dueling(other[:, :1], advantage)
    np.testing.assert_allclose(q.mean(axis=1), other[:, 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(q - q[:, :1], advantage - advantage[:, :1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (q_learning_target, [(3,), (4,), (3, 2)]),
        (q_learning_target, [(3, 1), (3, 1), (3, 2)]),
        (q_learning_target, [(3,), (3,), (4, 2)]),
        (q_learning_target, [(3,), (3,), (3,)]),
        (double_q_learning_target, [(3,), (3,), (3, 2), (3, 4)]),
        (double_q_learning_target, [(3,), (3,), (3,), (3,)]),
        (double_q_learning_target, [(1,), (1,), (3, 2), (3, 2)]),
        (weighted_huber_and_slope, [(3,), (3, 1)]),
        (weighted_huber_and_slope, [(3,), (3,), (1,)]),
        (dueling, [(3,), (3, 2)]),
        (dueling, [(3, 2), (3, 2)]),
    ],
)
def test_shapes_that_would_broadcast_are_refused(function: Any, shapes: list[tuple[int, ...]]) -> None:
    """[B] against [B, 1] broadcasts to [B, B] without a word, and trains on nonsense."""
    with pytest.raises(REFUSED):
        function(*(np.zeros(shape, np.float32) for shape in shapes))


@pytest.mark.parametrize(
    ("q_tm1", "a_tm1"),
    [(np.zeros((3, 2)), np.zeros(4, np.int64)), (np.zeros((3, 2)), np.zeros((3, 1), np.int64))],
)
def test_q_of_action_refuses_what_does_not_fit(q_tm1: Array, a_tm1: Array) -> None:
    with pytest.raises(REFUSED):
        q_of_action(q_tm1, a_tm1)
