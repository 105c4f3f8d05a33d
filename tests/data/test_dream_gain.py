"""The gain of imagined updates: measured exactly, and judged by its own standard error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from passel.arena import Arena
from passel.data import dream_gain
from passel.data.dream_gain import EVERY, WINDOW, DreamGain
from passel.types import Batch, Floats


class Scripted:
    """Values whose TD error is what the test says: one number before each measured update, one after."""

    def __init__(self, errors: list[float]) -> None:
        self.errors = errors

    def targets(self, batch: Batch) -> Floats:
        return np.zeros(1, np.float32)

    def td_error(self, batch: Batch, targets: Floats) -> float:
        return self.errors.pop(0)


class Rows:
    """A memory with as many rows as the test says."""

    def __init__(self, count: int = 100) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def sample(self, n: int, rng: Any, beta: float = 1.0) -> Any:
        assert n <= self.count


def made(errors: list[float], arena: dict[str, torch.Tensor], memory: Any = None, rank: int = 0) -> DreamGain:
    return DreamGain(arena, rank, Scripted(errors), memory or Rows(), rows=10, seed=0)


@pytest.fixture
def arena() -> dict[str, torch.Tensor]:
    return dict(Arena(DreamGain.specs(2)))


def updates(gain: DreamGain, count: int, pulls: list[int] | None = None) -> None:
    for _ in range(count):
        with gain.measured(lambda: pulls.append(1) if pulls is not None else None):
            pass


def window(mean: float, rng: np.random.Generator, spread: float = 0.1) -> list[float]:
    """Errors of one window whose gains have about this mean."""
    return [number for gain in rng.normal(mean, spread, WINDOW) for number in (1.0, 1.0 - gain)]


class TestMeasured:
    def test_one_update_in_so_many_is_measured_and_the_gain_is_relative(self, arena: dict[str, torch.Tensor]) -> None:
        pulls: list[int] = []
        updates(made([4.0, 3.0, 2.0, 2.5], arena), EVERY + 1, pulls)
        assert arena["sums"][0].tolist() == [EVERY + 1, 2.0, 0.25 - 0.25, 0.125]
        assert len(pulls) == 2, "the parameters after the update are fetched"

    def test_a_memory_that_has_too_little_measures_nothing(self, arena: dict[str, torch.Tensor]) -> None:
        updates(made([], arena, Rows(9)), 3 * EVERY)
        assert arena["sums"][0].tolist() == [3 * EVERY, 0, 0, 0]

    def test_an_error_that_is_not_finite_does_not_count(self, arena: dict[str, torch.Tensor]) -> None:
        updates(made([1.0, float("inf")], arena), 1)
        assert arena["sums"][0].tolist() == [1, 0, 0, 0]


class TestJudged:
    def judged(self, arena: dict[str, torch.Tensor], means: list[float]) -> DreamGain:
        rng = np.random.default_rng(7)
        for window_number, mean in enumerate(means):
            gain = made(window(mean, rng), arena)  # as after a resume: only the arena remembers
            updates(gain, EVERY * WINDOW)
            gain.judge(1000 * (window_number + 1))
        return gain

    def test_dreaming_goes_on_while_it_helps(self, arena: dict[str, torch.Tensor]) -> None:
        gain = self.judged(arena, [0.02, 0.02, 0.02, 0.02])
        assert gain.ended_at == 0
        assert gain.last == pytest.approx(0.02, abs=4 * 0.1 / WINDOW**0.5)

    @pytest.mark.parametrize("mean", [-0.02, 0.0])
    def test_it_ends_after_two_windows_in_a_row_without_a_gain(
        self, mean: float, arena: dict[str, torch.Tensor]
    ) -> None:
        assert self.judged(arena, [0.02, -0.02, 0.02, mean]).ended_at == 0
        assert self.judged(arena, [-0.02]).ended_at == 1000

    def test_a_window_that_is_not_full_is_not_judged(self, arena: dict[str, torch.Tensor]) -> None:
        gain = made([1.0, 2.0] * WINDOW, arena)
        updates(gain, EVERY * (WINDOW - 1))
        gain.judge(5)
        assert not arena["judged"].any()
        assert np.isnan(gain.last)

    def test_the_worker_that_acts_judges_the_sums_of_all(self, arena: dict[str, torch.Tensor]) -> None:
        first, second = made([1.0, 2.0] * WINDOW, arena), made([1.0, 2.0] * WINDOW, arena, rank=1)
        for _ in range(dream_gain.WINDOWS):
            updates(first, EVERY * WINDOW // 2)
            updates(second, EVERY * WINDOW // 2)
            first.judge(77)
        assert first.ended_at == second.ended_at == 77
        assert arena["sums"][:, 0].tolist() == [EVERY * WINDOW] * 2
