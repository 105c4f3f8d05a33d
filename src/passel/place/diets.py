"""How experience reaches an algorithm: what each diet keeps in the arena, and how it is served."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors, prefixed, total_bytes
from passel.data.experience import Experience, Inlet, Outlet, Passage, ReplayExperience
from passel.data.frames import REFERENCE, FrameStore, open_store, record_bytes
from passel.data.limiter import Limiter
from passel.data.nstep import NStep
from passel.data.prioritised import PrioritisedReplay
from passel.data.replay import Replay
from passel.data.rollout import Judge, RolloutExperience
from passel.data.shared_replay import Appraiser, ReplayInlet, ReplayOutlet, Surprise
from passel.data.slots import Behaviour, SlotReader, SlotWriter, slot_specs
from passel.data.stacks import Stacks
from passel.data.trajectories import Historian, Trajectories, TrajectoryExperience
from passel.maths.schedules import linear
from passel.types import PasselError

if TYPE_CHECKING:
    from passel.place.plan import Plan


Version = Callable[[], int]

#: Batches, or steps of everybody, by which learner or actors may be ahead of what the limiter's ratio says.
SLACK = 4
#: An episode has one frame more than it has steps: this much room is for those, where frames are not compressed.
BETWEEN_EPISODES = 1.04
#: What is reserved for a compressed frame unless the user knows better: Ms Pac-Man takes a quarter, Breakout a 17th.
EXPECTED_SHARE = 1 / 3


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


class ReplayDiet(Diet):
    """Memories, one for each worker or one for all, with n-step windows before them and a limiter behind.

    Where an observation stacks frames, these are kept once, and references to them take the place of observations.
    """

    @property
    def _everyone(self) -> bool:
        return bool(self.numbers.memory == "global")

    @property
    def _stacked(self) -> bool:
        return self.plan.spec.frames > 1

    @property
    def _frame(self) -> Spec:
        """One frame of a stack."""
        spec = self.plan.spec
        like = FrameStore.specs(0, spec.obs_shape, spec.obs_dtype, spec.frames)["like"]
        return Spec((spec.obs_shape[0] // spec.frames, *spec.obs_shape[1:]), like.dtype)

    def why_not(self) -> str | None:
        numbers = self.numbers
        if not self._stacked and (numbers.compress != "lz4" or numbers.frame_bytes):
            return (
                f"--compress and --frame-bytes have no effect on {self.plan.spec.id}, whose observations are no stacks "
                "of frames. Leave them out."
            )
        return None

    def shared_specs(self) -> dict[str, Spec]:
        numbers, spec, workers = self.numbers, self.plan.spec, len(self.plan.cast.actors)
        kind = PrioritisedReplay if numbers.prioritized else Replay
        capacity = numbers.capacity if self._everyone else numbers.capacity // workers
        writers = workers if self._everyone else 1
        if self._stacked:
            rows = kind.specs(capacity, (spec.frames,), REFERENCE, writers, paged=True)
            memory = {**rows, **prefixed("frames", self._frame_specs(capacity // writers, writers))}
        else:
            memory = kind.specs(capacity, spec.obs_shape, spec.obs_dtype, writers)
        specs: dict[str, Spec] = {}
        for number in range(1 if self._everyone else workers):
            specs |= prefixed(f"memory/{number}", memory)
        return specs

    def _frame_specs(self, stripe: int, writers: int) -> dict[str, Spec]:
        spec, whole = self.plan.spec, self._frame.nbytes
        envs = max(self.plan.rows(rank) for rank in self.plan.cast.actors)
        least = Stacks.least_bytes(envs, spec.frames, self.numbers.n_step, whole)
        nbytes = max(least, math.ceil(stripe * self._reserved_bytes()))
        return FrameStore.specs(nbytes, spec.obs_shape, spec.obs_dtype, spec.frames, writers)

    def _reserved_bytes(self) -> float:
        """What each frame may take."""
        whole = self._frame.nbytes
        if self.numbers.compress == "none":
            return record_bytes(whole) * BETWEEN_EPISODES
        return record_bytes(self.numbers.frame_bytes or round(whole * EXPECTED_SHARE))

    def own_specs(self, rank: int) -> dict[str, Spec]:
        spec, envs, n_step = self.plan.spec, self.plan.rows(rank), self.numbers.n_step
        if self._stacked:
            windows = NStep.specs(n_step, envs, (spec.frames,), REFERENCE)
            stacks = Stacks.specs(envs, spec.frames, self._frame.nbytes)
        else:
            windows, stacks = NStep.specs(n_step, envs, spec.obs_shape, spec.obs_dtype), {}
        return {
            **prefixed("nstep", windows),
            **prefixed("stacks", stacks),
            **prefixed("experience", ReplayExperience.specs()),
        }

    def _memory(self, arena: Arena, actor: int, lock: Any) -> Replay | PrioritisedReplay:
        """The memory that actor number `actor` writes to."""
        tensors, writer = self._memory_of(arena, actor)
        if self.numbers.prioritized:
            shared = lock if self._everyone else None
            return PrioritisedReplay(tensors, writer, alpha=self.numbers.priority_alpha, lock=shared)
        return Replay(tensors, writer)

    def _memory_of(self, arena: Arena, actor: int) -> tuple[Tensors, int]:
        """Where it is, and which of its stripes is the actor's."""
        number, writer = (0, actor) if self._everyone else (actor, 0)
        return arena.below(f"memory/{number}"), writer

    def _stacks(self, arena: Arena, own: Tensors, actor: int, memory: Replay | PrioritisedReplay) -> Stacks | None:
        """Where observations stack frames: whoever keeps these, and gives out references."""
        if not self._stacked:
            return None
        tensors, writer = self._memory_of(arena, actor)
        store = open_store(tensors, self.numbers.compress)
        return Stacks(own.below("stacks"), store, memory, writer=writer, n_step=self.numbers.n_step)

    def serve(
        self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, rng: np.random.Generator, lock: Any
    ) -> Experience:
        numbers, memory = self.numbers, self._memory(arena, rank, lock)
        return ReplayExperience(
            own.below("experience"),
            NStep(own.below("nstep"), n=numbers.n_step, gamma=numbers.gamma),
            memory,
            rng,
            batch=numbers.batch,
            updates_per_step=numbers.updates_per_step,
            warmup=numbers.warmup,
            beta=self._beta if numbers.prioritized else None,
            stacks=self._stacks(arena, own, rank, memory),
        )

    def interrupt(self, own: Tensors) -> None:
        for tensor in own.below("nstep").values():
            tensor.zero_()

    def size(self) -> str | None:
        if not self._stacked:
            return None
        frame, numbers = self._frame, self.numbers
        kept = "as they are" if numbers.compress == "none" else "compressed by LZ4, in memory that is taken as it fills"
        return (
            f"Replay memory: {numbers.capacity:,} transitions over frames of {frame.nbytes:,} bytes, each kept once, "
            f"{kept}: at most {total_bytes(self.shared_specs()) / 1e9:,.2f} GB."
        )

    def largest_capacity(self, nbytes: int) -> int | None:
        """By halving: the size grows with the capacity, but not quite in proportion."""
        fits, too_many = 0, self.numbers.capacity + 1
        while too_many - fits > max(1, fits // 1000):
            middle = (fits + too_many) // 2
            numbers = dataclasses.replace(self.numbers, capacity=middle)
            try:
                taken = total_bytes(type(self)(dataclasses.replace(self.plan, numbers=numbers)).shared_specs())
            except PasselError:  # so few that they cannot be divided, or so many that they cannot be referred to
                taken = 0 if middle < self.plan.workers else nbytes + 1
            fits, too_many = (middle, too_many) if taken <= nbytes else (fits, middle)
        return fits

    def notices(self, arena: Arena) -> list[str]:
        if not self._stacked:
            return []
        short = [name for name in arena if name.endswith("/frames/given_up") and int(arena[name].sum())]
        if not short:
            return []
        cure = "--compress lz4" if self.numbers.compress == "none" else "a larger --frame-bytes"
        return [
            f"The frames take more than the {self._reserved_bytes():,.0f} bytes that are reserved for each transition: "
            f"the memory holds fewer than {self.numbers.capacity:,}, the newest ones. Use {cure} for all of them."
        ]

    def _beta(self, step: int) -> float:
        return linear(self.numbers.priority_beta, 1.0, step, self.plan.config.steps)


class RolloutDiet(Diet):
    """A rollout for each worker."""

    def own_specs(self, rank: int) -> dict[str, Spec]:
        spec, envs = self.plan.spec, self.plan.rows(rank)
        grid = (self.numbers.horizon, envs, spec.obs_shape, spec.obs_dtype, spec.frames, spec.action_shape)
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


class TrajectoryDiet(Diet):
    """Trajectories for each worker, of its own environments."""

    def own_specs(self, rank: int) -> dict[str, Spec]:
        spec, envs, numbers = self.plan.spec, self.plan.rows(rank), self.numbers
        length = numbers.capacity // self.plan.workers // envs
        if length < numbers.horizon:
            raise PasselError(
                f"--capacity {numbers.capacity} leaves {length} steps to each of the {envs} environments of "
                f"{self.plan.workers} workers, and a lesson begins after --horizon {numbers.horizon}. "
                "Use a larger --capacity."
            )
        return {
            **prefixed(
                "trajectories",
                Trajectories.specs(length, envs, spec.obs_shape, spec.obs_dtype, spec.action_shape),
            ),
            **prefixed("lessons", TrajectoryExperience.specs()),
        }

    def serve(
        self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, rng: np.random.Generator, lock: Any
    ) -> Experience:
        numbers = self.numbers
        return TrajectoryExperience(
            own.below("lessons"),
            Trajectories(own.below("trajectories"), gamma=numbers.gamma, reward_scale=numbers.reward_scale),
            cast(Historian, algo),
            rng,
            horizon=numbers.horizon,
            batch=numbers.batch,
            critic_updates=numbers.critic_updates,
            policy_updates=numbers.policy_updates,
        )

    def interrupt(self, own: Tensors) -> None:
        """Nothing to do: trajectories see for themselves where one does not go on."""


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
            grid = (horizon, self.plan.rows(rank), spec.obs_shape, spec.obs_dtype, spec.frames, spec.action_shape)
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


DIETS: dict[str, type[Diet]] = {
    "replay": ReplayDiet,
    "rollout": RolloutDiet,
    "trajectories": TrajectoryDiet,
    "shared": SharedReplayDiet,
    "slots": SlotDiet,
}
