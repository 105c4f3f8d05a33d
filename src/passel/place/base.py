"""What a placement is: it decides where workers run, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from passel.arena import Arena
from passel.place.board import Board, Command
from passel.place.plan import Plan


class WorkerDiedError(Exception):
    """A worker ended that should not have. The message names it, its signal and its traceback."""

    def __init__(self, name: str, cause: str, traceback: str = "") -> None:
        super().__init__(f"{name} died: {cause}" + (f"\n{traceback}" if traceback else ""))
        self.name, self.cause, self.traceback = name, cause, traceback


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
    def pause(self, patience: float | None = None) -> None:
        """Return when every worker is at rest and all that it must not lose is in the arena. Raises WorkerDiedError if
        one of them does not come to rest within `patience` seconds; None: within the placement's own.
        """

    def check(self) -> None:  # noqa: B027 - where workers cannot die alone there is nothing to look for
        """Raise WorkerDiedError if a worker is gone, without letting any of them work."""

    @abstractmethod
    def stop(self) -> None:
        """End every worker; leave no process and no shared memory behind. Never raises."""

    def resume(self) -> None:
        self.board.command = Command.RUN

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        yield
        self.resume()
