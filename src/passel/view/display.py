"""What stands between a run and its view, so that neither a slow terminal nor an error of a view reaches the run."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from passel.types import Report
from passel.view.terminal import View, own_stream

PATIENCE = 2.0  # seconds that the end of a run waits for a terminal
MOST_MESSAGES = 1000  # that wait for a terminal; the oldest go first


class GuardedView:
    """A view whose errors are kept in `failures`, a sentence each, and end nothing.

    Of each call the first error of a kind is kept. The next may differ in an address or a time: a view that fails again
    with every frame, or with the notice of its failure, would have no end of sentences.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.failures: list[str] = []
        self._failed: set[tuple[str, type[Exception]]] = set()

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        self._call("start", title, facts)

    def report(self, report: Report) -> None:
        self._call("report", report)

    def message(self, text: str) -> None:
        self._call("message", text)

    def stop(self) -> None:
        self._call("stop")

    def _call(self, name: str, *args: Any) -> None:
        try:
            getattr(self.view, name)(*args)
        except Exception as error:
            if (name, type(error)) not in self._failed:
                self._failed.add((name, type(error)))
                self.failures.append(f"The view failed in {name} ({type(error).__name__}: {error}). Training goes on.")


class Display(GuardedView):
    """Draws a view from a thread of its own. No call waits for the terminal: of the reports only the newest is kept for
    it, of the messages the last thousand. `stop` waits two seconds for what is left, and then leaves it undrawn.
    """

    def __init__(self, view: View, patience: float = PATIENCE) -> None:
        super().__init__(view)
        self._patience = patience
        self._changed = threading.Condition()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque(maxlen=MOST_MESSAGES)
        self._newest: Report | None = None
        self._thread: threading.Thread | None = None
        self._streams = sys.stdout, sys.stderr
        self._stopped = False

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        self._streams = sys.stdout, sys.stderr  # a live screen puts its own in their place
        self._soon(super().start, title, dict(facts))

    def report(self, report: Report) -> None:
        with self._changed:
            self._newest = report
            self._wake()

    def message(self, text: str) -> None:
        self._soon(super().message, text)

    def stop(self) -> None:
        with self._changed:
            thread = self._thread
            if self._stopped or thread is None:
                return
            self._stopped = True
            self._changed.notify()
        thread.join(self._patience)
        if thread.is_alive():
            sys.stdout, sys.stderr = self._streams

    def _soon(self, method: Callable[..., None], *args: Any) -> None:
        with self._changed:
            self._calls.append((method, args))
            self._wake()

    def _wake(self) -> None:
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._draw, name="passel display", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _draw(self) -> None:
        """Runs in: the display's thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._calls) or self._newest is not None or self._stopped)
                calls, report, last = list(self._calls), self._newest, self._stopped
                self._calls.clear()
                self._newest = None
            for method, args in calls:
                method(*args)
            if report is not None:
                super().report(report)
            if last:
                super().stop()
                return


def guarded(view: View) -> GuardedView:
    """The view behind a guard, if it is not behind one yet."""
    return view if isinstance(view, GuardedView) else GuardedView(view)


def write_within(text: str, stream: TextIO, patience: float = PATIENCE) -> bool:
    """Write the text, but wait no longer than this for the terminal; whether all of it was written."""
    failures: list[BaseException] = []
    own = own_stream(stream)

    def write() -> None:
        try:
            own.write(text)
            own.flush()
            if own is not stream:
                own.close()
        except (OSError, ValueError) as error:
            failures.append(error)

    thread = threading.Thread(target=write, name="passel closing", daemon=True)
    thread.start()
    thread.join(patience)
    return not thread.is_alive() and not failures
