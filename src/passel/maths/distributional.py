"""Distributional Q-learning: a return is a distribution over fixed atoms, not a number (Bellemare et al. 2017).

Time is in the names, as in `q_learning`. N atoms z_0 < ... < z_{N-1} lie at equal distances on [v_min, v_max].
"""

from __future__ import annotations

import numpy as np

from passel.maths.policy_gradient import log_softmax
from passel.maths.shapes import Floats, check_shapes, like_torch


def support(v_min: float, v_max: float, atoms: int) -> Floats:
    """The atoms: z_i = v_min + i (v_max - v_min) / (N - 1). Shape: [N]."""
    return np.linspace(v_min, v_max, atoms, dtype=np.float32)


def expected(p: Floats, z: Floats) -> Floats:
    """What a distribution is worth, sum_i p_i z_i. Shapes: [..., N], [N] -> [...]."""
    worth: Floats = (p * z).sum(axis=-1)
    return worth


@like_torch
def categorical_projection(p_t: Floats, r_t: Floats, discount_t: Floats, z: Floats) -> Floats:
    """The distribution of r_t + discount_t * Z_t, brought back to the atoms.

        Tz_j = clip(r_t + discount_t * z_j, v_min, v_max),   b_j = (Tz_j - v_min) / dz
        m_i  = sum_j p_t(j) * max(0, 1 - |b_j - i|)

    Shapes: p_t [B, N], r_t, discount_t [B], z [N] -> [B, N]. The mass of each atom goes to its two neighbours, more to
    the nearer one (Bellemare, Dabney and Munos 2017, algorithm 1). For n steps r_t is the discounted sum of rewards and
    discount_t is gamma^m.
    """
    check_shapes("B", r_t, discount_t, p_t[:, 0])
    check_shapes("N", z, p_t[0])
    rows, atoms = p_t.shape
    position = np.clip(r_t[:, None] + discount_t[:, None] * z, z[0], z[-1])
    position = (position - z[0]) / (z[1] - z[0])
    # An atom that falls on the last one is a whole distance away from the one before: no case of its own.
    left = np.clip(np.nan_to_num(position).astype(np.int64), 0, atoms - 2)
    share = np.clip(position - left, 0, 1)  # rounding must not make mass, nor debt
    place = left + atoms * np.arange(rows)[:, None]
    mass = np.bincount(place.ravel(), (p_t * (1 - share)).ravel(), rows * atoms)
    mass += np.bincount(place.ravel() + 1, (p_t * share).ravel(), rows * atoms)
    return mass.reshape(rows, atoms).astype(np.float32)


@like_torch
def weighted_kl_and_slope(logits: Floats, target: Floats, weight: Floats | None = None) -> tuple[float, Floats, Floats]:
    """The mean divergence of distributions from their targets, its derivative by each logit, and each row's own.

        D_i = sum_j m_ij (log m_ij - log p_ij),   p_i = softmax(logits_i),   L = mean_i w_i * D_i
        dL/dlogit_ij = w_i * (p_ij - m_ij) / B

    Shapes: logits, target [B, N], weight [B] -> a number, [B, N], [B]. It differs from the cross-entropy of the paper
    by the targets' entropy, which has no slope; and it is 0 where there is nothing to learn, so it is a surprise too
    (Hessel et al. 2018 set priorities by it).
    """
    check_shapes("B N", logits, target)
    log_p = log_softmax(logits)
    surprise = target * (np.log(np.maximum(target, np.finfo(np.float32).tiny)) - log_p)
    # A divergence is never negative; in float32 the sum rounds below 0 where p is close to m.
    divergence: Floats = np.maximum(surprise.sum(axis=1), 0)
    slope = (np.exp(log_p) - target) / np.float32(len(target))
    if weight is None:
        return float(divergence.mean()), slope, divergence
    check_shapes("B", weight, divergence)
    return float(weight @ divergence) / len(target), slope * weight[:, None], divergence
