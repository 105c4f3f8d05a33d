"""Statistics over few training runs: interquartile means, intervals by the bootstrap, probabilities of improvement.

After Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice": a mean over seeds
follows its outliers, and a median of five ignores most of what was measured. The only file that imports scipy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from passel.types import PasselError

Scores = NDArray[np.float64]
RESAMPLES = 2_000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A statistic with the ends of its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def interquartile_mean(scores: Sequence[float] | Scores) -> float:
    """The mean of the middle half: a quarter of the scores is left out at either end."""
    return float(_scipy().trim_mean(_checked(scores), 0.25))


def normalized(scores: Sequence[float] | Scores, worst: float, best: float) -> Scores:
    """Scores on a scale on which `worst` is 0 and `best` is 1."""
    if not best > worst:
        raise PasselError(f"scores cannot be normalized between {worst:g} and {best:g}: the second must be larger.")
    return (_checked(scores) - worst) / (best - worst)


def probability_of_improvement(ours: Sequence[float] | Scores, theirs: Sequence[float] | Scores) -> float:
    """The chance that a run of ours scores more than one of theirs; a tie counts half."""
    ours, theirs = _checked(ours), _checked(theirs)
    better = (ours[:, None] > theirs[None, :]).mean()
    equal = (ours[:, None] == theirs[None, :]).mean()
    return float(better + equal / 2)


def bootstrap(
    statistic: Callable[..., float],
    *groups: Sequence[float] | Scores,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """`statistic` of the groups, and its percentile interval. Each group (the seeds of one environment) is resampled on
    its own, so that every resample has as many runs of each environment as were made.
    """
    drawn = [_checked(group) for group in groups]
    value = float(statistic(*drawn))
    if all(np.ptp(group) == 0 for group in drawn):
        return Estimate(value, value, value)  # scipy warns of an interval without width
    found = _scipy().bootstrap(
        drawn,
        statistic,
        n_resamples=resamples,
        vectorized=False,
        confidence_level=level,
        method="percentile",
        random_state=np.random.default_rng(seed),
    )
    return Estimate(value, float(found.confidence_interval.low), float(found.confidence_interval.high))


def interquartile_mean_of(scores: Mapping[str, Sequence[float]], **options: Any) -> Estimate:
    """The interquartile mean of all runs of all environments, whose scores must be normalized before."""
    return bootstrap(lambda *groups: interquartile_mean(np.concatenate(groups)), *scores.values(), **options)


def improvement_over(
    ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]], **options: Any
) -> Estimate:
    """The probability of improvement, as the mean over environments: each counts the same."""
    if ours.keys() != theirs.keys():
        odd = sorted(ours.keys() ^ theirs.keys())
        raise PasselError(f"both sides need runs of the same environments, and {odd[0]} is on one side only.")
    count = len(ours)

    def mean(*groups: Scores) -> float:
        pairs = zip(groups[:count], groups[count:], strict=True)
        return float(np.mean([probability_of_improvement(mine, other) for mine, other in pairs]))

    return bootstrap(mean, *(ours[name] for name in ours), *(theirs[name] for name in ours), **options)


def _checked(scores: Sequence[float] | Scores) -> Scores:
    found = np.asarray(scores, np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise PasselError(f"scores must be some finite numbers in a row, and these are {found!r:.100}.")
    return found


def _scipy() -> Any:
    try:
        from scipy import stats
    except ImportError as error:
        raise PasselError("scipy is not installed. Install it with: pip install 'passel[study]'") from error
    return stats
