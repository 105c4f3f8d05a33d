"""Actors and learners apart, and those who dream: whoever dies is named, and whoever waited for it does not wait on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import passel
from harness import FOREVER, TINY, Command, assert_whole, kinds, newest, rows, summary

SMALL = TINY[: TINY.index("--batch")]
IMPALA = [*SMALL, "--algo", "impala", "--horizon", "5", "--no-tensorboard", "--eval-episodes", "3"]
APEX = [
    *(*SMALL, "--algo", "apex", "--batch", "8", "--warmup", "40", "--capacity", "2000", "--samples-per-insert", "4"),
    *("--no-tensorboard", "--eval-episodes", "3"),
]
DYNA = [
    *(*TINY, "--algo", "dyna", "--workers", "3", "--dream-capacity", "500", "--model-hidden", "8"),
    *("--model-batch", "8", "--model-sync", "allreduce", "--dream-ratio", "1", "--updates-per-step", "0.25"),
]
TWO_LEARNERS = [*IMPALA, "--workers", "4", "--learners", "2"]
#: So slow to act that the learner waits nearly all the time.
SLOW = [*IMPALA, "--env", "harness:Slow-v0", "--backend", "auto"]


def resumed_inline(run: Path, more: int = 300) -> passel.Run:
    config = run / "config.toml"
    config.write_text(config.read_text().replace('place = "processes"', 'place = "inline"'))
    return passel.resume(run, steps=newest(run).step + more, quiet=True)


@pytest.mark.parametrize(
    ("flags", "victim", "name"),
    [
        (IMPALA, 0, "learner 0"),
        (IMPALA, 1, "actor 0"),
        (TWO_LEARNERS, 1, "learner 1"),
        (TWO_LEARNERS, 3, "actor 1"),
        (APEX, 0, "learner 0"),
        (APEX, 1, "actor 0"),
        (DYNA, 0, "player 0"),
        (DYNA, 2, "dreamer 1"),
    ],
    ids=[
        *("impala-learner", "impala-actor", "one-of-two-learners", "its-actor", "apex-learner", "apex-actor"),
        *("dyna-player", "dyna-dreamer"),
    ],
)
def test_the_dead_are_named_and_the_run_can_go_on(tmp_path: Path, flags: list[str], victim: int, name: str) -> None:
    run = tmp_path / "run"
    with Command(tmp_path, "train", *flags, *FOREVER, "--out", "run") as command:
        command.await_training(run)
        time.sleep(0.2)
        command.children()[victim].kill()
        assert command.ends_promptly() == 1
        assert command.stderr == f"passel: {name} died: killed by signal 9 (SIGKILL)\n"
        command.assert_nothing_is_left()
    result = summary(run)
    assert result["status"] == "failed"
    assert result["steps"] == newest(run).step > 0
    assert rows(run / "events.jsonl")[-2]["worker"] == name
    assert_whole(run)
    again = resumed_inline(run).summary
    assert again.status == "finished"
    assert again.updates > result["updates"] > 0


@pytest.mark.parametrize(
    "flags",
    [IMPALA, TWO_LEARNERS, APEX, SLOW, DYNA],
    ids=["impala", "two-learners", "apex", "slow-actors", "dyna"],
)
def test_told_to_stop_everybody_stops_whoever_waits_for_whom(tmp_path: Path, flags: list[str]) -> None:
    run = tmp_path / "run"
    with Command(tmp_path, "train", *flags, *FOREVER, "--out", "run") as command:
        command.await_training(run)
        command.ctrl_c()
        assert command.ends_promptly() == 130
        command.assert_nothing_is_left()
        assert command.stderr == ""
    result = summary(run)
    assert result["status"] == "stopped"
    told = [kind for kind in kinds(run) if kind != "notice"]  # of more workers than this machine has cores
    assert told == ["started", "first step", "checkpointed", "stopped"]
    assert_whole(run)
    if flags is not SLOW:
        assert resumed_inline(run).summary.updates > result["updates"] > 0


@pytest.mark.parametrize("flags", [IMPALA, TWO_LEARNERS, APEX, DYNA], ids=["impala", "two-learners", "apex", "dyna"])
def test_a_run_that_is_paused_all_the_time_comes_to_rest_every_time(tmp_path: Path, flags: list[str]) -> None:
    run = tmp_path / "run"
    steps = "2000" if flags is DYNA else "8000"  # of one environment, where the others have several actors
    with Command(tmp_path, "train", *flags, "--steps", steps, "--checkpoint-every", "50", "--out", "run") as command:
        assert command.wait(60) == 0
        assert command.stderr == ""
    assert kinds(run).count("checkpointed") >= 5
    assert summary(run)["status"] == "finished"
    assert summary(run)["updates"] > 20
