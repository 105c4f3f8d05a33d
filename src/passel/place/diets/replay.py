"""Replay, a memory for each worker or one for all: DQN."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors, prefixed, total_bytes
from passel.data.experience import Experience, ReplayExperience
from passel.data.frames import REFERENCE, FrameStore, open_store, record_bytes
from passel.data.nstep import NStep
from passel.data.prioritised import PrioritisedReplay
from passel.data.replay import Replay
from passel.data.stacks import Stacks
from passel.maths.schedules import linear
from passel.place.diets.base import Diet
from passel.types import PasselError

#: An episode has one frame more than it has steps: this much room is for those, where frames are not compressed.
BETWEEN_EPISODES = 1.04
#: What is reserved for a compressed frame unless the user knows better: Ms Pac-Man takes a quarter, Breakout a 17th.
EXPECTED_SHARE = 1 / 3


class ReplayDiet(Diet):
    """Memories, one for each worker or one for all, with n-step windows before them and a limiter behind.

    Where an observation stacks frames, these are kept once, and references to them take the place of observations.
    """

    @property
    def _everyone(self) -> bool:
        return bool(self.numbers.memory == "global")

    @property
    def _many_read(self) -> bool:
        """Whether several workers draw from one memory."""
        return self._everyone

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
            shared = lock if self._many_read else None
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
            private=not self._everyone or len(self.plan.cast.actors) == 1,
            in_step=self.plan.workers > 1 and next(iter(self.plan.schemes.values())).collective,
        )

    def first_update(self) -> tuple[int, str]:
        return max(self.numbers.warmup, self.numbers.batch), "a smaller --warmup"

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
        return linear(self.numbers.priority_beta, 1.0, step, self.plan.schedule_steps)
