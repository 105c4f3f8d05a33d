"""The process that workers come from. Light to import, so that it can be started before anything heavy is.

The forkserver imports torch once, on another core, while the command line does the same; after that a worker starts in
hundredths of a second.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker, synchronize, util
from multiprocessing.context import ForkServerContext
from typing import Any

from passel.place.lifeline import FROM_MAIN_THREAD, marked, requests_held_back

PRELOAD = ["passel.place.forkserver_preload", "torch", "passel.place.processes"]


def context() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")


def warm_up(env: str = "") -> None:
    """Start the forkserver now, if it is not running yet; for some environments it has more to bring along."""
    fast = ["passel.envs.envpool_preload"] if importlib.util.find_spec("envpool") else []
    shared = ["passel.envs.procgen_preload"] if fast and env.startswith("levels:procgen:") else []
    context().set_forkserver_preload([*PRELOAD, *fast, *shared])
    _own_it()
    # A Ctrl-C in the first seconds reaches the forkserver in the middle of its imports; held back here, it is held back
    # there too, and our own is delivered right after. The resource tracker comes first, because starting it lets SIGINT
    # and SIGTERM through again.
    with main_hidden():
        with requests_held_back():
            resource_tracker.ensure_running()
        with requests_held_back(), marked(), _from_main_thread():
            forkserver.ensure_running()


class _Started:
    """Which process has started the forkserver that this module knows."""

    by = 0


def _own_it() -> None:
    """The forkserver ends with this process; what a fork of this process has inherited is not its own."""
    if _Started.by != os.getpid():
        if _Started.by:
            vars(forkserver._forkserver).update(vars(forkserver.ForkServer()))
        _Started.by = os.getpid()
        atexit.register(end)


@contextmanager
def _from_main_thread() -> Iterator[None]:
    if threading.current_thread() is threading.main_thread():
        os.environ[FROM_MAIN_THREAD] = "1"
    try:
        yield
    finally:
        os.environ.pop(FROM_MAIN_THREAD, None)


def process_id() -> int | None:
    """The forkserver's, if this process has started one."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def end() -> None:
    """End the forkserver, whatever it does, and wait for it. The next `warm_up` starts another."""
    pid = process_id()
    if pid is not None and _Started.by == os.getpid():
        with requests_held_back(), suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            forkserver._forkserver._stop()  # type: ignore[attr-defined]


def end_tracker() -> None:
    """End the resource tracker and wait for it, unless there is still something that it should remove."""
    tracker = resource_tracker._resource_tracker
    if tracker._pid is None or process_id() is not None:  # type: ignore[attr-defined]
        return
    gc.collect()
    registry: dict[Any, Any] = util._finalizer_registry  # type: ignore[attr-defined]
    cleanup = synchronize.SemLock._cleanup  # type: ignore[attr-defined]
    if not any(getattr(entry, "_callback", None) is cleanup for entry in list(registry.values())):
        with requests_held_back(), suppress(OSError):
            tracker._stop()  # type: ignore[attr-defined]


@contextmanager
def main_hidden() -> Iterator[None]:
    """Workers must not import the user's script again: a script without an `if __name__` guard would train itself."""
    main = sys.modules["__main__"]
    names = [name for name in ("__file__", "__spec__") if name in main.__dict__]
    hidden: dict[str, Any] = {name: main.__dict__.pop(name) for name in names}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
