"""Dyna-Q with networks (Sutton 1991; Peng et al. 2018): DQN that also learns a model of its environment, and
learns from what it dreams in it.

The loss of the values is DQN's, for real and for imagined transitions alike. The model is a second network with a
vector of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from passel.algos.base import DietName, Loss
from passel.algos.dqn import DQN, DQNConfig
from passel.arena import Tensors
from passel.config import option
from passel.maths.dynamics import Scale, disagreement, model_loss_and_slope
from passel.maths.q_learning import q_learning_target, q_of_action
from passel.nets.flat import Flat
from passel.nets.perceptron import RecordedLoss
from passel.nets.world_model import WorldModel
from passel.types import Array, Batch, EnvSpec, Floats, Ints, Vision

ONLY_DQN = {"only": {"algo": "dqn"}}
#: What a model says lies within so many spreads of what was seen: a dream must not run away.
REACH = 10.0
#: How much of the models' usual error a batch replaces.
NEWS = 0.02
#: A logit of termination beyond this, odds of 20 to 1, is a clear word: a small chance of an end at every step would
#: add up to a horizon that is not there.
SURE = 3.0
#: Models cannot be more certain than this, in units of what they predict.
LEAST_ERROR = 1e-3


@dataclass(frozen=True)
class DynaConfig(DQNConfig):
    """Dyna's numbers. Those of the real experience are DQN's."""

    lr_end: float | None = option(None, "Learning rate in the end, reached in a straight line; none: constant.")
    target_every: int = option(500, "Updates from real experience between two refreshes of the target network.")
    n_step: int = option(1, "Rewards summed before the value of a state is asked for, in real experience.")
    updates_per_step: float = option(0.5, "Updates from real experience for each real step.")
    dream_ratio: float = option(4.0, "Imagined transitions learnt from for each real one; 0 is DQN.")
    dream_fraction: float = option(
        1.0, "Fraction of the run after which dreaming ends; as many updates go on with real experience alone."
    )
    dream_stop: Literal["gain", "never"] = option(
        "gain",
        "When dreaming ends before that: gain, as soon as imagined updates no longer lower the TD error of real steps.",
    )
    dream: Literal["uniform", "sweeping", "explore"] = option(
        "uniform", "Where dreams start: real states drawn evenly, by surprise, or where the models know least."
    )
    dream_depth: int = option(2, "Steps of a dream, at most.")
    dream_reuse: float = option(2.0, "How often each imagined transition is learnt from.")
    dream_age: int = option(500, "Updates of the model after which what it dreamt is no longer learnt from.")
    dream_capacity: int = option(20_000, "Imagined transitions that the memory of all dreamers holds.")
    grounded: bool = option(False, "Dream in a copy of the environment, not in a model: the upper bound.")
    ensemble: int = option(2, "Models that learn apart; how far they disagree tells how far to trust them.")
    max_disagreement: float = option(
        3.0, "A dream stops short of a step on which the models disagree by so many times their usual error."
    )
    model_hidden: tuple[int, ...] = option((64, 64), "Widths of the hidden layers of each model.")
    model_lr: float = option(1e-3, "Learning rate of the models.")
    model_batch: int = option(128, "Real steps in a batch for each model.")
    model_updates_per_step: float = option(0.25, "Updates of the models for each real step.")
    model_sync: Literal["same", "solo", "locked", "hogwild", "server", "allreduce"] = option(
        "same", "How the dreamers share the models; same: as --sync says."
    )
    memory: Literal["local", "global"] = option("local", "Only of dqn: here one worker acts.", **ONLY_DQN)


class Dyna(DQN):
    """DQN and a model. The first network is the one that acts."""

    name = "dyna"
    summary = "DQN in one real environment; the other workers learn a model of it, and the values from its dreams"
    Config = DynaConfig
    diet: ClassVar[DietName] = "dreams"
    dreams = True
    usual_envs = 1  # who dreams does so because there is one real environment

    def __init__(self, config: DynaConfig, spec: EnvSpec, tensors: Tensors) -> None:
        super().__init__(config, spec, tensors)
        self._ratio = config.dream_ratio
        self.model = WorldModel(spec.obs_shape[0], spec.n_actions, config.model_hidden, config.ensemble)
        self.flats = {**self.flats, "model": Flat(self.model)}

    def refresh(self, version: int) -> None:
        """The target network follows updates from real experience: of 1 + dream_ratio updates, one. Its pace is then
        one of real steps, however much is dreamt.
        """
        super().refresh(int(version / (1 + self._ratio)))

    def targets(self, batch: Batch) -> Floats:
        return self._targets(batch)

    def td_error(self, batch: Batch, targets: Floats) -> float:
        """The mean TD error, |y - Q(s, a)|, with these targets."""
        return float(np.abs(targets - q_of_action(self._online.values(batch.obs), batch.action)).mean())

    def td_abs(self, batch: Batch, gamma: float) -> Floats:
        """By how much the value of each single step is wrong: |r + gamma max_a Q(s', a) - Q(s, a)|."""
        goal = q_learning_target(batch.reward, np.float32(gamma) * batch.discount, self._online.values(batch.next_obs))
        error: Floats = np.abs(goal - q_of_action(self._online.values(batch.obs), batch.action))
        return error

    def world(self, read_scale: Callable[[], tuple[Floats, Floats]], error: Floats) -> LearntWorld:
        """The model, to be taught and to be dreamt in."""
        return LearntWorld(self.model, self.flats["model"], read_scale, error)


class LearntWorld:
    """A model of the environment: what a learner teaches, and what dreamers dream in.

    `read_scale` says in which units things are, as means and spreads of [obs, change, reward]. `error` is one cell: how
    wrong the models usually are, in those units. Whoever teaches writes it.
    """

    def __init__(
        self,
        model: WorldModel,
        flat: Flat,
        read_scale: Callable[[], tuple[Floats, Floats]],
        error: Floats,
    ) -> None:
        self._model, self._read_scale, self._error = model, read_scale, error
        self.flats: Mapping[str, Flat] = {"model": flat}
        self.n_actions = model.n_actions

    @property
    def error(self) -> float:
        return float(self._error[0])

    def loss(self, batch: Batch, progress: float = 0.0) -> Loss:
        """What the models should learn from real steps, of which each has a part of its own."""
        model, scale = self._model, self._scale()
        members, size = model.members, model.obs_size
        change = scale.of_change(batch.next_obs - batch.obs)
        goal = np.concatenate([change, scale.of_reward(batch.reward)[:, None]], axis=1)
        goal = goal.reshape(members, -1, size + 1).swapaxes(1, 2)
        obs = scale.of_obs(batch.obs).reshape(members, -1, size)
        output, tape = model.record(model.inputs(obs, batch.action.reshape(members, -1)))
        terminated = (batch.discount == 0).astype(np.float32).reshape(members, -1)
        loss, slope, error = model_loss_and_slope(output, goal, terminated)
        self._note(error)
        return Loss({"model": RecordedLoss(loss, partial(model.backward, tape, slope))})

    def _note(self, error: float) -> None:
        before = float(self._error[0])
        self._error[0] = error if before == 0 else before + NEWS * (error - before)

    def imagine(self, obs: Floats, action: Ints) -> Vision:
        """What the models expect, by their mean, and how far they disagree."""
        scale = self._scale()
        output = self._output(scale, obs, action)
        mean = output.mean(axis=0)
        next_obs = obs + scale.change(mean[:-2].T)
        low, high = scale.obs_mean - REACH * scale.obs_std, scale.obs_mean + REACH * scale.obs_std
        return Vision(
            next_obs=np.clip(next_obs, low, high),
            reward=scale.reward(mean[-2]),
            over=_chance(mean[-1]),
            doubt=self._doubt(output),
        )

    def doubt(self, obs: Floats, action: Array) -> Floats:
        """By how much the models disagree, in units of how wrong they usually are: [B]."""
        return self._doubt(self._output(self._scale(), obs, action))

    def _output(self, scale: Scale, obs: Floats, action: Array) -> Floats:
        return self._model.record(self._model.inputs(scale.of_obs(obs), action))[0]

    def _doubt(self, output: Floats) -> Floats:
        doubt: Floats = disagreement(output) / np.float32(max(self.error, LEAST_ERROR))
        return doubt

    def _scale(self) -> Scale:
        size = self._model.obs_size
        mean, std = self._read_scale()
        return Scale(
            obs_mean=mean[:size],
            obs_std=std[:size],
            change_mean=mean[size:-1],
            change_std=std[size:-1],
            reward_mean=float(mean[-1]),
            reward_std=float(std[-1]),
        )

    def refresh(self, version: int) -> None:
        """Nothing to do: a model has no target network."""

    def enough(self, agreed: float) -> bool:
        return False


def _chance(logit: Floats) -> Floats:
    """Of an end; certainty, where the word is clear."""
    odds = np.exp(np.clip(logit, -SURE, SURE))
    return np.where(np.abs(logit) >= SURE, logit > 0, odds / (1 + odds)).astype(np.float32)
