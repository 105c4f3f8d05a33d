"""Do the defaults learn anywhere? passel's defaults against Stable-Baselines3's, by steps, over many environments.

    python bench/anywhere.py --peers-python .venv-bench/bin/python
    python bench/anywhere.py --envs CartPole Acrobot --algos dqn --seeds 3 --contenders passel

Every run is one line of bench/results/anywhere.jsonl as soon as it has ended, so a study that is interrupted goes on
where it stopped. Both libraries take the same number of steps, are evaluated as often on the way, and in the end by 100
greedy episodes with the last policy and 100 with the best. Learning is judged by steps, so runs may share the cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import HERE, machine, parser, table, write

BUDGETS_FROM = "rl-baselines3-zoo's tables; CleanRL's where it has none; at most a million"
#: For each environment: what makes it, the steps by algorithm, and whether the search for the defaults has seen it.
ENVS: dict[str, dict[str, Any]] = {
    "CartPole": {"env": "CartPole-v1", "ppo": 100_000, "dqn": 50_000, "seen": True},
    "Acrobot": {"env": "Acrobot-v1", "ppo": 100_000, "dqn": 100_000, "seen": True},
    "LunarLander": {"env": "LunarLander-v3", "ppo": 1_000_000, "dqn": 100_000, "seen": True},
    "Pendulum": {"env": "Pendulum-v1", "ppo": 100_000, "seen": True},
    "InvertedPendulum": {"env": "InvertedPendulum-v5", "ppo": 200_000, "seen": True},
    "MinAtar Breakout": {"env": "factories:minatar_breakout", "ppo": 500_000, "dqn": 500_000, "seen": True},
    "MinAtar Asterix": {"env": "factories:minatar_asterix", "ppo": 500_000, "dqn": 500_000, "seen": True},
    "Catch": {"env": "factories:catch", "ppo": 50_000, "dqn": 20_000, "seen": True},
    "MountainCar": {"env": "MountainCar-v0", "ppo": 1_000_000, "dqn": 120_000, "seen": False},
    "LunarLanderContinuous": {"env": "LunarLanderContinuous-v3", "ppo": 1_000_000, "seen": False},
    "BipedalWalker": {"env": "BipedalWalker-v3", "ppo": 1_000_000, "seen": False},
    "Hopper": {"env": "Hopper-v5", "ppo": 1_000_000, "seen": False},
    "HalfCheetah": {"env": "HalfCheetah-v5", "ppo": 1_000_000, "seen": False},
    "MinAtar Freeway": {"env": "factories:minatar_freeway", "ppo": 500_000, "dqn": 500_000, "seen": False},
    "MinAtar SpaceInvaders": {"env": "factories:minatar_space_invaders", "ppo": 500_000, "dqn": 500_000, "seen": False},
    "MinAtar Seaquest": {"env": "factories:minatar_seaquest", "ppo": 500_000, "dqn": 500_000, "seen": False},
    "MiniGrid Empty": {"env": "factories:minigrid_empty", "ppo": 100_000, "dqn": 100_000, "seen": False},
    "MiniGrid DoorKey": {"env": "factories:minigrid_doorkey", "ppo": 200_000, "dqn": 200_000, "seen": False},
    "FlappyBird": {"env": "factories:flappy_bird", "ppo": 500_000, "dqn": 500_000, "seen": False},
}
CONTENDERS = ("passel", "sb3")
EVALUATIONS, SELECTED_BY, REPORTED = 20, 10, 100  # on the way, episodes of each, episodes in the end
TIMEOUT = 3 * 3600.0


def one(asked: dict[str, Any]) -> dict[str, Any]:
    """One run, in this process: its curve, and the scores of its last and its best policy."""
    began = time.perf_counter()
    sys.path.insert(0, str(HERE))
    found = {"passel": one_passel, "sb3": one_sb3, "random": one_random}[asked["contender"]](asked)
    return {**asked, **found, "seconds": round(time.perf_counter() - began, 1)}


def one_passel(asked: dict[str, Any]) -> dict[str, Any]:
    import passel
    from passel.run.folder import RunFolder

    with tempfile.TemporaryDirectory(prefix="passel-anywhere-") as folder:
        run = passel.train(
            asked["env"],
            algo=asked["algo"],
            steps=asked["steps"],
            seed=asked["seed"],
            out=f"{folder}/run",
            until_solved=False,
            eval_every=max(1, asked["steps"] // EVALUATIONS),
            select_episodes=SELECTED_BY,
            eval_episodes=0,
            tensorboard=False,
            quiet=True,
            **asked.get("settings", {}),
        )
        rows = RunFolder.open(run.path, lock=False).read_metrics()
        curve = {row["eval_steps"]: row["eval_mean"] for row in rows if row.get("eval_steps")}
        scores = {
            which: passel.evaluate(run.path, episodes=REPORTED, seed=10_000 + asked["seed"], last=which == "last").mean
            for which in ("last", "best")
        }
        return {**scores, "curve": list(curve.items()), "train_seconds": round(run.summary.train_seconds, 1)}


def one_sb3(asked: dict[str, Any]) -> dict[str, Any]:
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    kind = {"ppo": stable_baselines3.PPO, "dqn": stable_baselines3.DQN}[asked["algo"]]
    with tempfile.TemporaryDirectory(prefix="passel-anywhere-") as folder:
        model = kind(
            "MlpPolicy", Monitor(made_of(asked["env"])), seed=asked["seed"], device="cpu", **asked.get("settings", {})
        )
        watch = EvalCallback(
            Monitor(made_of(asked["env"])),
            n_eval_episodes=SELECTED_BY,
            eval_freq=max(1, asked["steps"] // EVALUATIONS),
            best_model_save_path=folder,
            log_path=folder,
            verbose=0,
        )
        began = time.perf_counter()
        model.learn(asked["steps"], callback=watch, log_interval=None)
        took = time.perf_counter() - began
        fresh = Monitor(made_of(asked["env"]))
        fresh.reset(seed=10_000 + asked["seed"])
        last, _ = evaluate_policy(model, fresh, n_eval_episodes=REPORTED)
        best, _ = evaluate_policy(kind.load(f"{folder}/best_model", device="cpu"), fresh, n_eval_episodes=REPORTED)
    curve = [
        (int(at), float(sum(scores) / len(scores)))
        for at, scores in zip(watch.evaluations_timesteps, watch.evaluations_results, strict=True)
    ]
    return {"last": float(last), "best": float(best), "curve": curve, "train_seconds": round(took, 1)}


def one_random(asked: dict[str, Any]) -> dict[str, Any]:
    env, scores = made_of(asked["env"]), []
    env.action_space.seed(asked["seed"])
    for episode in range(REPORTED):
        env.reset(seed=asked["seed"] * 1000 + episode)
        score, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            score, over = score + float(reward), terminated or truncated
        scores.append(score)
    return {"last": sum(scores) / len(scores)}


def made_of(env: str) -> Any:
    import gymnasium as gym

    module, _, function = env.partition(":")
    if not function:
        return gym.make(env)
    import importlib

    return getattr(importlib.import_module(module), function)()


def jobs_of(said: argparse.Namespace) -> list[Any]:
    from passel.study.jobs import Job

    script = str(Path(__file__).resolve())
    found = []
    for name in said.envs:
        env = ENVS[name]
        asked = {"name": name, "env": env["env"], "contender": "random", "algo": "", "steps": 0, "seed": 1}
        found.append(Job(f"{name} random", (said.peers_python, script, "--one", json.dumps(asked))))
        for algo in said.algos:
            for seed in range(1, said.seeds + 1):
                for contender in said.contenders if algo in env else ():
                    python = said.python if contender == "passel" else said.peers_python
                    asked |= {"contender": contender, "algo": algo, "steps": env[algo], "seed": seed}
                    key = f"{name} {algo} {contender} {seed}"
                    found.append(Job(key, (python, script, "--one", json.dumps(asked))))
    return found


def compared(results: dict[str, dict[str, Any]], algo: str) -> tuple[list[list[str]], dict[str, Any]]:
    """A row for each environment that both contenders have runs of, and the statistics over all of them."""
    from passel.study.statistics import improvement_over, interquartile_mean, interquartile_mean_of, normalized

    rows, ours, theirs = [], {}, {}
    for name, env in ENVS.items():
        scores = {
            contender: [
                r["last"] for r in results.values() if (r["name"], r["algo"], r["contender"]) == (name, algo, contender)
            ]
            for contender in CONTENDERS
        }
        random = next((r["last"] for r in results.values() if (r["name"], r["contender"]) == (name, "random")), None)
        if not all(scores.values()) or random is None:
            continue
        means = {contender: interquartile_mean(found) for contender, found in scores.items()}
        better = max(means.values())
        scale = (random, better if better > random else random + 1.0)
        ours[name], theirs[name] = (normalized(scores[contender], *scale) for contender in CONTENDERS)
        share = interquartile_mean(ours[name]) / max(interquartile_mean(theirs[name]), 1e-9)
        rows.append(
            [
                name if env["seen"] else f"{name} (not searched on)",
                f"{env[algo]:,}",
                f"{random:.3g}",
                *(
                    f"{means[contender]:.4g} [{min(scores[contender]):.4g}, {max(scores[contender]):.4g}]"
                    for contender in CONTENDERS
                ),
                f"{share:.2f}",
                str(min(len(found) for found in scores.values())),
            ]
        )
    if not rows:
        return [], {}
    facts = {
        "probability of improvement": str(improvement_over(ours, theirs)),
        "interquartile mean, passel": str(interquartile_mean_of(ours)),
        "interquartile mean, sb3": str(interquartile_mean_of(theirs)),
    }
    return rows, facts


def add_options(made: argparse.ArgumentParser, envs: list[str], *, at_once: int) -> None:
    """The flags of a study whose runs are made by `one`."""
    made.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    made.add_argument("--envs", nargs="+", choices=envs, default=envs, help="Environments (default: all).")
    made.add_argument("--algos", nargs="+", choices=["ppo", "dqn"], default=["ppo", "dqn"], help="Algorithms.")
    made.add_argument("--seeds", type=int, default=5, help="Seeds of each (default 5).")
    made.add_argument("--at-once", type=int, default=at_once, help=f"Runs at once (default {at_once}).")


def main() -> None:
    made = parser(__doc__, peers=True)
    add_options(made, list(ENVS), at_once=2)
    made.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), help="Who runs.")
    said = made.parse_args()
    if said.one:
        print(json.dumps(one(said.one)))
        return
    from passel.study.jobs import run_jobs

    card = machine()
    results = run_jobs(jobs_of(said), said.out / "anywhere.jsonl", at_once=said.at_once, timeout=TIMEOUT)
    sections, data = [f"Steps: {BUDGETS_FROM}. Scores: {REPORTED} greedy episodes of the last policy."], {}
    for algo in said.algos:
        rows, facts = compared(results, algo)
        if rows:
            head = ["environment", "steps", "random", "passel", "sb3", "passel / sb3, normalized", "seeds"]
            told = "\n".join(f"- {name}: {value}" for name, value in facts.items())
            sections.append(f"## {algo.upper()}\n\n{table(head, rows)}\n\n{told}")
            data[algo] = facts
    write("anywhere", "Learning by steps, with defaults, anywhere", said.out, card, sections, data)


if __name__ == "__main__":
    main()
