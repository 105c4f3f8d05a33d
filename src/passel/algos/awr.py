"""AWR: supervised learning of the actions that turned out well (Peng et al. 2019).

Beside PPO: experience is kept and learnt from for long, so there is no ratio and no clip of one. What holds the policy
near the actions that it has seen is that it only ever imitates them, the better ones more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from passel.algos.actor_critic import LOSS_NAMES, PolicyAndCritic, PolicyConfig
from passel.algos.base import Loss
from passel.config import option
from passel.maths.policy_gradient import (
    explained_variance,
    normalised,
    policy_gradient_and_slope,
    value_loss_and_slope,
)
from passel.maths.regression import advantage_weights, lambda_returns
from passel.types import Account, Floats, Recollection


@dataclass(frozen=True)
class AWRConfig(PolicyConfig):
    """AWR's numbers."""

    lr: float = option(1e-3, "Learning rate.")
    optimizer: Literal["adam", "rmsprop", "sgd"] = option("adam", "Which of torch's optimisers.")
    horizon: int = option(128, "Steps of each environment between two lessons.")
    entropy: float = option(0.0, "What a nat of the policy's entropy is worth, so that it does not settle too soon.")
    capacity: int = option(50_000, "Steps that are kept, of all workers together; the oldest go first.")
    batch: int = option(256, "Steps in an update, drawn from all that are kept.")
    critic_updates: int = option(50, "Updates of the critic in a lesson; they come first.")
    policy_updates: int = option(200, "Updates of the policy in a lesson.")
    td_lambda: float = option(0.95, "How far returns reach: to the end of what is kept at 1, and less below.")
    awr_beta: float = option(0.3, "How much better an action must be to count e times as much: less is greedier.")
    awr_weight_clip: float = option(20.0, "The most that an action may count.")
    normalise: bool = option(
        True, "Scale the advantages of all that is kept to mean 0 and variance 1, each worker its own."
    )


class AWR(PolicyAndCritic):
    """First the critic learns what the old trajectories are worth, and then the policy what was good in them."""

    name = "awr"
    summary = "imitates what turned out well, out of all that was kept; discrete and continuous actions"
    Config = AWRConfig
    diet = "trajectories"
    scalar_names = (*LOSS_NAMES, "weight_mean", "clip_fraction", "explained_variance")

    def recount(self, reward: Floats, discount: Floats, value: Floats, last_value: Floats, weight: Floats) -> Account:
        """What trajectories [T, N] are worth by the present critic: TD(lambda) returns, and how they surpass it."""
        after = np.concatenate([value[1:], last_value[None]])
        target = lambda_returns(reward, discount, after, self._config.td_lambda)
        advantage = target - value
        self._told["explained_variance"] = explained_variance(value, target, weight)
        return Account(target, normalised(advantage, weight) if self._config.normalise else advantage)

    def loss(self, batch: Recollection, progress: float = 0.0) -> Loss:
        if batch.network == "value":
            return Loss({"value": self._apart.critic_loss(batch.obs, partial(self._critic_slope, batch))})
        return Loss({"policy": self._apart.policy_loss(batch.obs, partial(self._policy_slope, batch))})

    def _critic_slope(self, batch: Recollection, values: Floats) -> tuple[float, Floats]:
        value, slope = value_loss_and_slope(values, batch.target, np.ones_like(values))
        self._told["value_loss"] = value
        return value, slope

    def _policy_slope(self, batch: Recollection, logits: Floats) -> tuple[float, Floats]:
        """L = -mean [ min(exp(A / beta), w_max) log pi(a|s) ]: a policy gradient with weights for advantages."""
        config = self._config
        weight = advantage_weights(batch.advantage, config.awr_beta, config.awr_weight_clip)
        said = policy_gradient_and_slope(logits, batch.action, weight, np.ones_like(weight), config.entropy, self._head)
        clipped = float((weight >= np.float32(config.awr_weight_clip) * (1 - 1e-6)).mean())
        self._note(said, weight_mean=float(weight.mean()), clip_fraction=clipped)
        return said.value, said.slope
