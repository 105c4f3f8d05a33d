"""V-trace: what trajectories of an older policy are worth to the present one (Espeholt et al. 2018).

Time is the first axis, [T, N], as in `policy_gradient`. An episode's end is a discount of zero, whichever way it ended:
where it was truncated, the value of the true last observation is already part of the reward, and the trace is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from passel.maths.shapes import Floats, check_shapes, like_torch


@dataclass(frozen=True)
class VTrace:
    """What the critic should say, and what the policy's gradient is multiplied with; both [T, N].

    `rho` is the truncated ratio, which the advantage already has as a factor.
    """

    target: Floats
    advantage: Floats
    rho: Floats


@like_torch
def vtrace(
    log_ratio: Floats,
    reward: Floats,
    discount: Floats,
    value: Floats,
    last_value: Floats,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    lam: float = 1.0,
) -> VTrace:
    """Equations 1 and 4 of the paper, backwards from the last step.

        ratio_t = pi(a_t|x_t) / mu(a_t|x_t),     rho_t = min(rho_clip, ratio_t),     c_t = lam min(c_clip, ratio_t)
        delta_t = rho_t (r_t + discount_t V_{t+1} - V_t)
        v_t = V_t + delta_t + discount_t c_t (v_{t+1} - V_{t+1}),     v_T = V_T
        A_t = rho_t (r_t + discount_t v_{t+1} - V_t)

    Shapes: [T, N], last_value [N], which is V_T. With pi = mu and clips of at least 1, v_t is the n-step return of A3C.
    """
    check_shapes("T N", log_ratio, reward, discount, value)
    check_shapes("N", value[0], last_value)
    ratio = np.exp(log_ratio)
    rho = np.minimum(ratio, np.float32(rho_clip))
    trace = discount * (np.minimum(ratio, np.float32(c_clip)) * np.float32(lam))
    after = np.concatenate([value[1:], last_value[None]])
    correction = rho * (reward + discount * after - value)
    for t in range(len(reward) - 2, -1, -1):
        correction[t] += trace[t] * correction[t + 1]
    target: Floats = value + correction
    following = np.concatenate([target[1:], last_value[None]])
    return VTrace(target, rho * (reward + discount * following - value), rho)
