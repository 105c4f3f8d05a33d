"""A table of levels: how well one policy plays each, and how much of that it owes to having trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from passel.types import printable
from passel.view.format import UNKNOWN, format_number

#: Levels of a part that are shown one by one; of more, the best and the worst.
SHOWN = 60
ENDS = 10
TITLES = {"train": "trained on", "held_out": "held out"}


def print_levels(found: Mapping[str, Any], console: Console) -> None:
    """The table, and under it the means and the gap."""
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bright_black")
    for title in ("level", "", "mean", "std", "min", "max", "episodes"):
        table.add_column(title, justify="left" if title in ("level", "") else "right", no_wrap=True)
    for part, title in TITLES.items():
        for row in _shown(found[part]["levels"]):
            if row is None:
                table.add_row("...", title)
                continue
            numbers = [format_number(float(row[name])) for name in ("mean", "std", "min", "max")]
            table.add_row(Text(printable(row["name"])), title, *numbers, str(row["episodes"]))
    console.print()
    console.print(table, highlight=False)
    console.print(Text(verdict(found)), soft_wrap=True)


def verdict(found: Mapping[str, Any]) -> str:
    """Both means and their difference, in one line."""
    train, held_out = found["train"], found["held_out"]
    words = f"actions {printable(found['actions'])}; mean of {len(train['levels'])} levels trained on: "
    words += _number(train["mean"])
    if found["gap"] is None:
        return f"{words}; none is held out"
    return (
        f"{words}; of {len(held_out['levels'])} held out: {_number(held_out['mean'])}; "
        f"generalisation gap: {_number(found['gap'])}"
    )


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else format_number(value)


def print_transfer(found: Mapping[str, Any], console: Console) -> None:
    """Both ways to a level side by side, and what the joint policy scores there before it has seen it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bright_black")
    for title in ("", "seed", "whole run", "last 100", "greedy in the end"):
        table.add_column(title, justify="left" if title == "" else "right", no_wrap=True)
    for way, runs in found["ways"].items():
        for run in runs:
            numbers = [UNKNOWN if run[name] is None else format_number(run[name]) for name in ("curve", "last", "eval")]
            table.add_row(way, str(run["seed"]), *numbers)
    console.print()
    title = f"{printable(found['set'])}, level {printable(found['level'])}, {found['steps']:,} steps each"
    console.print(Text(title), soft_wrap=True)
    console.print(table, highlight=False)
    before = (
        f"{format_number(zero['mean'])} ({zero['episodes']} episodes, actions {how})"
        for how, zero in found["zero_shot"].items()
    )
    console.print(f"the joint policy on this level, before: {', '.join(before)}", highlight=False, soft_wrap=True)


def _shown(levels: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
    """All levels if they are few; else the best and the worst, with a gap between."""
    if len(levels) <= SHOWN:
        return list(levels)
    ranked = sorted(levels, key=lambda row: -float(row["mean"]))
    return [*ranked[:ENDS], None, *ranked[-ENDS:]]
