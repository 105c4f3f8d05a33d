"""Steps a second of this checkout against those of an earlier commit, doing the same work.

    python bench/before_after.py 7bf3958
    python bench/before_after.py HEAD~1 --cells "DQN 64-64" PPO --repeats 15

A worktree of the earlier commit is made in a temporary folder. Both sides run bench/window.py of this checkout, each
over its own `src`, one after the other; which goes first changes every round. A ratio compares two runs of one round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dqn_speed
import ppo_speed
import scaling
from common import HERE, BenchError, Progress, call, machine, measure, middle, number, parser, table, write

ROOT = HERE.parent
TITLE = "Steps a second, before and after"
LEAST = 0.97  # the median of the ratios that counts as unchanged


def _scaling(scheme: str) -> dict[str, Any]:
    usual = argparse.Namespace(env="LunarLander-v3", hidden=[256, 256], batch=128, updates_per_step=1.0)
    return scaling.settings(usual) | scaling.SCHEMES[scheme] | {"workers": 2}


CELLS: dict[str, dict[str, Any]] = {
    "DQN 64-64": dict(dqn_speed.RACE.sizes["64-64, batch 64"].settings),
    "DQN 256-256": dict(dqn_speed.RACE.sizes["256-256, batch 128"].settings),
    "PPO": dict(ppo_speed.ZOO.settings),
    **{f"scaling, {scheme}": _scaling(scheme) for scheme in ("hogwild", "server", "allreduce, arena", "gossip")},
}


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A checkout of `commit`, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="passel-bench-") as folder:
        path = Path(folder) / "before"
        made = subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", path, commit],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise BenchError(made.stderr.strip())
        try:
            yield path
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", path], check=True)


def known_to(source: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that the code below `source` has. What an earlier commit lacks was, there, as it is asked for."""
    code = "\n".join(path.read_text() for path in source.rglob("*.py"))
    return {key: value for key, value in settings.items() if f"    {key}: " in code}


def contender(said: argparse.Namespace, settings: dict[str, Any], source: Path) -> Any:
    def run(repeat: int) -> dict[str, Any]:
        asked = json.dumps({**known_to(source, settings), "seed": repeat + 1})
        command = [said.python, HERE / "window.py", "--seconds", said.seconds, "--warm", said.warm, asked]
        return call(command, timeout=said.seconds + said.warm + 120, env={"PYTHONPATH": str(source)})

    return run


def row(cell: str, found: dict[str, list[dict[str, Any]]]) -> list[str]:
    before, after = ([float(run["steps_per_second"]) for run in found[side]] for side in ("before", "after"))
    ratios = [now / then for now, then in zip(after, before, strict=True)]
    verdict = "yes" if middle(ratios) >= LEAST else "no"
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    return [cell, number(middle(before)), number(middle(after)), f"{middle(ratios):.3f}", spread, verdict]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("commit", help="The earlier commit.")
    options.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS), help="Work to compare.")
    options.add_argument("--repeats", type=int, default=9, help="Pairs (default 9).")
    options.add_argument("--seconds", type=float, default=5.0, help="Length of a window (default 5).")
    options.add_argument("--warm", type=float, default=1.5, help="Seconds of learning before it (default 1.5).")
    said = options.parse_args()
    card = machine()
    progress = Progress(2 * said.repeats * len(said.cells))
    found: dict[str, Any] = {}
    with worktree(said.commit) as before:
        for cell in said.cells:
            sides = {
                "before": contender(said, CELLS[cell], before / "src"),
                "after": contender(said, CELLS[cell], ROOT / "src"),
            }
            found[cell] = measure(
                sides, said.repeats, progress, lambda result: f"{result['steps_per_second']:,.0f} steps/s"
            )
    head = ["work", "before, steps/s", "after, steps/s", "median ratio", "range", f"at least {LEAST}"]
    sections = [
        f"Before: commit {said.commit}. Medians of {said.repeats} pairs of windows of {said.seconds:g} s in the steady "
        "state, sides in turn.",
        table(head, [row(cell, runs) for cell, runs in found.items()]),
    ]
    write("before_after", TITLE, said.out, card, sections, {"rounds": found})


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"before_after: {error}") from None
