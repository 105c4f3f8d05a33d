"""Ape-X: DQN with many actors, each exploring by its own measure, one memory and one learner (Horgan et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from passel.algos.dqn import DQN, DQNConfig
from passel.arena import Tensors
from passel.config import option
from passel.maths.q_learning import q_of_action
from passel.types import Array, EnvSpec, Floats, Ints, Step

ONLY_DQN = {"only": {"algo": "dqn"}}


@dataclass(frozen=True)
class ApexConfig(DQNConfig):
    """Ape-X's numbers."""

    lr_end: float | None = option(None, "Learning rate in the end, reached in a straight line; none: constant.")
    target_every: int = option(500, "Updates between two refreshes of the target network.")
    prioritized: bool = option(True, "Replay surprising transitions more often.")
    samples_per_insert: float = option(
        32.0, "How often each transition is drawn: the only reason for which actors and learner wait for each other."
    )
    fetch_every: int = option(100, "Steps after which an actor fetches the parameters.")
    epsilon: float = option(0.4, "Share of random actions of the boldest row.")
    epsilon_alpha: float = option(
        7.0, "The most timid row's share of random actions is --epsilon to this power plus 1."
    )
    updates_per_step: float = option(0.25, "Only of dqn: here it is --samples-per-insert.", **ONLY_DQN)
    memory: Literal["local", "global"] = option("global", "Only of dqn: here one memory is everybody's.", **ONLY_DQN)
    epsilon_start: float = option(1.0, "Only of dqn: here each row keeps its share of random actions.", **ONLY_DQN)
    epsilon_end: float = option(0.02, "Only of dqn.", **ONLY_DQN)
    # The default that configurations of existing runs hold.
    epsilon_steps: int = option(20_000, "Only of dqn.", **ONLY_DQN)
    epsilon_fraction: float = option(0.1, "Only of dqn.", **ONLY_DQN)


class Apex(DQN):
    """Acts by a ladder of epsilons, one for each row of all actors, and finds out what surprised it while it acts:

        epsilon_i = epsilon^(1 + alpha i / (N - 1)),     i = 0 ... N - 1

    The loss is DQN's.
    """

    name = "apex"
    summary = "DQN with a ladder of epsilons, actors that know what surprised them, one memory, one learner"
    Config = ApexConfig
    diet = "shared"
    apart = True
    anneals_epsilon = False
    most_learners = 1
    usual_envs = 16

    def __init__(self, config: ApexConfig, spec: EnvSpec, tensors: Tensors) -> None:
        super().__init__(config, spec, tensors)
        self._apex = config
        self.take_rows(0, 1)
        self._acted_q: Floats = np.zeros((0, spec.n_actions), np.float32)
        #: Of the observations that will be acted on next, with the present parameters.
        self._next_q: Floats | None = None

    def take_rows(self, first: int, total: int) -> None:
        self._first_row, self._rows = first, total

    def ladder(self, rows: int) -> Floats:
        """The epsilons of this copy's rows."""
        place = (self._first_row + np.arange(rows)) / max(self._rows - 1, 1)
        ladder = self._apex.epsilon ** (1 + self._apex.epsilon_alpha * np.minimum(place, 1))
        return ladder.astype(np.float32)

    def act(self, obs: Array, step: int, rng: np.random.Generator) -> Ints:
        self._acted_q = q = self._online.values(obs) if self._next_q is None else self._next_q
        self._next_q = None
        explored = rng.integers(0, self._n_actions, len(obs))
        return np.where(rng.random(len(obs)) < self.ladder(len(obs)), explored, q.argmax(1))

    def appraise(self, actions: Ints, step: Step) -> tuple[Floats, Floats]:
        """What the actions just taken were thought to be worth, and what the states that followed are: [N] each.

        The latter costs no extra pass through the network: the actor will want to know it when it acts there.
        """
        self._next_q = self._online.values(step.obs)
        following = self._next_q.max(1)
        cut = np.flatnonzero(step.truncated)  # the true successor is not what is acted on next
        if len(cut):
            following = following.copy()
            following[cut] = self._online.values(step.next_obs[cut]).max(1)
        return q_of_action(self._acted_q, actions), following

    def refresh(self, version: int) -> None:
        super().refresh(version)
        self._next_q = None

    def fetched(self, version: int) -> None:
        self._next_q = None

    def scalars(self, step: int) -> list[float]:
        return [
            float(self.ladder(len(self._acted_q)).mean()) if len(self._acted_q) else math.nan,
            math.nan if self._last_q is None else float(self._last_q.mean()),
        ]
