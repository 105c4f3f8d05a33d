"""Each worker is a process of its own on this machine, and so is whoever serves them.

Processes come from a forkserver that has already imported torch: a worker starts in hundredths of a second, and
inherits no thread, lock or environment of the user's process. The watcher owns shutdown; every wait has a time-out.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from passel.arena import Arena, cells
from passel.place import forkserver
from passel.place.base import PAUSE_PATIENCE, Placement, WorkerDiedError, WorkerHangsError
from passel.place.board import Board, Command, State
from passel.place.budget import at_most, tiny_is_zero
from passel.place.forkserver import context, main_hidden, warm_up
from passel.place.lifeline import end_with_watcher, kill_group
from passel.place.limits import explained, out_of_memory_kills
from passel.place.plan import Plan
from passel.place.shop import Links
from passel.place.silence import Silence
from passel.sync.base import LONG, Semaphore, on_wait
from passel.types import Bools, DivergedError, PasselError

START_PATIENCE = 120.0  # seconds; building environments may be slow
STOP_PATIENCE = 3.0
#: The same where a process is gone without which the others cannot finish their update: they would only wait for it.
BEREAVED_PATIENCE = 0.5
KILL_PATIENCE = 1.0  # seconds until a process that was killed is gone
SILENT = 10.0  # seconds without a sign of life after which a worker is named
LATE = 1.5  # seconds without one, after which a worker that does not come to rest is not waiting for another


class PatientLock:
    """A lock between processes. Waiting for it is shown on the board, if it takes long."""

    def __init__(self) -> None:
        self._lock = context().Lock()

    def __enter__(self) -> None:
        while not self._lock.acquire(True, LONG):
            on_wait[-1]()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class ProcessKit:
    """Locks and semaphores that processes share."""

    shared = True

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def lock(self) -> AbstractContextManager[Any]:
        with explained():
            return PatientLock()

    def semaphore(self) -> Semaphore:
        with explained():
            return context().Semaphore(0)

    def meeting_point(self) -> str:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="passel-")
        return str(Path(self._folder.name) / f"meet-{time.monotonic_ns()}")

    def close(self) -> None:
        if self._folder is not None:
            with suppress(OSError):
                self._folder.cleanup()


@dataclass
class Child:
    """A process of ours: its name, and the pipe on which it says why it ended.

    The kernel says whether it lives, by a descriptor of the process. multiprocessing asks the forkserver, without which
    it takes every worker for dead.
    """

    name: str
    process: BaseProcess
    errors: Connection
    pidfd: int | None
    #: An exception has told that it died.
    told: bool = False

    @property
    def handle(self) -> int:
        """Ready when it has ended."""
        return self.process.sentinel if self.pidfd is None else self.pidfd

    @property
    def ended(self) -> bool:
        return bool(connection.wait([self.handle], 0))

    def exit_code(self) -> int | None:
        self.process.join(STOP_PATIENCE)
        return self.process.exitcode

    def kill(self) -> None:
        """With all that it has started. Also if it has ended: what it has started need not have."""
        assert self.process.pid is not None
        kill_group(self.process.pid)

    def close(self) -> None:
        self.errors.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        with suppress(ValueError):  # multiprocessing thinks that it runs
            self.process.close()


def _pidfd(pid: int | None) -> int | None:
    """A descriptor of a process, where the kernel has such a thing."""
    with suppress(OSError, AttributeError):
        if pid is not None:
            return os.pidfd_open(pid)
    return None


class Processes(Placement):
    """A process a worker, a process a server. Runs in: the process that the user started."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        super().__init__(plan, arena)
        self._children: list[Child] = []
        self._forkserver: int | None = None
        self._kit = ProcessKit()
        self._links: Links | None = None
        self._silence = Silence(self.board, plan.config.steps)
        self._notices: list[str] = []
        self._deaths: list[WorkerDiedError] = []
        self._killed_before = 0
        self._error: WorkerDiedError | PasselError | None = None
        self._suspend_before: Any = None

    def start(self) -> None:
        if multiprocessing.current_process().daemon:
            raise PasselError(
                "--place processes cannot start workers from a daemonic process, such as one of multiprocessing.Pool. "
                "Use --place inline there, or a process that is not daemonic."
            )
        with explained():
            self._start()

    def _start(self) -> None:
        self._killed_before = out_of_memory_kills()
        warm_up(self.plan.env if isinstance(self.plan.env, str) else "")
        # Held until every child has found them, or is gone: a semaphore has a name only while this process keeps it.
        self._links = links = self.plan.links(self._kit)
        # By value, functions and all: an environment may be a lambda of a script that the workers never import.
        plan = CloudpickleWrapper(cast(Any, self.plan))
        for number, name in enumerate(self.plan.server_names):
            self._spawn(name, serve, plan, self.arena, links, number)
        for rank in range(self.plan.workers):
            self._spawn(self.plan.cast.name(rank), work, plan, self.arena, links, rank)
        self._forkserver = _pidfd(forkserver.process_id())
        if threading.current_thread() is threading.main_thread():
            self._suspend_before = signal.signal(signal.SIGTSTP, self._suspend)
        self._wait_until(lambda: self.board.states == State.READY, lambda: START_PATIENCE, "start")
        self._links = None

    def _spawn(self, name: str, target: Callable[..., None], *args: Any) -> None:
        receive, send = context().Pipe(duplex=False)
        process = context().Process(target=_main, args=(target, send, *args), name=f"passel {name}", daemon=True)
        try:
            with main_hidden():
                process.start()
        except (EOFError, ConnectionError) as error:
            raise WorkerDiedError(
                "the forkserver", "it was killed while workers were started. Start the run again."
            ) from error
        send.close()
        self._children.append(Child(name, process, receive, _pidfd(process.pid)))

    def advance(self, seconds: float) -> None:
        watched = [child.handle for child in self._children]
        if self._forkserver is not None:
            watched.append(self._forkserver)
        gone = connection.wait(watched, timeout=seconds)
        self._silence.look()
        if self._forkserver in gone:
            self._lose_forkserver()
        elif gone:
            self._raise_for_the_dead()

    def _lose_forkserver(self) -> None:
        assert self._forkserver is not None
        os.close(self._forkserver)
        self._forkserver = None
        self._notices.append(
            "The forkserver, from which workers are started, was killed. Those that run go on; the next run starts "
            "another."
        )

    def notices(self) -> list[str]:
        for name in self._silent(SILENT):
            what = "it" if name in self.plan.server_names else "its environment step or update"
            self._notices.append(f"{name} has not reported for {SILENT:.0f} s: {what} is slow or hangs.")
        self._notices = list(dict.fromkeys(self._notices))
        return list(self._notices)

    def check(self) -> None:
        self.advance(0.0)

    def deaths(self) -> list[WorkerDiedError]:
        return list(self._deaths)

    def _names_of(self, workers: Bools) -> list[str]:
        return [self.plan.cast.name(int(rank)) for rank in np.flatnonzero(workers)]

    def _silent(self, seconds: float) -> list[str]:
        """Who has shown no sign of life for so long, and lives."""
        names = [*(self.plan.cast.name(rank) for rank in range(self.plan.workers)), *self.plan.server_names]
        alive = {child.name for child in self._children if not child.ended}
        pairs = zip(names, self._silence.seconds, strict=True)
        return [name for name, silent in pairs if silent > seconds and name in alive]

    def _raise_for_the_dead(self) -> None:
        """Say what the first of the dead died of; one that said so itself comes first."""
        errors = self._errors_of_the_dead()
        self._error = self._error or (errors[0] if errors else None)
        if self._error is not None:
            raise self._error

    def _errors_of_the_dead(self) -> list[WorkerDiedError | PasselError]:
        """Of each that no exception has told of yet: first who said why itself, then who did not, and last who waited
        for another in vain.
        """
        dead = [child for child in self._children if child.ended and not child.told]
        codes = {child.name: child.exit_code() for child in dead}
        said: list[WorkerDiedError | PasselError] = []
        silently: list[WorkerDiedError | PasselError] = []
        waited: list[WorkerDiedError | PasselError] = []
        for child in dead:
            child.told = True
            words = _last_words(child.errors)
            if words is None:
                silently.append(WorkerDiedError(child.name, self._describe_exit(codes[child.name])))
            else:
                (waited if words[0] == "waited" else said).append(self._error_of(child, *words))
        return said + silently + waited

    def _error_of(self, child: Child, kind: str, message: str, trace: str) -> WorkerDiedError | PasselError:
        if kind in ("user", "diverged"):
            return DivergedError(message) if kind == "diverged" else PasselError(message)
        silent = self._silent(LATE) if kind == "waited" else []
        if silent:
            return WorkerHangsError(", ".join(silent), f"{child.name} {message.removeprefix('TimeoutError: ')}")
        return WorkerDiedError(child.name, message, trace)

    def _describe_exit(self, code: int | None) -> str:
        if code is not None and code < 0:
            with suppress(ValueError):
                name = signal.Signals(-code).name
                memory = code == -signal.SIGKILL and out_of_memory_kills() > self._killed_before
                return f"killed by signal {-code} ({name})" + (
                    ", probably because the machine or its control group ran out of memory. "
                    "Use a smaller --capacity, or fewer --workers or --envs."
                    if memory
                    else ""
                )
        if self._forkserver is None and code == 255:
            return "it ended, and the forkserver, which would know how, was killed before"
        return f"it ended with exit code {code}, without a word"

    def pause(self, patience: Callable[[], float] = lambda: PAUSE_PATIENCE) -> None:
        self.board.ask_for_rest()
        self._wait_until(self.board.at_rest, patience, "come to rest")
        self.plan.settle(self.arena)

    def _wait_until(self, done: Callable[[], Bools], patience: Callable[[], float], what: str) -> None:
        """Until every worker has done it, and every server is there."""
        began = time.monotonic()
        while not (done().all() and (self.board.servers == State.READY).all()):
            self.advance(0.002)
            limit = patience()
            if time.monotonic() - began > limit:
                late = self._names_of(~done())
                states = zip(self.plan.server_names, self.board.servers, strict=True)
                late += [name for name, s in states if s != State.READY]
                # Who waits for another comes late through no fault of its own.
                silent = self._silent(min(LATE, limit / 2))
                raise WorkerHangsError(", ".join(silent or late), f"did not {what} within {limit:.0f} s")

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z reaches the watcher only, for workers lead groups of their own: they stop, and go on, with it."""
        self._signal_groups(signal.SIGSTOP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        stop_here()
        signal.signal(signal.SIGTSTP, self._suspend)
        self._signal_groups(signal.SIGCONT)

    def _signal_groups(self, number: signal.Signals) -> None:
        for child in self._children:
            with suppress(OSError):
                os.killpg(child.process.pid or 0, number)

    def stop(self) -> None:
        children = self._children
        if not children:
            self._kit.close()
            return
        bereaved = self._bereaved(children)
        if self.board.command != Command.STOP:
            self._deaths += [e for e in self._errors_of_the_dead() if isinstance(e, WorkerDiedError)]
        self.board.command = Command.STOP
        try:
            _await_ends(children, BEREAVED_PATIENCE if bereaved else STOP_PATIENCE)
        finally:  # also if a second Ctrl-C cuts that short
            for child in children:
                child.kill()
            _await_ends(children, KILL_PATIENCE)
            self._children = []
            for child in children:
                child.close()
            self._links = None
            self._kit.close()
            if self._forkserver is not None:
                os.close(self._forkserver)
                self._forkserver = None
            if self._suspend_before is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTSTP, self._suspend_before)
                self._suspend_before = None

    def _bereaved(self, children: Sequence[Child]) -> bool:
        """Whether one is gone, or hangs, without which others cannot finish."""
        needed = self.plan.server_names or any(scheme.collective for scheme in self.plan.schemes.values())
        starting = bool((self.board.states == State.STARTING).any())
        return starting or (bool(needed) and any(child.ended for child in children)) or bool(self._silent(LATE))


def stop_here() -> None:
    """What Ctrl-Z does to a process that has nothing to do first."""
    signal.raise_signal(signal.SIGTSTP)


def _await_ends(children: Sequence[Child], seconds: float) -> None:
    """Until all have ended, but not for longer than this."""
    deadline = time.monotonic() + seconds
    left = [child.handle for child in children]
    while left and (rest := deadline - time.monotonic()) > 0:
        gone = connection.wait(left, rest)
        left = [handle for handle in left if handle not in gone]


def _last_words(errors: Connection) -> tuple[str, str, str] | None:
    """What a child said before it ended; nothing, if it was killed."""
    with suppress(EOFError, OSError):
        if errors.poll():
            words: tuple[str, str, str] = errors.recv()
            return words
    return None


def _main(target: Callable[..., None], errors: Connection, wrapped: CloudpickleWrapper, *args: Any) -> None:
    """The first function of every child: set it up, run it, and say why it ended if it should not have.

    Runs in: the child.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with_watcher(parent.sentinel)
    faulthandler.enable()
    plan = cast(Plan, wrapped.fn)
    try:
        with at_most(plan.threads), tiny_is_zero():
            target(plan, *args)
    except PasselError as error:
        errors.send(("diverged" if isinstance(error, DivergedError) else "user", str(error), ""))
        sys.exit(2)
    except BaseException as error:
        kind = "waited" if isinstance(error, TimeoutError) else "crash"
        errors.send((kind, f"{type(error).__name__}: {error}", traceback.format_exc()))
        sys.exit(1)


def work(plan: Plan, arena: Arena, links: Links, rank: int) -> None:
    """A worker's life. Runs in: its own process."""
    with at_most(plan.threads_of(rank)):
        _take_turns(plan, arena, links, rank)


def _take_turns(plan: Plan, arena: Arena, links: Links, rank: int) -> None:
    board = Board(arena.below("board"))
    on_wait.append(partial(_count, cells(board.waits), rank))
    worker = plan.build_worker(arena, links, rank)
    board.states[rank] = State.READY
    while board.command != Command.STOP:
        if worker.resting:
            asked = board.asked
            if board.rested[rank] != asked or board.states[rank] == State.RUNNING:
                worker.park()
                board.rested[rank] = asked
            time.sleep(0.001)
            worker.idle()
        elif board.rested[rank]:
            # The first turn after a rest, and perhaps during a pause, because another learner waits for this one.
            # The watcher must see that before anything moves, above all before the offer that lets the other rest.
            before = board.wake(rank)
            if worker.resting:  # the update was made without this worker: nothing has moved since it came to rest
                board.rested[rank] = before
        else:
            board.states[rank] = State.RUNNING
            if not worker.turn():
                worker.wait()
    worker.close()
    board.states[rank] = State.GONE


def _count(counters: Any, place: int) -> None:
    """A sign of life."""
    counters[place] += 1


def serve(plan: Plan, arena: Arena, links: Links, number: int) -> None:
    """A shard's or a critic's life. Runs in: its own process."""
    board = Board(arena.below("board"))
    server = plan.build_server(arena, links, number)
    board.servers[number] = State.READY
    served = cells(board.served)
    on_wait.append(partial(_count, served, number))  # under all-reduce a critic waits for the others' critics
    while board.command != Command.STOP:
        server.serve(0.1)
        served[number] += 1
