"""The study behind the presets: named variants of the settings, some seeds each, trained until solved.

    python bench/presets.py LunarLander-v3
    python bench/presets.py LunarLander-v3 --variants default wide --seeds 5 --max-steps 300000
    python bench/presets.py LunarLander-v3 --algo ppo

Variants stand in bench/presets/<env>.json (<env>-<algo>.json for all but DQN): a name, and the settings that differ
from the algorithm's defaults; a preset that is in force by now is undone first, so that a study does not change under
its own result. Each run is written down as soon as it is there, so an interrupted study goes on where it stopped; a
variant whose settings have changed since is run again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from common import HERE, BenchError, Progress, machine, middle, number, parser, table, train, undone, write

FOLDER = HERE / "presets"
KEPT = ("status", "steps", "episodes", "seconds", "wall_seconds", "steps_per_second", "return_mean_100")

Runs = dict[str, dict[str, Any]]


def study_name(env: str, algo: str) -> str:
    return env if algo == "dqn" else f"{env}-{algo}"


def read_variants(name: str, wanted: list[str]) -> dict[str, dict[str, Any]]:
    path = FOLDER / f"{name}.json"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.json")))
        raise BenchError(f"there is no bench/presets/{path.name}. Write one, or choose from {known}.")
    variants: dict[str, dict[str, Any]] = json.loads(path.read_text())
    unknown = set(wanted) - set(variants)
    if unknown:
        raise BenchError(f"{path.name} has no variant {', '.join(sorted(unknown))}. It has {', '.join(variants)}.")
    return {name: variants[name] for name in wanted or variants}


def read_runs(path: Path) -> Runs:
    return dict(json.loads(path.read_text())["runs"]) if path.exists() else {}


def settings_of(said: argparse.Namespace, overrides: dict[str, Any], seed: int) -> dict[str, Any]:
    """All that a run is told: a result is known by it, and does not outlive it."""
    axes = {"env": said.env, "sync": said.sync, "place": "processes", "workers": said.workers, "algo": said.algo}
    axes["tune_for"] = "seconds"
    return {**undone(said.algo, said.env, "seconds"), **axes, "steps": said.max_steps, **overrides, "seed": seed}


def run_one(said: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    """One run; a variant that fails is a result too."""
    try:
        summary = train(said.python, settings, limit=said.limit)
    except BenchError as error:
        return {"status": "failed", "settings": settings, "error": str(error)}
    evaluated = (summary["eval"] or {}).get("mean")
    return {name: summary[name] for name in KEPT} | {"eval_mean": evaluated, "settings": settings}


def study(said: argparse.Namespace, variants: dict[str, dict[str, Any]], runs: Runs, save: Any) -> None:
    wanted = {
        f"{name}/{seed}": settings_of(said, overrides, seed)
        for seed in range(1, said.seeds + 1)  # every variant once before any twice: an early look is fair to all
        for name, overrides in variants.items()
    }
    missing = {key: settings for key, settings in wanted.items() if runs.get(key, {}).get("settings") != settings}
    if len(missing) < len(wanted):
        print(f"{len(wanted) - len(missing)} of {len(wanted)} runs are already there.", file=sys.stderr)
    progress = Progress(len(missing))
    for key, settings in missing.items():
        progress.begin(key)
        runs[key] = run_one(said, settings)
        save()
        progress.end(told(runs[key]))


def told(run: dict[str, Any]) -> str:
    if run["status"] == "failed":
        return f"failed: {run['error'].splitlines()[-1]}"
    return f"{run['status']}: {run['seconds']:.1f} s, {run['steps']:,} steps, greedy mean {number(run['eval_mean'], 1)}"


def rows(said: argparse.Namespace, runs: Runs, variants: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The most often solved first, and among these the quickest. A run that was not solved counts with all its time."""
    ranked = []
    for name, overrides in variants.items():
        asked = [runs[f"{name}/{seed}"] for seed in range(1, said.seeds + 1)]
        done = [run for run in asked if run["status"] != "failed"]
        solved = sum(run["status"] == "solved" for run in done)
        medians = [middle([run[key] for run in done]) for key in ("seconds", "steps", "episodes")]
        cells = [number(medians[0], 1), number(medians[1]), number(medians[2])]
        each = ", ".join(by_seed(run) for run in asked)
        changed = " ".join(f"{key}={value}" for key, value in overrides.items()) or "–"
        rank = (-solved, medians[0] if done else float("inf"))
        ranked.append((rank, [name, f"{solved} of {len(asked)}", *cells, each, changed]))
    return [row for _, row in sorted(ranked, key=lambda item: item[0])]


def by_seed(run: dict[str, Any]) -> str:
    if run["status"] == "failed":
        return "failed"
    return f"{run['seconds']:.0f}" if run["status"] == "solved" else f"{run['seconds']:.0f} unsolved"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("env", nargs="?", default="LunarLander-v3", help="Which file of bench/presets.")
    options.add_argument("--variants", nargs="+", default=[], help="Only these (default: all of the file).")
    options.add_argument("--seeds", type=int, default=3, help="Seeds 1, 2, ... of each variant (default 3).")
    options.add_argument("--max-steps", type=int, default=400_000, help="Steps after which a run ends unsolved.")
    options.add_argument("--algo", default="dqn")
    options.add_argument("--sync", default="hogwild")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--limit", type=float, default=900.0, help="Seconds until a run gives up (default 900).")
    said = options.parse_args()
    study_of = study_name(said.env, said.algo)
    variants = read_variants(study_of, said.variants)
    name, card = f"presets_{study_of}", machine()
    runs = read_runs(said.out / f"{name}.json")

    def save() -> None:
        said.out.mkdir(parents=True, exist_ok=True)
        (said.out / f"{name}.json").write_text(json.dumps({"runs": runs}, indent=1) + "\n")

    study(said, variants, runs, save)
    head = ["variant", "solved", "seconds, median", "steps, median", "episodes, median", "seconds by seed", "settings"]
    intro = f"{said.sync}, {said.workers} workers, at most {said.max_steps:,} steps a run; medians over the seeds."
    write(
        name, f"Presets: {study_of}", said.out, card, [intro, table(head, rows(said, runs, variants))], {"runs": runs}
    )


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"presets: {error}") from None
