"""Megabytes of a run's process tree, each shared page counted once, with workers at rest. Prints one line of JSON.

    python bench/idle_memory.py 4

Measured twice: when the workers have just started, and when they have trained for a moment and been parked, for only
then has every library touched what it needs. Buffers are tiny, so what is left is the price of a worker itself.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from passel.api import make_plan
from passel.arena import Arena
from passel.place.processes import Processes
from passel.recipes.resolve import resolve_config
from passel.run.rss import tree_rss_mb

TINY = {"capacity": 2_000, "batch": 32, "warmup": 200, "hidden": [64, 64], "steps": 10**9}


def measure(workers: int, env: str, seconds: float) -> dict[str, float]:
    config, numbers = resolve_config({"env": env, "workers": workers, **TINY})
    plan = make_plan(config, numbers, env)
    arena = Arena(plan.specs(), shared=True)
    plan.prepare(arena)
    plan.start(arena)
    placement = Processes(plan, arena)
    try:
        placement.start()
        started = tree_rss_mb(os.getpid())
        placement.resume()
        until = time.monotonic() + seconds
        while time.monotonic() < until or not placement.board.column("updates").all():
            placement.advance(0.05)
        placement.pause()
        return {"workers": workers, "started_mb": started, "parked_mb": tree_rss_mb(os.getpid())}
    finally:
        placement.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workers", type=int)
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--seconds", type=float, default=2.0, help="How long they train before they are parked.")
    said = parser.parse_args()
    print(json.dumps(measure(said.workers, said.env, said.seconds)))


if __name__ == "__main__":
    main()
