"""The mathematics of the papers in plain Python loops: slow, and written so that it can be checked against the page.

Each function has the name of the one in `passel.maths` that it is the oracle for, and the paper's own notation inside.
Nothing here is used to train.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = Sequence[float]
Matrix = Sequence[Vector]


def q_learning_target(r: Vector, discount: Vector, q_target: Matrix) -> list[float]:
    """Mnih et al. 2015: y_j = r_j + gamma max_a' Q^(s_{j+1}, a'), and y_j = r_j where the episode terminates."""
    y = []
    for j in range(len(r)):
        best = q_target[j][0]
        for q in q_target[j][1:]:
            best = max(best, q)
        y.append(r[j] + discount[j] * best)
    return y


def double_q_learning_target(r: Vector, discount: Vector, q_target: Matrix, q_online: Matrix) -> list[float]:
    """van Hasselt et al. 2016: Y_t = R_{t+1} + gamma Q(S_{t+1}, argmax_a Q(S_{t+1}, a; theta_t); theta_t^-)."""
    y = []
    for t in range(len(r)):
        a_star = 0
        for a in range(1, len(q_online[t])):
            if q_online[t][a] > q_online[t][a_star]:
                a_star = a
        y.append(r[t] + discount[t] * q_target[t][a_star])
    return y


def q_of_action(q: Matrix, a: Sequence[int]) -> list[float]:
    """Q(s_j, a_j), row by row."""
    return [q[j][a[j]] for j in range(len(a))]


def weighted_huber(value: Vector, target: Vector, weight: Vector | None, delta: float) -> float:
    """Huber 1964, weighted as in algorithm 1 of Schaul et al. 2016, and averaged over the batch."""
    total = 0.0
    for i in range(len(value)):
        error = target[i] - value[i]
        loss = error * error / 2 if abs(error) <= delta else delta * (abs(error) - delta / 2)
        total += loss if weight is None else weight[i] * loss
    return total / len(value)


def weighted_huber_gradient(value: Vector, target: Vector, weight: Vector | None, delta: float) -> list[float]:
    """Its derivative by `value`: minus the error, clipped to [-delta, delta], as the Nature paper describes it."""
    gradient = []
    for i in range(len(value)):
        error = target[i] - value[i]
        clipped = max(-delta, min(delta, error))
        gradient.append(-clipped * (1.0 if weight is None else weight[i]) / len(value))
    return gradient


def dueling(value: Vector, advantage: Matrix) -> list[list[float]]:
    """Wang et al. 2016, equation 9: Q(s, a) = V(s) + (A(s, a) - 1/|A| sum_a' A(s, a'))."""
    q = []
    for s in range(len(value)):
        mean = sum(advantage[s]) / len(advantage[s])
        q.append([value[s] + (advantage[s][a] - mean) for a in range(len(advantage[s]))])
    return q


def categorical_projection(p: Matrix, r: Vector, discount: Vector, z: Vector) -> list[list[float]]:
    """Bellemare et al. 2017, algorithm 1: the mass of each atom, moved and shared between its two neighbours."""
    v_min, v_max, n = z[0], z[-1], len(z)
    delta_z = (v_max - v_min) / (n - 1)
    projected = []
    for t in range(len(r)):
        m = [0.0] * n
        for j in range(n):
            tz_j = min(max(r[t] + discount[t] * z[j], v_min), v_max)
            b_j = (tz_j - v_min) / delta_z
            lower = min(math.floor(b_j), n - 1)
            upper = min(math.ceil(b_j), n - 1)
            if lower == upper:  # on an atom: the paper's two shares would both be nothing
                m[lower] += p[t][j]
            else:
                m[lower] += p[t][j] * (upper - b_j)
                m[upper] += p[t][j] * (b_j - lower)
        projected.append(m)
    return projected


def linear(start: float, end: float, step: int, over: int) -> float:
    """A schedule, walked one equal stride at a time."""
    at = start
    for _ in range(min(step, over)):
        at += (end - start) / over
    return at if step < over else end


def gae(r: Matrix, discount: Matrix, v: Matrix, v_last: Vector, lam: float) -> list[list[float]]:
    """Schulman et al. 2016, equation 16: the sum of (gamma lambda)^l delta_{t+l}, until an episode ends."""
    steps, envs = len(r), len(r[0])
    values = [*v, v_last]
    advantage = [[0.0] * envs for _ in range(steps)]
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for later in range(t, steps):
                delta = r[later][n] + discount[later][n] * values[later + 1][n] - values[later][n]
                advantage[t][n] += weight * delta
                weight *= lam * discount[later][n]
    return advantage


def n_step_return(r: Matrix, discount: Matrix, v_last: Vector) -> list[list[float]]:
    """Mnih et al. 2016, algorithm S3: R <- r_i + gamma R, from the last state's value back."""
    returns = [[0.0] * len(v_last) for _ in r]
    for n, bootstrap in enumerate(v_last):
        total = bootstrap
        for i in reversed(range(len(r))):
            total = r[i][n] + discount[i][n] * total
            returns[i][n] = total
    return returns


def vtrace(
    pi: Matrix, mu: Matrix, r: Matrix, discount: Matrix, v: Matrix, last_v: Vector, rho_bar: float, c_bar: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Espeholt et al. 2018, equation 1, as the double sum and the product that it is, and its policy gradient's factor:

        v_s = V(x_s) + sum_{t=s}^{T-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i) delta_t V

    `pi` and `mu` are the probabilities of the actions that were taken. Returns v_s and
    rho_s (r_s + gamma v_{s+1} - V(x_s)).
    """
    times, envs = len(r), len(r[0])
    target = [[0.0] * envs for _ in range(times)] + [list(last_v)]
    factor = [[0.0] * envs for _ in range(times)]
    for n in range(envs):
        value = [v[t][n] for t in range(times)] + [last_v[n]]
        rho = [min(rho_bar, pi[t][n] / mu[t][n]) for t in range(times)]
        c = [min(c_bar, pi[t][n] / mu[t][n]) for t in range(times)]
        for s in range(times):
            total = value[s]
            for t in range(s, times):
                weight = 1.0
                for i in range(s, t):
                    weight *= discount[i][n] * c[i]
                total += weight * rho[t] * (r[t][n] + discount[t][n] * value[t + 1] - value[t])
            target[s][n] = total
        for s in range(times):
            factor[s][n] = rho[s] * (r[s][n] + discount[s][n] * target[s + 1][n] - value[s])
    return target[:-1], factor


def lambda_returns(r: Matrix, discount: Matrix, v_next: Matrix, lam: float) -> list[list[float]]:
    """Sutton and Barto, equation 12.3: the n-step returns G_{t:t+n} of every length, (1 - lambda) lambda^(n-1) of each,
    and what is left of the weight on the longest. A discount of zero ends the sum of rewards by itself.
    """
    steps, envs = len(r), len(r[0])
    returns = [[0.0] * envs for _ in range(steps)]
    for i in range(envs):
        for t in range(steps):
            rewards, reach, weight = 0.0, 1.0, 1.0
            for k in range(t, steps):
                rewards += reach * r[k][i]
                reach *= discount[k][i]
                share = weight if k == steps - 1 else (1 - lam) * weight
                returns[t][i] += share * (rewards + reach * v_next[k][i])
                weight *= lam
    return returns
