"""PPO: several passes over a rollout, with a ratio that is clipped before it leads too far (Schulman et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from passel.algos.actor_critic import LOSS_NAMES, ActorCritic, ActorCriticConfig
from passel.config import option
from passel.maths.policy_gradient import PolicyLoss, clipped_surrogate_and_slope, normalised
from passel.maths.schedules import linear
from passel.types import Floats, Minibatch


@dataclass(frozen=True)
class PPOConfig(ActorCriticConfig):
    """PPO's numbers."""

    lr: float = option(1e-3, "Learning rate.")
    lr_end: float | None = option(1e-4, "Learning rate in the end, reached in a straight line; none: constant.")
    optimizer: Literal["adam", "rmsprop", "sgd"] = option("adam", "Which of torch's optimisers.")
    horizon: int = option(128, "Steps of each environment between two lessons.")
    entropy: float = option(0.001, "What a nat of the policy's entropy is worth, so that it does not settle too soon.")
    gae_lambda: float = option(0.95, "How far returns reach: over the whole horizon at 1, and less below.")
    epochs: int = option(10, "Passes over a rollout.")
    batch: int = option(
        64,
        "Steps in a minibatch, or the next larger number that divides a worker's rollout.",
        only={"minibatches": 0},
    )
    minibatches: int = option(
        0, "Minibatches that a pass is made in, an update each; 0 means as many as --batch makes."
    )
    shared: Literal["auto", "yes", "no"] = option(
        "auto", "Whether policy and critic are one network with two heads; auto: for images, where it halves the work."
    )
    clip: float = option(0.2, "How far the probability of an action may move in one lesson, as a ratio.")
    clip_end: float | None = option(None, "The same in the end, reached in a straight line; none: constant.")
    value_clip: float | None = option(None, "How far the critic may move in one lesson; none: as far as it likes.")
    target_kl: float | None = option(
        None,
        "Leave a rollout when the policy has moved 1.5 times this far from it, by the mean KL of all workers under "
        "--sync allreduce (at each exchange, with --sync-every), by each worker's own elsewhere.",
    )
    normalise: bool = option(
        True, "Scale the advantages of each minibatch to mean 0 and variance 1, each worker (or level) its own."
    )


class PPO(ActorCritic):
    """The clipped surrogate over shuffled minibatches."""

    name = "ppo"
    summary = "several clipped passes over each rollout; data-parallel under every scheme"
    Config = PPOConfig
    normalizes = True
    usual_envs = 8
    scalar_names = (*LOSS_NAMES, "value_mean", "approx_kl", "clip_fraction")

    def lesson(self, logits: Floats, batch: Minibatch, progress: float) -> PolicyLoss:
        config = self._config
        clip = config.clip if config.clip_end is None else linear(config.clip, config.clip_end, progress, over=1)
        advantage = normalised(batch.advantage, batch.weight, batch.group) if config.normalise else batch.advantage
        said = clipped_surrogate_and_slope(
            logits, batch.action, advantage, batch.logp, batch.weight, clip, config.entropy, self._head
        )
        self._note(said, value_mean=float(batch.value.mean()), approx_kl=said.kl, clip_fraction=said.clipped)
        return said

    def enough(self, agreed: float) -> bool:
        target = self._config.target_kl
        return target is not None and agreed > 1.5 * target
