"""How the processes of a run end with it, whatever the code of an environment does.

The kernel does it, because a thread cannot: an environment may hold the interpreter's lock inside native code.

- A worker leads a process group. The processes that its environments start are in it, and are killed with it.
- A pipe joins the watcher and each worker. When the watcher ends, the kernel kills the group at the worker's end.
- The forkserver gets a signal when the watcher ends. It kills all processes that carry the run's mark, an environment
  variable: also those that an environment has started in the watcher itself.

Light to import: the forkserver imports this before anything else.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from types import FrameType
from typing import Any

#: The environment variable that marks the processes of one run: the watcher's process id and a random number.
MARK = "PASSEL_FAMILY"
#: Requests to stop. The watcher answers them, for all its processes.
REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
TRACKER = b"multiprocessing.resource_tracker"  # it removes what the others leave, and ends with the last of them


@contextmanager
def requests_held_back() -> Iterator[None]:
    """What is started meanwhile is never ended by a request to stop: it inherits that they are blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def marked(whole: bool = False) -> Iterator[str]:
    """Processes that are started meanwhile carry a mark, which this yields: the one that is set already, unless
    `whole` asks for a new one.
    """
    before = os.environ.get(MARK)
    mine = before is not None and before.startswith(f"{os.getpid()}-") and not whole
    mark = before if mine and before else f"{os.getpid()}-{os.urandom(8).hex()}"
    os.environ[MARK] = mark
    try:
        yield mark
    finally:
        if before is None:
            os.environ.pop(MARK, None)
        else:
            os.environ[MARK] = before


def carriers(mark: str) -> list[int]:
    """The processes that were started under this mark, but for this one and the resource tracker. Linux only."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            marked = entry in (folder / "environ").read_bytes().split(b"\0")
            if marked and int(folder.name) != os.getpid() and TRACKER not in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def kill_carriers(mark: str) -> None:
    """Kill them, and what they start meanwhile."""
    for _ in range(5):
        found = carriers(mark)
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


@contextmanager
def command() -> Iterator[None]:
    """One command of the command line: the processes that it has started, and its environments', end before it does."""
    running = _forkserver()
    started = running.process_id() if running else None
    failed = True
    with marked(whole=True) as mark:
        try:
            yield
            failed = False
        finally:
            with requests_held_back():
                running = _forkserver()
                if running and running.process_id() != started:
                    running.end()
                kill_carriers(mark)
                if running and not failed:
                    running.end_tracker()
                while signal.SIGINT in signal.sigpending():  # the command ends already
                    signal.sigwait({signal.SIGINT})


def _forkserver() -> Any:
    """The module, if it was needed: it takes time to import."""
    return sys.modules.get("passel.place.forkserver")


def end_with_watcher(sentinel: int) -> None:
    """Lead a process group, deaf to requests to stop, that is killed when the other end of this pipe is closed.

    Runs in: each worker and server.
    """
    for number in REQUESTS:
        # A handler, not SIG_IGN: what an environment starts would inherit that, and could not be terminated.
        signal.signal(number, _ignore)
        signal.siginterrupt(number, False)
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # not in the terminal's group, and yet allowed to write to it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)
    with suppress(PermissionError):  # a session's leader leads its group already
        os.setpgid(0, 0)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    # Where the kernel does not do it, and where the watcher has ended before it was asked to.
    threading.Thread(target=_kill_group_at_end_of, args=(sentinel,), daemon=True).start()


def _ignore(number: int, frame: FrameType | None) -> None:
    """A request to stop that the watcher answers."""


def _kill_group_at_end_of(sentinel: int) -> None:
    select([sentinel], [], [])
    os.killpg(0, signal.SIGKILL)


def kill_group(leader: int) -> None:
    """Kill a worker and all that its environments have started."""
    for kill in (os.killpg, os.kill):  # it may not lead a group yet
        with suppress(ProcessLookupError, PermissionError):
            kill(leader, signal.SIGKILL)


def guard_family() -> None:
    """When the watcher ends, kill what carries the run's mark, and end.

    Runs in: the forkserver. The signal comes when the thread that started the forkserver ends: one that is not the main
    thread may end long before the watcher does. Then the end of the forkserver's own pipe has to do.
    """
    mark = os.environ.get(MARK, "")
    watcher, _, _ = mark.partition("-")
    if not watcher or not sys.platform.startswith("linux"):
        return
    forkserver = os.getpid()

    def end(number: int = 0, frame: FrameType | None = None) -> None:
        if os.getpid() == forkserver:
            kill_carriers(mark)
            os._exit(0)

    atexit.register(end)
    if os.environ.get(FROM_MAIN_THREAD):
        import ctypes

        signal.signal(signal.SIGUSR1, end)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
        if os.getppid() != int(watcher):
            end()


#: Set for the forkserver if the main thread of the watcher has started it.
FROM_MAIN_THREAD = "PASSEL_FROM_MAIN_THREAD"
