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
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from passel.arena import Arena
from passel.place.base import Placement, WorkerDiedError
from passel.place.board import Board, Command, State
from passel.place.budget import at_most, tiny_is_zero
from passel.place.forkserver import context, main_hidden, warm_up
from passel.place.plan import Plan
from passel.place.shop import Links
from passel.sync.base import Semaphore
from passel.types import Bools, DivergedError, PasselError

START_PATIENCE = 120.0  # seconds; building environments may be slow
PAUSE_PATIENCE = 120.0  # seconds; one step of a slow environment
STOP_PATIENCE = 3.0
#: The same where one has died without whom the others cannot finish their update: they would only wait for it.
BEREAVED_PATIENCE = 0.5


class ProcessKit:
    """Locks and semaphores that processes share."""

    shared = True

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def lock(self) -> AbstractContextManager[Any]:
        return context().Lock()

    def semaphore(self) -> Semaphore:
        return context().Semaphore(0)

    def meeting_point(self) -> str:
        return str(Path(self._folder) / f"meet-{time.monotonic_ns()}")


@dataclass
class Child:
    """A process of ours: its name, and the pipe on which it says why it ended."""

    name: str
    process: BaseProcess
    errors: Connection


class Processes(Placement):
    """A process a worker, a process a server. Runs in: the process that the user started."""

    def start(self) -> None:
        warm_up(self.plan.env if isinstance(self.plan.env, str) else "")
        self._children: list[Child] = []
        self._folder = tempfile.TemporaryDirectory(prefix="passel-")
        links = self.plan.links(ProcessKit(self._folder.name))
        # By value, functions and all: an environment may be a lambda of a script that the workers never import.
        plan = CloudpickleWrapper(cast(Any, self.plan))
        for number, name in enumerate(self.plan.server_names):
            self._spawn(name, serve, plan, self.arena, links, number)
        for rank in range(self.plan.workers):
            self._spawn(self.plan.cast.name(rank), work, plan, self.arena, links, rank)
        # Everybody has taken hold of the locks and bells when this returns; only then may their names go.
        self._wait_until(lambda: self.board.states == State.READY, START_PATIENCE, "start")

    def _spawn(self, name: str, target: Callable[..., None], *args: Any) -> None:
        receive, send = context().Pipe(duplex=False)
        process = context().Process(target=_main, args=(target, send, *args), name=f"passel {name}", daemon=True)
        with main_hidden():
            process.start()
        send.close()
        self._children.append(Child(name, process, receive))

    def advance(self, seconds: float) -> None:
        gone = connection.wait([child.process.sentinel for child in self._children], timeout=seconds)
        if gone:
            self._raise_for_the_dead()

    def check(self) -> None:
        self.advance(0.0)

    def _raise_for_the_dead(self) -> None:
        """Say what the first of the dead died of; one that said so itself comes first."""
        dead = [child for child in self._children if not child.process.is_alive()]
        for child in dead:
            child.process.join(STOP_PATIENCE)
        told = [(child, words) for child in dead if (words := _last_words(child.errors))]
        for child, (kind, message, trace) in told:
            if kind in ("user", "diverged"):
                raise DivergedError(message) if kind == "diverged" else PasselError(message)
            raise WorkerDiedError(child.name, message, trace)
        for child in dead:
            raise WorkerDiedError(child.name, _describe_exit(child.process.exitcode))

    def pause(self, patience: float | None = None) -> None:
        self.board.ask_for_rest()
        patience = PAUSE_PATIENCE if patience is None else patience
        self._wait_until(lambda: self.board.rested == self.board.asked, patience, "come to rest")
        self.plan.settle(self.arena)

    def _wait_until(self, done: Callable[[], Bools], patience: float, what: str) -> None:
        """Until every worker has done it, and every server is there."""
        deadline = time.monotonic() + patience
        while not (done().all() and (self.board.servers == State.READY).all()):
            self.advance(0.002)
            if time.monotonic() > deadline:
                late = [self.plan.cast.name(int(rank)) for rank in np.flatnonzero(~done())]
                states = zip(self.plan.server_names, self.board.servers, strict=True)
                late += [name for name, s in states if s != State.READY]
                raise WorkerDiedError(", ".join(late), f"did not {what} within {patience:.0f} s")

    def stop(self) -> None:
        self.board.command = Command.STOP
        children = getattr(self, "_children", [])
        deadline = time.monotonic() + (BEREAVED_PATIENCE if self._bereaved(children) else STOP_PATIENCE)
        for child in children:
            child.process.join(max(0.0, deadline - time.monotonic()))
        for end in ("terminate", "kill"):
            for child in children:
                if child.process.is_alive():
                    getattr(child.process, end)()
            for child in children:
                child.process.join(1.0)
        for child in children:
            child.errors.close()
            child.process.close()
        self._children = []
        with suppress(OSError, AttributeError):
            self._folder.cleanup()

    def _bereaved(self, children: Sequence[Child]) -> bool:
        collective = any(scheme.collective for scheme in self.plan.schemes.values())
        return collective and not all(child.process.is_alive() for child in children)


def _last_words(errors: Connection) -> tuple[str, str, str] | None:
    """What a child said before it ended; nothing, if it was killed."""
    with suppress(EOFError, OSError):
        if errors.poll():
            words: tuple[str, str, str] = errors.recv()
            return words
    return None


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"it ended with exit code {code}, without a word"


def _main(target: Callable[..., None], errors: Connection, wrapped: CloudpickleWrapper, *args: Any) -> None:
    """The first function of every child: set it up, run it, and say why it ended if it should not have.

    Runs in: the child.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the watcher's to handle
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # and so is the end of the terminal
    faulthandler.enable()
    _end_with_parent()
    plan = cast(Plan, wrapped.fn)
    try:
        with at_most(plan.threads), tiny_is_zero():
            target(plan, *args)
    except PasselError as error:
        errors.send(("diverged" if isinstance(error, DivergedError) else "user", str(error), ""))
        sys.exit(2)
    except BaseException as error:
        errors.send(("crash", f"{type(error).__name__}: {error}", traceback.format_exc()))
        sys.exit(1)


def _end_with_parent() -> None:
    """A child must not outlive the watcher, however the watcher ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def work(plan: Plan, arena: Arena, links: Links, rank: int) -> None:
    """A worker's life. Runs in: its own process."""
    with at_most(plan.threads_of(rank)):
        _take_turns(plan, arena, links, rank)


def _take_turns(plan: Plan, arena: Arena, links: Links, rank: int) -> None:
    board = Board(arena.below("board"))
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
        else:
            board.states[rank] = State.RUNNING
            if not worker.turn():
                worker.wait()
    worker.close()
    board.states[rank] = State.GONE


def serve(plan: Plan, arena: Arena, links: Links, number: int) -> None:
    """A shard's or a critic's life. Runs in: its own process."""
    board = Board(arena.below("board"))
    server = plan.build_server(arena, links, number)
    board.servers[number] = State.READY
    while board.command != Command.STOP:
        server.serve(0.1)
