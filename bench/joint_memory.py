"""Does the memory of joint PPO stay flat and small? The size of the whole process tree, second by second.

    python bench/joint_memory.py                    ten minutes, the check
    python bench/joint_memory.py --minutes 3        a shorter look

Two promises: at no time more than 1.25 times the bytes of the frames of everybody's rollouts plus 350 MB for each
process, and no more than 1 MB a minute of growth over the last half. Each shared page is counted once. Processes are
the watcher and the workers; Python's forkserver and resource tracker are part of the tree but bring no allowance.
The exit code is 1 if a promise is broken.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from common import BenchError, flags, machine, number, parser, scratch, table, write
from passel.run.rss import tree_rss_mb

TITLE = "Memory of joint PPO"
SLACK, PER_PROCESS, GROWTH = 1.25, 350.0, 1.0  # times, MB, MB a minute
START_PATIENCE, STOP_PATIENCE = 120.0, 300.0  # seconds; a run that is stopped still writes its checkpoint


def frames_mb(card: dict[str, Any], horizon: int) -> float:
    """The bytes of all frames that are kept at once: each of them once, one byte a pixel and channel."""
    env = card["env"]
    frame = int(np.prod(env["obs_shape"])) // int(env["frames"]) * np.dtype(env["obs_dtype"]).itemsize
    return float(sum(card["levels"]["rows"]) * horizon * frame / 1e6)


def watch(words: list[str], out: Path, minutes: float) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """Run a command and look at its tree once a second, from its first update on; then ask it to stop."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    samples: list[tuple[float, float]] = []
    began = time.monotonic()
    try:
        while not _learning(out):
            if process.poll() is not None or time.monotonic() - began > START_PATIENCE:
                raise BenchError(f"{shlex.join(words)} did not begin to learn")
            time.sleep(0.2)
        start = time.monotonic()
        while (now := time.monotonic() - start) < 60 * minutes:
            if process.poll() is not None:
                raise BenchError(f"{shlex.join(words)} ended with {process.returncode}")
            samples.append((now / 60, tree_rss_mb(process.pid)))
            time.sleep(1.0)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=STOP_PATIENCE)
    card: dict[str, Any] = json.loads((out / "card.json").read_text())
    return samples, card | {"summary": json.loads((out / "summary.json").read_text())}


def _learning(out: Path) -> bool:
    metrics = out / "metrics.jsonl"
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return any(json.loads(line)["updates"] for line in lines)


def slope(samples: list[tuple[float, float]]) -> float:
    """MB a minute over the last half, by least squares."""
    minutes, megabytes = np.array(samples[len(samples) // 2 :]).T
    return float(np.polyfit(minutes, megabytes, 1)[0])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=10.0, help="How long to look (default 10).")
    options.add_argument("--env", default="levels:breakout-modes", help="The set of levels.")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--envs", type=int, default=2, help="--envs of the run (default 2).")
    options.add_argument("--horizon", type=int, default=256, help="Steps of a rollout (default 256).")
    options.add_argument("--minibatches", type=int, default=32)
    said = options.parse_args()
    card = machine()
    settings = {
        "env": said.env,
        "algo": "ppo",
        "workers": said.workers,
        "envs": said.envs,
        "horizon": said.horizon,
        "minibatches": said.minibatches,
        "epochs": 1,
        "steps": 10**9,
        "checkpoint_every": 10**9,
    }
    with scratch() as out:
        words = [said.python, "-m", "passel", "train", "--quiet", "--out", str(out), *flags(settings)]
        samples, told = watch(words, out, said.minutes)
    frames = frames_mb(told, said.horizon)
    processes = 1 + said.workers
    limit = SLACK * frames + PER_PROCESS * processes
    most, growth = max(mb for _, mb in samples), slope(samples)
    rows = [
        ["frames of all rollouts, each once", f"{number(frames)} MB", "–"],
        ["whole process tree, at most", f"{number(most)} MB", f"{number(limit)} MB"],
        ["growth over the last half", f"{growth:.2f} MB a minute", f"{GROWTH:g} MB a minute"],
    ]
    levels, speed = told["levels"], told["summary"]["steps_per_second"]
    sections = [
        f"{said.env}: {levels['train']} levels, {sum(levels['rows'])} rows in {said.workers} workers, horizon "
        f"{said.horizon}, {said.minutes:g} minutes after the first update, {number(speed)} steps/s.",
        table(["", "measured", f"allowed ({SLACK} × frames + {PER_PROCESS:g} MB × {processes} processes)"], rows),
        "Every tenth sample, in MB: " + ", ".join(number(mb) for _, mb in samples[::10]) + ".",
    ]
    data = {"settings": settings, "frames_mb": frames, "limit_mb": limit, "most_mb": most, "mb_a_minute": growth}
    write("joint_memory", TITLE, said.out, card, sections, data | {"samples": samples})
    if most > limit or growth > GROWTH:
        sys.exit("joint_memory: a promise is broken")


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"joint_memory: {error}") from None
