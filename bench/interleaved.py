"""Steps a second of this checkout against those of an earlier commit, both runs alive and stopped in turn.

    python bench/interleaved.py 7bf3958 --cells "scaling, hogwild"

bench/before_after.py starts a run for every window, so that half a minute lies between the two windows of a pair, and
on a shared machine the speed drifts by more than what is asked for. Here both runs are started once for some pairs, and
are stopped (SIGSTOP) and continued in turn every few seconds: a pair lies within seconds. Which side goes first changes
with every pair. Reports of the first half second after a stop are left out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from before_after import CELLS, LEAST, ROOT, known_to, row, worktree
from common import HERE, BenchError, Progress, machine, parser, table, write

SETTLE = 0.5  # seconds after a run was continued that are not counted
START = 60.0  # seconds that a run may take until every worker learns


class Counting:
    """A spectator of a run that writes down when it had taken how many steps."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def report(self, report: Any) -> None:
        learns = all(row.updates > 0 for row in report.workers)
        self._file.write(f"{time.monotonic()} {report.steps if learns else -1}\n")
        self._file.flush()

    def start(self, title: str, facts: Mapping[str, str]) -> None: ...
    def message(self, text: str) -> None: ...
    def stop(self) -> None: ...


def count(path: Path, settings: dict[str, Any]) -> None:
    from passel import api
    from window import ENDLESS

    with tempfile.TemporaryDirectory(prefix="passel-bench-") as folder:
        api.train(view=Counting(path), **{**ENDLESS, **settings, "out": f"{folder}/run"})


class Side:
    """One run that is alive. Its processes are stopped and continued together."""

    def __init__(self, python: str, source: Path, settings: dict[str, Any], log: Path) -> None:
        self._log = log
        command = [python, str(Path(__file__).resolve()), "--count", str(log), json.dumps(settings)]
        self._process = psutil.Popen(
            command, env={**os.environ, "PYTHONPATH": f"{source}:{HERE}"}, stderr=subprocess.DEVNULL
        )

    def signal(self, number: signal.Signals) -> None:
        for process in (self._process, *self._process.children(recursive=True)):
            process.send_signal(number)

    def wait_until_it_learns(self, warm: float) -> None:
        deadline = time.monotonic() + START
        while not any(steps > 0 for _, steps in self._rows()):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise BenchError("a run did not start to learn")
            time.sleep(0.1)
        time.sleep(warm)

    def speed(self, since: float, until: float) -> float:
        """Steps a second between two moments, by the reports between them."""
        found = [row for row in self._rows() if since <= row[0] <= until]
        (start, steps), (end, more) = found[0], found[-1]
        return (more - steps) / (end - start)

    def _rows(self) -> list[tuple[float, int]]:
        if not self._log.exists():
            return []
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return [(float(line[0]), int(line[1])) for line in lines if len(line) == 2]

    def end(self) -> None:
        children = self._process.children(recursive=True)
        self.signal(signal.SIGCONT)
        self._process.terminate()
        _, alive = psutil.wait_procs([self._process, *children], timeout=30)
        for process in alive:
            process.kill()


@contextmanager
def both(python: str, before: Path, settings: dict[str, Any], warm: float) -> Iterator[dict[str, Side]]:
    """A run of either side, warm and stopped."""
    with tempfile.TemporaryDirectory(prefix="passel-bench-") as folder:
        sides: dict[str, Side] = {}
        try:
            for name, source in (("before", before / "src"), ("after", ROOT / "src")):
                sides[name] = Side(python, source, known_to(source, settings), Path(folder) / name)
                sides[name].wait_until_it_learns(warm)
                sides[name].signal(signal.SIGSTOP)
            yield sides
        finally:
            for side in sides.values():
                side.end()


def window(side: Side, seconds: float) -> float:
    side.signal(signal.SIGCONT)
    began = time.monotonic()
    time.sleep(SETTLE + seconds)
    until = time.monotonic()
    side.signal(signal.SIGSTOP)
    return side.speed(began + SETTLE, until)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("commit", help="The earlier commit.")
    options.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS), help="Work to compare.")
    options.add_argument("--starts", type=int, default=3, help="How often both runs are started (default 3).")
    options.add_argument("--pairs", type=int, default=12, help="Pairs of each start (default 12).")
    options.add_argument("--seconds", type=float, default=4.0, help="Length of a window (default 4).")
    options.add_argument("--warm", type=float, default=3.0, help="Seconds of learning before the first (default 3).")
    said = options.parse_args()
    card = machine()
    progress = Progress(said.starts * said.pairs * len(said.cells))
    found: dict[str, Any] = {cell: {"before": [], "after": []} for cell in said.cells}
    with worktree(said.commit) as before:
        for cell in said.cells:
            for start in range(said.starts):
                with both(said.python, before, {**CELLS[cell], "seed": start + 1}, said.warm) as sides:
                    for pair in range(said.pairs):
                        progress.begin(f"{cell}, start {start + 1}, pair {pair + 1}")
                        order = ("before", "after") if pair % 2 == 0 else ("after", "before")
                        speeds = {name: window(sides[name], said.seconds) for name in order}
                        for name, speed in speeds.items():
                            found[cell][name].append({"steps_per_second": speed})
                        progress.end(f"{speeds['after'] / speeds['before']:.3f}")
    head = ["work", "before, steps/s", "after, steps/s", "median ratio", "range", f"at least {LEAST}"]
    text = (
        f"Before: commit {said.commit}. Medians of {said.starts * said.pairs} pairs of windows of {said.seconds:g} s: "
        f"{said.starts} starts of both runs, which are stopped and continued in turn."
    )
    write(
        "interleaved",
        "Steps a second, before and after, interleaved",
        said.out,
        card,
        [text, table(head, [row(cell, runs) for cell, runs in found.items()])],
        {"rounds": found},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        count(Path(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        try:
            main()
        except BenchError as error:
            raise SystemExit(f"interleaved: {error}") from None
