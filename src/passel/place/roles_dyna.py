"""The roles of an algorithm that dreams: one worker acts in the real environment, the others learn a model of it and
dream; all of them learn the values.

What is due is for the limiters to say, so that the number of workers decides how fast things happen and not how much of
each does. Whoever has nothing of its own to do helps: the one who acts learns from dreams while it may not go on.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

from passel.actor import Actor
from passel.clock import Clock
from passel.data.dream_gain import DreamGain
from passel.data.dreams import Dreams
from passel.data.limiter import Limiter
from passel.data.two_memories import ModelLessons, TwoMemories
from passel.envs.base import Envs
from passel.learner import Learner
from passel.place.orders import Orders
from passel.place.roles import Taught, update
from passel.types import Floats


def imagined_update(orders: Orders, learner: Learner, lessons: TwoMemories, gain: DreamGain | None) -> None:
    """An update that is imagined, which `gain` measures, or a real one that takes its place."""
    learner.pull()
    with gain.measured(learner.pull) if gain is not None and not lessons.over() else nullcontext():
        update(orders, learner)


class Playing(Taught):
    """Acts in the real environment, and learns the values from what comes of it."""

    def __init__(
        self,
        orders: Orders,
        envs: Envs,
        actor: Actor,
        learner: Learner,
        lessons: TwoMemories,
        models: Limiter | None,
        gain: DreamGain | None,
    ) -> None:
        self.learner, self.lessons, self.gain = learner, lessons, gain
        self._orders, self._envs, self._actor, self._models = orders, envs, actor, models

    def turn(self) -> bool:
        """Act until an update is due, and make it; or, where the dreams are behind, help with them."""
        if self._room():
            self.learner.pull()
            while not self.lessons.real_due():
                self._orders.stepped(self._actor.collect(self._orders.board.steps))
                if self._orders.resting or not self._room():
                    return True
            update(self._orders, self.learner)
            if self.gain is not None:
                self.gain.judge(self._orders.board.steps)
            return True
        if self.lessons.imagined_due():
            imagined_update(self._orders, self.learner, self.lessons, self.gain)
            return True
        return False

    def _room(self) -> bool:
        return self.lessons.room() and (self._models is None or self.lessons.over() or self._models.may_insert())

    def park(self) -> None:
        self.learner.pull()
        self.lessons.park()

    def scalars(self) -> list[float]:
        return [self.lessons.dream_ratio]

    def close(self) -> None:
        self._envs.close()


class ModelTeacher:
    """Teaches the models when that is due, and brings them up to date before a dream."""

    def __init__(self, orders: Orders, learner: Learner, lessons: ModelLessons, lr: float) -> None:
        self._orders, self._learner, self._lessons, self._lr = orders, learner, lessons, lr

    def turn(self, *, over: bool) -> bool:
        """One update, if it is due, or if another dreamer waits for this one's part in it. When dreaming is `over`,
        models have nothing more to learn.
        """
        if not (self._orders.behind or (self._lessons.due() and not over and not self._orders.ahead)):
            return False
        self._learner.pull()
        self._learner.update(self._orders.board.steps, self._lr)
        return True

    def fetch(self) -> None:
        if not self._orders.ahead:  # to fetch would be to wait
            self._learner.pull()

    @property
    def refused(self) -> int:
        return self._learner.refused

    def park(self) -> None:
        self._learner.pull()


class Dreaming(Taught):
    """Teaches the models, dreams, and learns the values from dreams. `numbers` are the models' usual error and the last
    dream's median doubt, in the arena.
    """

    def __init__(
        self,
        orders: Orders,
        learner: Learner,
        lessons: TwoMemories,
        dreams: Dreams,
        teacher: ModelTeacher | None,
        clock: Clock,
        numbers: Floats,
        gain: DreamGain | None,
    ) -> None:
        self.learner, self._gain = learner, gain
        self._orders, self._lessons, self._dreams, self._teacher = orders, lessons, dreams, teacher
        self._clock, self._numbers = clock, numbers

    def turn(self) -> bool:
        """One thing that is due: a dream (others may wait for it), a lesson of the models, or an update from dreams."""
        if self._lessons.dream_due() and not self._orders.behind:
            self._dream()
            return True
        if self._teacher is not None and self._teacher.turn(over=self._lessons.over()):
            return True
        if self._lessons.imagined_due():
            imagined_update(self._orders, self.learner, self._lessons, self._gain)
            return True
        return False

    def _dream(self) -> None:
        self.learner.pull()
        if self._teacher is not None:
            self._teacher.fetch()
        self._numbers[1] = self._dreams.dream(self._orders.board.steps)
        self._clock.mark("dream")

    def park(self) -> None:
        self.learner.pull()
        if self._teacher is not None:
            self._teacher.park()

    @property
    def refused(self) -> int:
        return self.learner.refused + (self._teacher.refused if self._teacher is not None else 0)

    def scalars(self) -> list[float]:
        error, doubt = (float(number) if number else math.nan for number in self._numbers)
        return [self._lessons.dream_ratio, error, doubt, math.nan if self._gain is None else self._gain.last]


class Whole(Taught):
    """One worker that is both: it acts, and then dreams until it may act again."""

    def __init__(self, orders: Orders, playing: Playing, dreaming: Dreaming) -> None:
        self.learner = playing.learner
        self._orders, self._playing, self._dreaming = orders, playing, dreaming

    def turn(self) -> bool:
        worked = self._playing.turn()
        while not self._orders.resting and self._dreaming.turn():
            worked = True
        return worked

    def park(self) -> None:
        self._playing.park()
        self._dreaming.park()

    @property
    def refused(self) -> int:
        return self._dreaming.refused

    def scalars(self) -> list[float]:
        return self._dreaming.scalars()

    def close(self) -> None:
        self._playing.close()
