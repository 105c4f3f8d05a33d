"""What A3C and PPO share: a policy, a critic, and rollouts that the critic has judged."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from passel.algos.base import Algorithm, DietName, Loss
from passel.arena import Spec, Tensors
from passel.config import option
from passel.maths.policy_gradient import PolicyLoss, gae, log_softmax, value_loss_and_slope
from passel.nets.actor_and_critic import ActorAndCritic, AnyLoss, Apart, Joined
from passel.nets.flat import Flat
from passel.nets.torsos import FILTERS, is_image
from passel.types import Array, EnvSpec, Floats, Grid, Ints, Judgement, Minibatch

JUDGED_AT_ONCE = 1 << 22  # numbers of observations


@dataclass(frozen=True)
class ActorCriticConfig:
    """The numbers of every actor-critic."""

    hidden: tuple[int, ...] = option((64, 64), "Widths of the hidden layers, of either network.")
    filters: tuple[int, ...] = option(FILTERS, "Filters of the three convolutions, for images.")
    scale_obs: bool = option(False, "Bring observations from between their bounds to [-1, 1], where these are known.")
    lr: float = option(7e-4, "Learning rate.")
    lr_end: float | None = option(None, "Learning rate in the end, reached in a straight line; none: constant.")
    lr_steps: int = option(0, "Steps over which the learning rate falls to --lr-end; 0 means all of them.")
    optimizer: Literal["adam", "rmsprop", "sgd"] = option("rmsprop", "Which of torch's optimisers.")
    optimizer_eps: float = option(1e-5, "The optimiser's epsilon (adam, rmsprop).")
    momentum: float = option(0.0, "Momentum (rmsprop, sgd).")
    max_grad_norm: float | None = option(0.5, "Gradients are scaled down to this norm, each network's for itself.")
    reward_scale: float = option(1.0, "What rewards are multiplied with before they are learnt from; scores are not.")
    gamma: float = option(0.99, "Discount of a step.")
    horizon: int = option(5, "Steps of each environment between two lessons.")
    gae_lambda: float = option(1.0, "How far returns reach: over the whole horizon at 1, and less below.")
    shared: Literal["auto", "yes", "no"] = option(
        "no", "Whether policy and critic are one network with two heads; auto: for images, where it halves the work."
    )
    critic_weight: float = option(0.5, "What the critic's loss counts beside the policy's, in a shared network.")
    split: bool = option(False, "Compute the policy's and the critic's gradients in two processes at once.")
    entropy: float = option(0.01, "What a nat of the policy's entropy is worth, so that it does not settle too soon.")


class ActorCritic(Algorithm):
    """Acts by its policy; learns from rollouts that its critic has judged."""

    diet: ClassVar[DietName] = "rollout"

    @classmethod
    def specs(cls, config: Any, spec: EnvSpec) -> dict[str, Spec]:
        return {}

    def __init__(self, config: Any, spec: EnvSpec, tensors: Tensors) -> None:
        self._config = config
        bounds = spec.bounds if config.scale_obs else None
        shape = {"obs_shape": spec.obs_shape, "hidden": config.hidden, "bounds": bounds, "filters": config.filters}
        self._nets: ActorAndCritic = (
            Joined(spec.n_actions, config.critic_weight, **shape)
            if is_joined(config, spec)
            else Apart(spec.n_actions, **shape)
        )
        self.flats = {name: Flat(network) for name, network in self._nets.networks.items()}
        self._told = [math.nan] * len(self.scalar_names)

    def act(self, obs: Array, step: int, rng: np.random.Generator) -> Ints:
        return drawn(log_softmax(self._nets.logits(obs)), rng)

    def act_greedily(self, obs: Array) -> Ints:
        best: Ints = self._nets.logits(obs).argmax(1)
        return best

    def refresh(self, version: int) -> None:
        """Nothing follows the networks."""

    def values(self, obs: Array) -> Floats:
        """What the critic says of states [B, ...]: [B]."""
        return self._nets.values(obs)

    def judge(self, obs: Grid, action: Ints, reward: Floats, discount: Floats, last_obs: Array) -> Judgement:
        """The rollout [T, N] as the networks see it now: some of its times at once, for images become large there."""
        value, logp = np.empty_like(reward), np.empty_like(reward)
        stride = max(1, JUDGED_AT_ONCE // math.prod(obs.shape[1:]))
        for times in (slice(start, start + stride) for start in range(0, len(reward), stride)):
            flat, chosen = obs[times].reshape(-1, *obs.shape[2:]), action[times]
            logits, values = self._nets.both(flat)
            value[times] = values.reshape(chosen.shape)
            logp[times] = log_softmax(logits)[np.arange(chosen.size), chosen.ravel()].reshape(chosen.shape)
        advantage = gae(reward, discount, value, self.values(last_obs), self._config.gae_lambda)
        return Judgement(value, logp, advantage)

    def scalars(self, step: int) -> list[float]:
        return self._told

    def loss(self, batch: Any, progress: float = 0.0) -> Loss:
        told = 0.0

        def policy(logits: Floats) -> tuple[float, Floats]:
            nonlocal told
            said = self.lesson(logits, batch, progress)
            told = said.kl
            return said.value, said.slope

        if self._config.split:  # the critic is somebody else's business
            return Loss({"policy": self._apart.policy_loss(batch.obs, policy)}, told=told)
        losses = self._nets.losses(batch.obs, policy, partial(self._critic_slope, batch))
        return Loss(losses, told=told)

    @abstractmethod
    def lesson(self, logits: Floats, batch: Minibatch, progress: float) -> PolicyLoss:
        """What the policy should learn from these rows. Notes its numbers for `scalars`."""

    def value_loss(self, batch: Minibatch) -> AnyLoss:
        """The critic's loss alone."""
        return self._apart.critic_loss(batch.obs, partial(self._critic_slope, batch))

    def _critic_slope(self, batch: Minibatch, values: Floats) -> tuple[float, Floats]:
        clip = getattr(self._config, "value_clip", None)
        return value_loss_and_slope(values, batch.target, batch.weight, batch.value, clip)

    @property
    def _apart(self) -> Apart:
        assert isinstance(self._nets, Apart)
        return self._nets


def drawn(logp: Floats, rng: np.random.Generator) -> Ints:
    """An action for each row of log-probabilities [B, A]."""
    # The first action whose cumulated probability passes a number between 0 and 1; rounding must not pass the last.
    passed = np.exp(logp).cumsum(axis=1) > rng.random((len(logp), 1))
    passed[:, -1] = True
    actions: Ints = passed.argmax(axis=1)
    return actions


def is_joined(config: ActorCriticConfig, spec: EnvSpec) -> bool:
    """Whether policy and critic are one network."""
    return config.shared == "yes" or (config.shared == "auto" and is_image(spec.obs_shape) and not config.split)
