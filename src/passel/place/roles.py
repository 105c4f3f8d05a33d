"""What a worker may be: both an actor and a learner, one after the other, or one of the two.

A turn never waits. It does what there is to do and says whether there was anything; where nothing was, the placement
decides how to pass the time. So whoever is told to rest or to stop hears it, whatever the others do or have died of.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

from passel.actor import Actor
from passel.algos.base import Algorithm
from passel.clock import Clock
from passel.data.experience import Experience, Inlet, Outlet
from passel.data.lag import Lag
from passel.envs.base import Envs
from passel.learner import Learner
from passel.place.orders import Orders
from passel.sync.reader import Reader


class Role(ABC):
    """What a worker does with its turns.

    while not orders.resting:
        role.turn()
    role.park()
    """

    @abstractmethod
    def turn(self) -> bool:
        """Do what there is to do, for a short time. Returns False if there was nothing."""

    @abstractmethod
    def park(self) -> None:
        """Come to rest: whatever a resumed run must find is in the arena when this returns."""

    def unlearnt(self) -> bool:
        """Whether experience is complete and would never be learnt from if the run ended here."""
        return False

    @property
    def loss(self) -> float:
        return 0.0

    @property
    def staleness(self) -> float:
        return 0.0

    @property
    def refused(self) -> int:
        """Gradients that were not finite, and were not applied."""
        return 0

    @property
    def learning_rate(self) -> float:
        """Of the last update; nan where nothing is learnt."""
        return math.nan

    @property
    def grad_norm(self) -> float:
        """Of the last gradients of all networks together, before they were clipped; nan if there is none."""
        return math.nan

    def scalars(self) -> list[float]:
        """What this role has to say of its experience."""
        return []

    def close(self) -> None:
        return


class Taught(Role):
    """Whoever has a learner says how that one does."""

    learner: Learner

    @property
    def loss(self) -> float:
        return self.learner.loss

    @property
    def staleness(self) -> float:
        return self.learner.staleness

    @property
    def refused(self) -> int:
        return self.learner.refused

    @property
    def learning_rate(self) -> float:
        return self.learner.lr

    @property
    def grad_norm(self) -> float:
        return self.learner.grad_norm


class Both(Taught):
    """An actor and a learner that take turns."""

    def __init__(self, orders: Orders, envs: Envs, actor: Actor, learner: Learner, experience: Experience) -> None:
        self.learner = learner
        self._orders, self._envs, self._actor, self._experience = orders, envs, actor, experience

    def turn(self) -> bool:
        """Pull, act as often as it takes for an update to be due, and push one update."""
        orders = self._orders
        self.learner.pull()
        while not self._experience.due():
            orders.stepped(self._actor.collect(orders.board.steps))
            if orders.resting:
                return True
        update(orders, self.learner)
        return True

    def unlearnt(self) -> bool:
        return self._experience.unlearnt()

    def park(self) -> None:
        self.learner.pull()
        self._experience.park()

    def scalars(self) -> list[float]:
        said = getattr(self._experience, "scalars", None)
        return said() if said else []

    def close(self) -> None:
        self._envs.close()


class Acting(Role):
    """Only acts, with a copy of the parameters that it fetches every so often."""

    def __init__(
        self,
        orders: Orders,
        envs: Envs,
        actor: Actor,
        algo: Algorithm,
        readers: Mapping[str, Reader],
        inlet: Inlet,
        clock: Clock,
        fetch_every: int,
    ) -> None:
        self._orders, self._envs, self._actor, self._algo, self._inlet = orders, envs, actor, algo, inlet
        self._readers, self._first = list(readers.values()), next(iter(readers.values()))
        self._clock, self._fetch_every = clock, fetch_every
        self._lag = Lag()

    def turn(self) -> bool:
        """Fetch, and act until it is time to fetch again, or there is no more room."""
        if not self._inlet.room():
            return False
        self._fetch()
        orders = self._orders
        for _ in range(self._fetch_every):
            orders.stepped(self._actor.collect(orders.board.steps))
            self._lag.add(self._first.lag)
            if orders.resting or not self._inlet.room():
                break
        return True

    def _fetch(self) -> None:
        new = [reader.fetch() for reader in self._readers]
        if any(new):
            self._algo.fetched(self._first.version)
        self._clock.mark("copy")

    def park(self) -> None:
        self._inlet.park()

    @property
    def staleness(self) -> float:
        """Mean number of versions by which the copy was behind when it was acted with."""
        return self._lag.mean

    def close(self) -> None:
        self._envs.close()


class Learning(Taught):
    """Only learns, from what others bring."""

    def __init__(self, orders: Orders, learner: Learner, outlet: Outlet) -> None:
        self.learner = learner
        self._orders, self._outlet = orders, outlet
        self._settled = False

    def turn(self) -> bool:
        if self._outlet.due():
            self.learner.pull()
            update(self._orders, self.learner)
            self._settled = False
            return True
        if not self._settled:
            # What came of the last update must not wait for the next: the actors want to see it.
            self.learner.pull()
            self._settled = True
        return False

    def unlearnt(self) -> bool:
        return self._outlet.unlearnt()

    def park(self) -> None:
        self.learner.pull()
        self._outlet.park()

    @property
    def staleness(self) -> float:
        """By how many versions the policy that acted was older than the one that learnt from it, where that is known;
        else as of any learner.
        """
        return self.learner.staleness if self._outlet.lag is None else self._outlet.lag.mean

    def scalars(self) -> list[float]:
        return self._outlet.scalars()


def update(orders: Orders, learner: Learner) -> None:
    """One update of the learner, at the rate that is due, and counted."""
    steps = orders.board.steps
    learner.update(steps, orders.lr(steps), orders.progress(steps))
    orders.updated()
