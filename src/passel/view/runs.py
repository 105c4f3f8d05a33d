"""Runs, a line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from passel.types import printable
from passel.view.format import UNKNOWN, format_count, format_number

NAMES = ("run", "env", "algo", "sync", "status")


def print_runs(runs: Iterable[Mapping[str, Any]], console: Console | None = None) -> None:
    """A table of what each run is, how far it came and what it reached. The texts are a folder's, and only shown."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name in (*NAMES, "steps", "return"):
        table.add_column(name, overflow="fold")
    for facts in runs:
        ended = facts["status"] not in ("not ended", "damaged")
        steps, reached = facts.get("steps"), facts.get("return_mean_100")
        cells = [printable(facts.get(name, UNKNOWN)) for name in NAMES]
        cells.append(format_count(steps) if ended and isinstance(steps, int) else UNKNOWN)
        cells.append(format_number(reached) if isinstance(reached, int | float) else UNKNOWN)
        table.add_row(*map(Text, cells))
    (console or Console()).print(table)
