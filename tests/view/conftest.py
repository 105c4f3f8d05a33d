"""A report of a run in mid-flight, of which each test changes what it is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from passel.types import Report, WorkerRow

SHARES = {"env": 0.42, "act": 0.1, "sample": 0.08, "learn": 0.3, "wait": 0.05, "copy": 0.02, "other": 0.03}


def worker(index: int, **changes: Any) -> WorkerRow:
    row = WorkerRow(f"worker-{index}", "running", 10_000, 2_500, 3100.0 + index, SHARES, 1.4)
    return replace(row, **changes)


REPORT = Report(
    steps=311_000,
    frames=311_000,
    seconds=72.0,
    episodes=1234,
    updates=77_750,
    return_mean_100=143.2,
    steps_per_second=12_345.0,
    updates_per_second=3086.0,
    staleness=1.4,
    shares=SHARES,
    scalars={"loss": 0.01234, "epsilon": 0.05, "q_mean": 34.2},
    workers=tuple(worker(i) for i in range(4)),
    total_steps=500_000,
    solved_at=200.0,
)


@pytest.fixture
def make_report() -> Callable[..., Report]:
    return lambda **changes: replace(REPORT, **changes)


@pytest.fixture
def make_worker() -> Callable[..., WorkerRow]:
    return worker
