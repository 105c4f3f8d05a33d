"""Does it hold? Dyna and DQN with the same number of updates, looked at by greedy episodes all along the run.

    python bench/holds.py
    python bench/holds.py --envs CartPole --algos dyna --workers 1 --seeds 3
    python bench/holds.py --report            # only the tables, from the runs that are there

20 greedy episodes every 2,500 real steps, 100 in the end. A run holds if the last mean reaches `end`, and if no mean
after the first that reaches `first` is below `low`. DQN has Dyna's settings, and as many updates for each real step,
all of them from real experience. Every run is a line of bench/results/holds.jsonl as soon as it has ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from anywhere import one
from common import machine, parser, table, write

ENVS: dict[str, dict[str, Any]] = {
    "CartPole": {"env": "CartPole-v1", "steps": 60_000, "first": 400, "low": 300, "end": 475},
    "LunarLander": {"env": "LunarLander-v3", "steps": 100_000, "first": 200, "low": 100, "end": 200},
}
ALGOS, WORKERS = ("dyna", "dqn"), (1, 2, 4)
EVERY, EPISODES = 2_500, 20
TIMEOUT = 1800.0
HEAD = ("algorithm", "workers", "first (steps to `first`), lowest after, end; seeds 1, 2, …", "median first", "hold")


def settings_of(algo: str, env: str, workers: int) -> dict[str, Any]:
    """Dyna has its preset; DQN has Dyna's numbers and as many updates for each step, with one environment a worker."""
    shared = {"workers": workers, **({"sync": "hogwild"} if workers > 1 else {"sync": "solo", "place": "inline"})}
    if algo == "dyna":
        return {"algo": "dyna", "settings": shared}
    from passel.algos.dqn import DQNConfig
    from passel.recipes.presets import preset
    from passel.recipes.resolve import resolve_config

    numbers = resolve_config({"env": env, "algo": "dyna", "workers": 1})[1]
    kept = {field.name for field in dataclasses.fields(DQNConfig)} - {"memory"}
    own = {key: value for key, value in preset("dyna", env).items() if key in kept}
    own |= {"n_step": numbers.n_step, "target_every": numbers.target_every, "lr_end": numbers.lr_end}
    own |= {"updates_per_step": numbers.updates_per_step * (1 + numbers.dream_ratio), "backend": "gymnasium"}
    return {"algo": "dqn", "settings": {**own, **shared, "envs": 1}}


def jobs_of(said: argparse.Namespace) -> list[Any]:
    from passel.study.jobs import Job

    script, found = str(Path(__file__).resolve()), []
    for seed, name, algo, workers in itertools.product(range(1, said.seeds + 1), said.envs, said.algos, said.workers):
        about = ENVS[name]
        asked = {"name": name, "env": about["env"], "contender": "preset", "kind": algo, "seed": seed}
        asked |= {"steps": about["steps"], "evaluations": about["steps"] // EVERY, "episodes": EPISODES}
        asked |= {"workers": workers, **settings_of(algo, about["env"], workers)}
        found.append(Job(f"{name} {algo} {workers} {seed}", (sys.executable, script, "--one", json.dumps(asked))))
    return found


def told(run: dict[str, Any]) -> tuple[int | None, float | None, float, bool]:
    """Steps to the first mean that is high enough, the lowest after it, the last, and whether the run holds."""
    about, curve = ENVS[run["name"]], [*run["curve"], (run["steps"], run["last"])]
    place = next((i for i, (_, mean) in enumerate(curve) if mean >= about["first"]), None)
    if place is None:
        return None, None, run["last"], False
    low = min(mean for _, mean in curve[place:])
    return curve[place][0], low, run["last"], low >= about["low"] and run["last"] >= about["end"]


def row(name: str, algo: str, workers: int, runs: list[dict[str, Any]]) -> list[str]:
    facts = [told(run) for run in sorted(runs, key=lambda run: run["seed"])]
    cells = [
        f"{first / 1000:g}k, {low:.0f}, {end:.0f}" if first is not None and low is not None else f"–, –, {end:.0f}"
        for first, low, end, _ in facts
    ]
    firsts = [ENVS[name]["steps"] if first is None else first for first, _, _, _ in facts]
    holding = sum(holds for *_, holds in facts)
    return [algo, str(workers), " · ".join(cells), f"{statistics.median(firsts):,.0f}", f"{holding} of {len(facts)}"]


def main() -> None:
    from passel.study.jobs import run_jobs

    made = parser(__doc__)
    made.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    made.add_argument("--envs", nargs="+", choices=list(ENVS), default=list(ENVS), help="Environments (default: all).")
    made.add_argument("--algos", nargs="+", choices=ALGOS, default=list(ALGOS), help="Algorithms (default: both).")
    made.add_argument("--workers", nargs="+", type=int, default=list(WORKERS), help="Numbers of workers (1 2 4).")
    made.add_argument("--seeds", type=int, default=5, help="Seeds of each (default 5).")
    made.add_argument("--at-once", type=int, default=1, help="Runs at once (default 1).")
    made.add_argument("--report", action="store_true", help="Train nothing: the tables of the runs that are there.")
    said = made.parse_args()
    if said.one:
        print(json.dumps(one(said.one)))
        return
    card, path = machine(), said.out / "holds.jsonl"
    if not said.report:
        run_jobs(jobs_of(said), path, at_once=said.at_once, timeout=TIMEOUT)
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    sections = []
    for name, about in ENVS.items():
        of_cell: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for run in runs:
            if run["name"] == name:
                of_cell.setdefault((run["kind"], run["workers"]), []).append(run)
        rows = [row(name, algo, workers, found) for (algo, workers), found in sorted(of_cell.items())]
        if rows:
            limits = f"first {about['first']}, low {about['low']}, end {about['end']}; {about['steps']:,} real steps."
            sections.append(f"## {name}\n\n{limits}\n\n{table(HEAD, rows)}")
    write("holds", "Does it hold? Dyna and DQN with as many updates", said.out, card, sections, {"runs": path.name})


if __name__ == "__main__":
    main()
