"""Q-learning: targets and losses as pure functions, of tensors where autograd is wanted and of arrays where it is not.

Time is in the names: `tm1` is when the action was taken, `t` is what came of it. Termination enters as a discount of
zero, never as a flag.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from passel.maths.shapes import Array, Floats, check_shapes, like_torch

T = TypeVar("T", Array, Tensor)


def q_learning_target(r_t: T, discount_t: T, q_t: T) -> T:
    """The one-step target of Q-learning.

        y = r_t + discount_t * max_a q_t(a)

    Shapes: r_t, discount_t [B]; q_t [B, A], from the target network. For an n-step target r_t is the discounted sum of
    rewards and discount_t is gamma^m (Watkins 1989; Mnih et al. 2015).
    """
    return double_q_learning_target(r_t, discount_t, q_t, q_t)


def double_q_learning_target(r_t: T, discount_t: T, q_t_value: T, q_t_selector: T) -> T:
    """The target of double Q-learning: one network chooses the action, the other says what it is worth.

        y = r_t + discount_t * q_t_value(argmax_a q_t_selector(a))

    Shapes: r_t, discount_t [B]; q_t_value (target network) and q_t_selector (online network) [B, A]
    (van Hasselt, Guez and Silver 2016).
    """
    check_shapes("B A", q_t_value, q_t_selector)
    chosen = q_of_action(q_t_value, q_t_selector.argmax(1))
    check_shapes("B", r_t, discount_t, chosen)
    target: T = r_t + discount_t * chosen
    return target


def q_of_action(q_tm1: T, a_tm1: T) -> T:
    """The value of the action that was taken, q_tm1(a_tm1). Shapes: [B, A], [B] -> [B]."""
    check_shapes("B A", q_tm1)
    if a_tm1.shape != q_tm1.shape[:1]:
        raise ValueError(f"actions {tuple(a_tm1.shape)} do not match action values {tuple(q_tm1.shape)}")
    return q_tm1[rows_of(q_tm1), a_tm1]


def rows_of(matrix: T) -> T:
    """0, 1, ... B - 1: to pick one element of each row."""
    if isinstance(matrix, Tensor):
        return torch.arange(len(matrix), device=matrix.device)
    return np.arange(len(matrix))


def weighted_huber(value: Tensor, target: Tensor, weight: Tensor | None = None, delta: float = 1.0) -> Tensor:
    """The mean Huber loss, with importance weights.

        L = mean_i w_i * h(target_i - value_i),   h(x) = x^2/2 if |x| <= delta, else delta (|x| - delta/2)

    Its gradient is the error clipped to [-delta, delta], as in DQN. Shapes: all [B]; `target` is not differentiated.
    """
    check_shapes("B", value, target, *([] if weight is None else [weight]))
    error = value - target
    clipped = error.clamp(-delta, delta)
    # h(x) = c (x - c/2) with c = clip(x): one formula for both branches, and a third of the price of torch's own.
    weighted = clipped if weight is None else clipped * weight
    return torch.dot(weighted, torch.add(error, clipped, alpha=-0.5)) / len(value)


@like_torch
def weighted_huber_and_slope(
    value: Floats, target: Floats, weight: Floats | None = None, delta: float = 1.0
) -> tuple[float, Floats]:
    """`weighted_huber` as a number, and its derivative by each value in closed form.

        dL/dv_i = w_i * clip(v_i - target_i, -delta, delta) / B

    Shapes: all [B].
    """
    check_shapes("B", value, target, *([] if weight is None else [weight]))
    error = value - target
    clipped = np.minimum(np.maximum(error, -delta), delta)
    slope = (clipped if weight is None else clipped * weight) / len(value)
    return float(slope @ (error - clipped / 2)), slope


def dueling(value: T, advantage: T) -> T:
    """Q from a value and advantages of zero mean. Shapes: [B, 1], [B, A] -> [B, A].

    Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')      (Wang et al. 2016, equation 9)
    """
    mean = advantage.sum(1)[:, None] / advantage.shape[1]
    check_shapes("B 1", value, mean)
    q: T = value + advantage - mean
    return q
