"""Settings that were found by search for one environment. How: docs/tuning.md.

A preset stands between an algorithm's defaults and what the user says: a configuration file and flags override it.
Those of DQN and PPO are for few steps, as their defaults are; what --tune-for seconds puts in their place is apart. The
numbers are one worker's: place/sharing.py has what several make of them.
"""

from __future__ import annotations

from typing import Any

from passel.envs.atari_protocol import is_atari

DEFAULT_STEPS = 500_000

#: The algorithms whose settings can be tuned for steps or for seconds.
TUNED_FOR = ("dqn", "ppo")

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    # The end of a fall is many steps away: returns over twice as many as usual carry it back sooner. On MinAtar's
    # Breakout they learn half as much.
    ("dqn", "CartPole-v1"): {"n_step": 6},
    # Who explores for too short a time hovers for ever, for one seed in four; a small network and one environment learn
    # as much from fewer steps. The rate ends low, because the last policies differ by more than the mean of the run.
    ("dqn", "LunarLander-v3"): {
        "hidden": [64, 64],
        "batch": 64,
        "envs": 1,
        "updates_per_step": 1.0,
        "n_step": 4,
        "target_tau": 0.01,
        "lr_end": 1e-5,
        "epsilon_end": 0.01,
        "epsilon_fraction": 0.3,
        "normalize": "reward",
    },
    ("a3c", "LunarLander-v3"): {
        "horizon": 16,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "lr": 4e-3,
        "steps": 2_000_000,
    },
    # Rewards of a size that the critic can follow at once; without that the policy waits for it.
    ("impala", "CartPole-v1"): {
        "envs": 8,
        "horizon": 16,
        "lr": 1e-3,
        "optimizer": "adam",
        "max_grad_norm": 0.5,
        "reward_scale": 0.05,
        "entropy": 0.003,
    },
    # A discount that sees the landing from the start, and traces nearly as long.
    ("impala", "LunarLander-v3"): {
        "envs": 8,
        "horizon": 32,
        "lr": 2e-3,
        "lr_end": 1e-4,
        "optimizer": "adam",
        "max_grad_norm": 0.5,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "reward_scale": 0.1,
        "entropy": 0.003,
        "steps": 2_000_000,
    },
    # A ladder that begins low, so that the mean of the training episodes can reach the threshold; a target network that
    # follows smoothly.
    ("apex", "CartPole-v1"): {
        "hidden": [64, 64],
        "envs": 8,
        "lr": 1e-3,
        "lr_end": 1e-4,
        "lr_steps": 100_000,
        "n_step": 3,
        "target_every": 1,
        "target_tau": 0.01,
        "epsilon": 0.05,
        "fetch_every": 10,
    },
    ("apex", "LunarLander-v3"): {
        "hidden": [64, 64],
        "envs": 8,
        "batch": 128,
        "lr": 2e-3,
        "lr_end": 2e-4,
        "n_step": 4,
        "target_every": 1,
        "target_tau": 0.005,
        "epsilon": 0.1,
        "fetch_every": 10,
    },
    # One real environment, so random play ends soon; dreams of several greedy steps, in models that are taught at every
    # step. bench/dyna.py has what each number of dreams makes of these. A single copy is stepped soonest by Gymnasium.
    ("dyna", "CartPole-v1"): {
        "backend": "gymnasium",
        "hidden": [64, 64],
        "batch": 64,
        "warmup": 300,
        "lr": 5e-4,
        "lr_end": 5e-5,
        "epsilon_steps": 1_000,
        "n_step": 3,
        "target_every": 1,
        "target_tau": 0.01,
        "dream_ratio": 4.0,
        "dream_depth": 5,
        "model_updates_per_step": 1.0,
        "steps": 50_000,
    },
    ("dyna", "Acrobot-v1"): {
        "backend": "gymnasium",
        "hidden": [64, 64],
        "batch": 64,
        "warmup": 500,
        "epsilon_steps": 3_000,
        "epsilon_end": 0.05,
        "n_step": 3,
        "target_every": 1,
        "target_tau": 0.02,
        "updates_per_step": 0.25,
        "dream_ratio": 4.0,
        "dream_depth": 5,
        "model_updates_per_step": 0.5,
        "steps": 50_000,
    },
    # A learning rate three times as high learns sooner and diverges in dreams.
    ("dyna", "LunarLander-v3"): {
        "backend": "gymnasium",
        "hidden": [64, 64],
        "batch": 64,
        "lr_end": 1e-4,
        "n_step": 4,
        "target_every": 1,
        "target_tau": 0.01,
        "epsilon_end": 0.01,
        "epsilon_steps": 25_000,
        "updates_per_step": 0.25,
        "dream_ratio": 4.0,
        "dream_depth": 3,
        "steps": 100_000,
    },
    # A memory of recent steps, and a discount that sees the landing from the start. bench/awr.py trains all of these.
    ("awr", "LunarLander-v3"): {
        "gamma": 0.999,
        "td_lambda": 0.98,
        "capacity": 20_000,
        "reward_scale": 0.1,
    },
    # The same, with a narrower spread to begin with and a rate that falls. It takes more than twice PPO's steps.
    ("awr", "LunarLanderContinuous-v3"): {
        "gamma": 0.999,
        "td_lambda": 0.98,
        "capacity": 20_000,
        "reward_scale": 0.1,
        "log_std": -1.0,
        "lr_end": 1e-4,
        "steps": 1_000_000,
    },
    ("awr", "CartPole-v1"): {"horizon": 64, "policy_updates": 100, "capacity": 20_000},
    ("awr", "Pendulum-v1"): {"gamma": 0.95, "reward_scale": 0.1, "steps": 100_000},
    # The network of the C++ Tetris that this grew from: 1,548,352 weights, not counting biases and the policy's
    # head. NES Tetris from pixels is not solved by it, nor by anybody we know of.
    ("ppo", "tetris"): {
        "hidden": [64],
        "filters": [32, 64, 32],
        "envs": 8,
        "horizon": 64,
        "batch": 128,
        "epochs": 4,
        "lr": 2.5e-4,
        "lr_end": None,
        "entropy": 0.01,
    },
}

#: For --tune-for seconds: defaults that take more steps and less time than those of the algorithms.
QUICK: dict[str, dict[str, Any]] = {
    "dqn": {"envs": 16, "layer_norm": "no", "lr_end": None, "updates_per_step": 0.25, "target_every": 500},
    "ppo": {"envs": 16, "lr": 3e-4, "lr_end": None, "entropy": 0.01, "epochs": 4, "minibatches": 4},
}
#: A discount that sees the landing from the start, and short rollouts: many small lessons instead of few large ones.
_LANDER: dict[str, Any] = {
    "horizon": 64,
    "minibatches": 8,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "lr": 1.5e-3,
    "lr_end": 3e-4,
    "lr_steps": 400_000,
    "steps": 1_000_000,
}
#: The same for one environment, on top of that.
FOR_SECONDS: dict[tuple[str, str], dict[str, Any]] = {
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
    ("ppo", "LunarLander-v3"): _LANDER,
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
    ("ppo", "Pendulum-v1"): {
        "gamma": 0.95,
        "reward_scale": 0.1,
        "horizon": 64,
        "epochs": 8,
        "lr": 1e-3,
        "entropy": 0.0,
        "steps": 200_000,
    },
    ("ppo", "LunarLanderContinuous-v3"): _LANDER,
}


#: What a preset needs besides under one scheme. Under gossip each update moves the mean of all learners by its N-th
#: part only: twice the updates for two of them, and longer until it is solved.
UNDER: dict[tuple[str, str, str, str], dict[str, Any]] = {
    ("dqn", "LunarLander-v3", "gossip", "seconds"): {"updates_per_step": 0.5, "steps": 750_000},
}

#: Sets of levels, by how --env begins: the first that fits. All are learnt by the mean over their levels.
LEVELS: dict[str, dict[str, Any]] = {
    # Rows draw from many levels: enough of them that each lesson sees some dozens.
    "levels:procgen:": {"sync": "allreduce", "envs": 32, "hidden": [256]},
    # Emulators are processes, one for each level.
    "levels:sonic": {"sync": "allreduce", "envs": 1, "hidden": [512]},
    "levels:airstriker": {"sync": "allreduce", "envs": 1, "hidden": [512]},
    "levels:breakout-modes": {"sync": "allreduce", "envs": 1, "hidden": [512]},
    "levels:mario": {"sync": "allreduce", "envs": 1, "hidden": [512]},
    "levels:": {"sync": "allreduce", "envs": 4},
}
#: What PPO adds to that. Parts of a rollout are small enough that their images, as floats, need little memory.
LEVELS_PPO: dict[str, dict[str, Any]] = {
    "levels:procgen:": {"gamma": 0.999, "lr": 5e-4, "horizon": 128, "epochs": 3, "minibatches": 16},
    # Rewards add up to 9000 for a whole level of Sonic.
    "levels:sonic": {
        "lr": 2e-4,
        "horizon": 512,
        "minibatches": 32,
        "reward_scale": 0.01,
        "entropy": 0.001,
    },
    "levels:airstriker": {"lr": 2e-4, "horizon": 512, "minibatches": 4, "reward_scale": 0.01},
    "levels:breakout-modes": {"lr": 2.5e-4, "horizon": 128, "minibatches": 4},
    # Rewards add up to some 3000 for a whole stage.
    "levels:mario": {
        "lr": 2.5e-4,
        "horizon": 128,
        "minibatches": 16,
        "reward_scale": 0.01,
        "entropy": 0.01,
    },
}


#: Atari games: published settings (Mnih et al. 2015 with Adam, Schulman et al. 2017), cut to what two cores bear. Few
#: greedy episodes, for a policy that waits for ever plays to the end of its time.
ATARI: dict[str, dict[str, Any]] = {
    # With an epsilon of 1.5e-4, as published for Adam, gradients of rare rewards are too small to move anything.
    "dqn": {
        "hidden": [512],
        "envs": 16,
        "batch": 32,
        "updates_per_step": 0.25,
        "n_step": 3,
        "lr": 2.5e-4,
        "lr_end": 5e-5,
        "lr_steps": 1_000_000,
        "warmup": 20_000,
        "capacity": 500_000,
        "target_every": 2_000,
        "epsilon_end": 0.01,
        "epsilon_steps": 150_000,
        "eval_episodes": 10,
        "steps": 2_000_000,
    },
    "ppo": {
        "hidden": [512],
        "envs": 8,
        "horizon": 128,
        "batch": 256,
        "epochs": 4,
        "lr": 2.5e-4,
        "lr_end": 0.0,
        "optimizer_eps": 1e-5,
        "entropy": 0.01,
        "clip": 0.1,
        "eval_episodes": 10,
        "steps": 10_000_000,
    },
    "a3c": {"hidden": [512], "envs": 8, "lr": 2.5e-4, "eval_episodes": 10, "steps": 10_000_000},
    "impala": {
        "hidden": [512],
        "envs": 16,
        "optimizer": "adam",
        "lr": 4e-4,
        "lr_end": 0.0,
        "max_grad_norm": 0.5,
        "eval_episodes": 10,
        "steps": 10_000_000,
    },
    "apex": {
        "hidden": [512],
        "envs": 16,
        "batch": 32,
        "samples_per_insert": 8.0,
        "lr": 1e-4,
        "warmup": 20_000,
        "capacity": 500_000,
        "target_every": 2_500,
        "eval_episodes": 10,
        "steps": 10_000_000,
    },
}


def preset_name(algo: str, env: str, tune_for: str = "steps") -> str | None:
    """The environments that the preset of this one is for; None if it has none."""
    for start in LEVELS:
        if env.startswith(start):
            return f"{start}*"
    if is_atari(env):
        return "Atari games" if algo in ATARI else None
    return env if _of_environment(algo, env, tune_for) else None


def has_both(algo: str, env: str) -> bool:
    """Whether there are settings for few steps and others for few seconds."""
    return algo in TUNED_FOR and not is_atari(env) and not any(env.startswith(start) for start in LEVELS)


def preset(algo: str, env: object, sync: str | None = None, tune_for: str = "steps") -> dict[str, Any]:
    """What is known to work well for this environment, and scheme; nothing, where nobody has searched."""
    known = QUICK.get(algo, {}) if tune_for == "seconds" else {}
    if not isinstance(env, str):
        return known
    for start, settings in LEVELS.items():
        if env.startswith(start):
            return {**QUICK["ppo"], **settings, **LEVELS_PPO.get(start, {})} if algo == "ppo" else settings
    if is_atari(env):
        return ATARI.get(algo, {"eval_episodes": 10})
    return known | _of_environment(algo, env, tune_for) | UNDER.get((algo, env, sync or "", tune_for), {})


def _of_environment(algo: str, env: str, tune_for: str) -> dict[str, Any]:
    settings = PRESETS.get((algo, env), {})
    return FOR_SECONDS.get((algo, env), settings) if tune_for == "seconds" else settings
