"""summary.json has the promised fields, and comes back as it was."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from passel.run.folder import RunFolder
from passel.run.summary import EvalResult, Summary
from passel.types import PasselError

PROMISED = [
    "algo",
    "env",
    "sync",
    "place",
    "workers",
    "seed",
    "status",
    "steps",
    "frames",
    "updates",
    "episodes",
    "seconds",
    "steps_per_second",
    "updates_per_second",
    "return_mean_100",
    "solved_at_seconds",
    "solved_at_steps",
    "solved_at_episodes",
    "eval",
    "peak_rss_mb",
    "workers_restarted",
    "checkpoint",
    "return_human_normalised",
    "eval_human_normalised",
    "startup_seconds",
    "train_seconds",
    "evaluation_seconds",
    "checkpoint_seconds",
    "best_step",
    "warnings",
]

SUMMARY = Summary(
    algo="dqn",
    env="CartPole-v1",
    sync="hogwild",
    place="processes",
    workers=2,
    seed=1,
    status="solved",
    steps=1000,
    frames=1000,
    updates=500,
    episodes=20,
    seconds=12.5,
    steps_per_second=80.0,
    updates_per_second=40.0,
    return_mean_100=475.5,
    solved_at_seconds=12.0,
    solved_at_steps=990,
    solved_at_episodes=19,
    eval=EvalResult(episodes=100, mean=480.0, std=3.0, min=470.0, max=500.0),
    peak_rss_mb=512.5,
    workers_restarted=0,
    checkpoint="checkpoints/1000",
)


def test_the_keys_are_those_promised_in_their_order() -> None:
    assert list(SUMMARY.to_json()) == PROMISED
    assert list(SUMMARY.to_json()["eval"]) == ["episodes", "mean", "std", "min", "max", "cut"]


@pytest.mark.parametrize("summary", [SUMMARY, dataclasses.replace(SUMMARY, eval=None, solved_at_steps=None)])
def test_it_comes_back_through_the_file(tmp_path: Path, summary: Summary) -> None:
    with RunFolder.create(tmp_path, {}, {}) as run:
        run.write_summary(summary)
        content = run.read_summary()
    assert content is not None
    assert Summary.from_json(content) == summary


def test_unknown_fields_are_passed_over_and_missing_ones_named() -> None:
    content = SUMMARY.to_json()
    assert Summary.from_json({**content, "later": 1}) == SUMMARY
    with pytest.raises(PasselError, match="has no steps, eval"):
        Summary.from_json({name: value for name, value in content.items() if name not in ("steps", "eval")})


@pytest.mark.parametrize("later", ["human", "_seconds"])
def test_a_summary_of_before_human_scores_or_shares_of_seconds_is_still_read(later: str) -> None:
    content = SUMMARY.to_json()
    old = {name: value for name, value in content.items() if later not in name or name == "solved_at_seconds"}
    old["eval"] = {name: value for name, value in content["eval"].items() if name != "cut"}
    assert len(old) < len(content)
    assert Summary.from_json(old) == SUMMARY


def test_a_score_that_is_not_a_number_is_null() -> None:
    content = dataclasses.replace(SUMMARY, return_mean_100=math.nan).to_json()
    assert json.loads(json.dumps(content, allow_nan=False))["return_mean_100"] is None
