"""How long from the command to the first training step, and what one more worker costs in memory.

    python bench/startup.py
    python bench/startup.py --repeats 9 --workers 4

Time: `passel train` is started as a user would, and its run folder is watched for the event of the first step; the
clock runs from before the process exists. Memory: see idle_memory.py, for growing numbers of workers.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from common import HERE, BenchError, Progress, call, flags, machine, middle, number, parser, scratch, table, write

POLL = 0.005  # seconds
PATIENCE = 120.0  # seconds


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file that may be growing, or not be there yet."""
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def first_step(folder: Path) -> float | None:
    """When the run saw its first step, as a time of day; None if it has not yet."""
    for event in lines(folder / "events.jsonl"):
        if event["kind"] == "first step":
            return datetime.fromisoformat(event["time"]).timestamp()
    return None


def start_once(said: argparse.Namespace, repeat: int) -> float:
    """Seconds from before the command exists to its first step."""
    settings = {"env": said.env, "workers": said.workers, "seed": repeat + 1}
    with scratch() as out:
        words = [said.python, "-m", "passel", "train", "--quiet", "--out", str(out), *flags(settings)]
        began = time.time()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            while (moment := first_step(out)) is None:
                if process.poll() is not None or time.time() - began > PATIENCE:
                    process.kill()
                    raise BenchError(f"no step was seen:\n{process.communicate()[1][-2000:]}")
                time.sleep(POLL)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=PATIENCE)
    return moment - began


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--env", default="LunarLander-v3")
    options.add_argument("--workers", type=int, default=2, help="Workers of the runs that are timed (default 2).")
    options.add_argument("--repeats", type=int, default=5, help="How often each is measured (default 5).")
    options.add_argument("--memory-workers", type=int, nargs="+", default=[2, 3, 4], help="Growing numbers of workers.")
    said = options.parse_args()
    card = machine()
    progress = Progress(said.repeats * (1 + len(said.memory_workers)))
    starts = []
    for repeat in range(said.repeats):
        progress.begin(f"start with {said.workers} workers, round {repeat + 1}")
        starts.append(start_once(said, repeat))
        progress.end(f"{starts[-1]:.2f} s")
    memory: dict[int, list[dict[str, Any]]] = {workers: [] for workers in said.memory_workers}
    for _ in range(said.repeats):
        for workers in said.memory_workers:
            progress.begin(f"memory of {workers} workers")
            command = [said.python, HERE / "idle_memory.py", workers, "--env", said.env]
            memory[workers].append(call(command, timeout=PATIENCE))
            progress.end(f"{memory[workers][-1]['parked_mb']:.0f} MB")
    sections = [
        "## From the command to the first step",
        f"`passel train --env {said.env} --workers {said.workers}`. "
        "The first of the rounds may have had to read files from the disk.",
        table(
            ["", *[f"round {n + 1}" for n in range(said.repeats)], "median"],
            [["seconds", *[number(second, 2) for second in (*starts, middle(starts))]]],
        ),
        "## Memory at rest",
        "The whole process tree, each page counted once (PSS), with a tiny replay memory; medians. *Started*: the "
        "workers have built their environments. *Parked*: they have trained for two seconds and rest.",
        memory_table(memory),
    ]
    write(
        "startup", "Starting, and what a worker weighs", said.out, card, sections, {"starts": starts, "memory": memory}
    )


def memory_table(memory: dict[int, list[dict[str, Any]]]) -> str:
    rows, before = [], None
    for workers, results in memory.items():
        now = [middle([result[name] for result in results]) for name in ("started_mb", "parked_mb")]
        each = ["–", "–"]
        if before is not None:
            each = [number((b - a) / (workers - before[0]), 1) for a, b in zip(before[1], now, strict=True)]
        rows.append([workers, number(now[0], 1), each[0], number(now[1], 1), each[1]])
        before = (workers, now)
    return table(["workers", "started, MB", "for one more", "parked, MB", "for one more"], rows)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"startup: {error}") from None
