"""What rl-baselines3-zoo found for some environments (its hyperparams/dqn.yml and ppo.yml, release 2.9.2), and what it
publishes of its agents (benchmark.md there: one run each, at its own number of steps).
"""

from __future__ import annotations

from typing import Any

_WIDE = {"net_arch": [256, 256]}
_DQN: dict[str, Any] = {"batch_size": 128, "gamma": 0.99, "policy_kwargs": _WIDE}

#: Arguments of Stable-Baselines3's algorithms. `lin_X` is a rate that falls from X to 0; `n_envs` is of the vector
#: environment.
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("CartPole", "dqn"): {
        **_DQN,
        **{"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000},
        **{"target_update_interval": 10, "train_freq": 256, "gradient_steps": 128},
        **{"exploration_fraction": 0.16, "exploration_final_eps": 0.04},
    },
    ("MountainCar", "dqn"): {
        **_DQN,
        **{"learning_rate": 4e-3, "buffer_size": 10_000, "learning_starts": 1000, "gamma": 0.98},
        **{"target_update_interval": 600, "train_freq": 16, "gradient_steps": 8},
        **{"exploration_fraction": 0.2, "exploration_final_eps": 0.07},
    },
    ("LunarLander", "dqn"): {
        **_DQN,
        **{"learning_rate": 6.3e-4, "buffer_size": 50_000, "learning_starts": 0},
        **{"target_update_interval": 250, "train_freq": 4, "gradient_steps": -1},
        **{"exploration_fraction": 0.12, "exploration_final_eps": 0.1},
    },
    ("CartPole", "ppo"): {
        **{"n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20},
        **{"ent_coef": 0.0, "learning_rate": "lin_0.001", "clip_range": "lin_0.2"},
    },
    ("Pendulum", "ppo"): {
        **{"n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0},
        **{"learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4},
    },
}
SETTINGS["Acrobot", "dqn"] = SETTINGS["LunarLander", "dqn"]

#: Mean return and steps.
PUBLISHED: dict[tuple[str, str], tuple[float, str]] = {
    ("CartPole", "dqn"): (500.0, "50k"),
    ("Acrobot", "dqn"): (-76.6, "100k"),
    ("LunarLander", "dqn"): (154.4, "100k"),
    ("MountainCar", "dqn"): (-100.8, "120k"),
    ("CartPole", "ppo"): (500.0, "100k"),
    ("Acrobot", "ppo"): (-73.5, "1M"),
    ("LunarLander", "ppo"): (242.1, "1M"),
    ("Pendulum", "ppo"): (-172.2, "100k"),
    ("MountainCar", "ppo"): (-110.4, "1M"),
    ("LunarLanderContinuous", "ppo"): (270.9, "1M"),
    ("BipedalWalker", "ppo"): (213.3, "5M"),
    ("Hopper", "ppo"): (2410.4, "1M, Hopper-v3"),
    ("HalfCheetah", "ppo"): (5819.1, "1M, HalfCheetah-v3"),
}


def arguments_of(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as Stable-Baselines3 takes them: rates that fall, and activations by their name in torch.nn."""
    return {name: _python_of(value) for name, value in settings.items() if name != "n_envs"}


def _python_of(value: Any) -> Any:
    if isinstance(value, dict) and "activation_fn" in value:
        from torch import nn

        return {**value, "activation_fn": getattr(nn, value["activation_fn"])}
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    start = float(value.removeprefix("lin_"))
    return lambda left: left * start
