"""Mean and variance of data that comes in parts, from the moments of each part (Chan, Golub, LeVeque 1979)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from passel.maths.shapes import Array

Doubles = NDArray[np.float64]

#: Added to a variance before its root is divided by, as Gymnasium and Stable-Baselines3 do.
EPS = 1e-8


@dataclass(frozen=True)
class Moments:
    """Of `count` rows of D numbers: their mean [D], and the sum of the squared differences from it, m2 [D]."""

    count: float
    mean: Doubles
    m2: Doubles

    @property
    def var(self) -> Doubles:
        """The variance m2 / count; 1 where nothing was counted."""
        return self.m2 / self.count if self.count else np.ones_like(self.m2)

    @property
    def std(self) -> Doubles:
        """sqrt(var + EPS)."""
        found: Doubles = np.sqrt(self.var + EPS) if self.count else np.ones_like(self.m2)
        return found


def moments_of(rows: Array) -> Moments:
    """The moments of rows [K, D], in double precision.

        mean = 1/K sum_k x_k,     m2 = sum_k (x_k - mean)^2

    In two passes: a difference of squares, E[x^2] - mean^2, loses all its digits where the mean is large.
    """
    if not len(rows):
        return Moments(0.0, np.zeros(rows.shape[1]), np.zeros(rows.shape[1]))
    mean = rows.mean(axis=0, dtype=np.float64)
    apart = rows - mean
    return Moments(float(len(rows)), mean, np.einsum("kd,kd->d", apart, apart))


def merge_moments(parts: Sequence[Moments]) -> Moments:
    """The moments of all rows of the parts together, each part p with count n_p.

        n = sum_p n_p,     mean = sum_p n_p mean_p / n,     m2 = sum_p (m2_p + n_p (mean_p - mean)^2)

    The means are taken relative to the largest part's, so that equal ones are not rounded.
    """
    count = np.array([part.count for part in parts])
    total = float(count.sum())
    if not total:
        return parts[0]
    means = np.stack([part.mean for part in parts])
    base = means[count.argmax()]
    mean = base + count @ (means - base) / total
    m2 = np.sum([part.m2 for part in parts], axis=0) + count @ (means - mean) ** 2
    return Moments(total, mean, m2)


def update_moments(moments: Moments, rows: Array) -> Moments:
    """The moments of what was counted before and of rows [K, D] together."""
    return merge_moments([moments, moments_of(rows)])
