"""Whole trajectories, looked at again and again: AWR."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors, prefixed
from passel.data.experience import Experience
from passel.data.trajectories import Historian, Trajectories, TrajectoryExperience
from passel.place.diets.base import Diet
from passel.types import PasselError


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

    def first_update(self) -> tuple[int, str]:
        return self.whole_rollouts(), "a smaller --horizon or fewer --envs"
