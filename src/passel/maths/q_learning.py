"""Q-learning: targets and losses as pure functions of tensors.

Time is in the names: `tm1` is when the action was taken, `t` is what came of it. Termination enters as a discount of
zero, never as a flag.
"""

from __future__ import annotations

import torch
from torch import Tensor

from passel.maths.shapes import check_shapes


def q_learning_target(r_t: Tensor, discount_t: Tensor, q_t: Tensor) -> Tensor:
    """The one-step target of Q-learning.

        y = r_t + discount_t * max_a q_t(a)

    Shapes: r_t, discount_t [B]; q_t [B, A], from the target network. For an n-step target r_t is the discounted sum of
    rewards and discount_t is gamma^m (Watkins 1989; Mnih et al. 2015).
    """
    best = q_t.amax(dim=1)
    check_shapes("B", r_t, discount_t, best)
    return torch.addcmul(r_t, discount_t, best)


def double_q_learning_target(r_t: Tensor, discount_t: Tensor, q_t_value: Tensor, q_t_selector: Tensor) -> Tensor:
    """The target of double Q-learning: one network chooses the action, the other says what it is worth.

        y = r_t + discount_t * q_t_value(argmax_a q_t_selector(a))

    Shapes: r_t, discount_t [B]; q_t_value (target network) and q_t_selector (online network) [B, A]
    (van Hasselt, Guez and Silver 2016).
    """
    check_shapes("B A", q_t_value, q_t_selector)
    chosen = q_t_value.gather(1, q_t_selector.argmax(dim=1, keepdim=True)).squeeze(1)
    check_shapes("B", r_t, discount_t, chosen)
    return torch.addcmul(r_t, discount_t, chosen)


def q_of_action(q_tm1: Tensor, a_tm1: Tensor) -> Tensor:
    """The value of the action that was taken, q_tm1(a_tm1). Shapes: [B, A], [B] -> [B]."""
    if a_tm1.shape != q_tm1.shape[:1]:
        raise ValueError(f"actions {tuple(a_tm1.shape)} do not match action values {tuple(q_tm1.shape)}")
    return q_tm1.gather(1, a_tm1.unsqueeze(1)).squeeze(1)


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


def weighted_huber_slope(value: Tensor, target: Tensor, weight: Tensor | None = None, delta: float = 1.0) -> Tensor:
    """The derivative of `weighted_huber` by each value, in closed form.

        dL/dv_i = w_i * clip(v_i - target_i, -delta, delta) / B

    Shapes: all [B].
    """
    check_shapes("B", value, target, *([] if weight is None else [weight]))
    error = (value - target).clamp_(-delta, delta)
    if weight is not None:
        error.mul_(weight)
    return error.div_(len(value))


def dueling(value: Tensor, advantage: Tensor) -> Tensor:
    """Q from a value and advantages of zero mean. Shapes: [B, 1], [B, A] -> [B, A].

    Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')      (Wang et al. 2016, equation 9)
    """
    mean = advantage.mean(dim=1, keepdim=True)
    check_shapes("B 1", value, mean)
    return value + advantage - mean
