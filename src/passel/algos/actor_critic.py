"""What A3C, PPO and AWR share: a policy and a critic; and the first two: rollouts that the critic has judged."""

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
from passel.maths.policies import Categorical, Gaussian, Head
from passel.maths.policy_gradient import PolicyLoss, gae, value_loss_and_slope
from passel.nets.actor_and_critic import ActorAndCritic, AnyLoss, Apart, Joined
from passel.nets.flat import Flat
from passel.nets.gaussian_network import Spread
from passel.nets.torsos import FILTERS, is_image
from passel.types import Array, EnvSpec, Floats, Grid, Judgement, Minibatch, Opinion

JUDGED_AT_ONCE = 1 << 22  # numbers of observations
#: Numbers of every policy with a critic. The loss of a batch is policy_loss + entropy * entropy_loss + value_loss; in a
#: shared network the last has the factor critic_weight.
LOSS_NAMES = ("policy_loss", "value_loss", "entropy_loss", "entropy")


@dataclass(frozen=True)
class PolicyConfig:
    """The numbers of everything that has a policy and a critic."""

    hidden: tuple[int, ...] = option((64, 64), "Widths of the hidden layers, of either network.")
    filters: tuple[int, ...] = option(FILTERS, "Filters of the three convolutions, for images.")
    scale_obs: bool = option(False, "Bring observations from between their bounds to [-1, 1], where these are known.")
    lr: float = option(7e-4, "Learning rate.")
    lr_end: float | None = option(None, "Learning rate in the end, reached in a straight line; none: constant.")
    lr_steps: int = option(0, "Steps over which the learning rate falls to --lr-end; 0 means --lr-fraction of the run.")
    lr_fraction: float = option(
        1.0, "Fraction of the run over which the learning rate falls to --lr-end, as long as --lr-steps is not given."
    )
    optimizer: Literal["adam", "rmsprop", "sgd"] = option("rmsprop", "Which of torch's optimisers.")
    optimizer_eps: float = option(1e-5, "The optimiser's epsilon (adam, rmsprop).")
    momentum: float = option(0.0, "Momentum (rmsprop, sgd).")
    max_grad_norm: float | None = option(0.5, "Gradients are scaled down to this norm, each network's for itself.")
    reward_scale: float = option(1.0, "What rewards are multiplied with before they are learnt from; scores are not.")
    gamma: float = option(0.99, "Discount of a step.")
    horizon: int = option(5, "Steps of each environment between two lessons.")
    entropy: float = option(0.01, "What a nat of the policy's entropy is worth, so that it does not settle too soon.")
    log_std: float = option(
        -0.5,
        "Logarithm of the policy's spread at the start, in half the range of an action, where actions are vectors.",
        gaussian=True,
    )
    learn_std: bool = option(True, "Learn that spread; if not, it stays as it is at the start.", gaussian=True)


@dataclass(frozen=True)
class ActorCriticConfig(PolicyConfig):
    """The numbers of every actor-critic."""

    gae_lambda: float = option(1.0, "How far returns reach: over the whole horizon at 1, and less below.")
    shared: Literal["auto", "yes", "no"] = option(
        "no", "Whether policy and critic are one network with two heads; auto: for images, where it halves the work."
    )
    critic_weight: float = option(0.5, "What the critic's loss counts beside the policy's, in a shared network.")
    split: bool = option(False, "Compute the policy's and the critic's gradients in two processes at once.")


class PolicyAndCritic(Algorithm):
    """Acts by its policy, over a choice or over vectors; has a critic that says what states are worth."""

    continuous = True
    _nets: ActorAndCritic

    @classmethod
    def specs(cls, config: Any, spec: EnvSpec) -> dict[str, Spec]:
        return {}

    def __init__(self, config: Any, spec: EnvSpec, tensors: Tensors) -> None:
        self._config = config
        self._head = _head(spec)
        self._nets = self._make_nets(spec)
        self.flats = {name: Flat(network) for name, network in self._nets.networks.items()}
        #: Numbers of the last batch, by the names in `scalar_names`.
        self._told: dict[str, float] = {}

    def _make_nets(self, spec: EnvSpec) -> ActorAndCritic:
        return Apart(**self._shape(spec))

    def _shape(self, spec: EnvSpec) -> dict[str, Any]:
        """What either kind of networks is made from."""
        config = self._config
        (size,) = spec.action_shape or (spec.n_actions,)
        return {
            "n_actions": size,
            "spread": Spread(size, config.log_std, config.learn_std) if spec.action_shape else None,
            "obs_shape": spec.net_shape,
            "hidden": config.hidden,
            "bounds": spec.net_bounds(config.scale_obs),
            "filters": config.filters,
        }

    def act(self, obs: Array, step: int, rng: np.random.Generator) -> Array:
        return self._head(self._nets.logits(obs)).draw(rng)

    def act_greedily(self, obs: Array) -> Array:
        return self._head(self._nets.logits(obs)).best()

    def refresh(self, version: int) -> None:
        """Nothing follows the networks."""

    def values(self, obs: Array) -> Floats:
        """What the critic says of states [B, ...]: [B]."""
        return self._nets.values(obs)

    def scalars(self, step: int) -> list[float]:
        return [self._told.get(name, math.nan) for name in self.scalar_names]

    def _note(self, said: PolicyLoss, **more: float) -> None:
        """Keep the numbers of a lesson of the policy."""
        self._told |= {"policy_loss": said.policy, "entropy_loss": -said.entropy, "entropy": said.entropy, **more}

    @property
    def _apart(self) -> Apart:
        assert isinstance(self._nets, Apart)
        return self._nets


class ActorCritic(PolicyAndCritic):
    """Learns from rollouts that its critic has judged."""

    diet: ClassVar[DietName] = "rollout"

    def __init__(self, config: Any, spec: EnvSpec, tensors: Tensors) -> None:
        super().__init__(config, spec, tensors)
        self.judges_by_acting = is_joined(config, spec)
        self._opinion: Opinion | None = None

    @property
    def opinion(self) -> Opinion:
        assert self._opinion is not None, "nobody has acted yet"
        return self._opinion

    def act(self, obs: Array, step: int, rng: np.random.Generator) -> Array:
        """Where one way through the network says all, notes what was thought of the observations and the actions."""
        if not self.judges_by_acting:
            return super().act(obs, step, rng)
        logits, values = self._nets.both(obs)
        policy = self._head(logits)
        actions = policy.draw(rng)
        self._opinion = Opinion(values, policy.logp(actions))
        return actions

    def _make_nets(self, spec: EnvSpec) -> ActorAndCritic:
        if is_joined(self._config, spec):
            return Joined(critic_weight=self._config.critic_weight, **self._shape(spec))
        return super()._make_nets(spec)

    def judge(self, obs: Grid, action: Array, reward: Floats, discount: Floats, last_obs: Array) -> Judgement:
        """The rollout [T, N] as the networks see it now: some of its times at once, for images become large there."""
        value, logp = np.empty_like(reward), np.empty_like(reward)
        stride = max(1, JUDGED_AT_ONCE // math.prod(obs.shape[1:]))
        for times in (slice(start, start + stride) for start in range(0, len(reward), stride)):
            flat, chosen = (grid[times].reshape(-1, *grid.shape[2:]) for grid in (obs, action))
            logits, values = self._nets.both(flat)
            value[times] = values.reshape(value[times].shape)
            logp[times] = self._head(logits).logp(chosen).reshape(value[times].shape)
        return Judgement(value, logp, self.advantage(reward, discount, value, last_obs))

    def advantage(self, reward: Floats, discount: Floats, value: Floats, last_obs: Array) -> Floats:
        return gae(reward, discount, value, self.values(last_obs), self._config.gae_lambda)

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

    def note_value_loss(self, value: float) -> None:
        """The critic's loss, where another process finds it."""
        self._told["value_loss"] = value

    def value_loss(self, batch: Minibatch) -> AnyLoss:
        """The critic's loss alone."""
        return self._apart.critic_loss(batch.obs, partial(self._critic_slope, batch))

    def _critic_slope(self, batch: Minibatch, values: Floats) -> tuple[float, Floats]:
        clip = getattr(self._config, "value_clip", None)
        value, slope = value_loss_and_slope(values, batch.target, batch.weight, batch.value, clip)
        self.note_value_loss(value)
        return value, slope


def is_joined(config: ActorCriticConfig, spec: EnvSpec) -> bool:
    """Whether policy and critic are one network."""
    return config.shared == "yes" or (config.shared == "auto" and is_image(spec.net_shape) and not config.split)


def _head(spec: EnvSpec) -> Head:
    """What the policy's outputs mean."""
    if spec.action_bounds is None:
        return Categorical
    low, high = (np.asarray(side, np.float32) for side in spec.action_bounds)
    return partial(Gaussian, middle=np.float32(0.5) * (low + high), reach=np.float32(0.5) * (high - low))
