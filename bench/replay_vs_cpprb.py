"""Our replay memory against cpprb's, call by call.

    pip install 'passel[bench]'
    python bench/replay_vs_cpprb.py

Both sides are timed in turn, many rounds of each, so that a busy machine is unkind to both alike. cpprb's arrays are
turned into tensors without a copy, since a learner needs tensors. Writes bench/results/replay_vs_cpprb.md.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cpprb
import numpy as np
import torch

from passel.arena import Arena
from passel.data import NStep, PrioritisedReplay, Replay
from passel.types import Array, Step, Transitions

CAPACITY, OBS, BATCH, ENVS, N_STEP, GAMMA, BETA = 100_000, 8, 128, 16, 3, 0.99, 0.4
ROUNDS, CALLS = 25, 100
RESULT = Path(__file__).parent / "results" / "replay_vs_cpprb.md"
FLOAT = np.dtype("float32")

Call = Callable[[], object]


def transitions(rng: np.random.Generator, count: int) -> Transitions:
    obs, next_obs = rng.random((2, count, OBS), dtype=np.float32)
    return Transitions(
        obs, rng.integers(0, 4, count), rng.random(count, np.float32), np.full(count, GAMMA, np.float32), next_obs
    )


def as_columns(t: Transitions) -> dict[str, Array]:
    return {"obs": t.obs, "act": t.action, "rew": t.reward, "discount": t.discount, "next_obs": t.next_obs}


def cpprb_columns() -> dict[str, dict[str, Any]]:
    return {"obs": {"shape": OBS}, "act": {"dtype": np.int64}, "rew": {}, "discount": {}, "next_obs": {"shape": OBS}}


def as_tensors(sample: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in sample.items() if name != "indexes"}


def uniform(rng: np.random.Generator) -> dict[str, tuple[Call, Call]]:
    ours = Replay(Arena(Replay.specs(CAPACITY, (OBS,), FLOAT)))
    theirs = cpprb.ReplayBuffer(CAPACITY, cpprb_columns())
    full, few = transitions(rng, CAPACITY), transitions(rng, ENVS)
    ours.add(full)
    theirs.add(**as_columns(full))
    return {
        f"uniform: add {ENVS}": (lambda: ours.add(few), lambda: theirs.add(**as_columns(few))),
        f"uniform: sample {BATCH}": (lambda: ours.sample(BATCH, rng), lambda: as_tensors(theirs.sample(BATCH))),
        f"uniform: 16 samples of {BATCH}": (
            lambda: ours.sample_many(16, BATCH, rng),
            lambda: [as_tensors(theirs.sample(BATCH)) for _ in range(16)],
        ),
    }


def prioritised(rng: np.random.Generator) -> dict[str, tuple[Call, Call]]:
    ours = PrioritisedReplay(Arena(PrioritisedReplay.specs(CAPACITY, (OBS,), FLOAT)))
    theirs = cpprb.PrioritizedReplayBuffer(CAPACITY, cpprb_columns())
    full, few, td = transitions(rng, CAPACITY), transitions(rng, ENVS), rng.random(CAPACITY)
    ours.add(full)
    ours.update_priorities(np.arange(CAPACITY), td)
    theirs.add(**as_columns(full))
    theirs.update_priorities(np.arange(CAPACITY), td)
    index = ours.sample(BATCH, rng).index
    indexes = theirs.sample(BATCH)["indexes"]
    return {
        f"prioritised: sample {BATCH}": (
            lambda: ours.sample(BATCH, rng, BETA),
            lambda: as_tensors(theirs.sample(BATCH, beta=BETA)),
        ),
        f"prioritised: 16 samples of {BATCH}": (
            lambda: ours.sample_many(16, BATCH, rng, BETA),
            lambda: [as_tensors(theirs.sample(BATCH, beta=BETA)) for _ in range(16)],
        ),
        f"prioritised: update {BATCH}": (
            lambda: ours.update_priorities(index, td[:BATCH]),
            lambda: theirs.update_priorities(indexes, td[:BATCH]),
        ),
        # The last, because it overwrites what the update is about.
        f"prioritised: add {ENVS}": (lambda: ours.add(few), lambda: theirs.add(**as_columns(few))),
    }


def n_step(rng: np.random.Generator, envs: int) -> dict[str, tuple[Call, Call]]:
    """cpprb's n-step window belongs to one buffer, so several environments need a buffer each."""
    memory = Replay(Arena(Replay.specs(CAPACITY, (OBS,), FLOAT)))
    windows = NStep(Arena(NStep.specs(N_STEP, envs, (OBS,), FLOAT)), n=N_STEP, gamma=GAMMA)
    t = transitions(rng, envs)
    flags, ones = np.zeros(envs, bool), np.ones(envs, np.float32)
    step = Step(t.next_obs, t.next_obs, t.reward, ones, flags, ~flags)
    columns = cpprb_columns() | {"done": {}}
    window = {"size": N_STEP, "rew": "rew", "gamma": GAMMA, "next": "next_obs"}
    buffers = [cpprb.ReplayBuffer(CAPACITY // envs, columns, Nstep=window) for _ in range(envs)]
    rows = [{name: column[env] for name, column in as_columns(t).items()} | {"done": 0.0} for env in range(envs)]

    def add_to_each() -> None:
        for buffer, row in zip(buffers, rows, strict=True):
            buffer.add(**row)

    name = f"{N_STEP}-step: push and add, {envs} environment{'s' if envs > 1 else ''}"
    return {name: (lambda: memory.add(windows.push(t.obs, t.action, step)), add_to_each)}


def microseconds(call: Call, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def compare(ours: Call, theirs: Call, calls: int) -> tuple[list[float], list[float]]:
    """Microseconds a call in each round; first one side, then the other, and the order changes every round."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 else (1, 0):
            times[side].append(microseconds((ours, theirs)[side], calls))
    return times


def line(name: str, ours: list[float], theirs: list[float]) -> str:
    def cell(times: list[float]) -> str:
        low, middle, high = statistics.quantiles(times, n=4)
        return f"{middle:.1f} ({low:.1f} to {high:.1f})"

    return f"| {name} | {cell(ours)} | {cell(theirs)} | {statistics.median(theirs) / statistics.median(ours):.2f} |"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main() -> None:
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    rng = np.random.default_rng(0)
    cases = uniform(rng) | prioritised(rng) | n_step(rng, 1) | n_step(rng, ENVS)
    table = ["| call | passel, µs | cpprb, µs | cpprb / passel |", "|---|---|---|---|"]
    for name, (ours, theirs) in cases.items():
        table.append(
            line(name, *compare(ours, theirs, CALLS // 10 if "16 samples" in name or "16 env" in name else CALLS))
        )
        print(table[-1], flush=True)
    versions = ", ".join(f"{name} {version(name)}" for name in ("cpprb", "numpy", "torch"))
    text = [
        "# Replay memory: passel against cpprb",
        "",
        "Made by `python bench/replay_vs_cpprb.py`",
        f"on {processor()}, one thread, Python {platform.python_version()}, {versions};",
        f"the machine has {os.cpu_count()} cores, and its load at the start was {load:.1f}.",
        "",
        f"Capacity {CAPACITY:,}, observations of {OBS} float32, both memories full. Median of {ROUNDS} alternating",
        f"rounds of {CALLS} calls ({CALLS // 10} where a call is 16), and the middle half of the rounds in brackets.",
        "",
        *table,
    ]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    sys.exit(main())
