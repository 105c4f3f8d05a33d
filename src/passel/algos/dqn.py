"""DQN: Q-learning with a target network on replayed experience (Mnih et al. 2015), and five switches on top.

Double (van Hasselt et al. 2016), dueling (Wang et al. 2016), n-step (Sutton 1988), prioritized replay (Schaul et al.
2016) and distributions of returns (C51, Bellemare et al. 2017) are independent of each other: each is a line or two
here, or one choice of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch

from passel.algos.base import Algorithm, DietName, Loss
from passel.arena import Spec, Tensors
from passel.config import option
from passel.maths.distributional import categorical_projection, expected, support, weighted_kl_and_slope
from passel.maths.policy_gradient import log_softmax
from passel.maths.q_learning import (
    double_q_learning_target,
    q_learning_target,
    q_of_action,
    weighted_huber_and_slope,
)
from passel.maths.schedules import linear
from passel.nets.categorical_q_network import CategoricalQNetwork
from passel.nets.flat import Flat
from passel.nets.network import Network
from passel.nets.q_network import QNetwork
from passel.nets.torsos import is_image
from passel.types import Array, Batch, EnvSpec, Floats, Ints, PasselError

#: Images begin with orthogonal weights that keep the size of what goes through them, and values close to 0. By torch's
#: own start the signal fades from layer to layer, and nothing is learnt for the first hundred thousand steps.
FAINT = 0.1
#: How far a target network follows in one update, if it does so in every one.
SMOOTH = 0.005


@dataclass(frozen=True)
class DQNConfig:
    """DQN's numbers. The defaults learn on small control problems; presets know better for some environments."""

    hidden: tuple[int, ...] = option((128, 128), "Widths of the hidden layers.")
    layer_norm: Literal["auto", "yes", "no"] = option(
        "auto",
        "Normalize the activations of each hidden layer, which keeps values from diverging; auto: where observations "
        "are vectors.",
    )
    scale_obs: bool = option(False, "Bring observations from between their bounds to [-1, 1], where these are known.")
    precision: Literal["float32", "bfloat16"] = option(
        "float32", "What convolutions multiply in; bfloat16 is faster on processors that have it, and rounds."
    )
    lr: float = option(1e-3, "Learning rate.")
    lr_end: float | None = option(1e-4, "Learning rate in the end, reached in a straight line; none: constant.")
    lr_steps: int = option(0, "Steps over which the learning rate falls to --lr-end; 0 means --lr-fraction of the run.")
    lr_fraction: float = option(
        1.0, "Fraction of the run over which the learning rate falls to --lr-end, as long as --lr-steps is not given."
    )
    optimizer: Literal["adam", "rmsprop", "sgd"] = option("adam", "Which of torch's optimisers.")
    optimizer_eps: float = option(1e-8, "The optimiser's epsilon (adam, rmsprop).")
    momentum: float = option(0.0, "Momentum (rmsprop, sgd).")
    centred: bool = option(
        False, "Divide by the gradients' deviation, not by their size (rmsprop).", only={"optimizer": "rmsprop"}
    )
    rms_decay: float = option(0.99, "What rmsprop keeps of its averages at a step.", only={"optimizer": "rmsprop"})
    max_grad_norm: float | None = option(10.0, "Gradients are scaled down to this norm.")
    gamma: float = option(0.99, "Discount of a step.")
    batch: int = option(128, "Transitions in a batch.")
    updates_per_step: float = option(0.5, "Updates for each step that a worker takes in its environments.")
    warmup: int = option(1_000, "Steps of pure exploration before the first update.")
    capacity: int = option(100_000, "Transitions that the memories of all workers hold together.")
    memory: Literal["local", "global"] = option("local", "One memory for each worker, or one for all of them.")
    compress: Literal["lz4", "none"] = option("lz4", "How the frames of stacked observations are kept in memory.")
    frame_bytes: int = option(
        0,
        "Bytes reserved for each compressed frame; of larger ones the memory holds fewer. 0 means a third of a frame.",
        only={"compress": "lz4"},
    )
    n_step: int = option(3, "Rewards summed before the value of a state is asked for.")
    double: bool = option(True, "The online network chooses the action that the target network values.")
    dueling: bool = option(False, "Separate heads for the state's value and the actions' advantages.")
    prioritized: bool = option(False, "Replay surprising transitions more often.")
    priority_alpha: float = option(0.6, "How much surprise counts: 0 is uniform.", only={"prioritized": True})
    priority_beta: float = option(
        0.4, "How much the bias is corrected at first; 1 at the last step.", only={"prioritized": True}
    )
    distributional: bool = option(False, "Learn how returns are distributed, not their mean alone (C51).")
    atoms: int = option(51, "Returns that a distribution is made of.", only={"distributional": True})
    v_min: float = option(-10.0, "The smallest of them.", only={"distributional": True})
    v_max: float = option(10.0, "The largest of them.", only={"distributional": True})
    target_every: int = option(1, "Updates between two refreshes of the target network.")
    target_tau: float = option(
        0.0,
        "How far a refresh moves the target network towards the online one; 1 copies. 0 means 0.005 where every update "
        "refreshes it, and 1 elsewhere.",
    )
    epsilon_start: float = option(1.0, "Share of random actions at first.")
    epsilon_end: float = option(0.02, "Share of random actions in the end.")
    epsilon_steps: int = option(
        0, "Steps over which epsilon is annealed, from the end of --warmup on; 0 means --epsilon-fraction of the run."
    )
    epsilon_fraction: float = option(
        0.1, "Fraction of the run over which epsilon is annealed, as long as --epsilon-steps is not given."
    )
    huber: float = option(1.0, "Errors beyond this count linearly, not squared.")


class DQN(Algorithm):
    """Acts epsilon-greedily; learns y = R + discount * max_a Q_target(s', a) by the Huber loss."""

    name = "dqn"
    summary = "Q-learning with a target network on replayed experience; double, dueling, n-step, prioritized, C51"
    Config = DQNConfig
    diet: ClassVar[DietName] = "replay"
    anneals_epsilon = True
    usual_envs = 4
    scalar_names = ("epsilon", "q_mean")

    @classmethod
    def specs(cls, config: DQNConfig, spec: EnvSpec) -> dict[str, Spec]:
        with torch.device("meta"):  # counts the weights, makes none
            size = sum(weight.numel() for weight in _network(config, spec).parameters())
        return {"target": Spec((size,)), "refreshes": Spec((), torch.int64)}

    def __init__(self, config: DQNConfig, spec: EnvSpec, tensors: Tensors) -> None:
        self._config, self._n_actions = config, spec.n_actions
        self._online, self._target = _network(config, spec), _network(config, spec)
        if is_image(spec.net_shape):
            self._online.start_orthogonal(FAINT)
        self._target_flat = Flat(self._target)
        self._target_flat.bind(values=tensors["target"])
        self._refreshes = tensors["refreshes"]
        self._tau = config.target_tau or (SMOOTH if config.target_every == 1 else 1.0)
        self.flats = {"q": Flat(self._online)}
        self._last_q: Floats | None = None

    def act(self, obs: Array, step: int, rng: np.random.Generator) -> Ints:
        epsilon = self.epsilon(step)
        explored = rng.integers(0, self._n_actions, len(obs))
        if epsilon >= 1:
            return explored
        return np.where(rng.random(len(obs)) < epsilon, explored, self.act_greedily(obs))

    def act_greedily(self, obs: Array) -> Ints:
        best: Ints = self._online.values(obs).argmax(1)
        return best

    def epsilon(self, step: int) -> float:
        """The share of random actions. `epsilon_steps` is a number of steps here: the plan knows the length of the run,
        and has resolved the fraction.
        """
        config = self._config
        if step < config.warmup:
            return 1.0
        return linear(config.epsilon_start, config.epsilon_end, step - config.warmup, config.epsilon_steps)

    def refresh(self, version: int) -> None:
        # The first refresh, at version 0, is what makes the two networks equal at the start.
        due, done = version // self._config.target_every + 1, int(self._refreshes)
        if done == due:
            return
        tau = self._tau if done else 1.0
        if done and due > done + 1:  # others have updated as well: the target keeps its pace, however many they are
            tau = 1 - (1 - tau) ** (due - done)
        self._target_flat.values.lerp_(self.flats["q"].values, tau)
        self._refreshes.fill_(due)

    def loss(self, batch: Batch, progress: float = 0.0) -> Loss:
        """The loss of the values, or of the distributions, with its gradient in closed form."""
        if isinstance(self._online, CategoricalQNetwork) and isinstance(self._target, CategoricalQNetwork):
            return self._loss_of_distributions(self._online, self._target, batch)
        return self._loss_of_values(self._online, batch)

    def _loss_of_values(self, online: Network, batch: Batch) -> Loss:
        """The Huber loss: only the taken action's value has a slope."""
        target = self._targets(batch)
        q_tm1, tape = online.record(batch.obs)
        self._last_q = value = q_of_action(q_tm1, batch.action)
        loss, slope = weighted_huber_and_slope(value, target, batch.weight, self._config.huber)
        q_grad = np.zeros_like(q_tm1)
        q_grad[np.arange(len(q_grad)), batch.action] = slope
        surprise = np.abs(target - value) if self._config.prioritized else None
        return Loss({"q": online.loss(loss, tape, q_grad)}, surprise)

    def _loss_of_distributions(self, online: CategoricalQNetwork, target: CategoricalQNetwork, batch: Batch) -> Loss:
        """The divergence of the taken action's distribution from where the Bellman equation puts it."""
        every, z = np.arange(len(batch.action)), target.support
        p_t = target.distributions(batch.next_obs)
        judge = online.values(batch.next_obs) if self._config.double else expected(p_t, z)
        goal = categorical_projection(p_t[every, judge.argmax(1)], batch.reward, batch.discount, z)
        logits, tape = online.record(batch.obs)
        taken = logits[every, batch.action]
        loss, slope, surprise = weighted_kl_and_slope(taken, goal, batch.weight)
        self._last_q = expected(np.exp(log_softmax(taken)), z)
        logits_grad = np.zeros_like(logits)
        logits_grad[every, batch.action] = slope
        return Loss({"q": online.loss(loss, tape, logits_grad)}, surprise if self._config.prioritized else None)

    def _targets(self, batch: Batch) -> Floats:
        q_t = self._target.values(batch.next_obs)
        if self._config.double:
            return double_q_learning_target(batch.reward, batch.discount, q_t, self._online.values(batch.next_obs))
        return q_learning_target(batch.reward, batch.discount, q_t)

    def scalars(self, step: int) -> list[float]:
        return [self.epsilon(step), math.nan if self._last_q is None else float(self._last_q.mean())]


def _network(config: DQNConfig, spec: EnvSpec) -> Network:
    if config.precision != "float32" and not is_image(spec.net_shape):
        raise PasselError(
            f"--precision {config.precision} has no effect on {spec.id}, whose observations are no images. "
            "Leave it out."
        )
    if config.layer_norm == "yes" and is_image(spec.net_shape):
        raise PasselError(
            f"--layer-norm yes is for observations that are vectors, and those of {spec.id} are images. Leave it out."
        )
    bounds, precision = spec.net_bounds(config.scale_obs), getattr(torch, config.precision)
    network: Callable[..., Network] = QNetwork
    if config.distributional:
        network = partial(CategoricalQNetwork, support=support(config.v_min, config.v_max, config.atoms))
    return network(
        spec.net_shape,
        spec.n_actions,
        config.hidden,
        dueling=config.dueling,
        bounds=bounds,
        precision=precision,
        layer_norm=config.layer_norm != "no" and not is_image(spec.net_shape),
    )
