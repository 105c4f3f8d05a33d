"""When a checkpoint is due: by steps, by the clock, and never by the clock where that would change an inline run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import passel
from small import settings_for, small_plan


def checkpoints(tmp_path: Path, **asked: Any) -> int:
    """Checkpoints of a short inline run before its last one, which the end of the run asks for."""
    settings = settings_for(steps=300, checkpoint_every=10**6, eval_episodes=0, **asked)
    run = passel.train(**settings, out=str(tmp_path / "run"))
    events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    return len([event for event in events if event["kind"] == "checkpointed" and event["steps"] < run.summary.steps])


def test_the_clock_asks_for_checkpoints(tmp_path: Path) -> None:
    assert checkpoints(tmp_path, sync="solo", workers=1, checkpoint_seconds=1e-6) > 2


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_a_clock_that_is_off_or_slow_asks_for_none(tmp_path: Path, seconds: float) -> None:
    assert checkpoints(tmp_path, sync="solo", workers=1, checkpoint_seconds=seconds) == 0


def test_the_clock_does_not_change_an_inline_run(tmp_path: Path) -> None:
    """Three gossiping learners come to rest in another state than they would have trained on in."""
    assert checkpoints(tmp_path, sync="gossip", workers=3, checkpoint_seconds=1e-6) == 0


@pytest.mark.parametrize(
    ("asked", "matter"),
    [
        ({"sync": "solo", "workers": 1}, False),
        ({"sync": "gossip", "workers": 2}, False),
        ({"sync": "gossip", "workers": 3}, True),
        ({"sync": "gossip", "workers": 3, "place": "processes"}, False),
        ({"sync": "hogwild", "workers": 2, "memory": "global"}, True),
        ({"algo": "dyna", "workers": 1}, False),
        ({"algo": "dyna", "workers": 2}, True),
        ({"algo": "impala", "workers": 2}, True),
        ({"algo": "ppo", "sync": "allreduce", "workers": 2}, False),
    ],
)
def test_where_the_moment_of_a_rest_matters(asked: dict[str, Any], matter: bool) -> None:
    assert small_plan(**asked).rests_matter is matter
