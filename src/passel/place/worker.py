"""A worker: an actor and a learner that take turns, one update a turn.

Every placement runs the same worker: `inline` gives each of several one turn after the other, `processes` lets each run
on its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from passel.actor import Actor
from passel.algos.base import Algorithm
from passel.clock import Clock
from passel.data.experience import Experience
from passel.envs.base import Envs
from passel.learner import Learner
from passel.place.board import STEPS, UPDATES, Board, State
from passel.streams import Stream
from passel.types import Ints

PUBLISH_EVERY = 0.1  # seconds


class Worker:
    """One worker, in whatever process. The loop that calls it:

    while not worker.resting:
        worker.turn()
    worker.park()
    """

    def __init__(
        self,
        rank: int,
        board: Board,
        clock: Clock,
        envs: Envs,
        algo: Algorithm,
        learner: Learner,
        experience: Experience,
        streams: Sequence[Stream],
        *,
        limit: int,
        lr: Callable[[int], float],
        joint_pushes: Sequence[Ints],
        resumed: bool,
    ) -> None:
        self.rank, self.board, self.learner = rank, board, learner
        self._envs, self._algo, self._experience, self._streams = envs, algo, experience, streams
        self._clock, self._limit, self._lr, self._joint_pushes = clock, limit, lr, joint_pushes
        self._counters = board.counters[rank]
        try:
            obs = envs.restore() if resumed else envs.reset()
        except BaseException:
            envs.close()  # they may hold a process
            raise
        self._actor = Actor(
            envs, obs, algo, experience, streams[0].rng, clock, lambda episodes: board.finished(rank, episodes)
        )
        self._published = 0.0
        clock.mark("idle")

    @property
    def resting(self) -> bool:
        """Whether to stand still: told to, or all workers together have taken the steps that were asked for.

        Where every learner takes part in every update, nobody may rest while another waits for its gradient.
        """
        return (not self.board.running or self.board.steps >= self._limit) and not self.behind

    @property
    def behind(self) -> bool:
        """Whether another learner waits for this one's part in an update that needs them all."""
        return any(pushes.max() > pushes[self.rank] for pushes in self._joint_pushes)

    @property
    def ahead(self) -> bool:
        """Whether this learner would have to wait for another's part."""
        return any(pushes[self.rank] > pushes.min() for pushes in self._joint_pushes)

    def turn(self) -> None:
        """Pull, act as often as it takes for an update to be due, and push one update."""
        if self.resting:
            return
        self.learner.pull()
        while not self._experience.due():
            self._counters[STEPS] += self._actor.collect(self.board.steps)
            if self.resting:
                return
        steps = self.board.steps
        self.learner.update(steps, self._lr(steps), steps / self._limit)
        self._counters[UPDATES] += 1
        if time.perf_counter() - self._published > PUBLISH_EVERY:
            self.publish(State.RUNNING)

    def park(self) -> None:
        """Come to rest: whatever a resumed run must find is in the arena when this returns."""
        self.learner.pull()
        self._experience.park()
        for stream in self._streams:
            stream.save()
        self.publish(State.PARKED)

    def idle(self) -> None:
        """The time since the last mark was spent at rest."""
        self._clock.mark("idle")

    def publish(self, state: State) -> None:
        self._published = time.perf_counter()
        self.board.publish(
            self.rank,
            self._clock,
            self._algo.scalars(self.board.steps),
            loss=self.learner.loss,
            staleness=self.learner.staleness,
        )
        self.board.states[self.rank] = state

    def close(self) -> None:
        self._envs.close()
