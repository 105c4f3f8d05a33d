"""Rollouts that are learnt from once and forgotten: A3C, PPO."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from passel.algos.base import Algorithm
from passel.arena import Arena, Spec, Tensors, prefixed
from passel.data.experience import Experience
from passel.data.rollout import Judge, RolloutExperience, RolloutShape, minibatches_of
from passel.maths.policy_gradient import explained_variance
from passel.place.diets.base import Diet


class ExplainedRollouts(RolloutExperience):
    """Rollouts that know how well the critic predicts their returns. Runs in: each worker."""

    _explained = math.nan

    def scalars(self) -> list[float]:
        """Of the rollout that was judged last, when somebody asks: updates cost nothing more."""
        judged = self.judged()
        if judged is not None:
            self._explained = explained_variance(*judged)
        return [self._explained]


class RolloutDiet(Diet):
    """A rollout for each worker."""

    scalar_names = ("explained_variance",)

    def own_specs(self, rank: int) -> dict[str, Spec]:
        shape = RolloutShape.of(self.plan.spec, self.numbers.horizon, self.plan.rows(rank))
        return prefixed("rollout", RolloutExperience.specs(shape))

    def serve(
        self, arena: Arena, own: Tensors, rank: int, algo: Algorithm, rng: np.random.Generator, lock: Any
    ) -> Experience:
        return ExplainedRollouts(
            own.below("rollout"),
            cast(Judge, algo),
            rng,
            gamma=self.numbers.gamma,
            epochs=getattr(self.numbers, "epochs", 1),
            minibatches=self.minibatches,
            groups=self.plan.groups(rank),
            reward_scale=self.numbers.reward_scale,
        )

    @property
    def minibatches(self) -> int:
        """The parts that a pass over a rollout is made in: as many in every worker, and with levels apart each part has
        whole steps of all of them.
        """
        given: int = getattr(self.numbers, "minibatches", 1)
        if given:
            return given
        rows = max(self.plan.rows(actor) for actor in self.plan.cast.actors)
        if self.plan.parts is None:
            return minibatches_of(self.numbers.horizon * rows, self.numbers.batch)
        return minibatches_of(self.numbers.horizon, -(-self.numbers.batch // rows))

    def interrupt(self, own: Tensors) -> None:
        """A rollout that is whole can still be learnt from; one that is not begins anew."""
        counts, horizon = own["rollout/counts"], len(own["rollout/action"])
        if int(counts[0]) < horizon:
            counts.zero_()

    def first_update(self) -> tuple[int, str]:
        return self.whole_rollouts(), "a smaller --horizon or fewer --envs"
