"""Steps and updates a second of passel over a window of its steady state. Prints one line of JSON.

    python bench/window.py --seconds 15 --warm 5 '{"sync": "hogwild", "workers": 2, "hidden": [64, 64]}'

The run is a whole one, with its watcher, metrics and TensorBoard, as `passel train` starts it. The window begins when
every worker has learnt for `--warm` seconds, so compiling, starting and the first random steps are left out. A run that
is fast enough to solve its environment would stop to evaluate itself: the threshold is out of reach.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import mean_shares
from passel import api
from passel.types import Report

ENDLESS: dict[str, Any] = {"steps": 10**9, "checkpoint_every": 10**9, "solved_at": 1e9, "until_solved": False}


class Window:
    """A spectator of the run that notes two moments, and then asks the run to stop as a scheduler would."""

    def __init__(self, warm: float, seconds: float) -> None:
        self._warm, self._seconds = warm, seconds
        self._learning_since: float | None = None
        self.reports: list[Report] = []
        self.done = False

    def report(self, report: Report) -> None:
        # Of workers that are actors and learners at once all must learn; of those that are apart, somebody.
        learning = [row.updates > 0 for row in report.workers]
        apart = any(row.updates and not row.steps for row in report.workers)
        if self.done or not (any(learning) if apart else all(learning)):
            return
        if self._learning_since is None:
            self._learning_since = report.seconds
        if report.seconds - self._learning_since < self._warm:
            return
        self.reports.append(report)
        if report.seconds - self.reports[0].seconds >= self._seconds:
            self.done = True
            os.kill(os.getpid(), signal.SIGTERM)  # a shell ignores SIGINT in its background jobs

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


def measure(settings: Mapping[str, Any], warm: float, seconds: float) -> dict[str, Any]:
    window = Window(warm, seconds)
    with tempfile.TemporaryDirectory(prefix="passel-bench-") as folder:
        run = api.train(view=window, **{**ENDLESS, **settings, "out": str(Path(folder) / "run")})
    if not window.done:
        raise SystemExit("the run ended before the window did")
    first, last = window.reports[0], window.reports[-1]
    gone = last.seconds - first.seconds
    since = window.reports[1:]
    return {
        "seconds": gone,
        "steps_per_second": (last.steps - first.steps) / gone,
        "updates_per_second": (last.updates - first.updates) / gone,
        "staleness": last.staleness,
        "peak_mb": run.summary.peak_rss_mb,
        "shares": mean_shares([report.shares for report in since]),
        "workers": {
            row.name: mean_shares([report.workers[rank].shares for report in since])
            for rank, row in enumerate(last.workers)
        },
        "settings": dict(settings),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=json.loads, help="Settings of the run, as JSON.")
    parser.add_argument("--seconds", type=float, default=15.0, help="Length of the window.")
    parser.add_argument("--warm", type=float, default=5.0, help="Seconds of learning before it.")
    said = parser.parse_args()
    print(json.dumps(measure(said.settings, said.warm, said.seconds)))


if __name__ == "__main__":
    main()
