"""How experience reaches an algorithm: what each diet keeps in the arena, and how it is served."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors, prefixed
from passel.data.experience import Experience, ReplayExperience
from passel.data.nstep import NStep
from passel.data.prioritised import PrioritisedReplay
from passel.data.replay import Replay
from passel.data.rollout import Judge, RolloutExperience
from passel.data.trajectories import Historian, Trajectories, TrajectoryExperience
from passel.maths.schedules import linear
from passel.types import PasselError

if TYPE_CHECKING:
    from passel.place.plan import Plan


class Diet(ABC):
    """One algorithm's experience, by plan."""

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


DIETS: dict[str, type[Diet]] = {"replay": ReplayDiet, "rollout": RolloutDiet, "trajectories": TrajectoryDiet}
