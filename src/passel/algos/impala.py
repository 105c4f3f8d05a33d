"""IMPALA: actors act, a learner learns, and V-trace corrects for what lies between (Espeholt et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from passel.algos.actor_critic import LOSS_NAMES, ActorCritic, ActorCriticConfig
from passel.algos.base import Loss
from passel.arena import Tensors
from passel.config import option
from passel.maths.policy_gradient import (
    PolicyLoss,
    explained_variance,
    policy_gradient_and_slope,
    value_loss_and_slope,
)
from passel.maths.vtrace import vtrace
from passel.types import Array, EnvSpec, Floats, Minibatch, Rollouts


@dataclass(frozen=True)
class ImpalaConfig(ActorCriticConfig):
    """IMPALA's numbers."""

    lr: float = option(6e-4, "Learning rate.")
    max_grad_norm: float | None = option(40.0, "Gradients are scaled down to this norm, each network's for itself.")
    horizon: int = option(20, "Steps of each environment in a rollout.")
    gae_lambda: float = option(1.0, "How far corrected returns reach: over the whole horizon at 1, and less below.")
    shared: Literal["auto", "yes", "no"] = option(
        "auto", "Whether policy and critic are one network with two heads; auto: for images, where it halves the work."
    )
    split: bool = option(False, "Only of a3c and ppo: here the learner is a process of its own.", only={"algo": "a3c"})
    batch: int = option(1, "Rollouts of an actor (all its environments together) that an update learns from.")
    slots: int = option(0, "Rollouts of each actor that may be under way; 0 means as few as keep it busy.")
    fetch_every: int = option(0, "Steps after which an actor fetches the parameters; 0 means with each rollout.")
    rho_clip: float = option(1.0, "Most that an action counts for more if it has become likelier since it was taken.")
    c_clip: float = option(1.0, "The same for what comes after it.")


class Impala(ActorCritic):
    """The policy gradient and the critic's targets of V-trace: those of A3C, where nothing has changed since."""

    name = "impala"
    summary = "actors fill rollouts, a learner corrects for their age by V-trace; several learners under allreduce"
    Config = ImpalaConfig
    diet = "slots"
    apart = True
    scalar_names = (*LOSS_NAMES, "value_mean", "rho", "approx_kl", "explained_variance")

    def __init__(self, config: Any, spec: EnvSpec, tensors: Tensors) -> None:
        super().__init__(config, spec, tensors)
        self.acted_logp: Floats = np.zeros(0, np.float32)
        #: Values, V-trace targets and weights of the last batch.
        self._judged: tuple[Floats, Floats, Floats] | None = None

    def act(self, obs: Array, step: int, rng: np.random.Generator) -> Array:
        """Notes how likely the actions were: the learner asks again when it has changed."""
        policy = self._head(self._nets.logits(obs))
        actions = policy.draw(rng)
        self.acted_logp = policy.logp(actions)
        return actions

    def loss(self, batch: Any, progress: float = 0.0) -> Loss:
        config, batch = self._config, cast(Rollouts, batch)
        last_value = self.values(batch.last_obs)

        def slopes(logits: Floats, values: Floats) -> tuple[tuple[float, Floats], tuple[float, Floats]]:
            action = batch.action.reshape(len(logits), *batch.action.shape[3:])
            moved = self._head(logits).logp(action) - batch.logp.ravel()
            said = vtrace(
                by_time(moved.reshape(batch.logp.shape)),
                by_time(batch.reward),
                by_time(batch.discount),
                by_time(values.reshape(batch.logp.shape)),
                last_value,
                rho_clip=config.rho_clip,
                c_clip=config.c_clip,
                lam=config.gae_lambda,
            )
            advantage, target = (by_rollout(grid, batch.logp.shape) for grid in (said.advantage, said.target))
            weight = batch.weight.ravel()
            rows = Minibatch(batch.obs, action, advantage, target, batch.logp.ravel(), values, weight)
            lesson = self.lesson(logits, rows, progress)
            kl = float((weight * (np.expm1(moved) - moved)).sum() / max(weight.sum(), 1))
            self._note(lesson, value_mean=float(values.mean()), rho=float(said.rho.mean()), approx_kl=kl)
            of_critic = value_loss_and_slope(values, target, weight)
            self.note_value_loss(of_critic[0])
            self._judged = values.copy(), target, weight
            return (lesson.value, lesson.slope), of_critic

        return Loss(self._nets.losses_of_both(batch.obs, slopes))

    def lesson(self, logits: Floats, batch: Minibatch, progress: float) -> PolicyLoss:
        return policy_gradient_and_slope(
            logits, batch.action, batch.advantage, batch.weight, self._config.entropy, self._head
        )

    def scalars(self, step: int) -> list[float]:
        if self._judged is not None:
            self._told["explained_variance"] = explained_variance(*self._judged)
        return super().scalars(step)


def by_time(rollouts: Floats) -> Floats:
    """[B, T, N] as [T, B * N]."""
    return np.ascontiguousarray(rollouts.swapaxes(0, 1)).reshape(rollouts.shape[1], -1)


def by_rollout(grid: Floats, shape: tuple[int, ...]) -> Floats:
    """[T, B * N] as it was before, and flat: [B * T * N]."""
    rollouts, times, envs = shape
    return np.ascontiguousarray(grid.reshape(times, rollouts, envs).swapaxes(0, 1)).ravel()
