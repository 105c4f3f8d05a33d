"""The learning curve of one run, or of several to compare, as a picture.

Reads what a run leaves on disk (`metrics.jsonl`, `config.toml`) and nothing else, so it works on a run of yesterday,
of another machine, or of a process that is still writing. The only file that imports matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from passel.reading import as_fields, read_config
from passel.run.files import refuse_links, replace_file
from passel.run.lines import JsonLines
from passel.types import PasselError, printable
from passel.view.format import format_count, format_number, stages_in

X = Literal["steps", "seconds", "episodes"]
#: Okabe and Ito's colours, which stay apart for every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
STAGE_COLOURS = {
    "env": "#009E73",
    "act": "#56B4E9",
    "sample": "#CC79A7",
    "learn": "#0072B2",
    "wait": "#D55E00",
    "copy": "#F0E442",
    "apply": "#E69F00",
    "store": "#117733",
    "idle": "#DDDDDD",
    "other": "#BBBBBB",
}
LINES = ("-", "--", "-.", ":")  # beyond eight runs the colours repeat, and the dashes do not
GREY = "#555555"
SEPARATOR = " · "
#: Of a report, what is drawn, and of which type it is.
_COLUMNS = {
    "steps": float | None,
    "seconds": float | None,
    "episodes": float | None,
    "return_mean_100": float | None,
    "steps_per_second": float | None,
    "solved_at": float | None,
    "eval_mean": float | None,
    "eval_steps": float | None,
    "phase": str | None,
    "shares": dict[str, float | None] | None,
}
#: Shares, or thresholds, of a run: each is a line and a label, and its name is drawn.
MOST, LONGEST_WORD = 100, 200
LARGEST = 1e100
PARTS = {"train": "trained on", "held_out": "held out"}


@dataclass(frozen=True)
class Run:
    """The metrics of one run, in the order in which they hold."""

    name: str
    title: str
    rows: list[dict[str, Any]]

    def column(self, x: str, y: str) -> tuple[list[float], list[float]]:
        """Two columns, without the rows in which either is missing."""
        pairs = [(row[x], row[y]) for row in self.rows if row.get(x) is not None and row.get(y) is not None]
        return [float(a) for a, _ in pairs], [float(b) for _, b in pairs]

    def evaluations(self, x: str) -> list[tuple[float, float]]:
        """The evaluations during training: where each was made, and the mean return."""
        made: dict[float, tuple[float, float]] = {}
        for row in self.rows:
            if row.get("eval_mean") is not None and row.get("eval_steps") is not None and row.get(x) is not None:
                made.setdefault(row["eval_steps"], (row["eval_steps"] if x == "steps" else row[x], row["eval_mean"]))
        return list(made.values())

    @property
    def shares(self) -> dict[str, float]:
        """The mean share of time per stage over the whole run."""
        found = [row["shares"] for row in self.rows if row.get("shares")]
        return {stage: sum(shares.get(stage) or 0.0 for shares in found) / len(found) for stage in stages_in(found)}


def plot_run(folders: Sequence[Path], out: Path, x: X = "steps") -> Path:
    """Draw the runs in `folders` against `x` into the file `out`, whose ending says the format; returns `out`."""
    if x not in get_args(X):
        raise PasselError(f"a run cannot be drawn against {x}. Use {', '.join(get_args(X))}.")
    if not folders:
        raise PasselError("there is no run to draw. Give the folder of at least one.")
    runs = _named_apart([read_run(folder) for folder in folders])
    matplotlib = _matplotlib()
    with matplotlib.rc_context(_style()):
        # A bare figure draws with Agg, in memory: no window, no display, no state left behind as pyplot would.
        figure = matplotlib.figure.Figure(figsize=(8.0, 8.0), layout="constrained")
        axes = figure.subplots(3, 1, height_ratios=(3, 1, 1.3), sharex=len(runs) == 1)
        _draw_returns(axes[0], runs, x)
        _draw_speed(axes[1], runs, x)
        if len(runs) == 1:
            _draw_shares(axes[2], runs[0], x)
        else:
            _draw_mean_shares(axes[2], runs)
        _label_x(axes, x, several=len(runs) > 1)
        _save(figure, out)
    return out


def plot_levels(found: Mapping[str, Any], out: Path) -> Path:
    """Draw the scores of every level, the best first, trained on and held out, into the file `out`; returns `out`."""
    matplotlib = _matplotlib()
    parts = {part: sorted((float(row["mean"]) for row in found[part]["levels"]), reverse=True) for part in PARTS}
    with matplotlib.rc_context(_style()):
        figure = matplotlib.figure.Figure(figsize=(8.0, 4.5), layout="constrained")
        axes = figure.subplots()
        for index, (part, scores) in enumerate(parts.items()):
            if not scores:
                continue
            # Of either part from 0 to 100 %, so that 200 levels and 20 can be laid over each other.
            shares = [100 * (place + 0.5) / len(scores) for place in range(len(scores))]
            label = f"{PARTS[part]}: {len(scores)} levels, mean {format_number(sum(scores) / len(scores))}"
            axes.plot(shares, scores, label=label, marker="o", markersize=3, **_line_style(index))
            axes.axhline(sum(scores) / len(scores), linewidth=1, zorder=1, **_line_style(index) | {"linestyle": ":"})
        axes.set_title(printable(found["set"], LONGEST_WORD))
        axes.set_xlabel("levels, the best first (%)")
        axes.set_ylabel("mean score of a level")
        axes.legend(loc="best", fontsize=9)
        _save(figure, out)
    return out


def read_run(folder: Path) -> Run:
    """Read the metrics of a run, and its name from its configuration."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise PasselError(
            f"{path} cannot be read (No such file or directory). Give the folder of a run, as runs/<name>."
        )
    refuse_links(folder)
    rows: list[dict[str, Any]] = []
    stages: set[str] = set()
    thresholds: set[float | None] = set()
    for number, (row, _) in enumerate(JsonLines(path).rows(), start=1):
        try:
            _append(rows, _drawn(row))
            stages |= (row.get("shares") or {}).keys()
            thresholds.add(row.get("solved_at"))
            if max(len(stages), len(thresholds)) > MOST:
                raise ValueError(f"no run has more than {MOST} shares or thresholds")
        except ValueError as error:
            raise PasselError(
                f"line {number} of {path} is no report ({printable(error)}). Remove that line, then draw it again."
            ) from error
    if not rows:
        raise PasselError(f"{path} holds no report yet. Let the run go on for some seconds, then draw it again.")
    return Run(folder.name, _title(folder), rows)


def _drawn(row: dict[str, Any]) -> dict[str, Any]:
    """What of a report is drawn; ValueError if that is not what a report holds."""
    found = as_fields(_COLUMNS, {name: row[name] for name in _COLUMNS if name in row})
    if any(len(stage) > LONGEST_WORD for stage in found.get("shares") or {}):
        raise ValueError(f"a share has a name of more than {LONGEST_WORD} characters")
    # No axis can be drawn that long: as a value that is not finite, it is missing.
    return {
        name: None if isinstance(value, int | float) and abs(value) > LARGEST else value
        for name, value in found.items()
    }


def _append(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """A run that was resumed takes some steps again: what it did before at those steps no longer counts."""
    while rows and (rows[-1].get("steps") or 0) >= (row.get("steps") or 0):
        rows.pop()
    rows.append(row)


def _title(folder: Path) -> str:
    """The environment and the axes, as the configuration names them; the folder's name if there is none."""
    try:
        config = read_config(folder / "config.toml")
    except (OSError, ValueError):
        return folder.name
    words = [_word(config.get(name)) for name in ("env", "algo", "sync", "place")]
    workers = config.get("workers")
    words.append(f"{workers} workers" if isinstance(workers, int) else "")
    return SEPARATOR.join(word for word in words if word) or folder.name


def _word(value: object) -> str:
    """A name, whether the configuration has it bare or as the `id` or `name` of a table."""
    if isinstance(value, Mapping):
        return _word(value.get("id") or value.get("name") or "")
    return printable(value, LONGEST_WORD) if value is not None else ""


def _named_apart(runs: list[Run]) -> list[Run]:
    """Runs by different names: those that have the same are numbered, so that the legend tells them apart."""
    names = [run.name for run in runs]
    return [
        Run(f"{run.name} ({names[: i + 1].count(run.name)})", run.title, run.rows) if names.count(run.name) > 1 else run
        for i, run in enumerate(runs)
    ]


def _matplotlib() -> Any:
    try:
        import matplotlib.figure
    except ImportError as error:
        raise PasselError("matplotlib is not installed. Install it with: pip install 'passel[view]'") from error
    return matplotlib


def _style() -> dict[str, Any]:
    return {
        "axes.axisbelow": True,
        "axes.edgecolor": GREY,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "font.size": 10,
        "grid.color": "#DDDDDD",
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "savefig.dpi": 150,
        "text.parse_math": False,  # a name with two dollar signs is a name
    }


def _line_style(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index // len(COLOURS) % len(LINES)]}


def _draw_returns(axes: Any, runs: Sequence[Run], x: str) -> None:
    for index, run in enumerate(runs):
        label = run.name if len(runs) > 1 else "training"
        axes.plot(*run.column(x, "return_mean_100"), label=label, **_line_style(index))
        if points := run.evaluations(x):
            colour = _line_style(index)["color"]
            dots = {"marker": "o", "markersize": 3.5, "linestyle": "none", "clip_on": False}
            axes.plot(*zip(*points, strict=True), color=colour, **dots)
    for threshold in sorted({row["solved_at"] for run in runs for row in run.rows if row.get("solved_at") is not None}):
        axes.axhline(threshold, color=GREY, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
        axes.annotate(
            f"solved at {format_number(threshold)}",
            (0.005, threshold),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            color=GREY,
            fontsize=9,
        )
    axes.set_title(_common_title(runs))
    axes.set_ylabel("return\n(mean of 100 episodes)")
    evaluated = any(run.evaluations(x) for run in runs)
    if evaluated:
        axes.plot([], [], marker="o", markersize=3.5, linestyle="none", color=GREY, label="greedy evaluation")
    if len(runs) > 1 or evaluated:
        axes.legend(loc="best", fontsize=9)


def _common_title(runs: Sequence[Run]) -> str:
    """What is the same in all runs; what differs is for their names to say."""
    if len(runs) == 1:
        return runs[0].title
    words = [run.title.split(SEPARATOR) for run in runs]
    shared = [word for word in words[0] if all(word in others for others in words)]
    return SEPARATOR.join([*shared, f"{len(runs)} runs"])


def _draw_speed(axes: Any, runs: Sequence[Run], x: str) -> None:
    for index, run in enumerate(runs):
        # Earlier versions closed a run with a speed of 0, measured while nothing trained.
        trained = Run(run.name, run.title, [row for row in run.rows if row.get("phase") != "finished"])
        axes.plot(*trained.column(x, "steps_per_second"), **_line_style(index))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("steps/s")
    axes.yaxis.set_major_formatter(_short)


def _draw_shares(axes: Any, run: Run, x: str) -> None:
    rows = [row for row in run.rows if row.get("shares") and row.get(x) is not None]
    stages = stages_in([row["shares"] for row in rows])
    if stages:
        parts = [[100 * (row["shares"].get(stage) or 0.0) for row in rows] for stage in stages]
        colours = [STAGE_COLOURS.get(stage, GREY) for stage in stages]
        axes.stackplot([row[x] for row in rows], parts, labels=stages, colors=colours, linewidth=0)
        axes.margins(x=0)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=9, reverse=True, handlelength=1)
    axes.set_ylim(0, 100)
    axes.set_ylabel("share of time (%)")


def _draw_mean_shares(axes: Any, runs: Sequence[Run]) -> None:
    """Several runs cannot be stacked over each other: a bar for each, with the means of the whole run."""
    shares = [run.shares for run in runs]
    left = [0.0] * len(runs)
    names = [run.name for run in runs]
    for stage in stages_in(shares):
        part = [100 * found.get(stage, 0.0) for found in shares]
        axes.barh(names, part, left=left, label=stage, color=STAGE_COLOURS.get(stage, GREY), height=0.7)
        left = [a + b for a, b in zip(left, part, strict=True)]
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of time (%)")
    if any(shares):
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=9, handlelength=1)


def _label_x(axes: Sequence[Any], x: str, several: bool) -> None:
    for panel in axes[:2]:
        panel.xaxis.set_major_formatter(_short)
        panel.margins(x=0)
    if several:
        axes[0].sharex(axes[1])
        axes[0].tick_params(labelbottom=False)
    (axes[1] if several else axes[2]).set_xlabel(x)


def _short(value: float, _position: int) -> str:
    return format_count(value)


def _save(figure: Any, out: Path) -> None:
    try:
        picture = io.BytesIO()
        figure.savefig(picture, format=out.suffix.removeprefix(".") or None)
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, picture.getvalue())
    except (OSError, ValueError) as error:
        raise PasselError(
            f"the picture cannot be written to {out} ({printable(error)}). Use a name that ends in .png or .svg."
        ) from error
