"""Do the defaults learn anywhere? passel's defaults against Stable-Baselines3's, by steps, over many environments.

    python bench/anywhere.py --peers-python .venv-bench/bin/python
    python bench/anywhere.py --envs CartPole Acrobot --algos dqn --seeds 3 --contenders passel

Every run is one line of bench/results/anywhere.jsonl as soon as it has ended, so a study that is interrupted goes on
where it stopped. Both libraries take the same number of steps, are evaluated as often on the way, and in the end by 100
greedy episodes with the last policy and 100 with the best. Learning is judged by steps, so runs may share the cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import zoo
from common import HERE, machine, parser, table, undone, write

BUDGETS_FROM = (
    "rl-baselines3-zoo's tables, thinned for two cores: LunarLander with PPO, LunarLanderContinuous, BipedalWalker, "
    "Hopper and HalfCheetah are cut to 200,000, other budgets above 120,000 to 100,000; 100,000 and more have 3 seeds"
)
#: For each environment: what makes it, the steps by algorithm, and whether the search for the defaults has seen it.
ENVS: dict[str, dict[str, Any]] = {
    "CartPole": {"env": "CartPole-v1", "ppo": 100_000, "dqn": 50_000, "seen": True},
    "Acrobot": {"env": "Acrobot-v1", "ppo": 100_000, "dqn": 100_000, "seen": True},
    "LunarLander": {"env": "LunarLander-v3", "ppo": 200_000, "dqn": 100_000, "seen": True},
    "Pendulum": {"env": "Pendulum-v1", "ppo": 100_000, "seen": True},
    "InvertedPendulum": {"env": "InvertedPendulum-v5", "ppo": 100_000, "seen": True},
    "MinAtar Breakout": {"env": "factories:minatar_breakout", "ppo": 100_000, "dqn": 100_000, "seen": True},
    "MinAtar Asterix": {"env": "factories:minatar_asterix", "ppo": 100_000, "dqn": 100_000, "seen": True},
    "Catch": {"env": "factories:catch", "ppo": 50_000, "dqn": 20_000, "seen": True},
    "MountainCar": {"env": "MountainCar-v0", "ppo": 100_000, "dqn": 120_000, "seen": False},
    "LunarLanderContinuous": {"env": "LunarLanderContinuous-v3", "ppo": 200_000, "seen": False},
    "BipedalWalker": {"env": "BipedalWalker-v3", "ppo": 200_000, "seen": False},
    "Hopper": {"env": "Hopper-v5", "ppo": 200_000, "seen": False},
    "HalfCheetah": {"env": "HalfCheetah-v5", "ppo": 200_000, "seen": False},
    "MinAtar Freeway": {"env": "factories:minatar_freeway", "ppo": 100_000, "dqn": 100_000, "seen": False},
    "MinAtar SpaceInvaders": {"env": "factories:minatar_space_invaders", "ppo": 100_000, "dqn": 100_000, "seen": False},
    "MinAtar Seaquest": {"env": "factories:minatar_seaquest", "ppo": 100_000, "dqn": 100_000, "seen": False},
    "MiniGrid Empty": {"env": "factories:minigrid_empty", "ppo": 100_000, "dqn": 100_000, "seen": False},
    "MiniGrid DoorKey": {"env": "factories:minigrid_doorkey", "ppo": 100_000, "dqn": 100_000, "seen": False},
    "FlappyBird": {"env": "factories:flappy_bird", "ppo": 100_000, "dqn": 100_000, "seen": False},
}
LONG, FEW_SEEDS = 100_000, 3  # runs of so many steps have so many seeds at most, but for presets
CONTENDERS = ("passel", "sb3", "preset", "zoo")
EVALUATIONS, SELECTED_BY, REPORTED = 20, 10, 100  # on the way, episodes of each, episodes in the end
TIMEOUT = 3 * 3600.0


def one(asked: dict[str, Any]) -> dict[str, Any]:
    """One run, in this process: its curve, and the scores of its last and its best policy."""
    began = time.perf_counter()
    sys.path.insert(0, str(HERE))
    who = {"passel": one_passel, "preset": one_passel, "sb3": one_sb3, "zoo": one_sb3, "random": one_random}
    found = who[asked["contender"]](asked)
    return {**asked, **found, "seconds": round(time.perf_counter() - began, 1)}


def one_passel(asked: dict[str, Any]) -> dict[str, Any]:
    import passel
    from passel.run.folder import RunFolder

    settings = undone(asked["algo"], asked["env"], "steps") if asked["contender"] == "passel" else {}
    with tempfile.TemporaryDirectory(prefix="passel-anywhere-") as folder:
        run = passel.train(
            asked["env"],
            algo=asked["algo"],
            steps=asked["steps"],
            seed=asked["seed"],
            out=f"{folder}/run",
            until_solved=False,
            eval_every=max(1, asked["steps"] // asked.get("evaluations", EVALUATIONS)),
            select_episodes=asked.get("episodes", SELECTED_BY),
            eval_episodes=0,
            tensorboard=False,
            quiet=True,
            **settings | asked.get("settings", {}),
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
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    kind = {"ppo": stable_baselines3.PPO, "dqn": stable_baselines3.DQN}[asked["algo"]]
    settings = zoo.SETTINGS[asked["name"], asked["algo"]] if asked["contender"] == "zoo" else asked.get("settings", {})
    envs = DummyVecEnv([lambda: Monitor(made_of(asked["env"]))] * settings.get("n_envs", 1))
    with tempfile.TemporaryDirectory(prefix="passel-anywhere-") as folder:
        model = kind("MlpPolicy", envs, seed=asked["seed"], device="cpu", **zoo.arguments_of(settings))
        watch = EvalCallback(
            Monitor(made_of(asked["env"])),
            n_eval_episodes=SELECTED_BY,
            eval_freq=max(1, asked["steps"] // EVALUATIONS // envs.num_envs),
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
    from passel.recipes.presets import preset_name
    from passel.study.jobs import Job

    script = str(Path(__file__).resolve())
    found = []
    for name in said.envs:
        env = ENVS[name]
        asked = {"name": name, "env": env["env"], "contender": "random", "algo": "", "steps": 0, "seed": 1}
        found.append(Job(f"{name} random", (said.peers_python, script, "--one", json.dumps(asked))))
    for seed, name, algo, contender in itertools.product(
        range(1, said.seeds + 1), said.envs, said.algos, said.contenders
    ):
        env = ENVS[name]
        if algo not in env or (seed > FEW_SEEDS and env[algo] >= LONG and contender != "preset"):
            continue
        if contender == "zoo" and (name, algo) not in zoo.SETTINGS:
            continue
        if contender == "preset" and not preset_name(algo, env["env"]):
            continue
        python = said.python if contender in ("passel", "preset") else said.peers_python
        asked = {"name": name, "env": env["env"], "steps": env[algo]}
        asked |= {"contender": contender, "algo": algo, "seed": seed}
        found.append(Job(f"{name} {algo} {contender} {seed}", (python, script, "--one", json.dumps(asked))))
    return found


class Compared:
    """The runs of one algorithm: a row for each environment that both libraries have runs of, statistics over all."""

    HEAD = ("environment", "steps", "random", "passel's defaults", "SB3's defaults")
    HEAD += ("passel's preset", "zoo's settings", "zoo, published")
    HEAD += ("normalized: passel, SB3", "train seconds: passel, SB3", "seeds")

    def __init__(self, results: list[dict[str, Any]], algo: str) -> None:
        self._results, self._algo = results, algo
        self._ours: dict[str, Any] = {}
        self._theirs: dict[str, Any] = {}
        self.rows = [row for name in ENVS if (row := self._row(name))]

    def facts(self) -> dict[str, str]:
        from passel.study.statistics import improvement_over, interquartile_mean_of

        return {
            "environments": str(len(self.rows)),
            "probability of improvement": str(improvement_over(self._ours, self._theirs)),
            "interquartile mean, passel": str(interquartile_mean_of(self._ours)),
            "interquartile mean, SB3": str(interquartile_mean_of(self._theirs)),
        }

    def _of(self, name: str, contender: str, what: str = "last") -> list[float]:
        asked = (name, contender, "" if contender == "random" else self._algo)
        return [r[what] for r in self._results if (r["name"], r["contender"], r["algo"]) == asked]

    def _row(self, name: str) -> list[str]:
        from passel.study.statistics import interquartile_mean, normalized

        scores = {contender: self._of(name, contender) for contender in ("random", *CONTENDERS)}
        if not (scores["random"] and scores["passel"] and scores["sb3"]):
            return []
        random = scores["random"][0]
        better = max(interquartile_mean(scores["passel"]), interquartile_mean(scores["sb3"]))
        scale = (random, better if better > random else random + 1.0)
        self._ours[name], self._theirs[name] = (normalized(scores[who], *scale) for who in ("passel", "sb3"))
        published = zoo.PUBLISHED.get((name, self._algo))
        both = [interquartile_mean(found[name]) for found in (self._ours, self._theirs)]
        took = [statistics.median(self._of(name, who, "train_seconds")) for who in ("passel", "sb3")]
        return [
            name if ENVS[name]["seen"] else f"{name} (not searched on)",
            f"{ENVS[name][self._algo]:,}",
            f"{random:.3g}",
            *(_spread(scores[contender]) for contender in CONTENDERS),
            f"{published[0]:g} ({published[1]})" if published else "",
            ", ".join(f"{value:.2f}" for value in both),
            ", ".join(f"{value:.0f}" for value in took),
            ", ".join(str(len(scores[contender])) for contender in CONTENDERS if scores[contender]),
        ]


def _spread(scores: list[float]) -> str:
    from passel.study.statistics import interquartile_mean

    return f"{interquartile_mean(scores):.4g} [{min(scores):.4g}, {max(scores):.4g}]" if scores else ""


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
    made.add_argument("--report", action="store_true", help="Train nothing: the tables of the runs that are there.")
    said = made.parse_args()
    if said.one:
        print(json.dumps(one(said.one)))
        return
    from passel.study.jobs import run_jobs

    card = machine()
    path: Path = said.out / "anywhere.jsonl"
    if not said.report:
        run_jobs(jobs_of(said), path, at_once=said.at_once, timeout=TIMEOUT)
    results = [json.loads(line) for line in path.read_text().splitlines()]
    sections: list[str] = [
        f"Steps: {BUDGETS_FROM}. Scores: {REPORTED} greedy episodes of the last policy; interquartile mean over seeds "
        "[lowest, highest]. Normalized between random play (0) and the better of passel and SB3 (1). The published "
        "figures are rl-baselines3-zoo's (benchmark.md: one run each, at the steps in brackets, of its own settings). "
        "Seconds are of runs that shared the cores with others: an order of magnitude, not a speed."
    ]
    data = {}
    for algo in said.algos:
        found = Compared(results, algo)
        if found.rows:
            data[algo] = found.facts()
            told = "\n".join(f"- {name}: {value}" for name, value in data[algo].items())
            sections.append(f"## {algo.upper()}\n\n{table(Compared.HEAD, found.rows)}\n\n{told}")
    write("anywhere", "Learning by steps, with defaults, anywhere", said.out, card, sections, data)


if __name__ == "__main__":
    main()
