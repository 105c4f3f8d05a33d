"""A3C: many learners, each with a few fresh steps of its own, no replay (Mnih et al. 2016).

Asynchronous under `locked`, `hogwild` and `server`. Under `allreduce` it is A2C, and with many environments a worker
it is PAAC (Clemente et al. 2017): the same file; the scheme and the numbers differ.
"""

from __future__ import annotations

from passel.algos.actor_critic import LOSS_NAMES, ActorCritic, ActorCriticConfig
from passel.maths.policy_gradient import PolicyLoss, policy_gradient_and_slope
from passel.types import Floats, Minibatch


class A3C(ActorCritic):
    """One lesson a rollout: the policy gradient with n-step returns and an entropy bonus."""

    name = "a3c"
    summary = "actor-critic on a few fresh steps; A2C under allreduce, PAAC with many environments"
    Config = ActorCriticConfig
    scalar_names = (*LOSS_NAMES, "value_mean")

    def lesson(self, logits: Floats, batch: Minibatch, progress: float) -> PolicyLoss:
        said = policy_gradient_and_slope(
            logits, batch.action, batch.advantage, batch.weight, self._config.entropy, self._head
        )
        self._note(said, value_mean=float(batch.value.mean()))
        return said
