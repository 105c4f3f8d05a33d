"""The peers, in their own environment: Stable-Baselines3 (PyTorch) and SBX (JAX). Prints one line of JSON.

    python bench/peers.py speed sb3 --envs 8 --hidden 256 256 --batch 128 --seconds 15
    python bench/peers.py solve sbx --seed 1 --limit 300

In their best light: plain `gym.make` environments without the wrappers that record episodes, no logging, and as many
threads as suits them. passel is not needed here.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOR_EVER = 10**9
WINDOW, PATIENCE_AFTER_A_MISS = 100, 25  # episodes: passel's notion of solved


def limit_threads(peer: str, threads: int) -> None:
    """Before torch or jax is imported: jax reads the environment once."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    if peer == "sbx" and threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import torch

    torch.set_num_threads(threads)


def make_envs(env: str, count: int) -> Any:
    from stable_baselines3.common.vec_env import DummyVecEnv

    if env.startswith("ALE/"):
        return make_atari(env, count)
    return DummyVecEnv([lambda: gym.make(env)] * count)


def make_atari(env: str, count: int) -> Any:
    """As the library's own documentation makes them: no sticky actions, lives, clipped rewards, stacks of four."""
    import ale_py
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gym.register_envs(ale_py)
    plain: dict[str, Any] = {"frameskip": 1, "repeat_action_probability": 0.0}
    return VecFrameStack(make_atari_env(env, count, env_kwargs=plain), n_stack=4)


def make_callback(on_step: Any) -> Any:
    from stable_baselines3.common.callbacks import BaseCallback

    class EveryStep(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            return bool(on_step(self))

    return EveryStep()


def make_dqn(peer: str, said: argparse.Namespace) -> Any:
    """One update a step; where several environments step at once, as many updates follow."""
    settings: dict[str, Any] = {
        "learning_rate": said.lr,
        "buffer_size": said.capacity,
        "learning_starts": said.warmup,
        "batch_size": said.batch,
        "gamma": 0.99,
        "train_freq": 1,
        "gradient_steps": 1 if said.envs == 1 else -1,
        "target_update_interval": said.target_every,
        "exploration_initial_eps": said.epsilon,
        "exploration_final_eps": said.epsilon,
        "seed": said.seed,
        "device": "cpu",
    }
    envs = make_envs(said.env, said.envs)
    if said.env.startswith("ALE/"):  # one update for every four steps
        from stable_baselines3 import DQN

        settings |= {"train_freq": 4, "gradient_steps": said.envs}
        return DQN("CnnPolicy", envs, max_grad_norm=10, **settings)
    if peer == "sb3":
        from stable_baselines3 import DQN

        return DQN("MlpPolicy", envs, max_grad_norm=10, policy_kwargs={"net_arch": said.hidden}, **settings)
    import sbx  # clips no gradient

    return sbx.DQN("MlpPolicy", envs, policy_kwargs={"net_arch": said.hidden}, **settings)


def speed(peer: str, said: argparse.Namespace) -> dict[str, Any]:
    """Steps a second over a window that begins when updates have been made, and compiled, for `warm` seconds.

    It begins and ends right after an update, so that collecting and learning are both in it in their true proportion.
    """
    model = {"dqn": make_dqn, "ppo": make_ppo}[said.algo](peer, said)
    compiled = {"dqn": 50, "ppo": 1}[said.algo]  # what the library calls updates: PPO's are epochs
    seen, learning_since = 0, None
    marks: list[tuple[float, int, int]] = []

    def on_step(callback: Any) -> bool:
        nonlocal seen, learning_since
        if model._n_updates < compiled or model._n_updates == seen:
            return True
        now, seen = time.perf_counter(), model._n_updates
        learning_since = learning_since or now
        if not marks and now - learning_since >= said.warm:
            marks.append((now, model.num_timesteps, seen))
        if marks and now - marks[0][0] >= said.seconds:
            marks.append((now, model.num_timesteps, seen))
            return False
        return True

    model.learn(FOR_EVER, callback=make_callback(on_step), log_interval=None)
    (start, steps, updates), (end, more_steps, more_updates) = marks
    # An epoch is one update for each of its minibatches.
    each = model.n_steps * model.n_envs // model.batch_size if said.algo == "ppo" else 1
    return {
        "seconds": end - start,
        "steps_per_second": (more_steps - steps) / (end - start),
        "updates_per_second": (more_updates - updates) * each / (end - start),
        "envs": said.envs,
        "threads": said.threads,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


def make_ppo(peer: str, said: argparse.Namespace) -> Any:
    """The settings that RL Baselines3 Zoo has for LunarLander, and for Atari."""
    if said.env.startswith("ALE/"):
        from stable_baselines3 import PPO

        atari: dict[str, Any] = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "ent_coef": 0.01, "clip_range": 0.1}
        envs = make_envs(said.env, said.envs)
        return PPO("CnnPolicy", envs, learning_rate=2.5e-4, vf_coef=0.5, seed=said.seed, device="cpu", **atari)
    settings: dict[str, Any] = {
        "n_steps": 1024,
        "batch_size": 64,
        "gae_lambda": 0.98,
        "gamma": 0.999,
        "n_epochs": 4,
        "ent_coef": 0.01,
        "learning_rate": 3e-4,
        "seed": said.seed,
        "device": "cpu",
    }
    envs = make_envs(said.env, 16)
    # Where speeds are compared the networks are the same; to solve it they have the zoo's, with tanh.
    same_network = said.what == "speed"
    if peer == "sb3":
        import torch
        from stable_baselines3 import PPO

        kwargs = {"activation_fn": torch.nn.ReLU} if same_network else {}
        return PPO("MlpPolicy", envs, policy_kwargs=kwargs, **settings)
    import flax
    import sbx

    kwargs = {"activation_fn": flax.linen.relu} if same_network else {}
    return sbx.PPO("MlpPolicy", envs, policy_kwargs=kwargs, **settings)


class Episodes:
    """Scores of finished episodes, from the rewards of every step."""

    def __init__(self, envs: int) -> None:
        self._sums: NDArray[np.float64] = np.zeros(envs)
        self.scores: deque[float] = deque(maxlen=WINDOW)
        self.count = 0

    def add(self, rewards: NDArray[Any], dones: NDArray[Any]) -> bool:
        """True if an episode ended."""
        self._sums += rewards
        for index in np.flatnonzero(dones):
            self.scores.append(float(self._sums[index]))
            self._sums[index] = 0.0
            self.count += 1
        return bool(dones.any())


def evaluate(model: Any, env: str, episodes: int, seed: int) -> float:
    """The mean score of fresh greedy episodes, one from each of as many environments at once."""
    envs = make_envs(env, episodes)
    envs.seed(seed)
    obs = envs.reset()
    sums, playing = np.zeros(episodes), np.ones(episodes, dtype=bool)
    while playing.any():
        actions, _ = model.predict(obs, deterministic=True)
        obs, rewards, dones, _ = envs.step(actions)
        sums[playing] += rewards[playing]
        playing &= ~dones
    envs.close()
    return float(sums.mean())


def solve(peer: str, said: argparse.Namespace) -> dict[str, Any]:
    """Train until the last 100 training episodes and then 100 fresh greedy ones average the threshold."""
    began = time.perf_counter()
    model = make_ppo(peer, said)
    episodes = Episodes(model.n_envs)
    result: dict[str, Any] = {"solved": False, "eval_mean": None, "threads": said.threads, "seed": said.seed}
    next_evaluation = 0
    marks: list[tuple[float, int]] = []

    def on_step(callback: Any) -> bool:
        nonlocal next_evaluation
        now, earlier = time.perf_counter(), model.num_timesteps - model.n_envs
        if earlier % (model.n_steps * model.n_envs) == 0:  # the first step after an update
            marks.append((now, earlier))
        if now - began > said.limit:
            return False
        if not episodes.add(callback.locals["rewards"], callback.locals["dones"]):
            return True
        full = len(episodes.scores) == WINDOW
        if full and episodes.count >= next_evaluation and np.mean(episodes.scores) >= said.solved_at:
            result["eval_mean"] = evaluate(model, said.env, 100, said.seed + 10_000 + episodes.count)
            result["solved"] = result["eval_mean"] >= said.solved_at
            next_evaluation = episodes.count + PATIENCE_AFTER_A_MISS
        return not result["solved"]

    model.learn(FOR_EVER, callback=make_callback(on_step), log_interval=None)
    seconds = time.perf_counter() - began
    return result | {
        "seconds": seconds,
        "steps": model.num_timesteps,
        "episodes": episodes.count,
        "return_mean_100": float(np.mean(episodes.scores)) if episodes.scores else None,
        "steps_per_second": steady_speed(marks) or model.num_timesteps / seconds,
    }


def steady_speed(marks: list[tuple[float, int]]) -> float | None:
    """Steps a second over whole rounds of collecting and learning, without the first, which compiles."""
    if len(marks) < 3:
        return None
    (start, steps), (end, more_steps) = marks[1], marks[-1]
    return (more_steps - steps) / (end - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "solve"])
    parser.add_argument("peer", choices=["sb3", "sbx"])
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0, help="solve: give up after this many seconds.")
    parser.add_argument("--solved-at", type=float, default=200.0)
    parser.add_argument("--algo", choices=["dqn", "ppo"], default="dqn", help="speed: of which algorithm.")
    parser.add_argument("--seconds", type=float, default=15.0, help="speed: length of the window.")
    parser.add_argument("--warm", type=float, default=5.0, help="speed: seconds of learning before it.")
    parser.add_argument("--envs", type=int, default=1)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--capacity", type=int, default=50_000)
    parser.add_argument("--warmup", type=int, default=1_000)
    parser.add_argument("--lr", type=float, default=6.3e-4)
    parser.add_argument("--epsilon", type=float, default=0.05)
    parser.add_argument("--target-every", type=int, default=250)
    said = parser.parse_args()
    limit_threads(said.peer, said.threads)
    print(json.dumps({"speed": speed, "solve": solve}[said.what](said.peer, said)))


if __name__ == "__main__":
    main()
