"""Where a dream begins: at real states, drawn evenly, by how surprising they were, or by how little is known there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np

from passel.data.sweeping import most_urgent, passed_back
from passel.data.trail import Trail
from passel.types import Array, Batch, Floats, Ints

#: Of so many states for each start, exploration takes those of which least is known.
CANDIDATES = 4
#: A surprise is passed back if it is more than this part of the usual one.
WORTH_PASSING = 0.5


class Critic(Protocol):
    """Whoever can say by how much a step's value is wrong."""

    def td_abs(self, batch: Batch, gamma: float) -> Floats:
        """|r + gamma max_a Q(s', a) - Q(s, a)| of each step, [B]."""


class Doubter(Protocol):
    """Whoever can say how little it knows."""

    n_actions: int

    def doubt(self, obs: Floats, action: Array) -> Floats:
        """By how much the models disagree, in units of how wrong they usually are: [B]."""


class Starts(ABC):
    """States to begin at, [B, S], and the first action from each, or None: whatever the policy does there."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail

    @abstractmethod
    def choose(self, n: int, rng: np.random.Generator) -> tuple[Floats, Ints | None]: ...


class Uniform(Starts):
    """Any real state is as good as any other."""

    def choose(self, n: int, rng: np.random.Generator) -> tuple[Floats, Ints | None]:
        return self._trail.sample(n, rng).obs, None


class Sweeping(Starts):
    """Prioritized sweeping (Moore and Atkeson 1993): the step that surprised most is dreamt again first, and what it
    taught is passed back to the step before it.

    The queue is the trail itself: a priority for each of its steps. A new step comes first of all; a step that is taken
    has none left, until its successor surprises. Where the queue runs dry, starts are drawn evenly.
    """

    def __init__(self, trail: Trail, critic: Critic, gamma: float) -> None:
        super().__init__(trail)
        self._critic, self._gamma = critic, gamma

    def choose(self, n: int, rng: np.random.Generator) -> tuple[Floats, Ints | None]:
        low, priority = self._trail.priorities()
        urgent = low + most_urgent(priority, n)
        if len(urgent) < n:
            urgent = np.concatenate([urgent, self._trail.draw(n - len(urgent), rng)])
        batch, counts = self._trail.steps(urgent)
        self.sweep(batch, counts)
        return batch.obs, batch.action

    def sweep(self, batch: Batch, counts: Ints) -> None:
        """These steps were taken from the queue: pass on what they taught."""
        surprise = self._critic.td_abs(batch, self._gamma)
        before = self._trail.before(counts)
        led = before >= 0
        self._trail.set_priority(counts, 0.0)
        threshold = WORTH_PASSING * float(surprise.mean())
        now = self._trail.priority_of(before[led])
        self._trail.set_priority(before[led], passed_back(surprise[led], self._gamma, now, threshold))


class Explore(Starts):
    """Exploration: of some states and an action from each, those of which the models know least, as long as they know
    enough (`limit`) for a dream to go on from there.
    """

    def __init__(self, trail: Trail, doubter: Doubter, limit: float) -> None:
        super().__init__(trail)
        self._doubter, self._limit = doubter, limit

    def choose(self, n: int, rng: np.random.Generator) -> tuple[Floats, Ints | None]:
        obs = self._trail.sample(CANDIDATES * n, rng).obs
        action = rng.integers(0, self._doubter.n_actions, len(obs))
        doubt = self._doubter.doubt(obs, action)
        worth = np.where(doubt <= self._limit, doubt, -doubt)
        chosen = np.argsort(-worth, kind="stable")[:n]
        return obs[chosen], action[chosen]
