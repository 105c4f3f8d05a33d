"""A report as a screenful of text: pure functions from numbers to lines that fit a given width and height.

The lines are put together by hand and not with Rich's tables, because a table of sixteen workers takes Rich 22 ms,
and the whole screen this way 7 ms (both on a busy machine), four times a second, on cores that belong to the workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from passel.types import Report, WorkerRow
from passel.view.format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_number,
    format_share,
    sparkline,
    stages_in,
)

STAGE_STYLES = {
    "env": "green",
    "act": "cyan",
    "sample": "magenta",
    "learn": "bright_blue",
    "wait": "red",
    "copy": "yellow",
    "other": "bright_black",
}
PHASE_STYLES = {"warm-up": "yellow", "train": "green", "evaluate": "cyan", "checkpoint": "bright_blue"}
STATE_STYLES = {"running": "green", "dead": "bold red", "failed": "bold red", "restarting": "yellow"}
#: Numbers that say nothing that another does not: entropy_loss is the negative of entropy.
NOT_SHOWN = ("entropy_loss",)
#: Facts that explain themselves, shown without their name.
BARE_FACTS = ("env", "algo", "sync", "place", "exactness")

MOST_WORKERS = 16
FIRST_WORKERS = 8
SLOWEST_WORKERS = 4
CELL = 20  # columns of the grid of numbers: four to a line of 80
NARROWEST_BAR = 8
WIDEST_TIME_BAR = 32


@dataclass
class Returns:
    """The returns of the whole run in bounded memory: when full, every second one goes, and so on for ever."""

    capacity: int = 512
    values: list[float] = field(default_factory=list)
    lowest: float = math.inf
    _stride: int = 1
    _seen: int = 0

    def append(self, value: float) -> None:
        if not math.isfinite(value):
            return
        self.lowest = min(self.lowest, value)
        if self._seen % self._stride == 0:
            self.values.append(value)
        self._seen += 1
        if len(self.values) >= self.capacity:
            self.values = self.values[::2]
            self._stride *= 2


@dataclass(frozen=True)
class Page:
    """What stays the same from one report to the next."""

    title: str
    facts: Mapping[str, str]
    width: int
    height: int
    colour: bool = True


def draw(page: Page, report: Report, returns: Returns) -> Text:
    """The whole live area; no line is wider than the page, and there are not more of them than it is high."""
    lines = [_header(page, report), _progress(page.width, report), _return(page.width, report, returns)]
    lines += _grid(_speeds(report), page.width)
    shown = {name: format_number(value) for name, value in report.scalars.items() if name not in NOT_SHOWN}
    lines += _grid(shown, page.width)
    lines.append(Text())
    lines += _workers(page, report, room=page.height - len(lines) - 2)
    return Text("\n", no_wrap=True, overflow="crop").join(lines[: max(page.height - 1, 1)])


def facts_line(facts: Mapping[str, str], separator: str) -> str:
    """The facts of a run on one line: dqn · hogwild · processes · workers 4."""
    return separator.join(value if name in BARE_FACTS else f"{name} {value}" for name, value in facts.items())


def eta(report: Report) -> float | None:
    """Seconds until the last step at the present speed."""
    left = report.total_steps - report.steps
    if left <= 0:
        return 0.0
    return left / report.steps_per_second if report.steps_per_second > 0 else None


def progress(report: Report) -> float:
    """How much of the budget of steps is used, from 0 to 1."""
    return min(report.steps / report.total_steps, 1.0) if report.total_steps > 0 else 0.0


def _header(page: Page, report: Report) -> Text:
    room = page.width - len(report.phase) - 1
    left = Text(no_wrap=True)
    left.append(page.title, style="bold")
    left.append("  ")
    left.append(facts_line(page.facts, " · "))
    left.truncate(room, overflow="ellipsis", pad=True)
    left.append(" ")
    left.append(report.phase, style=PHASE_STYLES.get(report.phase, "white"))
    return left


def _progress(width: int, report: Report) -> Text:
    numbers = (
        f" {100 * progress(report):5.1f} %  {format_count(report.steps)}/{format_count(report.total_steps)}"
        f"  {format_duration(report.seconds)}"
    )
    if report.phase != "finished":
        numbers += f"  ETA {format_duration(eta(report))}"
    # 41 columns hold all but the longest numbers, so that the bar does not breathe as they change.
    numbers = numbers.ljust(41)
    line = _bar(progress(report), width - len(numbers), "green")
    line.append(numbers)
    line.truncate(width)
    return line


def _return(width: int, report: Report, returns: Returns) -> Text:
    score = UNKNOWN if report.return_mean_100 is None else format_number(report.return_mean_100)
    if report.human_normalised is not None:
        score += f" ({format_share(report.human_normalised)} of human)"
    if report.solved_at is None:
        line, label = Text(no_wrap=True), f"return {score}  "
    else:
        line = _bar(_nearness(report.return_mean_100, report.solved_at, returns.lowest), width - 41, "cyan")
        label = f" return {score} → {format_number(report.solved_at)}  "
    line.append(label, style="bold")
    line.append(sparkline(returns.values, min(width - line.cell_len, 40)), style="cyan")
    line.truncate(width)
    return line


def _nearness(score: float | None, threshold: float, lowest: float) -> float:
    """The way from the lowest return of the run to the threshold: returns may be negative, so 0 is no start."""
    if score is None or not math.isfinite(score):
        return 0.0
    if score >= threshold:
        return 1.0
    return max((score - lowest) / (threshold - lowest), 0.0) if lowest < threshold else 0.0


def _bar(part: float, width: int, style: str) -> Text:
    width = max(width, NARROWEST_BAR)
    done = int(part * width)
    line = Text(no_wrap=True)
    line.append("━" * done, style=style)
    line.append("─" * (width - done), style="bright_black")
    return line


def _speeds(report: Report) -> dict[str, str]:
    numbers = {
        "steps/s": format_count(report.steps_per_second),
        "updates/s": format_count(report.updates_per_second),
        "episodes": format_count(report.episodes),
    }
    if report.frames != report.steps:
        numbers["frames"] = format_count(report.frames)
    if report.eval_mean is not None and report.eval_steps is not None:
        numbers["eval"] = f"{format_number(report.eval_mean)} at {format_count(report.eval_steps)}"
    if report.length_mean_100 is not None:
        numbers["length"] = format_number(report.length_mean_100)
    numbers["stale"] = f"{_versions(report.staleness)} versions"
    return numbers


def _grid(numbers: Mapping[str, str], width: int) -> list[Text]:
    """Names with their numbers in columns of equal width; a long one takes two."""
    lines: list[Text] = []
    for name, number in numbers.items():
        taken = -(-(len(name) + len(number) + 3) // CELL) * CELL
        # The last cell of a line needs no space behind it.
        if not lines or lines[-1].cell_len + len(name) + len(number) + 1 > width:
            lines.append(Text(no_wrap=True))
        lines[-1].append(f"{name} ", style="bright_black")
        lines[-1].append(
            number.ljust(taken - len(name) - 1), style="bold red" if number in ("nan", "inf", "-inf") else ""
        )
    for line in lines:
        line.truncate(width)
    return lines


@dataclass(frozen=True)
class _Columns:
    """Which columns the table of workers has, and how wide they are."""

    name: int
    state: int
    stages: tuple[str, ...]
    gap: int
    bar: int

    speed: int = 7
    staleness: int = 5

    @property
    def width(self) -> int:
        stages = sum(_stage_width(stage) + self.gap for stage in self.stages)
        bar = self.bar + self.gap if self.bar else 0
        return self.name + self.state + self.speed + self.staleness + 3 * self.gap + stages + bar


def _stage_width(stage: str) -> int:
    return max(len(stage), 4)


def _workers(page: Page, report: Report, room: int) -> list[Text]:
    rows, skipped, summary = pick_rows(report, room)
    columns = _fit(page, [*rows, summary] if summary else rows)
    lines = [_table_head(columns)]
    for index, row in enumerate(rows):
        if skipped and index == len(rows) - skipped[1]:
            lines.append(Text(f"… {skipped[0]} more, the slowest of them:", style="bright_black", no_wrap=True))
        lines.append(_table_row(columns, row))
    if summary:
        lines.append(_table_row(columns, summary, style="bold"))
    for line in lines:
        line.truncate(page.width)
    return lines


def pick_rows(report: Report, room: int) -> tuple[list[WorkerRow], tuple[int, int] | None, WorkerRow | None]:
    """The workers to show, (how many are not among the first, how many of these are shown), and the last row.

    All of them if they are few; else the first ones, the slowest of the rest, and the mean of all.
    """
    workers = list(report.workers)
    most = min(max(room - 1, 3), MOST_WORKERS)
    if len(workers) <= most:
        return workers, None, _total(report) if len(workers) != 1 else None
    slow = min(SLOWEST_WORKERS, max((most - 2) // 3, 1))
    first = min(FIRST_WORKERS, max(most - 2 - slow, 1))
    rest = workers[first:]
    slowest = sorted(rest, key=lambda row: (_only_learns(row), row.steps_per_second))[:slow]
    return workers[:first] + slowest, (len(rest), len(slowest)), _mean(workers)


def _only_learns(row: WorkerRow) -> bool:
    """A learner takes no steps, and is not slow for that."""
    return row.steps == 0 and row.updates > 0


def _total(report: Report) -> WorkerRow:
    return WorkerRow("all", "", report.steps, report.updates, report.steps_per_second, report.shares, report.staleness)


def _mean(workers: Sequence[WorkerRow]) -> WorkerRow:
    rows = [row for row in workers if not _only_learns(row)] or list(workers)
    count = len(rows)
    shares = {
        stage: sum(row.shares.get(stage, 0.0) for row in rows) / count
        for stage in stages_in([row.shares for row in rows])
    }
    return WorkerRow(
        name="mean",
        state=f"of {count}",
        steps=sum(row.steps for row in rows) // count,
        updates=sum(row.updates for row in rows) // count,
        steps_per_second=sum(row.steps_per_second for row in rows) / count,
        shares=shares,
        staleness=sum(row.staleness for row in rows) / count,
    )


def _fit(page: Page, rows: Sequence[WorkerRow]) -> _Columns:
    """The widest table that fits: first the space between columns goes, then the smallest stages into `other`."""
    name = min(max([6, *(len(row.name) for row in rows)]), 16)
    state = min(max([5, *(len(row.state) for row in rows)]), 10)
    stages = stages_in([row.shares for row in rows])
    weight = {stage: sum(row.shares.get(stage, 0.0) for row in rows) for stage in stages}
    for gap in (2, 1):
        columns = _Columns(name, state, tuple(stages), gap, bar=0)
        if columns.width <= page.width:
            break
    while columns.width > page.width and len(columns.stages) > 1:
        named = [stage for stage in columns.stages if stage != "other"]
        kept = set(named) - {min(named, key=lambda stage: weight[stage])}
        columns = _Columns(name, state, (*(s for s in columns.stages if s in kept), "other"), 1, bar=0)
    left = page.width - columns.width - columns.gap
    bar = min(left, WIDEST_TIME_BAR) if page.colour and left >= NARROWEST_BAR else 0
    return _Columns(name, state, columns.stages, columns.gap, bar)


def _table_head(columns: _Columns) -> Text:
    gap = " " * columns.gap
    line = Text(no_wrap=True)
    line.append(f"{'worker':<{columns.name}}{gap}{'state':<{columns.state}}{gap}{'steps/s':>{columns.speed}}")
    for stage in columns.stages:
        line.append(f"{gap}{stage:>{_stage_width(stage)}}", style=STAGE_STYLES.get(stage, "white"))
    line.append(f"{gap}{'stale':>{columns.staleness}}")
    if columns.bar:
        line.append(f"{gap}time", style="bright_black")
    line.stylize("underline", 0, len(line))
    return line


def _table_row(columns: _Columns, row: WorkerRow, style: str = "") -> Text:
    gap = " " * columns.gap
    shares = _merged(row.shares, columns.stages)
    largest = max(shares.values(), default=0.0)
    line = Text(no_wrap=True, style=style)
    line.append(f"{_cut(row.name, columns.name)}{gap}")
    line.append(f"{_cut(row.state, columns.state)}{gap}", style=STATE_STYLES.get(row.state, "bright_black"))
    line.append(f"{format_count(row.steps_per_second):>{columns.speed}}")
    for stage, share in shares.items():
        colour = STAGE_STYLES.get(stage, "white")
        line.append(
            f"{gap}{format_share(share):>{_stage_width(stage)}}", style=f"bold {colour}" if share == largest else colour
        )
    line.append(f"{gap}{_versions(row.staleness):>{columns.staleness}}")
    if columns.bar:
        line.append(gap)
        line.append_text(_time_bar(shares, columns.bar))
    return line


def _merged(shares: Mapping[str, float], stages: Sequence[str]) -> dict[str, float]:
    """The shares of these stages; `other` takes those that have no column."""
    merged = {stage: shares.get(stage, 0.0) for stage in stages}
    if "other" in merged:
        merged["other"] += sum(share for stage, share in shares.items() if stage not in merged)
    return merged


def _time_bar(shares: Mapping[str, float], width: int) -> Text:
    """One strip of colour whose parts are the shares. Ends are rounded, not lengths: so the strip is exactly full."""
    strip, end, total = Text(no_wrap=True), 0, 0.0
    for stage, share in shares.items():
        total += share if math.isfinite(share) else 0.0
        start, end = end, min(round(total * width), width)
        strip.append("█" * (end - start), style=STAGE_STYLES.get(stage, "white"))
    strip.append(" " * (width - end))
    return strip


def _versions(staleness: float) -> str:
    return f"{staleness:.1f}" if abs(staleness) < 99.95 else format_count(staleness)


def _cut(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"
