"""The algorithms: a loss, an acting rule, and what data it wants. An algorithm is a file; this is their register."""

from __future__ import annotations

from passel.algos.a3c import A3C
from passel.algos.apex import Apex
from passel.algos.awr import AWR
from passel.algos.base import Algorithm
from passel.algos.dqn import DQN
from passel.algos.dyna import Dyna
from passel.algos.impala import Impala
from passel.algos.ppo import PPO

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm for algorithm in (DQN, A3C, PPO, AWR, Impala, Apex, Dyna)
}

#: What --algo auto chooses from; without --algo, the first, unless actions are vectors.
CANDIDATES = (DQN.name, PPO.name)
