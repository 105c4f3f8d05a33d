"""What an algorithm is: an acting rule, a loss, and what data it wants.

An algorithm never knows that processes exist. It does not call `backward()` or `step()`: the scheme does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from passel.arena import Spec, Tensors
from passel.nets.flat import Flat
from passel.nets.network import AutogradLoss
from passel.nets.perceptron import RecordedLoss
from passel.types import Array, EnvSpec, Floats

DietName = Literal["replay", "rollout", "trajectories", "shared", "slots", "dreams"]


@dataclass(frozen=True)
class Loss:
    """One loss for each network that learns now, what the memory wants to know, what all learners should agree on."""

    losses: Mapping[str, RecordedLoss | AutogradLoss]
    td_abs: Floats | None = None
    told: float = 0.0


class Algorithm(ABC):
    """One worker's copy of an algorithm. The loops that call it:

        algo = Algorithm(config, spec, tensors)
        for name, flat in algo.flats.items(): ...         # a scheme shares each network, as one vector

        algo.take_rows(first, total)                      # the actor: which of everybody's environments are its own
        actions = algo.act(obs, step, rng)                # for N observations at once

        algo.refresh(version)                             # the learner: the vector has seen so many updates
        loss = algo.loss(batch, progress)                 # progress: the part of the run that is over, 0 to 1
        if algo.enough(agreed): ...                       # the mean of every learner's loss.told: leave this rollout

    `tensors` keeps what the algorithm must not lose between turns; `specs` says which.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Config: ClassVar[type[Any]]
    #: How experience reaches it: "replay" (transitions, drawn again and again), "rollout" (fresh, and then forgotten)
    #: or "trajectories" (whole, and kept), each within a worker; "shared" (one replay) or "slots" (queued rollouts),
    #: from actors to learners;
    #: "dreams" (replay, a model, and what is imagined with it).
    diet: ClassVar[DietName]
    #: Whether it can act where actions are vectors, not only where they are a choice.
    continuous: ClassVar[bool] = False
    #: Whether some workers only act and others only learn, if there are several.
    apart: ClassVar[bool] = False
    #: Whether one worker acts, and the others learn a model of the environment and dream in it.
    dreams: ClassVar[bool] = False
    #: Whether the share of random actions falls over epsilon_steps, or epsilon_fraction of the run.
    anneals_epsilon: ClassVar[bool] = False
    #: Whether --normalize auto may normalize what it learns from.
    normalizes: ClassVar[bool] = False
    #: Environments of a worker, where neither the user nor a preset says otherwise.
    usual_envs: ClassVar[int] = 16
    #: How many may learn; None: any number.
    most_learners: ClassVar[int | None] = None
    scalar_names: ClassVar[tuple[str, ...]]
    flats: Mapping[str, Flat]

    @classmethod
    @abstractmethod
    def specs(cls, config: Any, spec: EnvSpec) -> dict[str, Spec]: ...

    @abstractmethod
    def __init__(self, config: Any, spec: EnvSpec, tensors: Tensors) -> None: ...

    @abstractmethod
    def act(self, obs: Array, step: int, rng: np.random.Generator) -> Array:
        """What to do, exploration included, when all workers together have taken `step` steps: [B, ...] -> [B], or
        [B, A] where actions are vectors, which may lie outside of the environment's bounds.
        """

    @abstractmethod
    def act_greedily(self, obs: Array) -> Array:
        """What to do when it counts."""

    @abstractmethod
    def refresh(self, version: int) -> None:
        """The networks' vectors were just pulled, and have seen `version` updates."""

    def fetched(self, version: int) -> None:
        """The same in a worker that only acts."""
        return

    def take_rows(self, first: int, total: int) -> None:
        """This copy acts in the environments from `first` on, of `total` in all workers together."""
        return

    @abstractmethod
    def loss(self, batch: Any, progress: float = 0.0) -> Loss: ...

    def enough(self, agreed: float) -> bool:
        """Whether no more should be learnt from the present rollout."""
        return False

    @abstractmethod
    def scalars(self, step: int) -> list[float]:
        """Numbers worth plotting, of the last batch, in the order of `scalar_names`; nan where there is none yet."""
