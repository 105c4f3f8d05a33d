"""Seconds until LunarLander-v3 is solved: `passel train` with each algorithm's preset, and the peers' PPO with their
zoo's settings.

    python bench/time_to_solve.py
    python bench/time_to_solve.py --seeds 10 --peer-seeds 5 --peers-python .venv-bench/bin/python

Solved means the same for everybody: the last 100 training episodes average 200, and then 100 fresh greedy episodes do
too; if they do not, training goes on. Seconds are wall seconds from the command to its exit, for all sides, imports and
compiling included. A peer runs with one thread or two, whichever a short trial found faster.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import (
    HERE,
    BenchError,
    Progress,
    call,
    machine,
    middle,
    number,
    parser,
    peer_versions,
    table,
    train,
    write,
)

PASSEL: dict[str, dict[str, Any]] = {
    "passel, as it comes (DQN)": {},
    "passel PPO": {"algo": "ppo"},
    "passel A3C": {"algo": "a3c"},
}
PEERS = {"Stable-Baselines3 PPO": "sb3", "SBX PPO": "sbx"}


def passel(said: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    summary = train(said.python, {**PASSEL[name], "tune_for": "seconds", "seed": seed}, limit=said.limit)
    return {
        "seed": seed,
        "solved": summary["status"] == "solved",
        "wall_seconds": summary["wall_seconds"],
        "solved_at_seconds": summary["solved_at_seconds"],
        "steps": summary["solved_at_steps"] or summary["steps"],
        "episodes": summary["solved_at_episodes"] or summary["episodes"],
        "eval_mean": (summary["eval"] or {}).get("mean"),
        "steps_per_second": summary["steps_per_second"],
        "peak_rss_mb": summary["peak_rss_mb"],
    }


def peer(said: argparse.Namespace, name: str, seed: int, threads: int, limit: float) -> dict[str, Any]:
    command = [said.peers_python, HERE / "peers.py", "solve", PEERS[name], "--seed", seed, "--threads", threads]
    start = time.perf_counter()
    result = call([*command, "--limit", limit], timeout=limit + 300)
    return result | {
        "wall_seconds": time.perf_counter() - start,
        "solved_at_seconds": result["seconds"] if result["solved"] else None,
    }


def best_threads(said: argparse.Namespace, name: str, progress: Progress) -> int:
    """Which of one and two threads trains faster; one, if no trial is wanted."""
    if not said.trial_seconds:
        return 1
    speed = {}
    for threads in (1, 2):
        progress.begin(f"trial of {name} with {threads} threads")
        speed[threads] = peer(said, name, 1, threads, said.trial_seconds)["steps_per_second"]
        progress.end(f"{speed[threads]:,.0f} steps/s")
    return max(speed, key=lambda threads: float(speed[threads]))


def told(result: dict[str, Any]) -> str:
    ended = "solved" if result["solved"] else "not solved"
    return f"{ended}: {result['wall_seconds']:.1f} s, {result['steps']:,} steps"


def run_all(said: argparse.Namespace, progress: Progress) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for name in PASSEL:
        found[name] = []
        for seed in range(1, said.seeds + 1):
            progress.begin(f"{name}, seed {seed}")
            found[name].append(passel(said, name, seed))
            progress.end(told(found[name][-1]))
    for name in PEERS if said.peer_seeds else ():
        threads = best_threads(said, name, progress)
        found[name] = []
        for seed in range(1, said.peer_seeds + 1):
            progress.begin(f"{name}, seed {seed}")
            found[name].append(peer(said, name, seed, threads, said.limit))
            progress.end(told(found[name][-1]))
    return found


def summary_rows(found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    rows = []
    for name, results in found.items():
        solved = [result["wall_seconds"] for result in results if result["solved"]]
        # A run that did not solve it in its time took longer than that: it must not improve the median.
        known = middle([result["wall_seconds"] for result in results])
        exact = len(solved) == len(results)
        rows.append(
            [
                name,
                f"{len(solved)} of {len(results)}",
                number(known, 1) if exact else f"over {number(known, 1)}",
                number(min(solved), 1) if solved else "–",
                number(max(solved), 1) if solved and exact else "–",
                number(middle([result["steps"] for result in results])),
                number(middle([result["steps_per_second"] for result in results])),
            ]
        )
    return rows


def detail_rows(found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    return [
        [
            name,
            str(result["seed"]),
            "yes" if result["solved"] else "no",
            number(result["wall_seconds"], 1),
            number(result["solved_at_seconds"], 1),
            number(result["steps"]),
            number(result["episodes"]),
            number(result["eval_mean"], 1),
        ]
        for name, results in found.items()
        for result in results
    ]


def main() -> None:
    options = parser(__doc__, peers=True)
    options.add_argument("--seeds", type=int, default=5, help="Runs of passel, with seeds 1, 2, ... (default 5).")
    options.add_argument("--peer-seeds", type=int, default=2, help="Runs of each peer (default 2; 0 leaves them out).")
    options.add_argument("--limit", type=float, default=300.0, help="Seconds until a run gives up (default 300).")
    options.add_argument("--trial-seconds", type=float, default=30.0, help="Trial of threads; 0 for none (default 30).")
    said = options.parse_args()
    card = machine()
    if said.peer_seeds:
        card["peers"] = peer_versions(said.peers_python)
    trials = 2 if said.trial_seconds and said.peer_seeds else 0
    found = run_all(said, Progress(len(PASSEL) * said.seeds + len(PEERS) * (said.peer_seeds + trials)))
    head = ["", "solved", "seconds, median", "fastest", "slowest", "steps, median", "steps/s, median"]
    detail = ["", "seed", "solved", "seconds", "solved at", "steps", "episodes", "greedy mean of 100"]
    intro = (
        "One run after another, the machine to itself. *Seconds* go from the command to its exit; *solved at* is the "
        f"moment at which 100 greedy episodes had confirmed it. A run gives up after {said.limit:g} s."
    )
    if said.peer_seeds:
        intro += " Peers: " + ", ".join(f"{name} {version}" for name, version in card["peers"].items()) + "."
    sections = [intro, table(head, summary_rows(found)), "## Every run", table(detail, detail_rows(found))]
    write("time_to_solve", "LunarLander-v3: seconds until solved", said.out, card, sections, {"runs": found})


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"time_to_solve: {error}") from None
