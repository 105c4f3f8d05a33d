"""A rollout that is complete when the steps are taken is learnt from before the run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import passel
from harness import rows
from passel.arena import Arena
from passel.place.board import Board, Command
from passel.place.inline import InlineKit
from small import new_arena, run_over, settings_for, small_plan

#: Rollouts of 8 steps in 2 environments, learnt from in 6 parts.
PPO: dict[str, Any] = {"algo": "ppo", "horizon": 8, "envs": 2, "epochs": 3, "minibatches": 2}


def trained(**settings: Any) -> tuple[Board, Arena]:
    plan = small_plan(**settings)
    arena = new_arena(plan)
    run_over(plan, arena)
    return Board(arena.below("board")), arena


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ({**PPO, "steps": 16}, 6),
        ({**PPO, "steps": 32}, 12),
        ({**PPO, "steps": 33}, 12),
        ({**PPO, "steps": 16, "split": True}, 6),
        ({"algo": "a3c", "horizon": 8, "envs": 2, "steps": 16}, 1),
        ({"algo": "awr", "horizon": 8, "envs": 2, "steps": 16}, 3 + 5),
        ({"algo": "impala", "horizon": 8, "envs": 2, "steps": 16}, 1),
    ],
    ids=lambda case: f"{case['algo']}-{case['steps']}{'-split' * ('split' in case)}" if isinstance(case, dict) else "",
)
def test_alone(settings: dict[str, Any], updates: int) -> None:
    board, _ = trained(**settings, workers=1)
    assert board.column("updates").tolist() == [updates]


@pytest.mark.parametrize("sync", ["hogwild", "locked", "server", "gossip", "tokenring", "allreduce", "proximal"])
def test_with_another_worker(sync: str) -> None:
    board, arena = trained(**PPO, sync=sync, workers=2, steps=2 * 16)
    assert board.steps == 32
    assert board.column("updates").tolist() == [6, 6]
    assert arena["sync/policy/pushes"].tolist() == [6, 6]


@pytest.mark.parametrize("sync_every", [1, 4, 5])
@pytest.mark.parametrize("sync", ["allreduce", "proximal"])
def test_learners_that_need_each_other_end_with_the_same_updates(sync: str, sync_every: int) -> None:
    """When the first has its rollout the second has none: it brings its own, and waits for no third."""
    board, arena = trained(**PPO, sync=sync, sync_every=sync_every, workers=2, steps=3 * 16)
    assert board.column("updates").tolist() == [12, 12]
    assert board.steps == 4 * 16
    pushes = arena["sync/policy/pushes"].tolist()
    assert pushes == [12 // sync_every] * 2


@pytest.mark.parametrize("sync", ["allreduce", "gossip"])
def test_learners_that_only_learn_take_what_waits_for_them_all(sync: str) -> None:
    settings = {"algo": "impala", "workers": 6, "learners": 2, "horizon": 8, "envs": 2, "slots": 3}
    board, arena = trained(**settings, sync=sync, steps=400)
    assert board.steps < 400 + 4 * 8 * 2, "nobody went on to collect"
    waiting = [
        sum(int(arena[f"slots/{actor}/written"] - arena[f"slots/{actor}/taken"]) for actor in actors)
        for actors in ((2, 4), (3, 5))
    ]
    assert min(waiting) == 0
    assert sync == "allreduce" or max(waiting) == 0
    if sync == "allreduce":
        assert len(set(arena["sync/policy/pushes"].tolist())) == 1


def test_a_learner_takes_every_slot_that_its_actors_have_filled() -> None:
    board, arena = trained(algo="impala", workers=3, horizon=8, envs=2, slots=3, steps=160)
    written = sum(int(arena[f"slots/{actor}/written"]) for actor in (1, 2))
    assert board.column("updates").tolist() == [written, 0, 0]


def test_at_a_pause_a_rollout_waits() -> None:
    """What a checkpoint holds is what a resumed run goes on from."""
    plan = small_plan(**PPO, workers=1, steps=1000)
    arena = new_arena(plan)
    worker = plan.build_worker(arena, plan.links(InlineKit()), 0)
    board = Board(arena.below("board"))
    board.command = Command.RUN
    worker.turn()
    board.command = Command.WAIT
    assert worker.role.unlearnt()
    assert worker.resting
    assert not worker.turn()
    assert board.column("updates").tolist() == [1]
    worker.close()


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({**PPO, "workers": 1}, 16),
        ({**PPO, "sync": "hogwild", "workers": 2}, 16),
        ({**PPO, "sync": "allreduce", "workers": 2}, 32),
        ({**PPO, "sync": "hogwild", "workers": 2, "place": "processes"}, 32),
        ({"algo": "awr", "horizon": 8, "envs": 2, "workers": 1}, 16),
        ({"algo": "impala", "horizon": 8, "envs": 2, "batch": 3, "workers": 2}, 48),
        ({"algo": "apex", "warmup": 60, "workers": 2}, 60),
        ({"warmup": 60, "batch": 16, "workers": 1}, 60),
        ({"warmup": 0, "batch": 16, "workers": 1}, 16),
    ],
)
def test_a_run_that_ends_before_its_first_update_is_told_so(settings: dict[str, Any], needed: int) -> None:
    assert f"--steps {needed} or more" in small_plan(**settings, steps=needed - 1).too_short()
    assert small_plan(**settings, steps=needed).too_short() == ""


@pytest.mark.parametrize(("steps", "short"), [(8, True), (32, False)])
def test_it_is_told_at_the_start_and_at_the_end(tmp_path: Path, steps: int, short: bool) -> None:
    run = passel.train(**settings_for(**PPO, workers=1, steps=steps), out=str(tmp_path / "run"))
    assert (run.summary.updates == 0) is short
    assert any("No update was made" in text for text in run.summary.warnings) is short
    kinds_and_texts = [(row["kind"], row.get("text", "")) for row in rows(run.path / "events.jsonl")]
    assert any("ends before the first update" in text for _, text in kinds_and_texts) is short


def test_processes_that_need_each_other_learn_their_last_rollouts(tmp_path: Path) -> None:
    settings = settings_for(**PPO, sync="allreduce", workers=2, steps=2 * 16 * 3)
    run = passel.train(**{**settings, "place": "processes"}, out=str(tmp_path / "run"))
    assert run.summary.status == "finished"
    assert run.summary.updates % 6 == 0, "whole rollouts"
    assert run.summary.updates >= 12
