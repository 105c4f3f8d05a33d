"""Rollouts that wait in slots for a learner: IMPALA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors, prefixed
from passel.data.experience import Inlet, Outlet
from passel.data.rollout import RolloutShape
from passel.data.slots import Behaviour, SlotReader, SlotWriter, slot_specs
from passel.place.diets.base import ApartDiet, Version


class SlotDiet(ApartDiet):
    """Some slots for each actor, in which rollouts wait for its learner."""

    carries_age = True

    def shared_specs(self) -> dict[str, Spec]:
        specs: dict[str, Spec] = {}
        for rank in self.plan.cast.actors:
            shape = RolloutShape.of(self.plan.spec, self.numbers.horizon, self.plan.rows(rank))
            specs |= prefixed(f"slots/{rank}", slot_specs(self._slots(rank), shape))
        return specs

    def _slots(self, rank: int) -> int:
        """Enough for this actor's part of a batch, and one more to fill meanwhile."""
        players = self.plan.cast
        part = math.ceil(self.numbers.batch / len(players.actors_of(players.learner_of(rank))))
        return int(self.numbers.slots or part + 1)

    def own_specs(self, rank: int) -> dict[str, Spec]:
        return prefixed("slot", SlotWriter.specs()) if rank in self.plan.cast.actors else {}

    def inlet(self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, lock: Any, version: Version) -> Inlet:
        numbers, behaviour = self.numbers, cast(Behaviour, algo)
        slots, mine = arena.below(f"slots/{rank}"), own.below("slot")
        return SlotWriter(slots, mine, behaviour, version, gamma=numbers.gamma, reward_scale=numbers.reward_scale)

    def outlet(self, arena: Arena, rank: int, rng: np.random.Generator, lock: Any) -> Outlet:
        collective = next(iter(self.plan.schemes.values())).collective
        others = [other for other in self.plan.cast.learners if other != rank] if collective else []
        return self._reader(arena, rank, [self._reader(arena, other) for other in others])

    def _reader(self, arena: Arena, rank: int, together: Sequence[SlotReader] = ()) -> SlotReader:
        actors = [arena.below(f"slots/{actor}") for actor in self.plan.cast.actors_of(rank)]
        return SlotReader(actors, self._newest(arena), batch=self.numbers.batch, together=together)

    def interrupt(self, own: Tensors) -> None:
        """A rollout that is whole can still be learnt from; one that is not begins anew."""
        for tensor in own.below("slot").values():
            tensor.zero_()

    def first_update(self) -> tuple[int, str]:
        rows = min(self.plan.rows(rank) for rank in self.plan.cast.actors)
        return int(self.numbers.batch * self.numbers.horizon * rows), "a smaller --horizon or --batch, or fewer --envs"
