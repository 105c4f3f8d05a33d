"""Workers in processes of their own: whenever they are asked to rest, everybody does, and then nothing moves."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import passel
from passel.arena import Arena, prefixed
from passel.place.board import Board, Command
from passel.place.plan import Plan
from passel.place.processes import Processes, work
from passel.place.shop import Links
from small import new_arena, settings_for, small_plan


@pytest.mark.parametrize("sync", ["hogwild", "allreduce", "gossip", "proximal", "tokenring"])
def test_everybody_comes_to_rest_however_soon_they_are_asked(sync: str) -> None:
    """Also who has not even noticed that it should work."""
    plan = small_plan(place="processes", sync=sync, workers=2, steps=10**9)
    arena = new_arena(plan, shared=True)
    placement = Processes(plan, arena)
    placement.start()
    try:
        for number in range(60):
            placement.resume()
            time.sleep(0.002 * (number % 3))
            placement.pause()
            steps, vector = placement.board.steps, arena["sync/q/vector"].clone()
            time.sleep(0.003)
            assert placement.board.steps == steps
            assert vector.equal(arena["sync/q/vector"])
        assert placement.board.steps > 0
    finally:
        placement.stop()


def test_a_pause_is_over_only_when_nothing_moves_any_more() -> None:
    """Not when a worker that has come to rest takes one more turn, because another learner waits for its gradient."""
    plan = small_plan(place="processes", sync="allreduce", workers=2, steps=10**9, updates_per_step=2.0, envs=4)
    arena = new_arena(plan, shared=True)
    placement = Processes(plan, arena)
    placement.start()
    try:
        for _ in range(150):
            placement.resume()
            time.sleep(0.002)
            placement.pause()
            kept = {name: tensor.clone() for name, tensor in arena.kept().items()}
            time.sleep(0.002)
            moved = [name for name, tensor in arena.kept().items() if not _same(kept[name], tensor)]
            assert moved == []
        assert placement.board.column("updates").sum() > 150
    finally:
        placement.stop()


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


class Helpful:
    """A worker that comes to rest, leaves its rest once because another waits for it, and is then told to stop."""

    def __init__(self, board: Board, needed_after_all: bool) -> None:
        self.board, self.needed_after_all = board, needed_after_all
        self.asked_whether_to_rest = self.parked = 0
        self.at_rest_in_its_turn: list[bool] = []

    @property
    def resting(self) -> bool:
        self.asked_whether_to_rest += 1
        match self.asked_whether_to_rest:
            case 1:
                return True
            case 2:
                return False
            case 3:
                return not self.needed_after_all
            case _:
                done = bool(self.at_rest_in_its_turn) or not self.needed_after_all
                if done:
                    self.board.command = Command.STOP
                return done

    def turn(self) -> bool:
        self.at_rest_in_its_turn.append(bool(self.board.at_rest().all()))
        return True

    def park(self) -> None:
        self.parked += 1

    def idle(self) -> None: ...
    def wait(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("needed_after_all", [True, False])
def test_a_worker_that_leaves_its_rest_says_so_before_it_moves(needed_after_all: bool) -> None:
    arena = Arena(prefixed("board", Board.specs(1)))
    board = Board(arena.below("board"))
    board.ask_for_rest()
    worker = Helpful(board, needed_after_all)

    class OneWorker:
        def threads_of(self, rank: int) -> int:
            return 1

        def build_worker(self, arena: Arena, links: Links, rank: int) -> Helpful:
            return worker

    work(cast(Plan, OneWorker()), arena, cast(Links, None), 0)
    assert worker.at_rest_in_its_turn == ([False] if needed_after_all else [])
    assert board.at_rest().all()
    assert worker.parked == (2 if needed_after_all else 1), "whose update was made without it has nothing to save"


def test_workers_that_are_seen_at_rest_one_after_the_other_are_not_at_rest_together() -> None:
    """The watcher reads the first cell, is held up, and reads the second when the first worker has left its rest."""
    board = Board(Arena(Board.specs(2)))
    board.ask_for_rest()
    board.rested[:] = board.asked

    class HeldUp:
        """Cells of which the first worker leaves its rest as soon as they were compared."""

        def __eq__(self, other: object) -> Any:
            seen = board._rested.obj == other
            board.wake(0)
            return seen

    assert board.at_rest().all()
    board.rested = cast(Any, HeldUp())
    assert board.at_rest().tolist() == [False, True]


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_under_gossip_nobody_waits(algo: str, tmp_path: Path) -> None:
    """Not even on a busy machine, where whoever waits for another waits for its turn on a core."""
    out = str(tmp_path / "run")
    run = passel.train(**settings_for(algo=algo, sync="gossip", workers=2, place="processes", steps=3000, out=out))
    assert run.summary.updates > 100
    assert run.shares["wait"] < 0.02
