"""How experience reaches an algorithm: what each diet keeps in the arena, and how it is served."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors, prefixed
from passel.data.experience import Experience, Inlet, Outlet, Passage, ReplayExperience
from passel.data.limiter import Limiter
from passel.data.nstep import NStep
from passel.data.prioritised import PrioritisedReplay
from passel.data.replay import Replay
from passel.data.rollout import Judge, RolloutExperience
from passel.data.shared_replay import Appraiser, ReplayInlet, ReplayOutlet, Surprise
from passel.data.slots import Behaviour, SlotReader, SlotWriter, slot_specs
from passel.maths.schedules import linear

if TYPE_CHECKING:
    from passel.place.plan import Plan


Version = Callable[[], int]

#: Batches, or steps of everybody, by which learner or actors may be ahead of what the limiter's ratio says.
SLACK = 4


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


class ReplayDiet(Diet):
    """Memories, one for each worker or one for all, with n-step windows before them and a limiter behind."""

    def shared_specs(self) -> dict[str, Spec]:
        numbers, spec, workers = self.numbers, self.plan.spec, self.plan.workers
        everyone = numbers.memory == "global"
        kind = PrioritisedReplay if numbers.prioritized else Replay
        capacity = numbers.capacity if everyone else numbers.capacity // workers
        memory = kind.specs(capacity, spec.obs_shape, spec.obs_dtype, workers if everyone else 1)
        specs: dict[str, Spec] = {}
        for number in range(1 if everyone else workers):
            specs |= prefixed(f"memory/{number}", memory)
        return specs

    def own_specs(self, rank: int) -> dict[str, Spec]:
        spec, envs = self.plan.spec, self.plan.rows(rank)
        return {
            **prefixed("nstep", NStep.specs(self.numbers.n_step, envs, spec.obs_shape, spec.obs_dtype)),
            **prefixed("experience", ReplayExperience.specs()),
        }

    def serve(
        self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, rng: np.random.Generator, lock: Any
    ) -> Experience:
        numbers, everyone = self.numbers, self.numbers.memory == "global"
        tensors, writer = arena.below(f"memory/{0 if everyone else rank}"), rank if everyone else 0
        memory: Replay | PrioritisedReplay
        if numbers.prioritized:
            memory = PrioritisedReplay(tensors, writer, alpha=numbers.priority_alpha, lock=lock if everyone else None)
        else:
            memory = Replay(tensors, writer)
        return ReplayExperience(
            own.below("experience"),
            NStep(own.below("nstep"), n=numbers.n_step, gamma=numbers.gamma),
            memory,
            rng,
            batch=numbers.batch,
            updates_per_step=numbers.updates_per_step,
            warmup=numbers.warmup,
            beta=self._beta if numbers.prioritized else None,
        )

    def interrupt(self, own: Tensors) -> None:
        for tensor in own.below("nstep").values():
            tensor.zero_()

    def _beta(self, step: int) -> float:
        return linear(self.numbers.priority_beta, 1.0, step, self.plan.config.steps)


class RolloutDiet(Diet):
    """A rollout for each worker."""

    def own_specs(self, rank: int) -> dict[str, Spec]:
        spec, envs = self.plan.spec, self.plan.rows(rank)
        grid = (self.numbers.horizon, envs, spec.obs_shape, spec.obs_dtype, spec.frames)
        return prefixed("rollout", RolloutExperience.specs(*grid))

    def serve(
        self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, rng: np.random.Generator, lock: Any
    ) -> Experience:
        return RolloutExperience(
            own.below("rollout"),
            cast(Judge, algo),
            rng,
            gamma=self.numbers.gamma,
            epochs=getattr(self.numbers, "epochs", 1),
            minibatches=getattr(self.numbers, "minibatches", 1),
            groups=self.plan.groups(rank),
            reward_scale=self.numbers.reward_scale,
        )

    def interrupt(self, own: Tensors) -> None:
        """A rollout that is whole can still be learnt from; one that is not begins anew."""
        counts, horizon = own["rollout/counts"], len(own["rollout/action"])
        if int(counts[0]) < horizon:
            counts.zero_()


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


class SlotDiet(ApartDiet):
    """Some slots for each actor, in which rollouts wait for its learner."""

    carries_age = True

    def shared_specs(self) -> dict[str, Spec]:
        spec, horizon = self.plan.spec, self.numbers.horizon
        specs: dict[str, Spec] = {}
        for rank in self.plan.cast.actors:
            grid = (horizon, self.plan.rows(rank), spec.obs_shape, spec.obs_dtype, spec.frames)
            specs |= prefixed(f"slots/{rank}", slot_specs(self._slots(rank), *grid))
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
        actors = [arena.below(f"slots/{actor}") for actor in self.plan.cast.actors_of(rank)]
        return SlotReader(actors, self._newest(arena), batch=self.numbers.batch)

    def interrupt(self, own: Tensors) -> None:
        """A rollout that is whole can still be learnt from; one that is not begins anew."""
        for tensor in own.below("slot").values():
            tensor.zero_()


class SharedReplayDiet(ApartDiet):
    """One memory, with a stripe for each actor, n-step windows before it, and a limiter at both its ends."""

    scalar_names = ("samples_per_insert", "samples_owed")

    def shared_specs(self) -> dict[str, Spec]:
        numbers, spec, players = self.numbers, self.plan.spec, self.plan.cast
        kind = PrioritisedReplay if numbers.prioritized else Replay
        return {
            **prefixed("memory/0", kind.specs(numbers.capacity, spec.obs_shape, spec.obs_dtype, len(players.actors))),
            **prefixed("limiter", Limiter.specs(len(players.actors), len(players.learners))),
        }

    def own_specs(self, rank: int) -> dict[str, Spec]:
        if rank not in self.plan.cast.actors:
            return {}
        spec, envs, n = self.plan.spec, self.plan.rows(rank), self.numbers.n_step
        surprise = Surprise.specs(n, envs) if self.numbers.prioritized else {}
        return {
            **prefixed("nstep", NStep.specs(n, envs, spec.obs_shape, spec.obs_dtype)),
            **prefixed("surprise", surprise),
        }

    def inlet(self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, lock: Any, version: Version) -> Inlet:
        numbers, number = self.numbers, self.plan.cast.actors.index(rank)
        window: dict[str, Any] = {"n": numbers.n_step, "gamma": numbers.gamma}
        return ReplayInlet(
            NStep(own.below("nstep"), **window),
            self._memory(arena, number, lock),
            self._limiter(arena, number),
            cast(Appraiser, algo),
            Surprise(own.below("surprise"), **window) if numbers.prioritized else None,
        )

    def outlet(self, arena: Arena, rank: int, rng: np.random.Generator, lock: Any) -> Outlet:
        memory, limiter = self._memory(arena, 0, lock), self._limiter(arena, rank)
        return ReplayOutlet(memory, limiter, rng, batch=self.numbers.batch, beta=self._beta)

    def _memory(self, arena: Arena, writer: int, lock: Any) -> Replay | PrioritisedReplay:
        tensors = arena.below("memory/0")
        if self.numbers.prioritized:
            return PrioritisedReplay(tensors, writer, alpha=self.numbers.priority_alpha, lock=lock)
        return Replay(tensors, writer)

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
        for name in ("nstep", "surprise"):
            for tensor in own.below(name).values():
                tensor.zero_()

    def _beta(self, step: int) -> float:
        return linear(self.numbers.priority_beta, 1.0, step, self.plan.config.steps)


DIETS: dict[str, type[Diet]] = {
    "replay": ReplayDiet,
    "rollout": RolloutDiet,
    "shared": SharedReplayDiet,
    "slots": SlotDiet,
}
