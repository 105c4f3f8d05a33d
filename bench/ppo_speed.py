"""PPO's steps a second: passel on every core against Stable-Baselines3 and SBX, doing the same work.

    python bench/ppo_speed.py
    python bench/ppo_speed.py --peers-python .venv-bench/bin/python --repeats 5

The same work: LunarLander-v3 with the settings of RL Baselines3 Zoo: 16 environments, 1,024 steps of each between two
lessons, 4 epochs in minibatches of 64, separate networks of 64-64 (ReLU everywhere). passel's two workers have 8 of the
environments each and take their minibatches of 64 from their own half, so there are as many updates for each step on
all sides. bench/versus.py says how it is measured.
"""

from __future__ import annotations

from common import BenchError
from versus import Race, Size, run

ZOO = Size(
    {
        "env": "LunarLander-v3",
        "algo": "ppo",
        "sync": "hogwild",
        "sync_every": 1,
        "workers": 2,
        "envs": 8,
        "horizon": 1024,
        "epochs": 4,
        "minibatches": 128,
        "hidden": [64, 64],
        "lr": 3e-4,
        "lr_end": None,
        "optimizer": "adam",
        "max_grad_norm": 0.5,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "entropy": 0.01,
        "clip": 0.2,
        "clip_end": None,
        "value_clip": None,
        "target_kl": None,
        "normalise": True,
    },
    ["--algo", "ppo", "--batch", 64],
)

RACE = Race(
    name="ppo_speed",
    title="PPO: steps a second against the peers",
    how="The same number of updates a step on both sides; the peers over whole rounds of collecting and learning.",
    sizes={"the zoo's settings": ZOO},
    trials=[(16, 1), (16, 2)],
)

if __name__ == "__main__":
    try:
        run(RACE, __doc__)
    except BenchError as error:
        raise SystemExit(f"ppo_speed: {error}") from None
