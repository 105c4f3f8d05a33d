"""The limiter: the ratio is kept within its slack, whoever is faster, and never do both sides wait."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passel.arena import Arena
from passel.data.limiter import Limiter

ratios = st.floats(0.01, 200)


def make(
    arena: Arena | None = None, rank: int = 0, *, ratio: float = 2.0, batch: int = 8, warmup: int = 20, slack: float = 8
) -> Limiter:
    arena = arena or Arena(Limiter.specs(3, 2))
    return Limiter(arena, rank, ratio=ratio, batch=batch, warmup=warmup, slack=slack)


def test_first_the_memory_is_filled() -> None:
    limiter = make()
    for _ in range(20):
        assert limiter.may_insert()
        assert not limiter.may_sample()
        limiter.inserted(1)
    assert limiter.may_sample()


def test_a_warm_up_shorter_than_a_batch_lasts_until_there_is_one() -> None:
    limiter = make(warmup=0, batch=8)
    limiter.inserted(7)
    assert not limiter.may_sample()
    limiter.inserted(1)
    assert limiter.may_sample()


@given(st.integers(0, 10_000), ratios, st.integers(1, 64), st.integers(1, 32), st.floats(1, 8))
def test_somebody_may_always_go_on_and_the_ratio_is_kept(
    seed: int, ratio: float, batch: int, rows: int, slack: float
) -> None:
    """Whoever may is chosen at random, with odds of anything from even to hopeless."""
    rng = np.random.default_rng(seed)
    allowed = slack * max(batch, ratio * rows)
    limiter, odds = make(ratio=ratio, batch=batch, slack=allowed), rng.uniform(0.02, 0.98)
    for _ in range(400):
        insert, sample = limiter.may_insert(), limiter.may_sample()
        assert insert or sample, "everybody waits for everybody"
        if insert and (not sample or rng.random() < odds):
            limiter.inserted(rows)
        else:
            limiter.sampled()
        if limiter.samples:
            # What was due is rounded once as a product and once as a difference, before the insert and after it.
            rounding = 4 * np.spacing(max(limiter.inserts * ratio, limiter.samples))
            assert -allowed - rounding <= limiter.owed < allowed + ratio * rows + rounding


def test_counts_are_of_everybody_and_each_writes_only_its_own() -> None:
    arena = Arena(Limiter.specs(3, 2))
    limiters = [make(arena, rank, ratio=1.0, warmup=0) for rank in range(3)]
    for rank, limiter in enumerate(limiters):
        limiter.inserted(10 * (rank + 1))
    limiters[1].sampled()
    assert arena["inserts"].tolist() == [10, 20, 30]
    assert arena["samples"].tolist() == [0, 8]
    assert {limiter.inserts for limiter in limiters} == {60}
    assert {limiter.owed for limiter in limiters} == {60 - 8 - 8}
    assert limiters[0].samples_per_insert == pytest.approx(8 / 52)


def test_a_slack_in_which_both_might_wait_is_refused() -> None:
    with pytest.raises(ValueError, match="both sides might wait"):
        make(batch=8, slack=7)
