"""The terminal while a run goes on: a live screen for a person, a line now and then for a log, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from passel.types import Report, printable
from passel.view.format import UNKNOWN, format_count, format_duration, format_number, format_share, stages_in
from passel.view.screen import Page, Returns, draw, eta, facts_line, progress

Clock = Callable[[], float]

#: Characters of one line of a message.
LONGEST_LINE = 2000


class View(Protocol):
    """What the run tells its spectator: `start`, then any number of reports and messages, then `stop`."""

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        """Begin, with what the run is: its environment, and algo, sync, place, workers by name."""

    def report(self, report: Report) -> None:
        """The state of the run now. May be called as often as is convenient: the view limits its own rate."""

    def message(self, text: str) -> None:
        """Something that happened, in a sentence; it stays to be read."""

    def stop(self) -> None:
        """Show the last report and give the terminal back. Twice does no harm."""


class QuietView:
    """Prints nothing."""

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        pass

    def report(self, report: Report) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def stop(self) -> None:
        pass


class PlainView:
    """One line at most every `seconds`, and the first and the last, in plain ASCII: for logs, pipes and CI."""

    def __init__(self, stream: TextIO, seconds: float = 5.0, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._seconds = seconds
        self._clock = clock
        self._printed_at: float | None = None
        self._unprinted: Report | None = None

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        self.message(f"{title}: {facts_line(facts, ', ')}" if facts else title)

    def report(self, report: Report) -> None:
        self._unprinted = report
        if self._printed_at is None or self._clock() - self._printed_at >= self._seconds:
            self._print_report()

    def message(self, text: str) -> None:
        # A log may have any encoding: a name that it cannot hold must not end the run.
        encoding, text = getattr(self._stream, "encoding", None) or "utf-8", harmless(text)
        self._stream.write(text.encode(encoding, errors="replace").decode(encoding) + "\n")
        self._stream.flush()

    def stop(self) -> None:
        if self._unprinted is not None:
            self._print_report()

    def _print_report(self) -> None:
        if self._unprinted is not None:
            self.message(plain_line(self._unprinted))
        self._unprinted = None
        self._printed_at = self._clock()


def harmless(text: str) -> str:
    """Text that may quote a file or a server, without commands to the terminal."""
    return "\n".join(printable(line, LONGEST_LINE) for line in text.split("\n"))


def plain_line(report: Report) -> str:
    """A report on one line of ASCII."""
    score = UNKNOWN if report.return_mean_100 is None else format_number(report.return_mean_100)
    human = "" if report.human_normalised is None else f" ({format_share(report.human_normalised)} of human)"
    frames = "" if report.frames == report.steps else f", {format_count(report.frames)} frames"
    goal = "" if report.solved_at is None else f" of {format_number(report.solved_at)}"
    shares = [f"{stage} {format_share(report.shares[stage])}" for stage in stages_in([report.shares])]
    left = "" if report.phase == "finished" else f", ETA {format_duration(eta(report))}"
    parts = [
        f"{100 * progress(report):5.1f}%",
        f"{format_count(report.steps)}/{format_count(report.total_steps)} steps{frames}",
        format_duration(report.seconds) + left,
        f"return {score}{goal}{human}",
        f"{format_count(report.steps_per_second)} steps/s",
        f"{format_count(report.updates_per_second)} updates/s",
        " ".join(shares),
        "" if report.phase == "train" else report.phase,
    ]
    return " | ".join(part for part in parts if part)


@dataclass(frozen=True)
class _Shown:
    at: float
    phase: str


class LiveView:
    """A screen that renews itself in place, in `report` and nowhere else: it has no thread and no timer of its own.

    A report that comes too soon after the last is kept and not drawn, unless the phase changed: an evaluation may take
    long, and the screen must not say "train" all the while.
    """

    def __init__(self, console: Console | None = None, seconds: float = 0.25, clock: Clock = time.monotonic) -> None:
        self._console = console or Console(highlight=False)
        self._seconds = seconds
        self._clock = clock
        self._title = ""
        self._facts: Mapping[str, str] = {}
        self._returns = Returns()
        self._live: Live | None = None
        self._shown: _Shown | None = None
        self._undrawn: Report | None = None

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        self._title, self._facts = harmless(title), dict(facts)
        waiting = Text(f"{self._title}  {facts_line(facts, ' · ')}", no_wrap=True, overflow="ellipsis")
        self._live = Live(waiting, console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start(refresh=True)

    def report(self, report: Report) -> None:
        if report.return_mean_100 is not None:
            self._returns.append(report.return_mean_100)
        self._undrawn = report
        shown = self._shown
        if shown is None or shown.phase != report.phase or self._clock() - shown.at >= self._seconds:
            self._draw()

    def message(self, text: str) -> None:
        self._console.print(harmless(text), markup=False, highlight=False)

    def stop(self) -> None:
        self._draw()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        report, self._undrawn = self._undrawn, None
        if report is None or self._live is None:
            return
        size = self._console.size
        colour = self._console.color_system is not None and not self._console.no_color
        page = Page(self._title, self._facts, size.width, size.height, colour)
        self._live.update(draw(page, report, self._returns), refresh=True)
        self._shown = _Shown(self._clock(), report.phase)


def make_view(stream: TextIO | None = None, quiet: bool = False) -> View:
    """The view that suits the stream (standard output unless told): live on a terminal, plain elsewhere."""
    if quiet:
        return QuietView()
    stream = own_stream(stream or sys.stdout)
    console = Console(file=stream, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf"):
        return LiveView(console)
    return PlainView(stream)


def own_stream(stream: TextIO) -> TextIO:
    """Standard output by a descriptor of its own: a thread that is stuck there must not hold Python's lock on it.

    Any other stream is returned as it is: a notebook's has a descriptor that leads elsewhere.
    """
    if stream is sys.__stdout__:
        with suppress(OSError, ValueError):
            return os.fdopen(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors=stream.errors)
    return stream
