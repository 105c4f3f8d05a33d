"""A run's learning curve as it is published: CSV, PNG and a page, with the run's settings and the score in the end.

    passel train --env ALE/Breakout-v5 --protocol nature --algo ppo --out runs/breakout
    python bench/learning_curve.py runs/breakout --name breakout_ppo --episodes 20

Returns are of whole games and unclipped: the mean of the last 100 that ended in training, and after it, of fresh games
with the last checkpoint's policy.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from common import BenchError, machine, number, parser, table, write
from passel.config import as_dict
from passel.recipes.resolve import resolve_config
from passel.run.folder import RunFolder
from passel.trained import evaluate

#: Millions of frames, and DQN's mean return of training games then: Castro et al. 2018 (Dopamine), five runs on
#: Breakout with sticky actions, which passel's `nature` protocol does not have.
PUBLISHED = {
    "DQN, RMSProp": ((1, 1.6), (2, 3.1), (5, 9.3), (10, 21.5)),
    "DQN, Adam": ((1, 1.8), (2, 6.5), (5, 23.7), (10, 46.9)),
}
RANDOM = 1.7
COLUMNS = ("steps", "frames", "seconds", "episodes", "updates", "return_mean_100")


def rows_of(run: Path) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [{name: line[name] for name in COLUMNS} for line in lines if line.get("return_mean_100") is not None]


def command_of(run: Path) -> str:
    """What was said to make this run: its configuration, where it is not what the environment and algorithm bring."""
    config = RunFolder.open(run, lock=False).read_config()
    said = {key: config[key] for key in ("env", "algo", "recipe", "protocol") if config.get(key)}
    usual = as_dict(*resolve_config(said))
    own = {key: value for key, value in config.items() if key not in ("out", "quiet") and usual.get(key) != value}
    words = (f"--{key.replace('_', '-')} {value}" for key, value in {**said, **own}.items())
    return "passel train " + " ".join(words)


def draw(rows: list[dict[str, Any]], title: str, path: Path, *, published: bool) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([row["frames"] / 1e6 for row in rows], [row["return_mean_100"] for row in rows], label="passel", lw=2)
    last = rows[-1]["frames"] / 1e6
    for name, points in PUBLISHED.items() if published else ():
        axes.plot(*zip(*points, strict=True), marker="o", ms=4, ls="--", label=f"{name} (Dopamine, sticky actions)")
    axes.axhline(RANDOM, color="gray", lw=1, ls=":", label="random play")
    axes.set(xlabel="million frames", ylabel="mean return of the last 100 games", title=title)
    axes.set_xlim(0, max(1.05 * last, 2 if published else 0))
    axes.set_ylim(0, 1.15 * max(row["return_mean_100"] for row in rows) + 1)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close("all")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("run", type=Path, help="Folder of the run.")
    options.add_argument("--name", required=True, help="Of the result: bench/results/learning_NAME.*")
    options.add_argument("--episodes", type=int, default=20, help="Games of each evaluation (default 20).")
    said = options.parse_args()
    rows, summary = rows_of(said.run), json.loads((said.run / "summary.json").read_text())
    if not rows:
        raise BenchError(f"{said.run} has finished no episode yet")
    name, command = f"learning_{said.name}", command_of(said.run)
    said.out.mkdir(parents=True, exist_ok=True)
    with (said.out / f"{name}.csv").open("w", newline="") as file:
        table_of = csv.DictWriter(file, COLUMNS)
        table_of.writeheader()
        table_of.writerows(rows)
    title = f"{summary['algo']} on {summary['env']}, {summary['workers']} workers"
    draw(rows, title, said.out / f"{name}.png", published="Breakout" in summary["env"])
    played = {
        how: evaluate(said.run, episodes=said.episodes, sample=sample)
        for how, sample in (("greedy", False), ("drawn, as in training", True))
    }
    last = rows[-1]
    tenths = [next(row for row in rows if row["steps"] >= last["steps"] * part / 8) for part in range(1, 9)]
    sections = [
        f"```\n{command}\n```",
        f"{last['steps']:,} steps ({last['frames']:,} frames) in {last['seconds'] / 60:.0f} minutes, "
        f"{last['updates']:,} updates, {number(summary['steps_per_second'])} steps/s, "
        f"{summary['peak_rss_mb']:,.0f} MB at most. True scores of whole games, unclipped.",
        table(
            ["steps", *(f"{row['steps']:,}" for row in tenths)],
            [
                ["minutes", *(f"{row['seconds'] / 60:.0f}" for row in tenths)],
                ["mean return of the last 100 games", *(f"{row['return_mean_100']:.1f}" for row in tenths)],
            ],
        ),
        f"![learning curve]({name}.png)",
        f"## Afterwards\n\n{said.episodes} fresh games with the last checkpoint's policy.",
        table(
            ["actions", "mean", "standard deviation", "from", "to"],
            [[how, *(f"{v:.1f}" for v in (r.mean, r.std, r.min, r.max))] for how, r in played.items()],
        ),
    ]
    data = {"run": summary, "played": {how: vars(found) for how, found in played.items()}}
    write(name, f"Learning curve: {title}", said.out, machine(), sections, data)


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"learning_curve: {error}") from None
