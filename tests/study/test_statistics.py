"""Statistics over runs, against what can be computed by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from passel.study.statistics import (
    Estimate,
    bootstrap,
    improvement_over,
    interquartile_mean,
    interquartile_mean_of,
    normalized,
    probability_of_improvement,
)
from passel.types import PasselError


def test_a_quarter_is_left_out_at_either_end() -> None:
    assert interquartile_mean([1000.0, 2.0, 3.0, -1000.0]) == 2.5
    assert interquartile_mean([-7.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 900.0]) == 3.5
    assert interquartile_mean([4.0]) == 4.0


def test_normalized_between_random_and_best() -> None:
    assert normalized([-200.0, 0.0, 200.0], -200.0, 200.0).tolist() == [0.0, 0.5, 1.0]
    with pytest.raises(PasselError, match="cannot be normalized between 3 and 3"):
        normalized([1.0], 3.0, 3.0)


def test_probability_of_improvement_counts_pairs() -> None:
    ours, theirs = [1.0, 2.0, 3.0], [2.0, 2.5]
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(ours, theirs)]
    assert probability_of_improvement(ours, theirs) == pytest.approx(np.mean(wins))
    assert probability_of_improvement(theirs, ours) == pytest.approx(1 - np.mean(wins))
    assert probability_of_improvement(ours, ours) == 0.5


def test_an_interval_covers_as_often_as_it_says() -> None:
    """Of the mean of 30 normal numbers; the percentile interval is a little too narrow at this size."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        found = bootstrap(lambda x: float(x.mean()), rng.normal(3.0, 1.0, 30), resamples=300, level=0.9)
        covered += found.low <= 3.0 <= found.high
    assert 0.80 <= covered / 200 <= 0.96


def test_each_environment_is_resampled_on_its_own() -> None:
    """Two environments without any spread between seeds: nothing can vary, however different they are."""
    found = interquartile_mean_of({"a": [0.0] * 4, "b": [1.0] * 4})
    assert found == Estimate(0.5, 0.5, 0.5)
    varied = interquartile_mean_of({"a": [0.0, 0.2, 0.1, 0.3], "b": [1.0] * 4})
    assert varied.low < varied.value < varied.high
    assert varied.high <= 0.75


def test_improvement_is_the_mean_over_environments() -> None:
    ours, theirs = {"a": [2.0, 3.0], "b": [0.0] * 50}, {"a": [0.0, 1.0], "b": [1.0] * 50}
    assert improvement_over(ours, theirs).value == 0.5, "one is won, one is lost, whatever the number of runs"
    with pytest.raises(PasselError, match="b is on one side only"):
        improvement_over({"a": [1.0]}, {"a": [1.0], "b": [1.0]})


@pytest.mark.parametrize("scores", [[], [float("nan")], [[1.0]]])
def test_what_is_no_score_is_refused(scores: list[float]) -> None:
    with pytest.raises(PasselError, match="some finite numbers in a row"):
        interquartile_mean(scores)
