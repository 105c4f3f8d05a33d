"""Learners without a centre: what a second worker brings, who waits, and whether they solve LunarLander.

    python bench/without_centre.py
    python bench/without_centre.py --repeats 5 --seconds 10 --seeds 0         speeds only
    python bench/without_centre.py --repeats 0 --seeds 3                      learning only

Speeds are measured as in bench/scaling.py, by the same functions. `passel train` with the presets as they are, two
workers, is what learns.
"""

from __future__ import annotations

import argparse
from typing import Any

from common import (
    BenchError,
    Progress,
    clock,
    machine,
    mean_shares,
    middle,
    number,
    parser,
    shares,
    table,
    train,
    write,
)
from scaling import column, settings, speed_of

TITLE = "Learners without a centre"
SCHEMES = ("hogwild", "allreduce, arena", "gossip", "proximal", "tokenring")
WORKERS = [1, 2]


def speed_rows(scheme: str, found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    alone = column(found["1"], "steps_per_second")
    rows = []
    for workers, results in found.items():
        speed = column(results, "steps_per_second")
        ratios = [now / before for now, before in zip(speed, alone, strict=True)]
        spent = mean_shares([result["shares"] for result in results])
        rows.append(
            [
                scheme,
                workers,
                number(middle(speed)),
                f"{middle(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{spent.get('wait', 0.0):.2%}",
                f"{middle(column(results, 'staleness')):.2f}",
                shares(spent),
            ]
        )
    return rows


def solve(said: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Every algorithm under every scheme, with seeds 1, 2, ..."""
    cells = [(algo, sync) for algo in said.algos for sync in said.syncs]
    progress = Progress(len(cells) * said.seeds)
    found: dict[str, list[dict[str, Any]]] = {f"{algo}, {sync}": [] for algo, sync in cells}
    for seed in range(1, said.seeds + 1):
        for algo, sync in cells:
            progress.begin(f"{algo} under {sync}, seed {seed}, until solved")
            asked = {"env": said.env, "algo": algo, "tune_for": "seconds", "sync": sync, "workers": 2, "seed": seed}
            summary = train(said.python, asked, limit=said.limit)
            found[f"{algo}, {sync}"].append(summary)
            progress.end(f"{summary['status']} after {clock(summary['seconds'])}, {summary['steps']:,} steps")
    return found


def solve_rows(found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    rows = []
    for cell, results in found.items():
        solved = [result for result in results if result["status"] == "solved"]
        greedy = [result["eval"]["mean"] for result in solved if result["eval"]]
        rows.append(
            [
                cell,
                f"{len(solved)} of {len(results)}",
                number(middle(column(solved, "seconds")), 1),
                number(middle(column(solved, "steps"))),
                ", ".join(number(score) for score in greedy) or "–",
            ]
        )
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES), help="Whose speed.")
    options.add_argument("--env", default="LunarLander-v3")
    options.add_argument("--hidden", type=int, nargs="+", default=[256, 256], help="Widths (default 256 256).")
    options.add_argument("--batch", type=int, default=128, help="Transitions in a batch (default 128).")
    options.add_argument("--updates-per-step", type=float, default=1.0, help="Updates a step (default 1).")
    options.add_argument("--repeats", type=int, default=5, help="Rounds (default 5).")
    options.add_argument("--seconds", type=float, default=5.0, help="Length of a window (default 5).")
    options.add_argument("--warm", type=float, default=2.0, help="Seconds of learning before a window (default 2).")
    options.add_argument("--algos", nargs="+", default=["dqn", "ppo"], help="Who learns (default dqn ppo).")
    options.add_argument("--syncs", nargs="+", default=["gossip"], help="And under what (default gossip).")
    options.add_argument("--seeds", type=int, default=3, help="Seeds of each (default 3).")
    options.add_argument("--limit", type=float, default=600.0, help="Seconds until a run gives up (default 600).")
    said = options.parse_args()
    said.workers = WORKERS
    card = machine()
    sections: list[str] = []
    data: dict[str, Any] = {"settings": settings(said)}
    if said.repeats:
        progress = Progress(len(said.schemes) * len(WORKERS) * said.repeats)
        data["speed"] = {scheme: speed_of(scheme, said, progress) for scheme in said.schemes}
        work = f"{'-'.join(map(str, said.hidden))}, batch {said.batch}, {said.updates_per_step:g} updates a step"
        head = ["scheme", "workers", "steps/s", "speed-up (range)", "waiting", "staleness", "share of time"]
        sections += [
            f"{said.env}, DQN, {work}. Medians of {said.repeats} rounds of {said.seconds:g} s in the steady state, one "
            "worker and two in turn. Waiting: the share of all workers' time.",
            table(head, [row for scheme, found in data["speed"].items() for row in speed_rows(scheme, found)]),
        ]
        write("without_centre", TITLE, said.out, card, sections, data)
    if said.seeds:
        data["solved"] = solve(said)
        head = ["algorithm, scheme", "solved", "seconds", "steps", "greedy scores"]
        sections += [
            "## Until solved",
            f"{said.env}, two workers, the presets as they are; medians over the seeds that solved it.",
            table(head, solve_rows(data["solved"])),
        ]
        write("without_centre", TITLE, said.out, card, sections, data)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"without_centre: {error}") from None
