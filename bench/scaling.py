"""What a second worker brings: steps a second for every scheme and number of workers, doing the same work a step.

    python bench/scaling.py
    python bench/scaling.py --workers 1 2 4 --hidden 64 64 --batch 64
    python bench/scaling.py --to-solve --seeds 3            episodes, time and speed-up until solved; slow

Numbers of workers take turns, so that whatever else the machine does hits all alike. The speed-up of a round compares
its own runs; the median of the rounds is reported. All-reduce makes one joint update of everybody's gradients, so two
workers make half as many updates a step, each from twice the batch; and so does proximal, of everybody's vectors.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from common import (
    HERE,
    BenchError,
    Progress,
    call,
    machine,
    mean_shares,
    measure,
    middle,
    number,
    parser,
    shares,
    table,
    train,
    write,
)

TITLE = "What a second worker brings"
SCHEMES: dict[str, dict[str, Any]] = {
    "hogwild": {"sync": "hogwild"},
    "locked": {"sync": "locked"},
    "server": {"sync": "server"},
    "allreduce, arena": {"sync": "allreduce", "transport": "arena"},
    "allreduce, distributed": {"sync": "allreduce", "transport": "distributed"},
    "gossip": {"sync": "gossip"},
    "proximal": {"sync": "proximal"},
    "tokenring": {"sync": "tokenring"},
}


def settings(said: argparse.Namespace) -> dict[str, Any]:
    return {
        "env": said.env,
        "tune_for": "seconds",
        "hidden": said.hidden,
        "batch": said.batch,
        "updates_per_step": said.updates_per_step,
        "capacity": 50_000,
        "epsilon_start": 0.05,
        "epsilon_end": 0.05,
    }


def window(said: argparse.Namespace, scheme: str, workers: int, repeat: int) -> dict[str, Any]:
    asked = json.dumps(settings(said) | SCHEMES[scheme] | {"workers": workers, "seed": repeat + 1})
    command = [said.python, HERE / "window.py", "--seconds", said.seconds, "--warm", said.warm, asked]
    return call(command, timeout=said.seconds + said.warm + 120)


def speed_of(scheme: str, said: argparse.Namespace, progress: Progress) -> dict[str, list[dict[str, Any]]]:
    def contender(workers: int) -> Any:
        return lambda repeat: window(said, scheme, workers, repeat)

    contenders = {f"{scheme}, {workers} workers": contender(workers) for workers in said.workers}
    found = measure(contenders, said.repeats, progress, lambda result: f"{result['steps_per_second']:,.0f} steps/s")
    return {str(workers): results for workers, results in zip(said.workers, found.values(), strict=True)}


def column(results: list[dict[str, Any]], name: str) -> list[float]:
    return [float(result[name]) for result in results]


def speed_rows(scheme: str, found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    alone = column(next(iter(found.values())), "steps_per_second")
    rows = []
    for workers, results in found.items():
        speed = column(results, "steps_per_second")
        ratios = [now / before for now, before in zip(speed, alone, strict=True)]
        rows.append(
            [
                scheme,
                workers,
                number(middle(speed)),
                number(middle(column(results, "updates_per_second"))),
                f"{middle(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{middle(column(results, 'staleness')):.2f}",
                shares(mean_shares([result["shares"] for result in results])),
            ]
        )
    return rows


def solve_all(said: argparse.Namespace) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """`passel train` with the environment's preset until it is solved, for every scheme and number of workers."""
    progress = Progress(len(said.schemes) * len(said.workers) * said.seeds)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for scheme in said.schemes:
        found[scheme] = {str(workers): [] for workers in said.workers}
        for seed in range(1, said.seeds + 1):
            for workers in said.workers:
                progress.begin(f"{scheme}, {workers} workers, seed {seed}, until solved")
                asked = {"env": said.env, "tune_for": "seconds", "workers": workers, "seed": seed, **SCHEMES[scheme]}
                summary = train(said.python, asked, limit=said.limit)
                found[scheme][str(workers)].append(summary)
                progress.end(f"{summary['status']} after {summary['seconds']:.1f} s, {summary['episodes']} episodes")
    return found


def solved_by_all(results: list[dict[str, Any]]) -> bool:
    return all(result["status"] == "solved" for result in results)


def solve_rows(scheme: str, found: dict[str, list[dict[str, Any]]]) -> list[list[str]]:
    """Medians over the seeds. Where a run was not solved, its time says when it gave up: that is no speed-up."""

    def each_episode(results: list[dict[str, Any]]) -> float:
        return middle([result["seconds"] / max(result["episodes"], 1) for result in results])

    alone = next(iter(found.values()))
    rows = []
    for workers, results in found.items():
        solved = sum(result["status"] == "solved" for result in results)
        ratio = middle(column(alone, "seconds")) / middle(column(results, "seconds"))
        rows.append(
            [
                scheme,
                workers,
                f"{solved} of {len(results)}",
                number(middle(column(results, "episodes"))),
                number(middle(column(results, "seconds")), 1),
                f"{each_episode(results) * 1000:.1f}",
                f"{each_episode(alone) / each_episode(results):.2f}",
                number(ratio if solved_by_all(alone) and solved_by_all(results) else None, 2),
            ]
        )
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="Numbers to compare, the base first.")
    options.add_argument("--schemes", nargs="+", choices=list(SCHEMES), default=list(SCHEMES), help="Which schemes.")
    options.add_argument("--env", default="LunarLander-v3")
    options.add_argument("--hidden", type=int, nargs="+", default=[256, 256], help="Widths (default 256 256).")
    options.add_argument("--batch", type=int, default=128, help="Transitions in a batch (default 128).")
    options.add_argument("--updates-per-step", type=float, default=1.0, help="Updates a step (default 1).")
    options.add_argument("--repeats", type=int, default=3, help="Rounds (default 3).")
    options.add_argument("--seconds", type=float, default=15.0, help="Length of a window (default 15).")
    options.add_argument("--warm", type=float, default=3.0, help="Seconds of learning before a window (default 3).")
    options.add_argument("--to-solve", action="store_true", help="Also train each until solved, with the preset.")
    options.add_argument("--seeds", type=int, default=3, help="Seeds of --to-solve (default 3).")
    options.add_argument("--limit", type=float, default=1800.0, help="Seconds until a run of --to-solve gives up.")
    said = options.parse_args()
    card = machine()
    progress = Progress(len(said.schemes) * len(said.workers) * said.repeats)
    speed = {scheme: speed_of(scheme, said, progress) for scheme in said.schemes}
    head = ["scheme", "workers", "steps/s", "updates/s", "speed-up (range)", "staleness", "share of time"]
    work = f"{'-'.join(map(str, said.hidden))}, batch {said.batch}, {said.updates_per_step:g} updates a step"
    sections = [
        f"{said.env}, {work}. Medians of {said.repeats} rounds of {said.seconds:g} s in the steady state, numbers of "
        "workers in turn. Staleness: versions that went by between reading the parameters and changing them.",
        table(head, [row for scheme, found in speed.items() for row in speed_rows(scheme, found)]),
    ]
    data: dict[str, Any] = {"settings": settings(said), "speed": speed}
    write("scaling", TITLE, said.out, card, sections, data)
    if said.to_solve:
        data["to_solve"] = solve_all(said)
        head = [
            "scheme",
            "workers",
            "solved",
            "episodes",
            "seconds",
            "ms an episode",
            "speed-up an episode",
            "speed-up",
        ]
        rows = [row for scheme, found in data["to_solve"].items() for row in solve_rows(scheme, found)]
        sections += ["## Until solved", f"{said.env}'s preset, medians of {said.seeds} seeds.", table(head, rows)]
        write("scaling", TITLE, said.out, card, sections, data)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"scaling: {error}") from None
