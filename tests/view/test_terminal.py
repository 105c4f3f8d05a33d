"""The views, on consoles of several widths; the text is what a person sees, after the control codes did their work."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from passel.types import Report, WorkerRow
from passel.view.screen import Page, Returns, draw, eta, pick_rows
from passel.view.tensorboard import scalars_of
from passel.view.terminal import LiveView, PlainView, QuietView, View, make_view, plain_line

MakeReport = Callable[..., Report]
MakeWorker = Callable[..., WorkerRow]
FACTS = {"algo": "dqn", "sync": "hogwild", "place": "processes", "workers": "4"}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def console_of(width: int, height: int = 30) -> Console:
    return Console(
        file=io.StringIO(), record=True, width=width, height=height, force_terminal=True, color_system="truecolor"
    )


def shown(width: int, report: Report, height: int = 30) -> list[str]:
    """The live area as the console prints it, one report long."""
    console = console_of(width, height)
    view = LiveView(console)
    view.start("CartPole-v1", FACTS)
    console.export_text(clear=True)
    view.report(report)
    text = console.export_text(clear=True)
    view.stop()
    return text.rstrip("\n").split("\n")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("workers", [0, 1, 4, 16, 17, 200])
def test_no_line_is_wider_than_the_terminal(
    width: int, workers: int, make_report: MakeReport, make_worker: MakeWorker
) -> None:
    report = make_report(
        workers=tuple(make_worker(i) for i in range(workers)),
        scalars={"a_very_long_name_of_a_scalar_that_nobody_cut": 123.456, "loss": math.nan, "entropy": 1e-9},
    )
    lines = shown(width, report)
    assert max(len(line) for line in lines) <= width
    assert len(lines) < 30


@pytest.mark.parametrize("width", [80, 120])
def test_all_numbers_of_a_report_are_on_the_screen(width: int, make_report: MakeReport) -> None:
    text = "\n".join(shown(width, make_report(frames=1_244_000, length_mean_100=187.5)))
    for wanted in (
        "CartPole-v1",
        "dqn · hogwild · processes · workers 4",
        "train",
        "62.2 %",
        "311k/500k",
        "1m 12s",
        "ETA 15s",
        "return 143.2 → 200",
        "steps/s 12.3k",
        "updates/s 3.1k",
        "episodes 1.2k",
        "frames 1.2M",
        "length 187.5",
        "stale 1.4 versions",
        "loss 0.0123",
        "epsilon 0.05",
        "q_mean 34.2",
        "worker-3",
        "running",
        "42%",
    ):
        assert wanted in text, wanted
    for stage in ("env", "act", "sample", "learn", "wait", "copy", "other"):
        assert f" {stage}" in text


def test_frames_are_not_shown_where_they_are_the_steps(make_report: MakeReport) -> None:
    assert "frames" not in "\n".join(shown(80, make_report()))


def test_a_game_s_score_stands_beside_a_human_s_and_frames_beside_steps(make_report: MakeReport) -> None:
    report = make_report(return_mean_100=16.1, human_normalised=0.5, frames=1_244_000, solved_at=None)
    screen = draw(Page("t", FACTS, 100, 30), report, Returns()).plain
    assert "return 16.1 (50% of human)" in screen
    assert "frames 1.2M" in screen
    line = plain_line(report)
    assert "311k/500k steps, 1.2M frames" in line
    assert "return 16.1 (50% of human)" in line
    flat = scalars_of(report)
    assert (flat["run/human_normalised"], flat["run/frames"]) == (0.5, 1_244_000.0)


def test_without_threshold_or_return_the_screen_says_so(make_report: MakeReport) -> None:
    text = "\n".join(shown(80, make_report(solved_at=None, return_mean_100=None)))
    assert "return -" in text
    assert "→" not in text
    assert "return - → 200" in "\n".join(shown(80, make_report(return_mean_100=None)))


@pytest.mark.parametrize("phase", ["warm-up", "train", "evaluate", "checkpoint"])
def test_the_phase_stands_at_the_right_end_of_the_header(phase: str, make_report: MakeReport) -> None:
    header = shown(80, make_report(phase=phase))[0]
    assert header.endswith(f" {phase}")
    assert len(header) == 80


def test_many_workers_become_the_first_the_slowest_and_the_mean(
    make_report: MakeReport, make_worker: MakeWorker
) -> None:
    speeds = [100.0 + i for i in range(40)]
    speeds[30:34] = [4.0, 3.0, 2.0, 1.0]
    rows = [make_worker(i, steps_per_second=speed) for i, speed in enumerate(speeds)]
    rows[39] = make_worker(39, name="learner", steps=0, updates=9, steps_per_second=0.0)
    picked, skipped, mean = pick_rows(make_report(workers=tuple(rows)), room=20)
    assert [row.name for row in picked[:8]] == [f"worker-{i}" for i in range(8)]
    assert [row.name for row in picked[8:]] == ["worker-33", "worker-32", "worker-31", "worker-30"]
    assert skipped == (32, 4)
    assert mean is not None
    assert mean.steps_per_second == pytest.approx(sum(speeds[:39]) / 39), "a learner takes no steps, and is not slow"
    text = "\n".join(shown(80, make_report(workers=tuple(rows))))
    assert "… 32 more, the slowest of them:" in text
    assert "of 39" in text


@pytest.mark.parametrize("height", [12, 16, 24, 50])
@pytest.mark.parametrize("workers", [4, 16, 64])
def test_the_screen_fits_a_low_terminal(
    height: int, workers: int, make_report: MakeReport, make_worker: MakeWorker
) -> None:
    report = make_report(workers=tuple(make_worker(i) for i in range(workers)))
    lines = draw(Page("t", FACTS, 80, height), report, Returns()).plain.split("\n")
    assert len(lines) < height
    assert lines[-1].startswith(("all", "mean")), "the last row is the summary, and it is not cut off"


def test_on_a_narrow_terminal_the_smallest_stages_go_into_other(make_report: MakeReport) -> None:
    lines = shown(60, make_report())
    head = next(line for line in lines if line.startswith("worker "))
    row = next(line for line in lines if line.startswith("worker-0"))
    stages = [word for word in head.split() if word not in ("worker", "state", "steps/s", "stale")]
    shares = [int(word.rstrip("%")) for word in row.split() if word.endswith("%")]
    assert {"env", "learn", "other"} <= set(stages)
    assert "copy" not in stages
    assert len(shares) == len(stages)
    assert sum(shares) == pytest.approx(100, abs=2), "what has no column is not lost"


def test_the_strip_of_time_is_as_long_as_the_shares_add_up_to(make_report: MakeReport) -> None:
    rows = [line for line in shown(120, make_report()) if line.startswith("worker-")]
    assert len({line.count("█") for line in rows}) == 1
    assert 20 <= rows[0].count("█") <= 32
    plain = draw(Page("t", {}, 120, 30, colour=False), make_report(), Returns()).plain
    assert "█" not in plain, "without colours a strip says nothing"


def test_the_return_bar_starts_at_the_lowest_return_because_scores_may_be_negative(make_report: MakeReport) -> None:
    returns = Returns()
    returns.append(-200.0)
    page = Page("t", {}, 80, 30)
    for score, part in ((-200.0, 0.0), (-155.0, 0.5), (-110.0, 1.0), (-90.0, 1.0)):
        line = draw(page, make_report(return_mean_100=score, solved_at=-110.0), returns).plain.split("\n")[2]
        filled, empty = line.count("━"), line.count("─")
        assert filled / (filled + empty) == pytest.approx(part, abs=0.03)


def test_eta_is_what_is_left_at_the_present_speed(make_report: MakeReport) -> None:
    assert eta(make_report(steps=400_000, steps_per_second=1000.0)) == pytest.approx(100.0)
    assert eta(make_report(steps=500_001)) == 0.0
    assert eta(make_report(steps_per_second=0.0)) is None


def test_the_history_of_returns_is_bounded_and_covers_the_whole_run() -> None:
    returns = Returns(capacity=64)
    for i in range(10_000):
        returns.append(float(i))
    assert 32 <= len(returns.values) <= 64
    assert returns.values[0] == 0.0
    assert returns.values[-1] > 9_500
    gaps = {b - a for a, b in zip(returns.values, returns.values[1:], strict=False)}
    assert len(gaps) == 1, "evenly spaced"


def test_live_draws_at_most_four_times_a_second_and_at_once_when_the_phase_changes(make_report: MakeReport) -> None:
    clock, console = Clock(), console_of(80)
    view = LiveView(console, clock=clock)
    view.start("t", FACTS)
    drawn = 0
    for tick in range(200):  # two seconds of a report every 10 ms
        clock.now = tick * 0.01
        console.export_text(clear=True)
        view.report(make_report(steps=tick))
        drawn += bool(console.export_text(clear=True))
    assert 7 <= drawn <= 8
    view.report(make_report(phase="evaluate"))
    assert "evaluate" in console.export_text(clear=True)
    view.report(make_report(phase="evaluate", episodes=777))
    assert "777" not in console.export_text(clear=True)
    view.stop()
    assert "777" in console.export_text(clear=True), "the last report is never lost"
    view.stop()


def test_live_messages_stay_above_the_screen_and_are_not_markup(make_report: MakeReport) -> None:
    console = console_of(80)
    view = LiveView(console)
    view.start("t", FACTS)
    view.report(make_report())
    console.export_text(clear=True)
    view.message("worker-2 died [red]and was restarted[/red]")
    text = console.export_text(clear=True)
    view.stop()
    assert text.index("[red]and was restarted[/red]") < text.index("return 143.2")


def test_a_frame_costs_little(make_report: MakeReport, make_worker: MakeWorker) -> None:
    view = LiveView(console_of(120), seconds=0.0)
    report = make_report(workers=tuple(make_worker(i) for i in range(16)))
    view.start("t", FACTS)
    view.report(report)
    costs = []
    for _ in range(20):
        start = time.process_time()
        view.report(report)
        costs.append(time.process_time() - start)
    view.stop()
    # The cheapest frame is the frame; a crowded machine makes any of the others dearer. Four a second of 25 ms each
    # would be a tenth of a core; usually it is 2 %.
    assert min(costs) < 0.025


def test_plain_prints_first_and_last_and_at_most_one_line_in_five_seconds(make_report: MakeReport) -> None:
    clock, stream = Clock(), io.StringIO()
    view = PlainView(stream, clock=clock)
    view.start("CartPole-v1", FACTS)
    times = []
    for tick in range(231):  # 23 seconds of ten reports a second
        clock.now = tick * 0.1
        before = stream.tell()
        view.report(make_report(steps=1000 * tick, seconds=clock.now))
        if stream.tell() > before:
            times.append(clock.now)
    assert times == pytest.approx([0, 5, 10, 15, 20], abs=0.11)
    view.stop()
    view.stop()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "CartPole-v1: dqn, hogwild, processes, workers 4"
    assert len(lines) == 1 + 5 + 1
    assert "230k/500k" in lines[-1]


def test_plain_says_it_all_in_printable_ascii(make_report: MakeReport) -> None:
    stream = io.StringIO()
    view = PlainView(stream)
    view.report(make_report(phase="evaluate"))
    assert stream.getvalue() == (
        " 62.2% | 311k/500k steps | 1m 12s, ETA 15s | return 143.2 of 200 | 12.3k steps/s | 3.1k updates/s"
        " | env 42% act 10% sample 8% learn 30% wait 5% copy 2% other 3% | evaluate\n"
    )
    assert all(char == "\n" or 32 <= ord(char) < 127 for char in stream.getvalue())


def test_plain_survives_a_name_that_the_log_cannot_hold() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    PlainView(stream).message("λ-run started")
    assert raw.getvalue().decode("ascii").splitlines() == ["?-run started"]


def test_the_view_suits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert isinstance(make_view(Terminal()), LiveView)
    assert isinstance(make_view(io.StringIO()), PlainView)
    assert isinstance(make_view(Terminal(), quiet=True), QuietView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_view(Terminal()), PlainView)


def test_quiet_prints_nothing(make_report: MakeReport, capsys: pytest.CaptureFixture[str]) -> None:
    view: View = make_view(quiet=True)
    view.start("t", FACTS)
    view.report(make_report())
    view.message("hello")
    view.stop()
    assert capsys.readouterr() == ("", "")


def test_the_last_frame_has_no_time_left(make_report: MakeReport) -> None:
    """A run that is solved early has not used its budget, and yet nothing is to come."""
    report = make_report(phase="finished")
    assert "ETA" not in plain_line(report)
    assert "ETA" not in draw(Page("t", FACTS, 100, 30), report, Returns()).plain
    assert "ETA" in plain_line(make_report(phase="train"))
