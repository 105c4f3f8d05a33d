"""Settings that were found by search for one environment. How: bench/presets.py and bench/results.

A preset stands between an algorithm's defaults and what the user says: a configuration file and flags override it.
"""

from __future__ import annotations

from typing import Any

DEFAULT_STEPS = 500_000

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    # A high learning rate that falls, and a target network that follows smoothly: the first learns to fly soon, the
    # second lands reliably (see bench/results/search_LunarLander-v3.md).
    ("dqn", "LunarLander-v3"): {
        "hidden": [64, 64],
        "batch": 128,
        "lr": 5e-3,
        "lr_end": 2e-4,
        "lr_steps": 300_000,
        "n_step": 4,
        "double": False,
        "target_every": 1,
        "target_tau": 0.01,
        "envs": 8,
        "epsilon_end": 0.01,
        "epsilon_steps": 15_000,
    },
    # Returns over several steps make up for few updates; a rate that falls keeps what was learnt (presets_*.md there).
    ("dqn", "CartPole-v1"): {
        "hidden": [64, 64],
        "lr": 2e-3,
        "lr_end": 1e-4,
        "lr_steps": 100_000,
        "n_step": 6,
        "target_every": 1_000,
        "epsilon_end": 0.0,
        "epsilon_steps": 10_000,
    },
    ("dqn", "Acrobot-v1"): {
        "hidden": [64, 64],
        "lr": 3e-3,
        "lr_end": 2e-4,
        "lr_steps": 150_000,
        "n_step": 6,
        "target_every": 1,
        "target_tau": 0.02,
        "epsilon_steps": 10_000,
    },
    # Few environments, much learning and a scale that shows the network the speed: the car finds the flag by driving to
    # where it has not been, and that takes values that keep up with it.
    ("dqn", "MountainCar-v0"): {
        "scale_obs": True,
        "hidden": [64, 64],
        "envs": 2,
        "updates_per_step": 0.5,
        "lr_end": 2e-4,
        "lr_steps": 100_000,
        "n_step": 5,
        "target_every": 1,
        "target_tau": 0.01,
        "epsilon_end": 0.02,
        "epsilon_steps": 15_000,
    },
    # The network of the C++ Tetris that this grew from: 1,548,352 weights in the critic, biases not counted. Its
    # policy is the same, but for the head. NES Tetris from pixels is not solved by it, nor by anybody we know of.
    ("ppo", "tetris"): {
        "hidden": [64],
        "filters": [32, 64, 32],
        "envs": 8,
        "horizon": 64,
        "minibatches": 4,
        "lr": 2.5e-4,
    },
}


def preset(algo: str, env: object) -> dict[str, Any]:
    """What is known to work well for this environment; nothing, where nobody has searched."""
    return PRESETS.get((algo, env), {}) if isinstance(env, str) else {}
