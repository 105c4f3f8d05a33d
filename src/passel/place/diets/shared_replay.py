"""One memory between actors and a learner: Ape-X."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors, prefixed
from passel.data.experience import Inlet, Outlet
from passel.data.limiter import Limiter
from passel.data.nstep import NStep
from passel.data.shared_replay import Appraiser, ReplayInlet, ReplayOutlet, Surprise
from passel.place.diets.base import ApartDiet, Version
from passel.place.diets.replay import ReplayDiet

#: Batches, or steps of everybody, by which learner or actors may be ahead of what the limiter's ratio says.
SLACK = 4


class SharedReplayDiet(ApartDiet, ReplayDiet):
    """One memory, with a stripe for each actor, n-step windows before it, and a limiter at both its ends."""

    scalar_names = ("samples_per_insert", "samples_owed")

    def shared_specs(self) -> dict[str, Spec]:
        players = self.plan.cast
        counts = Limiter.specs(len(players.actors), len(players.learners))
        return {**super().shared_specs(), **prefixed("limiter", counts)}

    def own_specs(self, rank: int) -> dict[str, Spec]:
        if rank not in self.plan.cast.actors:
            return {}
        windows = {n: spec for n, spec in super().own_specs(rank).items() if not n.startswith("experience/")}
        if not self.numbers.prioritized:
            return windows
        return {**windows, **prefixed("surprise", Surprise.specs(self.numbers.n_step, self.plan.rows(rank)))}

    def inlet(self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, lock: Any, version: Version) -> Inlet:
        numbers, actor = self.numbers, self.plan.cast.actors.index(rank)
        window: dict[str, Any] = {"n": numbers.n_step, "gamma": numbers.gamma}
        memory = self._memory(arena, actor, lock)
        return ReplayInlet(
            NStep(own.below("nstep"), **window),
            memory,
            self._limiter(arena, actor),
            cast(Appraiser, algo),
            Surprise(own.below("surprise"), **window) if numbers.prioritized else None,
            self._stacks(arena, own, actor, memory),
        )

    def outlet(self, arena: Arena, rank: int, rng: np.random.Generator, lock: Any) -> Outlet:
        memory, limiter = self._memory(arena, 0, lock), self._limiter(arena, rank)
        return ReplayOutlet(memory, limiter, rng, batch=self.numbers.batch, beta=self._beta)

    def _limiter(self, arena: Arena, number: int) -> Limiter:
        """With enough slack that nobody waits for a single step or a single batch of another."""
        numbers, plan = self.numbers, self.plan
        rows = sum(plan.rows(rank) for rank in plan.cast.actors)
        return Limiter(
            arena.below("limiter"),
            number,
            ratio=numbers.samples_per_insert,
            batch=numbers.batch,
            warmup=numbers.warmup,
            slack=SLACK * max(numbers.batch, numbers.samples_per_insert * rows),
        )

    def interrupt(self, own: Tensors) -> None:
        super().interrupt(own)
        for tensor in own.below("surprise").values():
            tensor.zero_()
