"""What a worker is built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from passel.algos.base import Algorithm
from passel.arena import Arena, Tensors
from passel.clock import Clock
from passel.envs.base import Envs
from passel.normalizer import Normalizer
from passel.place.orders import Orders
from passel.place.split import HalfLinks
from passel.streams import Stream
from passel.types import Array

#: The network that a split worker leaves to its other half.
CRITIC = "value"


@dataclass(frozen=True)
class Links:
    """What joins the workers beside the arena: made once by the placement, given to every worker."""

    schemes: dict[str, Any]
    memory_lock: Any
    halves: list[HalfLinks]


@dataclass(frozen=True)
class StartedEnvs:
    """Environments, and the observations that the first actions are taken on."""

    envs: Envs
    obs: Array


@dataclass(frozen=True)
class Shop:
    """What a worker is built from, whatever its role."""

    arena: Arena
    own: Tensors
    links: Links
    rank: int
    orders: Orders
    clock: Clock
    acting: Stream
    sampling: Stream
    algo: Algorithm
    #: Of a worker that acts.
    started: StartedEnvs | None = None
    #: Of a worker that acts, where observations or rewards are normalized.
    normalizer: Normalizer | None = None
