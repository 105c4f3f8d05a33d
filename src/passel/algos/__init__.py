"""The algorithms: a loss, an acting rule, and what data it wants. An algorithm is a file; this is their register."""

from __future__ import annotations

from passel.algos.base import Algorithm
from passel.algos.dqn import DQN

ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in (DQN,)}
