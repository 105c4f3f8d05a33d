"""Advantage-weighted regression (Peng et al. 2019): what old trajectories are worth now, and what each step counts."""

from __future__ import annotations

import math

import numpy as np

from passel.maths.shapes import Floats, check_shapes


def lambda_returns(reward: Floats, discount: Floats, next_value: Floats, lam: float) -> Floats:
    """TD(lambda) returns.

        G_t = r_t + discount_t ((1 - lambda) V_{t+1} + lambda G_{t+1}),     G_T = V_T

    Shapes: all [T, N]; `next_value` is V_{t+1}. An episode's end is a discount of zero. G_t = a_t + b_t G_{t+1} is a
    chain of affine maps, and a chain can be joined two by two: log2 T passes over the arrays instead of T steps, for a
    memory holds tens of thousands of them.
    """
    check_shapes("T N", reward, discount, next_value)
    total = reward + discount * (1 - np.float32(lam)) * next_value
    carry = discount * np.float32(lam)
    total[-1] = reward[-1] + discount[-1] * next_value[-1]
    carry[-1] = 0
    ahead = 1
    while ahead < len(total) and carry.any():
        total[:-ahead] += carry[:-ahead] * total[ahead:]
        carry[:-ahead] *= carry[ahead:]
        ahead *= 2
    return total


def advantage_weights(advantage: Floats, beta: float, clip: float) -> Floats:
    """min(exp(A / beta), clip), without an overflow on the way."""
    weights: Floats = np.exp(np.minimum(advantage / np.float32(beta), np.float32(math.log(clip))))
    return weights
