"""Targets and losses of Q-learning, against loops that look like the papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from passel.maths.q_learning import (
    double_q_learning_target,
    dueling,
    q_learning_target,
    q_of_action,
    weighted_huber,
    weighted_huber_and_slope,
)
from passel.testing import oracles

#: Both sides start from the same float32 numbers; the oracle goes on in double precision.
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}

#: A shape is refused by our own check, or by torch where torch already does: never broadcast.
REFUSED = (ValueError, RuntimeError, IndexError)

numbers = st.floats(-100, 100, width=32)
deltas = st.sampled_from([0.5, 1.0, 2.0])


@st.composite
def matrices(draw: Any, count: int) -> list[Tensor]:
    """`count` matrices [B, A] of one shape."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    size = rows * columns
    return [
        torch.tensor(draw(st.lists(numbers, min_size=size, max_size=size))).view(rows, columns) for _ in range(count)
    ]


@st.composite
def vectors(draw: Any, count: int) -> list[Tensor]:
    """`count` vectors [B] of one length."""
    size = draw(st.integers(1, 8))
    return [torch.tensor(draw(st.lists(numbers, min_size=size, max_size=size))) for _ in range(count)]


def arrays(function: Any) -> Any:
    """The same function, of numpy's arrays instead of tensors."""
    return lambda *tensors: function(*(tensor.numpy() for tensor in tensors))


def first_column(matrix: Tensor) -> Tensor:
    return matrix[:, 0].clone()


@given(matrices(2))
def test_q_learning_target(made: list[Tensor]) -> None:
    q_t, other = made
    r_t, discount_t = first_column(other), first_column(other).abs() / 100
    expected = oracles.q_learning_target(r_t.tolist(), discount_t.tolist(), q_t.tolist())
    torch.testing.assert_close(q_learning_target(r_t, discount_t, q_t), torch.tensor(expected), **CLOSE)


@given(matrices(3))
def test_double_q_learning_target(made: list[Tensor]) -> None:
    q_t_value, q_t_selector, other = made
    r_t, discount_t = first_column(other), first_column(other).abs() / 100
    expected = oracles.double_q_learning_target(
        r_t.tolist(), discount_t.tolist(), q_t_value.tolist(), q_t_selector.tolist()
    )
    found = double_q_learning_target(r_t, discount_t, q_t_value, q_t_selector)
    torch.testing.assert_close(found, torch.tensor(expected), **CLOSE)


@given(matrices(2))
def test_double_q_learning_never_asks_for_more_than_q_learning(made: list[Tensor]) -> None:
    q_t_value, q_t_selector = made
    r_t, discount_t = torch.zeros(len(q_t_value)), torch.full((len(q_t_value),), 0.9)
    double = double_q_learning_target(r_t, discount_t, q_t_value, q_t_selector)
    assert (double <= q_learning_target(r_t, discount_t, q_t_value)).all()


@given(matrices(1))
def test_the_two_targets_agree_where_one_network_does_both(made: list[Tensor]) -> None:
    (q_t,) = made
    r_t, discount_t = torch.ones(len(q_t)), torch.full((len(q_t),), 0.5)
    double = double_q_learning_target(r_t, discount_t, q_t, q_t)
    assert torch.equal(double, q_learning_target(r_t, discount_t, q_t))


@given(matrices(3), st.data())
def test_arrays_and_tensors_give_the_same_numbers(made: list[Tensor], data: Any) -> None:
    q_t, selector, other = made
    r_t, discount_t = first_column(other), first_column(other).abs() / 100
    actions = data.draw(st.lists(st.integers(0, q_t.shape[1] - 1), min_size=len(q_t), max_size=len(q_t)))
    for function, given_ in (
        (q_learning_target, (r_t, discount_t, q_t)),
        (double_q_learning_target, (r_t, discount_t, q_t, selector)),
        (q_of_action, (q_t, torch.tensor(actions))),
        (dueling, (other[:, :1], q_t)),
    ):
        torch.testing.assert_close(torch.from_numpy(arrays(function)(*given_)), function(*given_), rtol=1e-5, atol=1e-4)


def test_termination_is_a_discount_of_zero() -> None:
    r_t, q_t = torch.tensor([1.0, 1.0]), torch.tensor([[50.0, 70.0], [50.0, 70.0]])
    assert q_learning_target(r_t, torch.tensor([0.0, 0.5]), q_t).tolist() == [1.0, 36.0]


@given(matrices(1), st.data())
def test_q_of_action(made: list[Tensor], data: Any) -> None:
    (q,) = made
    actions = data.draw(st.lists(st.integers(0, q.shape[1] - 1), min_size=len(q), max_size=len(q)))
    assert q_of_action(q, torch.tensor(actions)).tolist() == oracles.q_of_action(q.tolist(), actions)


@given(vectors(3), deltas, st.booleans())
def test_weighted_huber_and_its_gradient(made: list[Tensor], delta: float, weighted: bool) -> None:
    value, target, other = made
    weight = other.abs() if weighted else None
    value.requires_grad_(True)
    loss = weighted_huber(value, target, weight, delta)
    loss.backward()  # type: ignore[no-untyped-call]
    given_ = value.tolist(), target.tolist(), None if weight is None else weight.tolist(), delta
    assert value.grad is not None
    torch.testing.assert_close(loss.detach(), torch.tensor(oracles.weighted_huber(*given_)), **CLOSE)
    gradient = torch.tensor(oracles.weighted_huber_gradient(*given_))
    torch.testing.assert_close(value.grad, gradient, **CLOSE)
    number, slope = weighted_huber_and_slope(
        value.detach().numpy(), target.numpy(), None if weight is None else weight.numpy(), delta
    )
    torch.testing.assert_close(torch.tensor(number), loss.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(slope), gradient, **CLOSE)


@given(vectors(2), deltas)
def test_weights_of_one_change_nothing(made: list[Tensor], delta: float) -> None:
    value, target = made
    plain = weighted_huber(value, target, None, delta)
    torch.testing.assert_close(weighted_huber(value, target, torch.ones_like(value), delta), plain)


@given(matrices(2))
def test_dueling(made: list[Tensor]) -> None:
    advantage, other = made
    value = other[:, :1]
    expected = oracles.dueling(value[:, 0].tolist(), advantage.tolist())
    torch.testing.assert_close(dueling(value, advantage), torch.tensor(expected), rtol=1e-5, atol=1e-4)


@given(matrices(2))
def test_dueling_takes_the_state_value_as_the_mean_and_keeps_the_order_of_actions(made: list[Tensor]) -> None:
    advantage, other = made
    q = dueling(other[:, :1], advantage)
    torch.testing.assert_close(q.mean(dim=1), other[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(q - q[:, :1], advantage - advantage[:, :1], rtol=1e-4, atol=1e-4)


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
        (weighted_huber, [(3,), (3, 1)]),
        (weighted_huber, [(3,), (4,)]),
        (weighted_huber, [(3,), (3,), (1,)]),
        (weighted_huber, [(3,), (3,), (3, 1)]),
        (arrays(weighted_huber_and_slope), [(3,), (3, 1)]),
        (arrays(weighted_huber_and_slope), [(3,), (3,), (1,)]),
        (arrays(q_learning_target), [(3,), (4,), (3, 2)]),
        (arrays(double_q_learning_target), [(3,), (3,), (3, 2), (3, 4)]),
        (arrays(dueling), [(3,), (3, 2)]),
        (dueling, [(3,), (3, 2)]),
        (dueling, [(3, 2), (3, 2)]),
    ],
)
def test_shapes_that_would_broadcast_are_refused(function: Any, shapes: list[tuple[int, ...]]) -> None:
    """[B] against [B, 1] broadcasts to [B, B] without a word, and trains on nonsense."""
    with pytest.raises(REFUSED):
        function(*(torch.zeros(shape) for shape in shapes))


@pytest.mark.parametrize(
    ("q_tm1", "a_tm1"),
    [(torch.zeros(3, 2), torch.zeros(4).long()), (torch.zeros(3, 2), torch.zeros(3, 1).long())],
)
def test_q_of_action_refuses_what_does_not_fit(q_tm1: Tensor, a_tm1: Tensor) -> None:
    with pytest.raises(REFUSED):
        q_of_action(q_tm1, a_tm1)
