"""What a second worker brings to joint PPO: steps a second on the same set of levels.

    python bench/joint_speed.py
    python bench/joint_speed.py --repeats 5 --seconds 30

The same levels, rows and minibatches in all: one worker steps and learns all of them, or each of two one half. Every
worker computes on one thread, so that a worker is a core; what one worker makes of two threads is measured beside them.
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
    write,
)

TITLE = "What a second worker brings to joint PPO"


def contender(said: argparse.Namespace, workers: int, threads: int) -> Any:
    asked = {
        "env": said.env,
        "algo": "ppo",
        "workers": workers,
        "envs": said.rows // workers,
        "threads": threads,
        "horizon": said.horizon,
        "minibatches": said.minibatches,
    }

    def run(repeat: int) -> dict[str, Any]:
        words = [said.python, HERE / "window.py", "--seconds", said.seconds, "--warm", said.warm]
        return call([*words, json.dumps(asked | {"seed": repeat + 1})], timeout=said.seconds + said.warm + 180)

    return run


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--env", default="levels:procgen:jumper:easy:64+0", help="The set of levels.")
    options.add_argument("--rows", type=int, default=64, help="Rows of all workers together (default 64).")
    options.add_argument(
        "--horizon", type=int, default=16, help="Steps of a rollout (default 16): short, for steps come in bursts."
    )
    options.add_argument("--minibatches", type=int, default=4)
    options.add_argument("--repeats", type=int, default=3, help="Rounds (default 3).")
    options.add_argument("--seconds", type=float, default=20.0, help="Length of a window (default 20).")
    options.add_argument("--warm", type=float, default=3.0, help="Seconds of learning before a window (default 3).")
    said = options.parse_args()
    card = machine()
    kinds = {"1 worker, 1 thread": (1, 1), "2 workers, 1 thread each": (2, 1), "1 worker, 2 threads": (1, 2)}
    contenders = {name: contender(said, *kind) for name, kind in kinds.items()}
    progress = Progress(len(kinds) * said.repeats)
    found = measure(contenders, said.repeats, progress, lambda result: f"{result['steps_per_second']:,.0f} steps/s")
    alone = [result["steps_per_second"] for result in found["1 worker, 1 thread"]]
    rows = []
    for name, results in found.items():
        speed = [result["steps_per_second"] for result in results]
        ratios = [now / before for now, before in zip(speed, alone, strict=True)]
        spent = shares(mean_shares([result["shares"] for result in results]))
        rows.append(
            [name, number(middle(speed)), f"{middle(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", spent]
        )
    sections = [
        f"{said.env}, {said.rows} rows in all, horizon {said.horizon}, {said.minibatches} minibatches, 3 epochs. "
        f"Medians of {said.repeats} rounds of {said.seconds:g} s in the steady state, in turn.",
        table(["", "steps/s", "speed-up (range)", "share of time"], rows),
    ]
    write("joint_speed", TITLE, said.out, card, sections, {"found": found})


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"joint_speed: {error}") from None
