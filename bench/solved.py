"""Do the presets solve, and do the policies hold? Trained until solved, then judged by plain Gymnasium on fresh seeds.

    python bench/solved.py
    python bench/solved.py --cells impala:LunarLander-v3 --seeds 2
    python bench/solved.py --report           # only the table, from the runs that are there

Two workers, the preset of each algorithm and environment. The policy that the run keeps is judged by 200 episodes of
Gymnasium's own environment, each with a seed that no training run has used. Every run is a line of
bench/results/solved.jsonl as soon as it has ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import machine, parser, table, write

CELLS = (
    *("apex:CartPole-v1", "apex:LunarLander-v3", "impala:CartPole-v1", "impala:LunarLander-v3"),
    *("a3c:LunarLander-v3", "awr:LunarLanderContinuous-v3"),
)
EPISODES, FIRST_SEED = 200, 5_000_000
TIMEOUT = 1800.0


def one(asked: dict[str, Any]) -> dict[str, Any]:
    import passel

    with tempfile.TemporaryDirectory(prefix="passel-solved-") as folder:
        run = passel.train(
            asked["env"],
            algo=asked["algo"],
            seed=asked["seed"],
            workers=2,
            out=f"{folder}/run",
            tensorboard=False,
            quiet=True,
            **asked.get("settings", {}),
        )
        scores = judged(run.path, asked["env"])
    summary = run.summary
    return {
        **asked,
        "status": summary.status,
        "steps": summary.steps,
        "seconds": round(summary.train_seconds, 1),
        "mean": statistics.fmean(scores),
        "error": statistics.stdev(scores) / len(scores) ** 0.5,
    }


def judged(path: Path, env: str) -> list[float]:
    """Returns of the policy in Gymnasium's environment, with nothing of passel's between the two."""
    import gymnasium as gym

    import passel

    policy, made, scores = passel.load(path), gym.make(env), []
    for seed in range(FIRST_SEED, FIRST_SEED + EPISODES):
        obs, _ = made.reset(seed=seed)
        score, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = made.step(policy.act(obs))
            score, over = score + float(reward), terminated or truncated
        scores.append(score)
    return scores


def rows_of(runs: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for cell in CELLS:
        found = [run for run in runs if f"{run['algo']}:{run['env']}" == cell]
        if found:
            solved = sum(run["status"] == "solved" for run in found)
            rows.append(
                [
                    *cell.split(":"),
                    f"{solved} of {len(found)}",
                    f"{statistics.median(run['steps'] for run in found):,.0f}",
                    f"{statistics.median(run['seconds'] for run in found):.0f}",
                    ", ".join(f"{run['mean']:.0f} ± {run['error']:.0f}" for run in found),
                ]
            )
    return rows


def main() -> None:
    from passel.study.jobs import Job, run_jobs

    made = parser(__doc__)
    made.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    made.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS), help="algorithm:environment (all).")
    made.add_argument("--seeds", type=int, default=5, help="Seeds of each, from 1 (default 5).")
    made.add_argument("--report", action="store_true", help="Train nothing: the table of the runs that are there.")
    said = made.parse_args()
    if said.one:
        print(json.dumps(one(said.one)))
        return
    card, path, script = machine(), said.out / "solved.jsonl", str(Path(__file__).resolve())
    if not said.report:
        jobs = []
        for seed, cell in itertools.product(range(1, said.seeds + 1), said.cells):
            algo, env = cell.split(":")
            asked = json.dumps({"algo": algo, "env": env, "seed": seed})
            jobs.append(Job(f"{cell} {seed}", (sys.executable, script, "--one", asked)))
        run_jobs(jobs, path, timeout=TIMEOUT)
    runs = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda run: run["seed"])
    head = ["algorithm", "environment", "solved", "steps, median", "seconds, median", f"{EPISODES} fresh episodes"]
    text = "Return ± standard error in Gymnasium's own environment, by seed. Seconds: two workers on two shared cores."
    write("solved", "Presets until solved", said.out, card, [text, table(head, rows_of(runs))], {"runs": path.name})


if __name__ == "__main__":
    main()
