"""Policy gradients: advantages, and the losses of A3C and PPO with their slopes in closed form.

Time is the first axis, [T, N]: T steps of N environments. An episode's end is a discount of zero, whichever way it
ended: where it was truncated, the value of the true last observation is already part of the reward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from passel.maths.policies import Categorical, Head, log_softmax
from passel.maths.shapes import Array, Floats, check_shapes, like_torch

__all__ = [
    "PolicyLoss",
    "clipped_surrogate_and_slope",
    "explained_variance",
    "gae",
    "log_softmax",
    "normalised",
    "policy_gradient_and_slope",
    "shares",
    "value_loss_and_slope",
]

#: A variance below this share of the mean square is what rounding makes of equal numbers.
ROUNDING = 1e-12


def gae(reward: Floats, discount: Floats, value: Floats, last_value: Floats, lam: float) -> Floats:
    """Generalised advantage estimation (Schulman et al. 2016).

        delta_t = r_t + discount_t V_{t+1} - V_t,     A_t = delta_t + discount_t lambda A_{t+1}

    Shapes: [T, N], last_value [N], which is V_T. With lambda = 1, A_t + V_t is the n-step return of A3C.
    """
    check_shapes("T N", reward, discount, value)
    check_shapes("N", value[0], last_value)
    advantage = np.empty_like(reward)
    after, next_value = np.zeros_like(last_value), last_value
    for t in range(len(reward) - 1, -1, -1):
        delta = reward[t] + discount[t] * next_value - value[t]
        advantage[t] = after = delta + discount[t] * lam * after
        next_value = value[t]
    return advantage


def shares(weight: Floats) -> Floats:
    """What each row counts in a weighted mean, weight_i / sum_j weight_j; 0 for all rows where no row counts.

    A minibatch may hold nothing but rows that a back-end spent on resets: its losses and its gradient are 0.
    """
    share: Floats = weight / np.maximum(weight.sum(), np.finfo(np.float32).tiny)
    return share


@dataclass(frozen=True)
class PolicyLoss:
    """A loss, its derivative by the policy's outputs [B, K], and what is worth knowing of the step."""

    value: float
    slope: Floats
    entropy: float
    #: `value` without the entropy bonus.
    policy: float
    kl: float = 0.0
    clipped: float = 0.0


@like_torch
def policy_gradient_and_slope(
    logits: Floats, action: Array, advantage: Floats, weight: Floats, entropy_bonus: float, head: Head = Categorical
) -> PolicyLoss:
    """The loss of A3C (Mnih et al. 2016).

        L = -mean_w [ A log pi(a|s) + beta H(pi(s)) ]

    Shapes: logits [B, K], or whatever outputs `head` reads a policy from; actions [B, ...]; the rest [B].
    `weight` is 1 for a transition and 0 for a row that is none.
    """
    check_shapes("B", advantage, weight)
    policy = head(logits)
    share = shares(weight)
    entropy = float((share * policy.entropy()).sum())
    slope = policy.slope(action, share * advantage, share * entropy_bonus)
    gained = float((share * advantage * policy.logp(action)).sum())
    return PolicyLoss(-gained - entropy_bonus * entropy, slope, entropy, -gained)


@like_torch
def clipped_surrogate_and_slope(
    logits: Floats,
    action: Array,
    advantage: Floats,
    old_logp: Floats,
    weight: Floats,
    clip: float,
    entropy_bonus: float,
    head: Head = Categorical,
) -> PolicyLoss:
    """The loss of PPO (Schulman et al. 2017).

        ratio = pi(a|s) / pi_old(a|s),     L = -mean_w [ min(ratio A, clip(ratio, 1 - e, 1 + e) A) + beta H(pi(s)) ]

    The slope is zero where the clip acts: where the ratio has already moved further than e in A's direction. `kl` is
    the estimator mean (ratio - 1) - log ratio, which is never negative. Shapes: as above.
    """
    check_shapes("B", advantage, old_logp, weight)
    policy = head(logits)
    share = shares(weight)
    moved = policy.logp(action) - old_logp
    ratio = np.exp(moved)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
    free = np.where(advantage >= 0, ratio <= 1 + clip, ratio >= 1 - clip)
    entropy = float((share * policy.entropy()).sum())
    slope = policy.slope(action, share * advantage * ratio * free, share * entropy_bonus)
    lost = -(share * surrogate).sum()
    return PolicyLoss(
        float(lost - entropy_bonus * entropy),
        slope,
        entropy,
        float(lost),
        kl=float((share * (ratio - 1 - moved)).sum()),
        clipped=float((share * (np.abs(ratio - 1) > clip)).sum()),
    )


@like_torch
def value_loss_and_slope(
    value: Floats, target: Floats, weight: Floats, old_value: Floats | None = None, clip: float | None = None
) -> tuple[float, Floats]:
    """Half the mean squared error of the critic, and its derivative by each value.

        L = mean_w max((v - R)^2, (v_old + clip(v - v_old, -e, e) - R)^2) / 2

    Without `clip` the second of the two is left out. Shapes: all [B].
    """
    check_shapes("B", value, target, weight)
    share = shares(weight)
    error = value - target
    if clip is None or old_value is None:
        return float((share * error * error).sum() / 2), share * error
    near = old_value + np.clip(value - old_value, -clip, clip) - target
    worse = near * near > error * error
    slope = np.where(worse & (np.abs(value - old_value) > clip), 0, error)
    return float((share * np.maximum(error * error, near * near)).sum() / 2), (share * slope).astype(np.float32)


def normalised(advantage: Floats, weight: Floats, group: Array | None = None) -> Floats:
    """Advantages of zero mean and unit variance, over the rows that count; with `group`, over those of each group.

    All are 0 where no row counts.
    """
    if group is not None:
        result = np.empty_like(advantage)
        for rows in (group == each for each in np.unique(group)):
            result[rows] = normalised(advantage[rows], weight[rows])
        return result
    if not weight.any():
        return np.zeros_like(advantage)
    share = shares(weight)
    mean = (share * advantage).sum()
    deviation = np.sqrt((share * (advantage - mean) ** 2).sum())
    scaled: Floats = ((advantage - mean) / (deviation + 1e-8)).astype(np.float32)
    return scaled


@like_torch
def explained_variance(value: Floats, target: Floats, weight: Floats) -> float:
    """How much of the variance of the returns the critic predicts, over the rows that count.

        1 - Var_w[R - v] / Var_w[R]

    1 is a perfect critic, 0 one that says the same of every state, and less than 0 a worse one; nan where the returns
    do not vary. Shapes: all equal.
    """
    share = weight.astype(np.float64)
    share /= max(share.sum(), np.finfo(np.float32).tiny)
    wanted = target.astype(np.float64)

    def variance(x: NDArray[np.float64]) -> float:
        return float((share * (x - (share * x).sum()) ** 2).sum())

    spread = variance(wanted)
    varies = spread > ROUNDING * float((share * wanted**2).sum())
    return 1 - variance(wanted - value) / spread if varies else math.nan
