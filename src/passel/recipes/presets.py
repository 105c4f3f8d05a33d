"""Settings that were found by search for one environment. The study is bench/presets.py, its tables are in bench/results.

A preset stands between an algorithm's defaults and what the user says: a configuration file and flags override it.
"""

from __future__ import annotations

from typing import Any

DEFAULT_STEPS = 500_000

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    # A high learning rate that falls, and a target network that follows smoothly: the first learns to fly soon, the
    # second lands reliably (see the study).
    ("dqn", "LunarLander-v3"): {
        "hidden": [64, 64],
        "batch": 64,
        "lr": 3e-3,
        "lr_end": 2e-4,
        "lr_steps": 300_000,
        "target_every": 1,
        "target_tau": 0.01,
        "envs": 8,
        "max_grad_norm": 100.0,
        "epsilon_end": 0.01,
        "epsilon_steps": 20_000,
    },
}


def preset(algo: str, env: object) -> dict[str, Any]:
    """What is known to work well for this environment; nothing, where nobody has searched."""
    return PRESETS.get((algo, env), {}) if isinstance(env, str) else {}
