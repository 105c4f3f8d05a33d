"""Does joint PPO help on levels that it has not seen? A Procgen game: train on some levels, look at others, fine-tune.

    python bench/joint_procgen.py
    python bench/joint_procgen.py --game ninja --train 200 --steps 5e6 --transfer-steps 1e6 --seeds 3

Three commands, as a user would type them: `passel train` on the set, `passel levels --sample` for each level trained on
and held out, and `passel transfer` on held-out levels, against learning the same level from scratch.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

from common import BenchError, Progress, machine, middle, number, parser, scratch, table, write

TITLE = "Joint PPO on Procgen"


def passel(said: argparse.Namespace, *words: object) -> str:
    """Run one command, and return it as it would be typed."""
    command = [said.python, "-m", "passel", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return shlex.join(["passel", *(Path(str(w)).name if str(w).startswith("/") else str(w) for w in words)])


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def returns(run: Path) -> list[tuple[int, float]]:
    """The learning curve at tenths of the run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    known = [(row["steps"], row["return_mean_100"]) for row in rows if row.get("return_mean_100") is not None]
    last = known[-1][0]
    return [next(point for point in known if point[0] >= last * tenth / 10) for tenth in range(1, 11)]


def transfer_rows(found: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for each in found:
        for way, runs in each["ways"].items():
            numbers = [number(middle([run[name] for run in runs if run[name] is not None]), 2) for name in COLUMNS]
            rows.append([each["level"], way, *numbers])
    return rows


COLUMNS = {"curve": "mean over the run", "last": "last 100 episodes", "eval": "greedy in the end"}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--game", default="jumper", help="One of Procgen's (default jumper).")
    options.add_argument("--distribution", default="easy")
    options.add_argument("--train", type=int, default=50, help="Levels to train on (default 50).")
    options.add_argument("--held-out", type=int, default=20, help="Levels held out (default 20).")
    options.add_argument("--steps", type=float, default=150_000, help="Steps of the joint run (default 150000).")
    options.add_argument("--transfer-steps", type=float, default=30_000, help="Steps on one level (default 30000).")
    options.add_argument("--levels", nargs="+", default=["1000000"], help="Held-out levels to learn.")
    options.add_argument("--envs", type=int, default=4, help="Rows of each worker on one level (default 4).")
    options.add_argument("--seeds", type=int, default=1, help="Seeds of the comparison (default 1).")
    options.add_argument("--episodes", type=int, default=2, help="Episodes of each level (default 2).")
    said = options.parse_args()
    card = machine()
    env = f"levels:procgen:{said.game}:{said.distribution}:{said.train}+{said.held_out}"
    progress = Progress(2 + len(said.levels))
    with scratch() as run:
        progress.begin(f"joint training on {said.train} levels")
        shape = ["--steps", int(said.steps), "--eval-episodes", 1]
        commands = [passel(said, "train", "--algo", "ppo", "--env", env, *shape, "--quiet", "--out", run)]
        summary, curve = read(run / "summary.json"), returns(run)
        progress.end(f"{summary['return_mean_100']:.2f} after {summary['seconds']:.0f} s")
        greedy = read(run / "levels.json")
        progress.begin("every level")
        commands.append(passel(said, "levels", run, "--sample", "--episodes", said.episodes))
        drawn = read(run / "levels.json")
        progress.end(f"trained on {drawn['train']['mean']:.2f}, held out {drawn['held_out']['mean']:.2f}")
        found = []
        for level in said.levels:
            progress.begin(f"level {level}, fine-tuned and from scratch")
            words = ["--level", level, "--steps", int(said.transfer_steps), "--seeds", said.seeds, "--envs", said.envs]
            commands.append(passel(said, "transfer", run, *words))
            found.append(read(run / f"transfer-{level}" / "transfer.json"))
            progress.end("done")
    gaps = [
        [how, number(each["train"]["mean"], 2), number(each["held_out"]["mean"], 2), number(each["gap"], 2)]
        for how, each in (("drawn, as in training", drawn), ("greedy", greedy))
    ]
    sections = [
        "```\n" + "\n".join(commands) + "\n```",
        f"{env}: {said.train} levels trained on, {said.held_out} held out. {summary['steps']:,} steps in "
        f"{summary['seconds']:.0f} s, {summary['workers']} workers, {summary['steps_per_second']:,.0f} steps/s with "
        "evaluation. An episode pays 10 if the goal is reached, else 0.",
        "## Learning curve\n\nMean return of the last 100 episodes, of all training levels.",
        table(["steps", *(f"{steps:,}" for steps, _ in curve)], [["return", *(f"{mean:.1f}" for _, mean in curve)]]),
        f"## Every level\n\n{said.episodes} episodes of each with drawn actions; greedily, the final evaluation's.",
        table(["actions", "mean of levels trained on", "of levels held out", "gap"], gaps),
        f"## On one held-out level\n\n{int(said.transfer_steps):,} steps on the level alone, from the joint policy's "
        f"weights and from new ones, medians of {said.seeds} seeds. Before the first of them the joint policy scores "
        + "; ".join(f"{each['zero_shot']['drawn']['mean']:.1f} on {each['level']} (drawn)" for each in found)
        + ".",
        table(["level", "", *COLUMNS.values()], transfer_rows(found)),
    ]
    data = {"commands": commands, "summary": summary, "curve": curve, "drawn": drawn, "greedy": greedy}
    write("joint_procgen", TITLE, said.out, card, sections, data | {"transfer": found})


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"joint_procgen: {error}") from None
