"""Q-learning: targets and losses as pure functions of arrays, slopes in closed form where a loss has one.

Time is in the names: `tm1` is when the action was taken, `t` is what came of it. Termination enters as a discount of
zero, never as a flag.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from torch import Tensor

from passel.maths.shapes import Array, Floats, check_shapes, like_torch

T = TypeVar("T", Array, Tensor)


def q_learning_target(r_t: Floats, discount_t: Floats, q_t: Floats) -> Floats:
    """The one-step target of Q-learning.

        y = r_t + discount_t * max_a q_t(a)

    Shapes: r_t, discount_t [B]; q_t [B, A], from the target network. For an n-step target r_t is the discounted sum of
    rewards and discount_t is gamma^m (Watkins 1989; Mnih et al. 2015).
    """
    return double_q_learning_target(r_t, discount_t, q_t, q_t)


def double_q_learning_target(r_t: Floats, discount_t: Floats, q_t_value: Floats, q_t_selector: Floats) -> Floats:
    """The target of double Q-learning: one network chooses the action, the other says what it is worth.

        y = r_t + discount_t * q_t_value(argmax_a q_t_selector(a))

    Shapes: r_t, discount_t [B]; q_t_value (target network) and q_t_selector (online network) [B, A]
    (van Hasselt, Guez and Silver 2016).
    """
    check_shapes("B A", q_t_value, q_t_selector)
    chosen = q_of_action(q_t_value, q_t_selector.argmax(1))
    check_shapes("B", r_t, discount_t, chosen)
    return r_t + discount_t * chosen


def q_of_action(q_tm1: Floats, a_tm1: Array) -> Floats:
    """The value of the action that was taken, q_tm1(a_tm1). Shapes: [B, A], [B] -> [B]."""
    check_shapes("B A", q_tm1)
    if a_tm1.shape != q_tm1.shape[:1]:
        raise ValueError(f"actions {tuple(a_tm1.shape)} do not match action values {tuple(q_tm1.shape)}")
    taken: Floats = q_tm1[np.arange(len(q_tm1)), a_tm1]
    return taken


@like_torch
def weighted_huber_and_slope(
    value: Floats, target: Floats, weight: Floats | None = None, delta: float = 1.0
) -> tuple[float, Floats]:
    """The mean Huber loss, with importance weights, and its derivative by each value.

        L = mean_i w_i * h(v_i - target_i),   h(x) = x^2/2 if |x| <= delta, else delta (|x| - delta/2)
        dL/dv_i = w_i * clip(v_i - target_i, -delta, delta) / B

    Shapes: all [B]. One formula serves both branches: h(x) = c (x - c/2) with c = clip(x).
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
