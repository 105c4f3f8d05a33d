"""What do several workers cost in learning? The return at equal steps, for every scheme at 1, 2 and 4 workers.

    python bench/workers.py
    python bench/workers.py --algos dqn --envs CartPole --seeds 3

Three things change when a run has more workers, and each is measured apart:

- shared: the workers share one worker's environments, as runs tuned for steps do; what is lost is staleness alone;
- each: every worker has as many environments as one alone; staleness, and more environments;
- alone: one worker has the environments of all; more environments alone.

Every run is a line of bench/results/workers.jsonl as soon as it has ended, so that a study goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from anywhere import REPORTED, add_options, one
from common import machine, parser, table, write

#: Steps by algorithm, and random play.
ENVS: dict[str, dict[str, Any]] = {
    "CartPole": {"env": "CartPole-v1", "dqn": 50_000, "ppo": 60_000, "random": 22.0},
    "LunarLander": {"env": "LunarLander-v3", "dqn": 100_000, "ppo": 300_000, "random": -180.0},
}
WORKERS = (2, 4)
TIMEOUT = 1800.0


def cells_of(schemes: list[str]) -> list[tuple[str, str, int]]:
    """What is measured: scheme, how environments are shared, workers."""
    cells = [("solo", "alone", 1), *(("solo", "alone", count) for count in WORKERS)]
    for count in WORKERS:
        cells += [(scheme, "shared", count) for scheme in schemes]
        cells.append(("hogwild", "each", count))
    return cells


def settings_of(algo: str, env: str, cell: tuple[str, str, int]) -> dict[str, Any]:
    from passel.recipes.resolve import resolve_config

    scheme, how, count = cell
    one_worker = resolve_config({"env": env, "algo": algo, "workers": 1, "sync": "solo"})[0].envs
    if how == "alone":
        return {"sync": "solo", "workers": 1, "envs": one_worker * count}
    return {"sync": scheme, "workers": count} | ({"envs": one_worker} if how == "each" else {})


def jobs_of(said: argparse.Namespace) -> list[Any]:
    from passel.study.jobs import Job

    script, found = str(Path(__file__).resolve()), []
    for name in said.envs:
        for algo in said.algos:
            for cell in cells_of(said.schemes):
                settings = settings_of(algo, ENVS[name]["env"], cell)
                for seed in range(1, said.seeds + 1):
                    asked = {
                        **{"name": name, "env": ENVS[name]["env"], "contender": "preset", "algo": algo},
                        **{"steps": ENVS[name][algo], "seed": seed, "settings": settings},
                    }
                    key = f"{name} {algo} {cell[0]} {cell[1]} {cell[2]} {seed}"
                    found.append(Job(key, (sys.executable, script, "--one", json.dumps(asked))))
    return found


def learnt(result: dict[str, Any]) -> float:
    """The last policy by many episodes, and the last quarter of the evaluations on the way: one moment is luck."""
    tail = [mean for at, mean in result["curve"] if at > 0.75 * result["steps"]]
    return float(sum([result["last"], *tail]) / (1 + len(tail)))


def main() -> None:
    from passel.study.jobs import run_jobs
    from passel.study.statistics import interquartile_mean
    from passel.sync import SCHEMES

    schemes = [name for name in SCHEMES if name != "solo"]
    made = parser(__doc__)
    add_options(made, list(ENVS), at_once=1)
    made.add_argument("--schemes", nargs="+", choices=schemes, default=schemes, help="Schemes (default: all).")
    said = made.parse_args()
    if said.one:
        print(json.dumps(one(said.one)))
        return
    card = machine()
    results = run_jobs(jobs_of(said), said.out / "workers.jsonl", at_once=said.at_once, timeout=TIMEOUT)
    sections = [f"{REPORTED} greedy episodes of the last policy, and the last quarter of 20 evaluations on the way."]
    for name in said.envs:
        for algo in said.algos:
            scores = {
                cell: [
                    learnt(r)
                    for key, r in results.items()
                    if key.startswith(f"{name} {algo} {' '.join(map(str, cell))} ")
                ]
                for cell in cells_of(said.schemes)
            }
            scores = {cell: found for cell, found in scores.items() if found}
            if ("solo", "alone", 1) not in scores:
                continue
            alone, random = interquartile_mean(scores["solo", "alone", 1]), ENVS[name]["random"]
            rows = [
                [
                    *map(str, cell),
                    f"{interquartile_mean(found):.4g} [{min(found):.4g}, {max(found):.4g}]",
                    f"{(interquartile_mean(found) - random) / (alone - random):.2f}",
                    str(len(found)),
                ]
                for cell, found in scores.items()
            ]
            head = [
                "scheme",
                "environments",
                "workers",
                "return: interquartile mean [range]",
                "of one worker's",
                "seeds",
            ]
            sections.append(f"## {algo.upper()} on {name}, {ENVS[name][algo]:,} steps\n\n{table(head, rows)}")
    write("workers", "What several workers cost in learning", said.out, card, sections, {})


if __name__ == "__main__":
    main()
