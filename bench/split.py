"""Whether `--split` pays: A3C and PPO with the policy's and the critic's gradients in one process, and in two at once.

    python bench/split.py

LunarLander-v3. One worker leaves the second core of a machine with two to its other half; with two workers both halves
of both compete for it. Networks of two sizes, because what a second process costs does not grow with the network and
what it can take over does. Whole and split workers in turn, over windows in the steady state.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from common import HERE, BenchError, Progress, call, machine, measure, middle, number, parser, shares, table, write

ALGORITHMS: dict[str, dict[str, Any]] = {
    "a3c": {"algo": "a3c", "envs": 16, "horizon": 8},
    "ppo": {"algo": "ppo", "envs": 16, "horizon": 64, "minibatches": 8},
}
CASES = [(algo, width, workers) for algo in ALGORITHMS for width in (64, 256) for workers in (1, 2)]


def contender(said: argparse.Namespace, case: tuple[str, int, int], split: bool) -> Any:
    algo, width, workers = case
    asked = {"env": "LunarLander-v3", "sync": "hogwild", "hidden": [width, width], "workers": workers, "split": split}
    window = [said.python, HERE / "window.py", "--seconds", said.seconds, "--warm", said.warm]

    def run(repeat: int) -> dict[str, Any]:
        settings = json.dumps({**ALGORITHMS[algo], **asked, "seed": repeat + 1})
        return call([*window, settings], timeout=said.seconds + said.warm + 120)

    return run


def row(case: tuple[str, int, int], found: dict[str, list[dict[str, Any]]]) -> list[str]:
    algo, width, workers = case
    whole, split = ([float(result["steps_per_second"]) for result in results] for results in found.values())
    ratios = [after / before for before, after in zip(whole, split, strict=True)]
    return [
        f"{algo}, {width}-{width}",
        str(workers),
        number(middle(whole)),
        number(middle(split)),
        f"{middle(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        shares(list(found.values())[1][-1]["shares"]),
    ]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3, help="Rounds (default 3).")
    options.add_argument("--seconds", type=float, default=10.0, help="Length of a window (default 10).")
    options.add_argument("--warm", type=float, default=2.0, help="Seconds of learning before a window (default 2).")
    said = options.parse_args()
    card, progress = machine(), Progress(len(CASES) * 2 * said.repeats)
    found = {}
    for case in CASES:
        algo, width, workers = case
        label = f"{algo}, {width}-{width}, {workers} workers"
        sides = {
            f"{label}, {name}": contender(said, case, split) for name, split in (("whole", False), ("split", True))
        }
        found[case] = measure(sides, said.repeats, progress, lambda r: f"{r['steps_per_second']:,.0f} steps/s")
    head = ["", "workers", "whole, steps/s", "split, steps/s", "split / whole (range)", "share of time, split"]
    intro = f"LunarLander-v3, hogwild. Medians of {said.repeats} rounds of {said.seconds:g} s, whole and split in turn."
    rows = table(head, [row(case, results) for case, results in found.items()])
    data = {"-".join(map(str, case)): results for case, results in found.items()}
    write("split", "A worker whole, and in two halves", said.out, card, [intro, rows], {"cases": data})


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"split: {error}") from None
