"""Actors that only act, learners that only learn: what passes between them, and that nobody waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from passel.arena import Arena
from passel.place.board import Board, Command
from passel.place.inline import Inline, InlineKit
from passel.place.plan import Plan
from passel.place.roles import Acting, Learning
from passel.place.worker import Worker
from small import inline_run, new_arena, run_over, small_plan

APART: list[dict[str, Any]] = [
    {"algo": "impala", "workers": 2},
    {"algo": "impala", "workers": 4, "batch": 2},
    {"algo": "impala", "workers": 4, "learners": 2},
    {"algo": "apex", "workers": 2},
    {"algo": "apex", "workers": 4},
]
each_team = pytest.mark.parametrize("team", APART, ids=lambda team: "-".join(map(str, team.values())))


@contextmanager
def hired(plan: Plan) -> Iterator[tuple[list[Worker], Board, Arena]]:
    arena = new_arena(plan)
    links = plan.links(InlineKit())
    workers = [plan.build_worker(arena, links, rank) for rank in range(plan.workers)]
    try:
        yield workers, Board(arena.below("board")), arena
    finally:
        for worker in workers:
            worker.close()


@each_team
def test_who_acts_takes_steps_and_who_learns_makes_updates(team: dict[str, Any]) -> None:
    plan = small_plan(**team, steps=600)
    arena = new_arena(plan)
    run_over(plan, arena)
    board, learners = Board(arena.below("board")), team.get("learners", 1)
    assert (board.column("steps")[:learners] == 0).all()
    assert (board.column("steps")[learners:] > 100).all()
    assert (board.column("updates")[:learners] > 5).all()
    assert (board.column("updates")[learners:] == 0).all()
    assert (board.column("episodes")[learners:] > 0).all()
    for name in plan.schemes:
        assert arena[f"sync/{name}/pushes"].shape == (learners,)
    assert any(name.startswith(f"worker/{learners}/envs") for name in arena)
    assert not any(name.startswith(("worker/0/envs", "worker/0/nstep")) for name in arena)
    assert not any(name.startswith(f"worker/{learners}/algo") for name in arena)


@each_team
def test_with_the_same_seed_every_run_is_the_same_run(team: dict[str, Any]) -> None:
    one, two, other = (inline_run(small_plan(**team, seed=seed, steps=500)) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_one_worker_is_both_and_deterministic() -> None:
    for algo in ("impala", "apex"):
        one, two = (inline_run(small_plan(algo=algo, workers=1, steps=500)) for _ in range(2))
        assert torch.equal(one, two)


def test_an_actor_without_room_and_a_learner_without_data_say_so_and_do_not_wait() -> None:
    with hired(small_plan(algo="impala", workers=2, horizon=4)) as (workers, board, arena):
        learner, actor = workers
        board.command = Command.RUN
        assert isinstance(learner.role, Learning)
        assert isinstance(actor.role, Acting)
        assert not learner.turn()
        assert actor.turn()
        assert actor.turn()
        assert not actor.turn(), "two slots, and both are full"
        assert board.steps == 2 * 4 * 2
        assert learner.turn()
        assert actor.turn()
        assert int(arena["slots/1/taken"]) == 1


def test_an_actor_acts_with_what_it_fetched_and_its_rollouts_say_how_old_that_was() -> None:
    with hired(small_plan(algo="impala", workers=2, horizon=4, slots=4)) as (workers, board, arena):
        learner, actor = workers
        board.command = Command.RUN
        for _ in range(3):
            actor.turn()
        assert arena["slots/1/version"][:3].tolist() == [[0] * 4] * 3
        for _ in range(3):
            learner.turn()
        # The second was learnt from when there was one update more than it was acted with, the third with two more.
        assert learner.role.staleness == (0 + 1 + 2) / 3
        before = actor._algo.flats["policy"].values.clone()
        assert not torch.equal(before, arena["sync/policy/vector"])
        actor.turn()
        assert torch.equal(actor._algo.flats["policy"].values, arena["sync/policy/vector"])
        assert arena["slots/1/version"][3].tolist() == [3] * 4
        assert actor.role.staleness == 0, "nobody learnt while it acted"


def test_actors_fetch_as_often_as_they_are_told() -> None:
    with hired(small_plan(algo="impala", workers=2, horizon=6, slots=2, fetch_every=2)) as (workers, board, arena):
        _, actor = workers
        board.command = Command.RUN
        for version in range(3):
            arena["sync/policy/pushes"].fill_(version)
            actor.turn()
            assert board.steps == 2 * 2 * (version + 1)
        assert arena["slots/1/version"][0].tolist() == [0, 0, 1, 1, 2, 2]


def test_the_limiter_lets_neither_side_run_away() -> None:
    asked = {"samples_per_insert": 4.0, "batch": 16, "warmup": 60, "envs": 2, "n_step": 1}
    with hired(small_plan(algo="apex", workers=2, steps=10**6, **asked)) as (workers, board, _):
        learner, actor = workers
        board.command = Command.RUN
        assert not learner.turn()
        while actor.turn():
            pass
        slack = 4 * 16
        assert 60 + slack / 4 <= board.steps <= 60 + slack / 4 + 2
        while learner.turn():
            pass
        assert board.column("updates")[0] * 16 == pytest.approx(2 * slack, abs=16)
        assert actor.turn()


def test_rows_of_all_actors_share_one_ladder() -> None:
    with hired(small_plan(algo="apex", workers=3, envs=2)) as (workers, _, _):
        ladders = [rung for worker in workers[1:] for rung in worker._algo.ladder(2)]  # type: ignore[attr-defined]
        assert ladders == pytest.approx([0.4 ** (1 + 7 * i / 3) for i in range(4)], rel=1e-5)


def test_learners_that_need_each_other_are_never_left_waiting_when_everybody_rests() -> None:
    """Whenever the run is paused, a learner that waits for another's gradient gets it, and so must that one's actors go
    on until they have brought what it needs.
    """
    plan = small_plan(algo="impala", workers=4, learners=2, horizon=8, steps=10**6)
    arena = new_arena(plan)
    placement = Inline(plan, arena)
    placement.start()
    try:
        placement.resume()
        for number in range(30):
            # Cut a round in the middle, at another worker every time.
            for worker in placement._workers[: number % 5]:
                if not worker.ahead:
                    worker.turn()
            placement.pause()
            for name in plan.schemes:
                pushes = arena[f"sync/{name}/pushes"]
                assert pushes.min() == pushes.max()
            assert all(worker.resting for worker in placement._workers)
            placement.resume()
            placement.advance(0.0)
        assert int(arena["sync/policy/pushes"].min()) > 20
    finally:
        placement.stop()


def test_two_learners_under_allreduce_hold_one_vector() -> None:
    plan = small_plan(algo="impala", workers=4, learners=2, steps=800)
    arena = new_arena(plan)
    placement = Inline(plan, arena)
    placement.start()
    try:
        placement.resume()
        while placement.board.steps < 800:
            placement.advance(0.0)
        placement.pause()
        first, second = (worker.learner._syncs["policy"].flat.values for worker in placement._workers[:2])
        assert torch.equal(first, second)
        assert torch.equal(first, arena["sync/policy/vector"])
    finally:
        placement.stop()
