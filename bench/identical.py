"""Is it the same PPO? passel's and Stable-Baselines3's with identical numbers on LunarLander, by steps.

    python bench/identical.py --peers-python .venv-bench/bin/python
    python bench/identical.py --seeds 3
    python bench/identical.py --report           # only the table, from the runs that are there

Stable-Baselines3's defaults on both sides, and ReLU, which passel's networks have: one environment, rollouts of 2,048
steps, minibatches of 64, 10 epochs, a constant rate of 3e-4. Every run is a line of bench/results/identical.jsonl as
soon as it has ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from anywhere import EVALUATIONS, REPORTED, one
from common import machine, parser, table, write

ENV, STEPS = "LunarLander-v3", 200_000
NUMBERS: dict[str, dict[str, Any]] = {
    "passel": {
        **{"workers": 1, "sync": "solo", "place": "inline", "envs": 1, "horizon": 2048, "batch": 64, "epochs": 10},
        **{"lr": 3e-4, "lr_end": "none", "entropy": 0.0, "gamma": 0.99, "gae_lambda": 0.95, "clip": 0.2},
        **{"max_grad_norm": 0.5, "optimizer_eps": 1e-5, "normalize": "none", "hidden": [64, 64]},
    },
    "sb3": {"policy_kwargs": {"activation_fn": "ReLU"}},
}
CONTENDERS = {"passel": "preset", "sb3": "sb3"}  # by anywhere.one, which adds nothing to these numbers
TIMEOUT = 3600.0


def jobs_of(said: argparse.Namespace) -> list[Any]:
    from passel.study.jobs import Job

    script, found = str(Path(__file__).resolve()), []
    for seed, who in itertools.product(range(1, said.seeds + 1), NUMBERS):
        python = said.python if who == "passel" else said.peers_python
        asked = {"name": "LunarLander", "env": ENV, "algo": "ppo", "steps": STEPS, "seed": seed, "who": who}
        asked |= {"contender": CONTENDERS[who], "settings": NUMBERS[who]}
        found.append(Job(f"{who} {seed}", (python, script, "--one", json.dumps(asked))))
    return found


def main() -> None:
    made = parser(__doc__, peers=True)
    made.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    made.add_argument("--seeds", type=int, default=5, help="Seeds of each (default 5).")
    made.add_argument("--at-once", type=int, default=2, help="Runs at once (default 2).")
    made.add_argument("--report", action="store_true", help="Train nothing: the table of the runs that are there.")
    said = made.parse_args()
    if said.one:
        print(json.dumps(one(said.one)))
        return
    from passel.study.jobs import run_jobs
    from passel.study.statistics import bootstrap, interquartile_mean, probability_of_improvement

    card, path = machine(), said.out / "identical.jsonl"
    if not said.report:
        run_jobs(jobs_of(said), path, at_once=said.at_once, timeout=TIMEOUT)
    runs = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda run: run["seed"])
    last = {who: [run["last"] for run in runs if run["who"] == who] for who in NUMBERS}
    area = {who: [_mean_of_curve(run) for run in runs if run["who"] == who] for who in NUMBERS}
    rows = [
        [
            who,
            str(bootstrap(interquartile_mean, last[who])),
            ", ".join(f"{score:.0f}" for score in last[who]),
            str(bootstrap(interquartile_mean, area[who])),
        ]
        for who in NUMBERS
    ]
    head = ["", f"last policy, {REPORTED} episodes", "seeds", f"mean of {EVALUATIONS} evaluations on the way"]
    facts = {
        name: str(bootstrap(probability_of_improvement, scores["passel"], scores["sb3"]))
        for name, scores in (("last policy", last), ("evaluations on the way", area))
    }
    told = [f"The probability that a run of passel scores more, {name}: {value}." for name, value in facts.items()]
    text = f"PPO on {ENV}, {STEPS:,} steps; interquartile means with 95 % intervals (bootstrap over seeds)."
    sections = [text, table(head, rows), "\n".join(told)]
    write("identical", "PPO with the numbers of Stable-Baselines3", said.out, card, sections, facts)


def _mean_of_curve(run: dict[str, Any]) -> float:
    scores = [score for _, score in run["curve"]]
    return sum(scores) / len(scores)


if __name__ == "__main__":
    main()
