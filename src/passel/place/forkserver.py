"""The process that workers come from. Light to import, so that it can be started before anything heavy is.

The forkserver imports torch once, on another core, while the command line does the same; after that a worker starts in
hundredths of a second.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from typing import Any

PRELOAD = ["torch", "passel.place.processes"]


def context() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")


def warm_up(env: str = "") -> None:
    """Start the forkserver now, if it is not running yet; for some environments it has more to bring along."""
    from multiprocessing import resource_tracker
    from multiprocessing.forkserver import ensure_running

    fast = ["passel.envs.envpool_preload"] if importlib.util.find_spec("envpool") else []
    shared = ["passel.envs.procgen_preload"] if fast and env.startswith("levels:procgen:") else []
    context().set_forkserver_preload([*PRELOAD, *fast, *shared])
    # A Ctrl-C in the first seconds reaches the forkserver in the middle of its imports, before it has learnt to ignore
    # it; held back here, it is held back there too, and our own is delivered right after. The resource tracker comes
    # first, because starting it lets SIGINT through again.
    resource_tracker.ensure_running()
    with main_hidden(), _interrupts_held_back():
        ensure_running()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
