"""Episodes that cannot be rebuilt begin anew on resume: nothing is summed or learnt across the gap, in any memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import passel
from passel.algos import ALGORITHMS
from passel.arena import Arena
from passel.data.ring import Ring
from passel.place.board import Board, Command
from passel.place.diets import DIETS
from passel.place.inline import InlineKit
from passel.place.plan import Plan
from passel.place.worker import Worker
from small import new_arena, settings_for, small_plan

COUNTDOWN = "passel.testing.envs:passel/Countdown-v0"
#: Steps that an episode of Countdown takes; its observation is the number of the step, its reward that number plus 1.
LENGTH = 5
#: One algorithm for each kind of memory, with as many roles as it has.
TEAMS: dict[str, dict[str, Any]] = {
    "dqn": {"workers": 2, "prioritized": True},
    "dyna": {"workers": 3},
    "a3c": {"workers": 2},
    "ppo": {"workers": 2},
    "awr": {"workers": 2},
    "apex": {"workers": 3},
    "impala": {"workers": 3},
}


def worked(plan: Plan, arena: Arena, steps: int) -> Worker:
    """A worker alone, which has come to rest after so many steps."""
    worker = plan.build_worker(arena, plan.links(InlineKit()), 0)
    board = Board(arena.below("board"))
    board.command = Command.RUN
    while board.steps < steps:
        worker.turn()
    worker.park()
    worker.close()
    return worker


def resumed(plan: Plan, arena: Arena, *, steps: int = 10_000) -> tuple[Plan, Arena]:
    """The run that is resumed from this one, with episodes that have outgrown their records."""
    config = dataclasses.replace(plan.config, steps=steps)
    plan = dataclasses.replace(plan, config=config, resumed=1)
    again = Arena(plan.specs())
    again.load({name: tensor.clone() for name, tensor in arena.kept().items()})
    plan.start(again)
    for rank in plan.cast.actors:
        again[f"worker/{rank}/envs/length"].fill_(1 << 30)
    return plan, again


def test_there_is_a_team_for_every_kind_of_memory() -> None:
    assert {ALGORITHMS[algo].diet for algo in TEAMS} == set(DIETS)


@pytest.mark.parametrize("algo", TEAMS)
def test_every_worker_of_a_run_can_begin_new_episodes(algo: str) -> None:
    """Whatever its role is, and however often."""
    plan = small_plan(algo=algo, env=COUNTDOWN, **TEAMS[algo])
    arena = new_arena(plan)
    for rank in range(plan.workers):
        for _ in range(2):
            plan.diet.interrupt(arena.below(f"worker/{rank}"))


@pytest.mark.parametrize("algo", ["dqn", "apex"])
def test_no_n_step_sum_crosses_the_gap(algo: str) -> None:
    plan = small_plan(algo=algo, workers=1, env=COUNTDOWN, n_step=3, gamma=0.5, envs=2, steps=14, prioritized=True)
    arena = new_arena(plan)
    worked(plan, arena, 14)  # 7 of each environment: the second of the second episode
    assert arena["worker/0/nstep/waiting"].tolist() == [2, 2]
    plan, arena = resumed(plan, arena, steps=40)
    worked(plan, arena, 40)
    ring = Ring(arena.below("memory/0"))
    kept = ring.batch(ring.gather(np.arange(len(ring))))
    start, length = kept.obs[:, 0], kept.next_obs[:, 0] - kept.obs[:, 0]
    assert len(ring) > 20
    assert set(length.tolist()) == {1, 2, 3}, "every sum begins and ends in one episode"
    expected = sum(np.where(age < length, 0.5**age * (start + age + 1), 0) for age in range(3))
    np.testing.assert_allclose(kept.reward, expected, rtol=1e-6)


def test_the_surprises_of_an_actor_forget_what_waits_in_its_windows() -> None:
    plan = small_plan(algo="apex", workers=1, env=COUNTDOWN, n_step=3, steps=14)
    arena = new_arena(plan)
    worked(plan, arena, 14)
    own = arena.below("worker/0")
    assert own["surprise/waiting"].any()
    plan.diet.interrupt(own)
    assert not own["surprise/waiting"].any()
    assert not own["surprise/clock"].any()


def continuous(obs: Any, discount: Any) -> bool:
    """Whether each step of a rollout follows the one before, or that one ended its episode."""
    follows = obs[1:, :, 0] == obs[:-1, :, 0] + 1
    return bool((follows | (discount[:-1] == 0)).all())


@pytest.mark.parametrize("algo", ["a3c", "ppo"])
def test_half_a_rollout_is_dropped_and_a_whole_one_is_learnt_from(algo: str) -> None:
    plan = small_plan(algo=algo, workers=1, env=COUNTDOWN, horizon=8, envs=2, steps=4)
    arena = new_arena(plan)
    worked(plan, arena, 4)
    assert int(arena["worker/0/rollout/counts"][0]) == 2
    plan, arena = resumed(plan, arena)
    worked(plan, arena, 5)  # one turn: to the end of a rollout
    rollout = arena.below("worker/0/rollout")
    assert Board(arena.below("board")).steps == 4 + 8 * 2, "a new rollout, from its first step on"
    assert continuous(rollout["obs"].numpy(), rollout["discount"].numpy())

    own = arena.below("worker/0")
    own["rollout/counts"].copy_(own["rollout/counts"].new_tensor([8, 1]))
    plan.diet.interrupt(own)
    assert own["rollout/counts"].tolist() == [8, 1], "a whole one stands alone"


def test_half_a_slot_is_dropped() -> None:
    plan = small_plan(algo="impala", workers=1, env=COUNTDOWN, horizon=8, envs=2, steps=4)
    arena = new_arena(plan)
    worked(plan, arena, 4)
    assert int(arena["worker/0/slot/filled"]) == 2
    plan, arena = resumed(plan, arena)
    worked(plan, arena, 5)
    slots = arena.below("slots/0")
    assert int(slots["written"]) == 1
    assert Board(arena.below("board")).steps == 4 + 8 * 2
    assert continuous(slots["obs"][0].numpy(), slots["discount"][0].numpy())


def test_no_step_of_the_trail_leads_to_another_episode() -> None:
    plan = small_plan(algo="dyna", workers=2, env=COUNTDOWN)
    arena = new_arena(plan)
    arena["worker/0/last"].fill_(7)
    plan, arena = resumed(plan, arena)
    links = plan.links(InlineKit())
    workers = [plan.build_worker(arena, links, rank) for rank in range(2)]
    assert not arena["worker/0/last"].any()
    for worker in workers:
        worker.close()


def test_dyna_resumes_with_two_workers_on_a_back_end_that_cannot_rebuild_episodes(tmp_path: Path) -> None:
    """EnvPool's episodes are lost with the process; the worker that dreams has none."""
    small = settings_for(algo="dyna", env="MountainCar-v0", workers=2, steps=300, checkpoint_every=100)
    run = passel.train(**{**small, "backend": "envpool"}, out=str(tmp_path / "run"))
    again = passel.resume(run.path, steps=500, quiet=True)
    assert again.summary.status == "finished"
    assert again.summary.steps >= 500
    assert again.summary.updates > run.summary.updates
