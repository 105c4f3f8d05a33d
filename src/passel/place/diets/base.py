"""What a diet is: how experience reaches an algorithm, what of it is kept in the arena, and how it is served."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors
from passel.data.experience import Experience, Inlet, Outlet, Passage

if TYPE_CHECKING:
    from passel.place.plan import Plan

Version = Callable[[], int]


class Diet(ABC):
    """One algorithm's experience, by plan."""

    #: Numbers of the learner's side that are worth plotting.
    scalar_names: tuple[str, ...] = ()
    #: Whether experience says which version of the parameters acted.
    carries_age = False

    def __init__(self, plan: Plan) -> None:
        self.plan, self.numbers = plan, plan.numbers

    def shared_specs(self) -> dict[str, Spec]:
        """What is not any one worker's own."""
        return {}

    @abstractmethod
    def own_specs(self, rank: int) -> dict[str, Spec]:
        """What worker `rank` keeps for itself."""

    @abstractmethod
    def serve(
        self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, rng: np.random.Generator, lock: Any
    ) -> Experience:
        """Worker `rank`'s experience."""

    @abstractmethod
    def interrupt(self, own: Tensors) -> None:
        """The episodes of this worker were cut off and begin anew: nothing may be summed across the gap."""

    def why_not(self) -> str | None:
        """Which settings make no sense for this environment, in one sentence with the cure; None if all do."""
        return None

    def size(self) -> str | None:
        """One sentence about what it will take, if that is much."""
        return None

    def largest_capacity(self, nbytes: int) -> int | None:
        """How large a --capacity fits into so many bytes; None if there is nothing to choose."""
        return None

    def notices(self, arena: Arena) -> list[str]:
        """What the user should know about how it goes, each once."""
        return []

    def first_update(self) -> tuple[int, str]:
        """About how many steps all workers take before the first update, 0 if not known, and what makes them fewer."""
        return 0, ""

    def whole_rollouts(self) -> int:
        """Steps until a learner has a whole rollout. Workers that act at the same time fill theirs at the same time."""
        rows = [self.plan.rows(rank) for rank in self.plan.cast.actors]
        together = self.plan.config.place == "processes" or next(iter(self.plan.schemes.values())).collective
        return int(self.numbers.horizon * (sum(rows) if together else rows[0]))


class ApartDiet(Diet):
    """Experience that goes from those who act to those who learn. `version` is of the parameters that an actor has."""

    @abstractmethod
    def inlet(self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, lock: Any, version: Version) -> Inlet:
        """Actor `rank`'s side."""

    @abstractmethod
    def outlet(self, arena: Arena, rank: int, rng: np.random.Generator, lock: Any) -> Outlet:
        """Learner `rank`'s side."""

    def serve(
        self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, rng: np.random.Generator, lock: Any
    ) -> Experience:
        """A worker's that is both: what it acts with is what it learns."""
        inlet = self.inlet(arena, own, rank, algo, lock, self._newest(arena))
        return Passage(inlet, self.outlet(arena, rank, rng, lock))

    def _newest(self, arena: Arena) -> Version:
        """How many updates the shared vector has seen, by its first network."""
        name, scheme = next(iter(self.plan.schemes.items()))
        return partial(scheme.version, arena.below(f"sync/{name}"))
