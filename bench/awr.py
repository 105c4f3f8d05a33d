"""What AWR learns, over a choice of actions and over vectors: returns at a number of steps, over some seeds.

    python bench/awr.py
    python bench/awr.py --only Pendulum-v1 CartPole-v1 --seeds 5

Every run is a plain `passel train` with the presets, to a number of steps that is fixed beforehand; then 100 fresh
greedy episodes. Beside them stands what a random policy gets, and PPO where actions are vectors. Each run is written
down as soon as it is there, so a study that was interrupted goes on where it stopped; one whose settings have changed
since is made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from common import BenchError, Progress, machine, number, parser, table, train, write
from passel.algos import ALGORITHMS
from passel.envs import describe, make_envs
from passel.envs.spaces import random_actions
from passel.recipes.presets import preset

#: Environment, algorithm, steps.
CASES = [
    ("CartPole-v1", "awr", 50_000),
    ("LunarLander-v3", "awr", 200_000),
    ("Pendulum-v1", "awr", 100_000),
    ("Pendulum-v1", "ppo", 100_000),
    ("LunarLanderContinuous-v3", "awr", 200_000),
    ("LunarLanderContinuous-v3", "ppo", 200_000),
]
KEPT = ("status", "steps", "updates", "seconds", "wall_seconds", "steps_per_second", "return_mean_100", "eval")

Runs = dict[str, dict[str, Any]]


def settings_of(env: str, algo: str, steps: int, seed: int) -> dict[str, Any]:
    """All that a run is told, and the numbers that it then goes by: a result does not outlive either."""
    return {"env": env, "algo": algo, "workers": 2, "until_solved": False, "steps": steps, "seed": seed}


def numbers_of(env: str, algo: str) -> dict[str, Any]:
    defaults = {field.name: field.default for field in dataclasses.fields(ALGORITHMS[algo].Config)}
    return json.loads(json.dumps(defaults | preset(algo, env)))  # type: ignore[no-any-return]


def chance(env: str, episodes: int = 100) -> float:
    """The mean score of actions drawn evenly."""
    envs, rng, scores = make_envs(env, 10, seed=0), np.random.default_rng(0), list[float]()
    envs.reset()
    while len(scores) < episodes:
        scores += [episode.score for episode in envs.step(random_actions(envs.spec, 10, rng)).episodes]
    envs.close()
    return statistics.fmean(scores)


def study(said: argparse.Namespace, cases: list[tuple[str, str, int]], runs: Runs, save: Any) -> None:
    wanted = {
        f"{env}/{algo}/{seed}": (settings_of(env, algo, steps, seed), numbers_of(env, algo))
        for seed in range(1, said.seeds + 1)
        for env, algo, steps in cases
    }
    missing = {key: asked for key, asked in wanted.items() if runs.get(key, {}).get("asked") != list(asked)}
    progress = Progress(len(missing))
    for key, asked in missing.items():
        progress.begin(key)
        summary = train(said.python, asked[0], limit=said.limit)
        runs[key] = {name: summary[name] for name in KEPT} | {"asked": asked}
        save()
        evaluated = runs[key]["eval"]
        progress.end(f"{summary['steps']:,} steps, greedy mean {number(evaluated and evaluated['mean'], 1)}")


def of_case(said: argparse.Namespace, case: tuple[str, str, int], runs: Runs) -> list[dict[str, Any]]:
    """The runs that are there, by seed."""
    keys = [f"{case[0]}/{case[1]}/{seed}" for seed in range(1, said.seeds + 1)]
    return [runs[key] for key in keys if key in runs]


def row(case: tuple[str, str, int], found: list[dict[str, Any]]) -> list[str]:
    env, algo, steps = case
    greedy = [run["eval"]["mean"] for run in found]
    training = [run["return_mean_100"] for run in found]
    threshold = describe(env).reward_threshold
    return [
        f"{env}, {algo}",
        number(steps),
        number(chance(env), 0),
        ", ".join(number(score, 0) for score in greedy),
        number(statistics.fmean(greedy), 0),
        number(statistics.fmean(training), 0),
        number(threshold, 0),
        number(statistics.median(run["seconds"] for run in found), 0),
        number(statistics.median(run["steps_per_second"] for run in found), 0),
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=3, help="Seeds of each case, from 1 (default 3).")
    options.add_argument("--only", nargs="+", default=[], metavar="ENV", help="Only these environments.")
    options.add_argument("--limit", type=float, default=600.0, help="Most seconds of one run (default 600).")
    said = options.parse_args()
    cases = [case for case in CASES if not said.only or case[0] in said.only]
    path: Path = said.out / "awr.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    card, runs = content.get("machine") or machine(), dict(content.get("runs", {}))

    def save() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": card, "runs": runs}, indent=1) + "\n")

    study(said, cases, runs, save)
    found = {case: of_case(said, case, runs) for case in CASES}
    head = [
        "",
        "steps",
        "random",
        "greedy, each seed",
        "greedy, mean",
        "last 100 of training",
        "threshold",
        "seconds",
        "steps/s",
    ]
    intro = (
        f"Two workers under hogwild, the presets, {said.seeds} seeds, a fixed number of steps. Greedy: the mean score "
        "of 100 fresh episodes at the end. Seconds and steps/s: medians; the machine was shared, so they say little."
    )
    write(
        "awr",
        "What AWR learns",
        said.out,
        card,
        [intro, table(head, [row(case, results) for case, results in found.items() if results])],
        {"runs": runs},
    )


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"awr: {error}")
