"""What there is to choose from, and what goes with what."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from passel.algos import ALGORITHMS
from passel.envs.level_sets import SUMMARIES
from passel.place.refusals import PLACEMENTS, why_not
from passel.recipes.named import RECIPES
from passel.recipes.presets import ATARI, PRESETS
from passel.sync import SCHEMES

AUTO_SUMMARY = "ppo where actions are vectors, where observations are images and on sets of levels; dqn elsewhere"


def print_catalogue(console: Console | None = None) -> None:
    """Algorithms, schemes, placements, presets, and which cells of their product run, or why not."""
    console = console or Console()
    for title, rows in (
        ("algorithms (--algo)", {name: algo.summary for name, algo in ALGORITHMS.items()} | {"auto": AUTO_SUMMARY}),
        ("schemes (--sync)", {name: scheme.summary for name, scheme in SCHEMES.items()}),
        ("placements (--place)", PLACEMENTS),
        ("sets of levels (--env levels:...)", SUMMARIES),
        ("presets", presets()),
        ("recipes (--recipe)", recipes()),
    ):
        console.print(f"[bold]{title}[/bold]")
        grid = Table.grid(padding=(0, 2))
        for name, summary in rows.items():
            grid.add_row(f"  {name:<14}", summary)
        console.print(grid, highlight=False)
        console.print()
    apart = " and ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.apart)
    console.print("[bold]what goes with what[/bold] (every algorithm; dqn, apex and dyna where actions are discrete)")
    console.print(f"Of {apart} read learners for workers: the others only act.", highlight=False)
    dreamt = ", ".join(sync for sync in SCHEMES if why_not(sync, "processes", 2, algo="dyna") is None)
    console.print(f"Several workers of dyna share by {dreamt} only.", highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("")
    for place in PLACEMENTS:
        table.add_column(f"{place}, 1 worker")
        table.add_column(f"{place}, more")
    reasons: dict[str, int] = {}
    for sync in SCHEMES:
        cells = []
        for place in PLACEMENTS:
            for workers in (1, 2):
                reason = why_not(sync, place, workers)
                cells.append("runs" if reason is None else f"no ({reasons.setdefault(reason, len(reasons) + 1)})")
        table.add_row(f"  {sync}", *cells)
    console.print(table)
    for reason, number in reasons.items():
        console.print(f"  ({number}) {reason}", highlight=False)


def presets() -> dict[str, str]:
    """The environments that have tuned settings, and the algorithms that they are for."""
    algorithms: dict[str, list[str]] = {}
    for algo, env in PRESETS:
        algorithms.setdefault(env, []).append(algo)
    known = {env: f"tuned settings for --algo {', '.join(names)}" for env, names in algorithms.items()}
    return known | {"ALE/...": f"settings for every Atari game for --algo {', '.join(ATARI)}"}


def recipes() -> dict[str, str]:
    """What each is, and what its paper reached."""
    return {
        name: f"{recipe.summary}; published: {recipe.published:g} on Breakout ({recipe.source})"
        for name, recipe in RECIPES.items()
    }
