"""A terminal that does not drain, and a view that raises, hold up nothing."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from passel.types import Report
from passel.view.display import MOST_MESSAGES, Display, GuardedView, guarded, write_within
from passel.view.terminal import PlainView, QuietView

MakeReport = Callable[..., Report]


class Stuck(io.StringIO):
    """A stream that takes nothing until `flowing` is set: a terminal after Ctrl-S, a pipe into a pager."""

    def __init__(self) -> None:
        super().__init__()
        self.flowing = threading.Event()
        self.reached = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.flowing.wait(30)
        return super().write(text)


class Recorder(QuietView):
    def __init__(self) -> None:
        self.heard: list[object] = []

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        self.heard.append(title)

    def report(self, report: Report) -> None:
        self.heard.append(report.steps)

    def message(self, text: str) -> None:
        self.heard.append(text)

    def stop(self) -> None:
        self.heard.append("stop")


def test_a_stream_that_does_not_drain_holds_nobody_up(make_report: MakeReport) -> None:
    """Of a thousand reports it then shows the newest; messages are all there."""
    stream = Stuck()
    display = Display(PlainView(stream, seconds=0.0), patience=0.05)
    display.start("CartPole-v1", {})
    assert stream.reached.wait(30), "the thread is stuck now"
    began = time.monotonic()
    for steps in range(1000):
        display.report(make_report(steps=1000 * steps))
    display.message("one")
    display.message("two")
    display.stop()
    assert time.monotonic() - began < 10, "a call waited for the terminal"
    stream.flowing.set()
    assert display._thread is not None
    display._thread.join(30)
    lines = stream.getvalue().splitlines()
    assert lines[:3] == ["CartPole-v1", "one", "two"]
    assert len(lines) == 4
    assert "999k/500k" in lines[3]


def test_messages_that_wait_are_bounded() -> None:
    stream = Stuck()
    display = Display(PlainView(stream), patience=0.0)
    display.message("first")
    assert stream.reached.wait(30)
    for number in range(3 * MOST_MESSAGES):
        display.message(str(number))
    stream.flowing.set()
    display.stop()
    assert display._thread is not None
    display._thread.join(30)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "first"
    assert lines[-1] == str(3 * MOST_MESSAGES - 1)
    assert len(lines) == MOST_MESSAGES + 1


def test_everything_arrives_in_order_at_a_terminal_that_drains(make_report: MakeReport) -> None:
    recorder = Recorder()
    display = Display(recorder, patience=30.0)
    display.start("title", {})
    display.message("hello")
    display.report(make_report(steps=7))
    display.stop()
    display.stop()
    assert recorder.heard == ["title", "hello", 7, "stop"]


def test_streams_come_back_from_a_live_screen_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, mine, entered = Stuck(), io.StringIO(), threading.Event()
    monkeypatch.setattr(sys, "stdout", mine)

    class Redirecting(PlainView):
        def start(self, title: str, facts: Mapping[str, str]) -> None:
            sys.stdout = stream
            entered.set()
            super().start(title, facts)

    display = Display(Redirecting(stream), patience=0.05)
    display.start("t", {})
    assert entered.wait(30)
    assert stream.reached.wait(30)
    display.stop()
    assert sys.stdout is mine
    stream.flowing.set()


def test_a_view_that_raises_is_a_sentence(make_report: MakeReport) -> None:
    class Raising(QuietView):
        def report(self, report: Report) -> None:
            raise ConnectionError("the server of curves is away")

    view = GuardedView(Raising())
    view.report(make_report())
    view.report(make_report())
    assert view.failures == [
        "The view failed in report (ConnectionError: the server of curves is away). Training goes on."
    ]
    assert guarded(view) is view


def test_a_view_that_raises_another_text_each_time_is_one_sentence_for_each_call(make_report: MakeReport) -> None:
    class Raising(QuietView):
        calls = 0

        def report(self, report: Report) -> None:
            self.calls += 1
            raise ConnectionError(f"connection {self.calls} failed")

        message = report  # type: ignore[assignment]

    view = GuardedView(Raising())
    for _ in range(3):
        view.report(make_report())
        view.message("hello")
    assert [text.partition("(")[0] for text in view.failures] == [
        "The view failed in report ",
        "The view failed in message ",
    ]


def test_the_closing_text_waits_only_so_long() -> None:
    stream = Stuck()
    assert not write_within("the end", stream, patience=0.05)
    stream.flowing.set()
    drained = io.StringIO()
    assert write_within("the end", drained, patience=30.0)
    assert drained.getvalue() == "the end"


def test_a_run_on_a_terminal_that_is_never_read_ends(tmp_path: Path) -> None:
    """After some frames the terminal takes no more. All is trained, counted, saved and evaluated all the same."""
    flags = ["--env", "passel.testing.envs:passel/Identity-v0", "--place", "inline", "--workers", "1", "--sync", "solo"]
    flags += ["--envs", "2", "--hidden", "8", "--batch", "8", "--warmup", "40", "--capacity", "400"]
    flags += ["--steps", "3000", "--no-until-solved", "--eval-episodes", "2", "--no-tensorboard", "--out", "run"]
    reading, terminal = pty.openpty()
    try:
        while select.select([], [terminal], [], 0)[1]:  # until it is as full as after Ctrl-S
            os.set_blocking(terminal, False)
            with suppress(BlockingIOError):
                os.write(terminal, b"." * 256)
        os.set_blocking(terminal, True)
        done = subprocess.run(
            [sys.executable, "-m", "passel", "train", *flags],
            cwd=tmp_path,
            env={**os.environ, "TERM": "xterm-256color"},
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    finally:
        os.close(terminal)
        os.close(reading)
    assert (done.returncode, done.stderr) == (0, b"")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["steps"] >= 3000
    assert summary["episodes"] >= 3000 // 8 - 2
    assert summary["eval"] is not None
