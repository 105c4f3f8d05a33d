"""Does joint training help on a level that was held out? Fine-tune on it, and learn it from scratch, and compare."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passel import api
from passel.envs.level_sets import level_set
from passel.envs.levels import is_level_set
from passel.evaluation import play_levels, summarise
from passel.run.files import json_text, replace_file
from passel.run.folder import RunFolder
from passel.streams import derive
from passel.trained import load
from passel.trust import check as check_trust
from passel.types import PasselError

EPISODES = 20  # of an evaluation
FINE_TUNED, FROM_SCRATCH = "fine-tuned", "from scratch"


@dataclass(frozen=True)
class Transfer:
    """Where it is, what came out (the content of transfer.json), and the runs behind it."""

    path: Path
    content: dict[str, Any]
    runs: list[Path]


def transfer(
    run: Path,
    level: str | None = None,
    *,
    steps: int,
    seeds: int = 1,
    workers: int = 0,
    out: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
    settings: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Transfer:
    """Train on one level twice for each seed, with the same settings: from the run's weights, and from new ones.

    For `trust` see `passel.evaluate`.
    """
    config = RunFolder.open(run, lock=False).read_config()
    if not is_level_set(config["env"]):
        raise PasselError(f"{run} was trained on {config['env']}, which is no set of levels. Give another run.")
    check_trust(run, config["env"], trust=trust)
    levels = level_set(config["env"])
    chosen = level or next(iter(levels.held_out), None)
    if chosen is None:
        raise PasselError(f"{levels.name} holds no level out. Name one with --level.")
    alone = levels.only(chosen)
    folder = out or run / f"transfer-{re.sub(r'[^A-Za-z0-9.]+', '-', chosen)}"
    if os.path.lexists(folder):
        raise PasselError(f"{folder} exists. Remove it, or use another --out.")
    policy, seed = load(run), derive(int(config.get("seed", 1)), "transfer")
    before = {
        how: vars(summarise(play_levels(policy, levels, [chosen], EPISODES, seed, sample=sample)[chosen]))
        for how, sample in (("greedy", False), ("drawn", True))
    }
    said = {"env": alone.name, "steps": steps, "workers": workers, "quiet": True}
    said |= {"eval_episodes": EPISODES, **(settings or {})}
    ways: dict[str, list[dict[str, Any]]] = {FINE_TUNED: [], FROM_SCRATCH: []}
    runs: list[Path] = []
    for seed in range(1, seeds + 1):
        for way, more in ((FINE_TUNED, {"start_from": str(run)}), (FROM_SCRATCH, {})):
            tell(f"{way}, seed {seed} of {seeds} ...")
            path = folder / f"{way.replace(' ', '-')}-s{seed}"
            done = api.train(**{**api.inherited(run, said), **more, "seed": seed, "out": str(path)})
            ways[way].append({"seed": seed, **_facts(done)})
            runs.append(path)
    content = {
        "run": str(run),
        "set": levels.name,
        "level": chosen,
        "steps": steps,
        "zero_shot": before,
        "ways": ways,
    }
    replace_file(folder / "transfer.json", json_text(content, indent=1) + "\n")
    return Transfer(folder, content, runs)


def _facts(run: api.Run) -> dict[str, float | None]:
    """`curve` is the mean return of the last 100 episodes, averaged over the whole run: how soon it was learnt.
    `last` is the same at the end, and `eval` what the greedy policy scores then.
    """
    rows = RunFolder.open(run.path, lock=False).read_metrics()
    returns = [row["return_mean_100"] for row in rows if row.get("return_mean_100") is not None]
    return {
        "curve": sum(returns) / len(returns) if returns else None,
        "last": run.summary.return_mean_100,
        "eval": None if run.summary.eval is None else run.summary.eval.mean,
        "seconds": run.summary.seconds,
    }
