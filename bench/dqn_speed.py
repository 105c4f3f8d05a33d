"""DQN's steps a second: passel on every core against Stable-Baselines3 and SBX, doing the same work.

    python bench/dqn_speed.py
    python bench/dqn_speed.py --peers-python .venv-bench/bin/python --repeats 5

The same work: LunarLander-v3, one update a step, no double Q-learning, one-step returns, the same network, batch,
memory, exploration, optimiser and interval of the target network. bench/versus.py says how it is measured.
"""

from __future__ import annotations

from typing import Any

from common import BenchError
from versus import Race, Size, run

# Everything that decides how much an update costs is said here, so that no preset changes it.
SAME: dict[str, Any] = {
    "env": "LunarLander-v3",
    "sync": "hogwild",
    "sync_every": 1,
    "envs": 32,  # as many as suit the peers best
    "updates_per_step": 1.0,
    "n_step": 1,
    "double": False,
    "dueling": False,
    "layer_norm": "no",
    "prioritized": False,
    "capacity": 50_000,
    "warmup": 1_000,
    "gamma": 0.99,
    "lr": 6.3e-4,
    "lr_end": None,
    "optimizer": "adam",
    "max_grad_norm": 10.0,
    "target_every": 250,
    "target_tau": 1.0,
    "epsilon_start": 0.05,
    "epsilon_end": 0.05,
}


def size(width: int, batch: int) -> Size:
    flags = ["--algo", "dqn", "--hidden", width, width, "--batch", batch]
    return Size(SAME | {"hidden": [width, width], "batch": batch}, flags)


RACE = Race(
    name="dqn_speed",
    title="DQN: steps a second against the peers",
    how="One update a step on both sides. SBX clips no gradient, which spares it some work.",
    sizes={"256-256, batch 128": size(256, 128), "64-64, batch 64": size(64, 64)},
    trials=[(envs, threads) for envs in (1, 8, 32) for threads in (1, 2)],
)

if __name__ == "__main__":
    try:
        run(RACE, __doc__)
    except BenchError as error:
        raise SystemExit(f"dqn_speed: {error}") from None
