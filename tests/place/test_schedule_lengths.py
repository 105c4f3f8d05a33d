"""Schedules in steps and as fractions of the run: lengths, and the notice about those that do not end within it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import passel
from harness import rows
from passel.algos.actor_critic import ActorCriticConfig
from passel.algos.dqn import DQN, DQNConfig
from passel.place.plan import Plan, _blank
from passel.place.schedules import in_steps, unfinished
from passel.view.terminal import QuietView
from small import settings_for, small_plan


@pytest.mark.parametrize(
    ("settings", "total", "epsilon", "lr"),
    [
        ({}, 500_000, 50_000, 500_000),
        ({"warmup": 100, "epsilon_fraction": 0.5, "lr_fraction": 0.25}, 1_000, 500, 250),
        ({"warmup": 100, "epsilon_fraction": 1.0}, 1_000, 900, 1_000),
        ({"warmup": 2_000}, 1_000, 0, 1_000),
        ({"epsilon_fraction": 0.0, "lr_fraction": 0.0}, 1_000, 0, 0),
        ({"epsilon_steps": 20_000, "lr_steps": 7}, 1_000, 20_000, 7),
    ],
)
def test_a_fraction_is_of_the_run_and_steps_are_steps(
    settings: dict[str, Any], total: int, epsilon: int, lr: int
) -> None:
    numbers = in_steps(DQNConfig(**settings), total)
    assert (numbers.epsilon_steps, numbers.lr_steps) == (epsilon, lr)


def test_algorithms_without_an_epsilon_have_a_learning_rate() -> None:
    assert in_steps(ActorCriticConfig(lr_fraction=0.5), 300).lr_steps == 150


def epsilon_of(plan: Plan, step: int) -> float:
    algo = plan.make_algorithm(_blank(plan.algorithm.specs(plan.numbers, plan.spec)))
    assert isinstance(algo, DQN)
    return algo.epsilon(step)


@pytest.mark.parametrize("algo", ["dqn", "dyna"])
def test_epsilon_is_annealed_over_a_fraction_of_the_run(algo: str) -> None:
    plan = small_plan(algo=algo, steps=1_000, warmup=100, epsilon_steps=0, epsilon_fraction=0.2, epsilon_end=0.5)
    assert [epsilon_of(plan, step) for step in (99, 100, 200, 300, 999)] == pytest.approx([1.0, 1.0, 0.75, 0.5, 0.5])


def test_the_learning_rate_falls_over_a_fraction_of_the_run() -> None:
    plan = small_plan(algo="ppo", steps=1_000, lr=0.5, lr_end=0.25, lr_fraction=0.4)
    assert [plan.lr(step) for step in (0, 200, 400, 999)] == [0.5, 0.375, 0.25, 0.25]
    at_once = small_plan(algo="ppo", steps=1_000, lr=0.5, lr_end=0.25, lr_fraction=0.0)
    assert at_once.lr(0) == 0.25


def test_a_fraction_is_of_schedule_steps_where_these_differ_from_the_run() -> None:
    plan = small_plan(steps=500, schedule_steps=1_000, warmup=0, epsilon_steps=0, epsilon_fraction=0.2, epsilon_end=0.0)
    assert epsilon_of(plan, 100) == 0.5


class TestUnfinished:
    def test_says_where_it_ends_and_the_cure(self) -> None:
        numbers = DQNConfig(epsilon_steps=20_000, warmup=1_000, lr=0.5, lr_end=0.0, lr_steps=40_000)
        assert unfinished(numbers, 11_000, epsilon=True) == [
            "--epsilon-steps 20000 ends at epsilon 0.51 in a run of 11,000 steps. Use --epsilon-fraction 0.1, or "
            "--epsilon-steps 10000 or fewer.",
            "--lr-steps 40000 ends at a learning rate of 0.36 in a run of 11,000 steps. Use --lr-fraction 1, or "
            "--lr-steps 11000 or fewer.",
        ]

    @pytest.mark.parametrize(
        ("settings", "total"),
        [
            ({"epsilon_steps": 900, "warmup": 100, "lr_steps": 1_000, "lr_end": 0.1}, 1_000),  # to the last step
            ({"epsilon_fraction": 1.0, "warmup": 100, "lr_end": 0.1}, 1_000),
            ({"epsilon_steps": 900, "warmup": 1_000}, 1_000),  # nothing is learnt, which is told elsewhere
            ({"lr_steps": 5_000, "lr_end": None}, 1_000),  # the learning rate is constant
        ],
    )
    def test_is_silent_of_what_ends_in_time(self, settings: dict[str, Any], total: int) -> None:
        assert unfinished(DQNConfig(**settings), total, epsilon=True) == []

    def test_is_silent_of_an_epsilon_that_the_algorithm_does_not_anneal(self) -> None:
        assert small_plan(algo="apex").unfinished_schedules() == []
        assert len(small_plan(epsilon_steps=20_000).unfinished_schedules()) == 1


class Listening(QuietView):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


def test_a_run_says_at_its_start_what_a_schedule_and_its_settings_come_to(tmp_path: Path) -> None:
    view = Listening()
    settings = settings_for(workers=1, steps=160, epsilon_steps=20_000, warmup=60)
    run = passel.train(**settings, out=str(tmp_path / "run"), view=view).path
    (told,) = (row["text"] for row in rows(run / "events.jsonl") if row["kind"] == "notice")
    assert told.startswith("--epsilon-steps 20000 ends at epsilon 1 in a run of 160 steps. Use --epsilon-fraction 0.1")
    origin = f"No preset for (dqn, {settings['env']}): the defaults of dqn (tuned for steps) are used."
    assert [text for text in view.said if text in (told, origin)] == [origin, told]
    view.said.clear()
    passel.resume(run, steps=200, view=view)
    assert origin not in view.said
    assert told not in view.said
