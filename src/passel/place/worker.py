"""A worker: a role, and what every role needs: orders, a clock, random streams and a place to say how it goes.

Every placement runs the same worker: `inline` gives each of several one turn after the other, `processes` lets each run
on its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from passel.algos.base import Algorithm
from passel.arena import fence
from passel.clock import Clock
from passel.learner import Learner
from passel.place.board import State
from passel.place.orders import Orders
from passel.place.roles import Role
from passel.streams import Stream

PUBLISH_EVERY = 0.1  # seconds
AWAKE = 300e-6  # seconds of waiting before the first sleep
NAP, SLEEP = 100e-6, 1e-3  # seconds
DROWSY = 20e-3  # seconds of naps before the first real sleep


class Worker:
    """One worker, in whatever process. The loop that calls it:

    while not worker.resting:
        if not worker.turn():
            worker.wait()
    worker.park()
    """

    def __init__(
        self, orders: Orders, role: Role, algo: Algorithm, clock: Clock, streams: Sequence[Stream], scalars: int
    ) -> None:
        self.rank, self.board, self.role = orders.rank, orders.board, role
        self._orders, self._algo, self._clock, self._streams = orders, algo, clock, streams
        #: How many numbers of its own a run shows: the algorithm's, the learner's, the experience's, which not every
        #: role knows, and how many gradients were refused, which is shown where there are any.
        self._scalars = scalars
        self._published = 0.0
        self._waiting_since: float | None = None
        clock.mark("idle")

    @property
    def learner(self) -> Learner:
        """Of a role that learns."""
        learner: Learner = self.role.learner  # type: ignore[attr-defined]
        return learner

    @property
    def resting(self) -> bool:
        """Whether to stand still. A run's last rollout is learnt from before it ends; at a pause, it can wait."""
        return self._orders.resting and not (self._orders.finished and self.role.unlearnt())

    @property
    def behind(self) -> bool:
        return self._orders.behind

    @property
    def ahead(self) -> bool:
        return self._orders.ahead

    def turn(self) -> bool:
        """Do what there is to do; returns False if there was nothing."""
        if self.resting:
            return False
        worked = self.role.turn()
        now = time.perf_counter()
        if worked:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        if now - self._published > PUBLISH_EVERY:
            self.publish(State.RUNNING)
        return worked

    def wait(self) -> None:
        """There was nothing to do: yield, then nap, then sleep. What is waited for is often there in no time; if not,
        it must not be kept from the core that it needs.
        """
        waited = time.perf_counter() - (self._waiting_since or 0.0)
        time.sleep(0 if waited < AWAKE else NAP if waited < DROWSY else SLEEP)
        self._clock.mark("wait")

    def park(self) -> None:
        """Come to rest: whatever a resumed run must find is in the arena when this returns."""
        self.role.park()
        for stream in self._streams:
            stream.save()
        self.publish(State.PARKED)
        fence()

    def idle(self) -> None:
        """The time since the last mark was spent at rest."""
        self._clock.mark("idle")

    def publish(self, state: State) -> None:
        self._published = time.perf_counter()
        learnt = self.role.learning_rate, self.role.grad_norm
        said = [*self._algo.scalars(self.board.steps), *learnt, *self.role.scalars()]
        self.board.publish(
            self.rank,
            self._clock,
            said + [math.nan] * (self._scalars - 1 - len(said)) + [self.role.refused or math.nan],
            loss=self.role.loss,
            staleness=self.role.staleness,
        )
        self.board.states[self.rank] = state

    def close(self) -> None:
        self.role.close()
