"""Workers in processes of their own: whenever they are asked to rest, everybody does, and then nothing moves."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import torch
from torch import Tensor

import passel
from harness import HasChildren, sleepers, until
from passel.arena import Arena, prefixed
from passel.place import forkserver, processes
from passel.place.base import WorkerDiedError, WorkerHangsError
from passel.place.board import Board, Command
from passel.place.plan import Plan
from passel.place.processes import BEREAVED_PATIENCE, STOP_PATIENCE, Processes, work
from passel.place.shop import Links
from small import IDENTITY, new_arena, settings_for, small_plan


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

        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> Any:
            seen = board._rested.obj == other
            board.wake(0)
            return seen

    assert board.at_rest().all()
    board.rested = cast(Any, HeldUp())
    assert board.at_rest().tolist() == [False, True]


@contextmanager
def running(factory: Callable[[], Any] | None = None, **changes: Any) -> Iterator[Processes]:
    """Workers that train until the end of the block; `factory` makes what stands for their Identity environments."""
    plan = small_plan(place="processes", steps=10**9, **{"workers": 2, "env": IDENTITY, **changes})
    plan = plan if factory is None else replace(plan, env=factory)
    placement = Processes(plan, new_arena(plan, shared=True))
    try:
        placement.start()
        placement.resume()
        yield placement
    finally:
        placement.stop()


def pid_of(placement: Processes, name: str) -> int:
    (child,) = (child for child in placement._children if child.name == name)
    assert child.process.pid is not None
    return child.process.pid


def advance_until(placement: Processes, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        placement.advance(0.02)
        assert time.monotonic() < deadline


class TestAWorkerThatHangs:
    @pytest.mark.parametrize("sync", ["hogwild", "locked", "server", "allreduce"])
    def test_who_does_not_come_to_rest_is_named_and_not_who_waits_for_it(self, sync: str) -> None:
        """A process that is stopped stands for an environment whose step never ends."""
        with running(sync=sync) as placement:
            advance_until(placement, lambda: bool(placement.board.column("updates").all()))
            os.kill(pid_of(placement, "worker 0"), signal.SIGSTOP)
            if sync == "allreduce":  # the others must wait sooner or later, and one that waits does not come to rest
                advance_until(placement, lambda: bool(placement.board.waits[1]))
            with pytest.raises(WorkerHangsError, match=r"^worker 0 does not respond: did not come to rest within 3 s$"):
                placement.pause(lambda: 3.0)
            began = time.monotonic()
            placement.stop()
            assert time.monotonic() - began < 2 * STOP_PATIENCE

    @pytest.mark.parametrize(
        ("stopped", "settings"),
        [("critic 0", {"algo": "a3c", "split": True}), ("worker 0", {"transport": "distributed"})],
        ids=["critics", "torch.distributed"],
    )
    def test_nor_are_others_that_wait_for_it(self, stopped: str, settings: dict[str, Any]) -> None:
        """A critic waits for the critics of the other workers; torch waits for a message."""
        with running(sync="allreduce", **settings) as placement:
            advance_until(placement, lambda: bool(placement.board.column("updates").all()))
            os.kill(pid_of(placement, stopped), signal.SIGSTOP)
            advance_until(placement, lambda: placement.board.waits[1] > 2)
            sentence = f"^{stopped} does not respond: did not come to rest within 4 s$"
            with pytest.raises(WorkerHangsError, match=sentence):
                placement.pause(lambda: 4.0)

    def test_a_notice_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "SILENT", 0.8)
        with running(sync="allreduce") as placement:
            advance_until(placement, lambda: bool(placement.board.column("updates").all()))
            os.kill(pid_of(placement, "worker 1"), signal.SIGSTOP)
            advance_until(placement, lambda: bool(placement.notices()))
            words = ["worker 1 has not reported for 1 s: its environment step or update is slow or hangs."]
            assert placement.notices() == words
            assert placement.notices() == words, "each sentence once"

    def test_who_gives_up_waiting_blames_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker that has waited in vain ends with an error: the cause is the one that it waited for."""
        with running(sync="allreduce") as placement:
            advance_until(placement, lambda: bool(placement.board.column("updates").all()))
            os.kill(pid_of(placement, "worker 0"), signal.SIGSTOP)
            advance_until(placement, lambda: bool(placement._silent(processes.LATE)))
            worker = placement._children[1]
            error = placement._error_of(worker, "waited", "TimeoutError: waited 120 s for the other learners", "")
            assert str(error) == "worker 0 does not respond: worker 1 waited 120 s for the other learners"
            assert isinstance(error, WorkerHangsError)
            alone = placement._error_of(worker, "crash", "ValueError: no", "")
            assert str(alone) == "worker 1 died: ValueError: no"


def test_who_was_killed_is_named_and_not_who_noticed_it() -> None:
    """torch.distributed tells a learner that its peer is gone. Both have ended when the watcher looks."""
    with running(sync="allreduce", transport="distributed") as placement:
        advance_until(placement, lambda: bool(placement.board.column("updates").all()))
        os.kill(pid_of(placement, "worker 0"), signal.SIGKILL)
        for child in placement._children:
            assert connection.wait([child.handle], 30)
        with pytest.raises(WorkerDiedError, match=r"^worker 0 died: killed by signal 9 \(SIGKILL\)$"):
            placement.advance(0.02)


def test_a_worker_that_dies_after_the_last_pause_is_told_of() -> None:
    with running(sync="hogwild") as placement:
        placement.pause()
        os.kill(pid_of(placement, "worker 1"), signal.SIGKILL)
        (child,) = (child for child in placement._children if child.name == "worker 1")
        assert connection.wait([child.handle], 10)
        placement.stop()
        assert [str(death) for death in placement.deaths()] == ["worker 1 died: killed by signal 9 (SIGKILL)"]


def test_a_look_at_workers_at_rest_finds_the_dead() -> None:
    with running(sync="hogwild") as placement:
        placement.pause()
        placement.check()
        os.kill(pid_of(placement, "worker 0"), signal.SIGKILL)
        assert connection.wait([placement._children[0].handle], 10)
        with pytest.raises(WorkerDiedError, match=r"^worker 0 died: killed by signal 9"):
            placement.check()
        placement.stop()
        assert placement.deaths() == [], "each is told once"


def test_nobody_is_waited_for_who_waits_for_a_dead_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    with running(sync="server", shards=2) as placement:
        advance_until(placement, lambda: bool(placement.board.column("updates").all()))
        os.kill(pid_of(placement, "shard 1"), signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=r"^shard 1 died: killed by signal 9"):
            advance_until(placement, lambda: False)
        monkeypatch.setattr(processes, "_await_ends", lambda children, seconds: waits.append(seconds))
        placement.stop()
    assert waits[0] == BEREAVED_PATIENCE


def test_what_environments_have_started_ends_with_the_workers(tmp_path: Path) -> None:
    with running(partial(HasChildren, str(tmp_path)), sync="hogwild") as placement:
        assert len(sleepers(tmp_path)) == 4
        placement.stop()
        until(lambda: not sleepers(tmp_path), "their end", 5.0)


class TestTheForkserver:
    def test_its_death_ends_nothing_and_is_told(self) -> None:
        with running(sync="hogwild") as placement:
            pid = forkserver.process_id()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            advance_until(placement, lambda: bool(placement.notices()))
            assert placement.notices() == [
                "The forkserver, from which workers are started, was killed. Those that run go on; the next run starts "
                "another."
            ]
            steps = placement.board.steps
            advance_until(placement, lambda: placement.board.steps > steps + 100)
            placement.pause()
            placement.resume()
            os.kill(pid_of(placement, "worker 1"), signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match=r"^worker 1 died: it ended, and the forkserver, which"):
                advance_until(placement, lambda: False)

    def test_it_is_gone_when_it_was_ended(self) -> None:
        forkserver.warm_up()
        pid = forkserver.process_id()
        assert pid is not None
        forkserver.end()
        assert forkserver.process_id() is None
        assert not psutil.pid_exists(pid)

    def test_a_fork_of_this_process_leaves_it_alone(self) -> None:
        forkserver.warm_up()
        pid = forkserver.process_id()
        assert pid is not None
        monkey = pytest.MonkeyPatch()
        with monkey.context() as patch:
            patch.setattr(forkserver._Started, "by", os.getpid() + 1)
            forkserver.end()
        assert psutil.pid_exists(pid)


def test_workers_stop_and_go_on_with_the_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z: the terminal stops the watcher's group only."""
    with running(sync="hogwild") as placement:
        workers = [psutil.Process(pid_of(placement, f"worker {rank}")) for rank in (0, 1)]
        states: list[str] = []

        def stop_here() -> None:
            until(lambda: all(worker.status() == psutil.STATUS_STOPPED for worker in workers), "a stop", 10.0)
            states.extend(worker.status() for worker in workers)

        monkeypatch.setattr(processes, "stop_here", stop_here)
        signal.raise_signal(signal.SIGTSTP)
        assert states == [psutil.STATUS_STOPPED] * 2
        steps = placement.board.steps
        advance_until(placement, lambda: placement.board.steps > steps)


def test_a_daemonic_process_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(place="processes", workers=2)
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    with pytest.raises(passel.PasselError, match=r"daemonic process.*\. Use --place inline there"):
        Processes(plan, new_arena(plan, shared=True)).start()


def test_no_space_for_a_semaphore_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plan = small_plan(place="processes", workers=2)
    monkeypatch.setattr(processes.context(), "Lock", refuse)
    with pytest.raises(passel.PasselError, match=r"no space for a semaphore in /dev/shm .*\. Free some"):
        Processes(plan, new_arena(plan, shared=True)).start()


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_under_gossip_nobody_waits(algo: str, tmp_path: Path) -> None:
    """Not even on a busy machine, where whoever waits for another waits for its turn on a core."""
    out = str(tmp_path / "run")
    run = passel.train(**settings_for(algo=algo, sync="gossip", workers=2, place="processes", steps=3000, out=out))
    assert run.summary.updates > 100
    assert run.shares["wait"] < 0.02
