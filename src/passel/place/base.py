"""What a placement is: it decides where workers run, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from passel.arena import Arena
from passel.place.board import Board, Command
from passel.place.plan import Plan

PAUSE_PATIENCE = 120.0  # seconds; one step of a slow environment


class WorkerDiedError(Exception):
    """A worker ended that should not have. The message names it, its signal and its traceback."""

    verb: ClassVar[str] = "died"

    def __init__(self, name: str, cause: str, traceback: str = "") -> None:
        super().__init__(f"{name} {self.verb}: {cause}" + (f"\n{traceback}" if traceback else ""))
        self.name, self.cause, self.traceback = name, cause, traceback


class WorkerHangsError(WorkerDiedError):
    """A worker is there, and does not do what it was asked to."""

    verb = "does not respond"


class Placement(ABC):
    """Runs the workers of a plan over one arena. The loop that calls it:

        placement.start()
        while training:
            placement.advance(0.1)             # they work; this returns soon
            with placement.paused(): ...       # everybody at rest, the arena is whole
        placement.stop()

    Runs in: the process that the user started.
    """

    def __init__(self, plan: Plan, arena: Arena) -> None:
        self.plan, self.arena = plan, arena
        self.board = Board(arena.below("board"))

    @abstractmethod
    def start(self) -> None:
        """Build the workers. They wait for `resume`."""

    @abstractmethod
    def advance(self, seconds: float) -> None:
        """Let the workers work for about this long. Raises WorkerDiedError if one of them is gone."""

    @abstractmethod
    def pause(self, patience: Callable[[], float] = lambda: PAUSE_PATIENCE) -> None:
        """Return when every worker is at rest and all that it must not lose is in the arena. Raises WorkerHangsError if
        that takes longer than `patience()` seconds, which is asked again while it waits: a request to stop shortens it.
        """

    @abstractmethod
    def stop(self) -> None:
        """End every worker; leave no process and no shared memory behind. Never raises."""

    def check(self) -> None:
        """Raise as `advance` does if a worker is gone, at once: also while nothing is asked of the workers."""
        return

    def notices(self) -> list[str]:
        """What the user should know about the workers, each sentence once: who is silent, what has ended."""
        return []

    def deaths(self) -> list[WorkerDiedError]:
        """Who has died, and no exception has told it: because nothing was asked of the workers any more."""
        return []

    def resume(self) -> None:
        self.board.command = Command.RUN

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        yield
        self.resume()
