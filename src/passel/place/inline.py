"""All workers in this process, one turn each, round after round: deterministic, and the oracle for the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

from passel.arena import Arena
from passel.place.base import PAUSE_PATIENCE, Placement, WorkerDiedError
from passel.place.board import Command, State
from passel.place.budget import at_most, tiny_is_zero
from passel.place.cast import BOTH
from passel.place.plan import NEXT_TURN, Plan
from passel.place.worker import Worker
from passel.sync.base import Semaphore
from passel.types import PasselError


class Bell:
    """A semaphore for one process: it never waits, for whoever would ring it takes turns with us."""

    def __init__(self) -> None:
        self._rings = 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        if not self._rings:
            return False
        self._rings -= 1
        return True

    def release(self) -> None:
        self._rings += 1


class InlineKit:
    """Nothing runs at the same time, so nothing needs a lock."""

    shared = False

    def lock(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def semaphore(self) -> Semaphore:
        return Bell()

    def meeting_point(self) -> str:
        return ""


class Inline(Placement):
    """Round-robin. With the same seed, every run is the same run."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        super().__init__(plan, arena)
        self._budget = ExitStack()
        self._workers: list[Worker] = []
        self._next_turn = arena[NEXT_TURN].numpy()
        self._updates = self.board.column("updates")
        self._every_turn_updates = set(plan.cast.roles) == {BOTH}

    def start(self) -> None:
        self._budget.enter_context(at_most(self.plan.threads))
        self._budget.enter_context(tiny_is_zero())
        links = self.plan.links(InlineKit())
        self._servers = [
            scheme.servers(self.arena.below(f"sync/{name}"), links.schemes[name])
            for name, scheme in self.plan.schemes.items()
        ]
        for rank, half in enumerate(links.halves):
            half.resident.append(self.plan.build_half(self.arena, links, rank))
        for rank in range(self.plan.workers):
            self._workers.append(self.plan.build_worker(self.arena, links, rank))
        self.board.states[:] = State.READY

    def advance(self, seconds: float) -> None:
        """One round, whatever the time: a round is what makes a run repeatable.

        The last step of a run cuts a round short. Where each worker acts and learns, a run that is resumed with more
        steps goes on with the worker that was cut off, or had no turn: as if there had been no end.
        """
        order, first = self._in_order(), int(self._next_turn[0])
        for place in range(first, len(order)):
            worker = order[place]
            # A run may have been cut in the middle of a round: whoever would wait lets the others catch up first.
            while worker.ahead:
                for other in self._workers:
                    if other.behind:
                        self._turn(other)
            if len(self._workers) > 1:
                worker.idle()  # the others had their turns
            updates = self._updates[worker.rank]
            self._turn(worker)
            if self._every_turn_updates and self._updates[worker.rank] == updates and worker.resting:
                self._next_turn[0] = place  # it was cut off, or had no turn
                return
        self._next_turn[0] = 0

    def _turn(self, worker: Worker) -> None:
        """A worker's turn. What it raises is told as of a worker that is a process: by its name, with its traceback."""
        try:
            worker.turn()
        except PasselError:
            raise
        except Exception as error:
            cause, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
            raise WorkerDiedError(self.plan.cast.name(worker.rank), cause, trace) from error

    def _in_order(self) -> list[Worker]:
        """By rank, but those who only act by how little they have: where there is room for one, it is not always the
        same one's.
        """
        steps, apart = self.board.column("steps"), self.plan.cast.apart
        return sorted(self._workers, key=lambda worker: (steps[worker.rank], worker.rank)) if apart else self._workers

    def pause(self, patience: Callable[[], float] = lambda: PAUSE_PATIENCE) -> None:
        self.board.command = Command.WAIT
        while awake := [worker for worker in self._workers if not worker.resting]:
            for worker in awake:
                # One that is ahead would wait for the others, who are behind and awake too.
                if worker.behind or not worker.ahead:
                    self._turn(worker)
        for worker in self._workers:
            worker.park()
        self.plan.settle(self.arena)

    @contextmanager
    def paused(self) -> Iterator[None]:
        with super().paused():
            yield
            for worker in self._workers:
                worker.idle()

    def stop(self) -> None:
        for worker in self._workers:
            with suppress(Exception):
                worker.close()
        self._budget.close()
