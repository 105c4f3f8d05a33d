"""What PPO makes of Tetris for the NES from its raw picture: reward and lines, beside a policy that knows nothing.

    passel env install tetris
    python bench/tetris.py --steps 100000

The reward is TetrisA-v3's, lines less the growth of the stack; lines are the score of TetrisA-v1, the same game.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from common import BenchError, Progress, flags, machine, number, parser, scratch, table, write
from passel import api
from passel.run.summary import EvalResult
from passel.trained import evaluate

TITLE = "Tetris for the NES, from pixels"
GAMES = {"reward": "tetris:TetrisA-v3", "lines": "tetris:TetrisA-v1"}


def curve(run: Path, points: int = 8) -> list[tuple[int, float]]:
    """The mean return of the last 100 episodes, at equal parts of the run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    known = [(row["steps"], row["return_mean_100"]) for row in rows if row.get("return_mean_100") is not None]
    last = known[-1][0] if known else 0
    return (
        []
        if not known
        else [next(point for point in known if point[0] >= last * part / points) for part in range(1, points + 1)]
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=float, default=100_000, help="Steps of training (default 100000).")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--greedy", action="store_true", help="Evaluate the best actions too, not only drawn ones.")
    options.add_argument("--episodes", type=int, default=20, help="Games of each evaluation (default 20).")
    said = options.parse_args()
    card = machine()
    settings = {"env": "tetris", "algo": "ppo", "sync": "allreduce", "workers": said.workers}
    lengths = {"beginner": 1, "trained": int(said.steps)}
    progress = Progress(len(lengths) + (2 + said.greedy) * len(GAMES))
    played: dict[str, dict[str, Any]] = {}
    with scratch() as folder:
        for who, steps in lengths.items():
            progress.begin(f"{who}: {steps:,} steps")
            run = folder.parent / who
            words = flags(settings | {"steps": steps})
            command = f"passel train {' '.join(words)}"
            told = api.train(**settings, steps=steps, eval_episodes=1, quiet=True, out=str(run)).summary
            progress.end(f"{told.seconds:.0f} s")
            played[who] = {}
            for what, env in GAMES.items():
                # A beginner's best action is one and the same all the time: its games say nothing.
                for sample in (True, False) if who == "trained" and said.greedy else (True,):
                    progress.begin(f"{who}: {what}, {'drawn' if sample else 'greedy'}")
                    found = evaluate(run, episodes=said.episodes, env=env, sample=sample)
                    played[who][f"{what}, {'drawn' if sample else 'greedy'}"] = found
                    progress.end(f"{found.mean:.2f}")
        summary, learnt = told, curve(run)
    columns = list(played["trained"])
    rows = [
        [who, *(f"{games[c].mean:.2f} ± {games[c].std:.2f}" if c in games else "–" for c in columns)]
        for who, games in played.items()
    ]
    sections = [
        f"```\n{command}\npassel eval RUN --env tetris:TetrisA-v1 [--sample]\n```",
        f"{summary.steps:,} steps ({4 * summary.steps:,} frames) in {summary.seconds / 60:.0f} minutes, "
        f"{summary.updates:,} updates, {number(summary.steps_per_second)} steps/s, {summary.peak_rss_mb:,.0f} MB at "
        "most.",
        "## While it learnt\n\nMean reward of the last 100 games." if learnt else "No game ended while it learnt.",
        *(
            [table(["steps", *(f"{at:,}" for at, _ in learnt)], [["reward", *(f"{m:.2f}" for _, m in learnt)]])]
            * bool(learnt)
        ),
        f"## Afterwards\n\n{said.episodes} games each, mean and standard deviation. The beginner is the same network "
        "as it is made, whose drawn actions are nearly even.",
        table(["", *columns], rows),
    ]
    data = {"settings": settings, "summary": dataclasses.asdict(summary), "curve": learnt, "played": _plain(played)}
    write("tetris", TITLE, said.out, card, sections, data)


def _plain(played: dict[str, dict[str, EvalResult]]) -> dict[str, Any]:
    return {who: {what: vars(found) for what, found in games.items()} for who, games in played.items()}


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"tetris: {error}") from None
