"""What a run writes and says of itself while it trains: events, metrics, episodes, TensorBoard, notices.

Runs in: the process that the user started.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from passel.run.episodes import csv_rows
from passel.run.files import cause_of
from passel.run.folder import RunFolder
from passel.types import Episode, Report
from passel.view.display import GuardedView
from passel.view.tensorboard import TensorBoardLog

MOST_EVENTS = 1000  # that wait for a disk; the oldest go first
BATCH, MOST_BYTES = 64_000, 64_000_000  # rows of episodes: that are written at once, and that wait for a disk


class Retry:
    """When to try again what has failed: after a second, then after twice as long each time, five minutes at most."""

    def __init__(self, first: float = 1.0, longest: float = 300.0) -> None:
        self._first, self._longest = first, longest
        self.seconds = 0.0
        self._at = 0.0

    @property
    def due(self) -> bool:
        return time.perf_counter() >= self._at

    def failed(self) -> None:
        self.seconds = min(max(2 * self.seconds, self._first), self._longest)
        self._at = time.perf_counter() + self.seconds

    def worked(self) -> None:
        self.seconds = self._at = 0.0


class Journal:
    """Nothing here ends a run: what cannot be written is a notice, and is tried again later.

    Events and episodes wait in memory until they can be written. Reports of the metrics that cannot be written are
    lost, because the next one is as good. With `hparams`, the settings of the run, there is a TensorBoard.
    """

    def __init__(self, folder: RunFolder, view: GuardedView, hparams: Mapping[str, Any] | None) -> None:
        self.folder, self._view, self._hparams = folder, view, hparams
        self._tensorboard = None if hparams is None else TensorBoardLog(folder.tb, hparams)
        #: An empty one first: the file is opened with the first report, and from then on is this run's wherever it is.
        self._rows = deque([b""])
        self._bytes = 0
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque(maxlen=MOST_EVENTS)
        self._told: set[str] = set()
        self._retries = {what: Retry() for what in ("events", "metrics", "episodes", "TensorBoard")}

    def notice(self, text: str, kind: str = "notice", **fields: Any) -> None:
        """A sentence for the user, on the screen and in events.jsonl; the same sentence only once."""
        if text not in self._told:
            self._told.add(text)
            self._view.message(text)
            self.event(kind, text=text, **fields)

    def event(self, kind: str, **fields: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._waiting.append((kind, {"time": now, **fields}))
        self._attempt("events", self._write_events)

    def report(self, report: Report) -> None:
        """A line of the metrics, and TensorBoard's."""
        if self._waiting:
            self._attempt("events", self._write_events)
        self.write_episodes()
        self._attempt("metrics", lambda: self.folder.metric(report))
        if self._tensorboard is not None:
            self._attempt("TensorBoard", self._tensorboard.report, report)

    def episodes(self, steps: int, seconds: float, ended: Mapping[int, Sequence[Episode]]) -> None:
        """Rows of episodes.csv, by the ranks of the workers. They are written many at a time."""
        rows = csv_rows(steps, seconds, ended)
        self._rows.append(rows)
        self._bytes += len(rows)
        if self._bytes >= BATCH:
            self.write_episodes()
        while self._bytes > MOST_BYTES:
            self._bytes -= len(self._rows.popleft())
            self.notice("Too many episodes wait for the disk: the oldest of them will be missing in episodes.csv.")

    def write_episodes(self) -> None:
        """Write the rows that wait."""
        if self._rows:
            self._attempt("episodes", self._write_rows)

    def evaluation(self, steps: int, mean_reward: float, mean_ep_length: float) -> None:
        """The result of an evaluation, for TensorBoard."""
        if self._tensorboard is not None:
            self._attempt("TensorBoard", self._tensorboard.evaluation, steps, mean_reward, mean_ep_length)

    def ended(self) -> None:
        """The run has come to its end."""
        if self._tensorboard is not None:
            self._attempt("TensorBoard", self._tensorboard.end_session)

    def draw(self, *graph: Any) -> None:
        """A network's graph for TensorBoard."""
        if self._tensorboard is not None:
            self._attempt("TensorBoard", self._tensorboard.graph, *graph)

    def tell_of_the_view(self) -> None:
        """What went wrong in the view is an event, and a notice if the view can still show one."""
        while self._view.failures:
            self.notice(self._view.failures.pop(0))

    def moved(self, folder: RunFolder) -> None:
        """The run is at home elsewhere from now on, perhaps on a disk that can be written."""
        self.folder = folder
        self._rows.appendleft(b"")
        self.hurry()
        self._renew_tensorboard()

    def hurry(self) -> None:
        """Try at once what would be tried later: the run ends, and there is no later."""
        for retry in self._retries.values():
            retry.worked()
        self.write_episodes()

    def _renew_tensorboard(self) -> None:
        if self._tensorboard is not None:
            with suppress(Exception):
                self._tensorboard.close()
            self._tensorboard = TensorBoardLog(self.folder.tb, self._hparams)

    def close(self) -> None:
        with suppress(Exception):  # what TensorBoard still holds of a disk that failed
            if self._tensorboard is not None:
                self._tensorboard.close()

    def _write_events(self) -> None:
        while self._waiting:
            kind, fields = self._waiting[0]
            self.folder.event(kind, **fields)
            self._waiting.popleft()

    def _write_rows(self) -> None:
        self.folder.add_episodes(b"".join(self._rows))
        self._rows.clear()
        self._bytes = 0

    def _attempt(self, what: str, write: Callable[..., object], *args: Any) -> None:
        retry = self._retries[what]
        if not retry.due:
            return
        try:
            write(*args)
        except Exception as error:
            retry.failed()
            if what == "TensorBoard":  # its writer does not recover
                self._renew_tensorboard()
            self.notice(f"The {what} cannot be written ({cause_of(error)}). Training goes on, and it is tried again.")
        else:
            retry.worked()
