"""The closing screen: what came out, where the time went, what lies where, and what to type next."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from passel.view.format import (
    UNKNOWN,
    format_count,
    format_duration,
    format_number,
    format_share,
    stages_in,
)

STATUS = {
    "solved": ("solved", "bold green"),
    "finished": ("finished", "bold"),
    "stopped": ("stopped before the end", "bold yellow"),
    "failed": ("failed", "bold red"),
}
FILES = {
    "config.toml": "the resolved configuration: all that is needed to run it again",
    "card.json": "the machine, versions, thread budget and environment protocol",
    "metrics.jsonl": "one line a report: speed, return, staleness, share of time",
    "events.jsonl": "what happened and when: checkpoints, restarts, solved, stopped",
    "checkpoints": "weights, optimiser, memory and random streams, to resume from",
    "tb": "TensorBoard events",
    "videos": "the best, median and worst evaluation episode",
    "levels.json": "the score of each level, trained on and held out",
    "summary.json": "this result, for programs",
}
#: Shares above which a stage is named as the bottleneck, in the order in which they are asked: a slow environment or
#: learner makes others wait, so the cause is asked for before the waiting.
RULES = (
    (
        "env",
        0.50,
        "Stepping the environment takes {share} of the time: give each worker more environments so that they are "
        "stepped as a batch, or use EnvPool if it has this environment.",
    ),
    (
        "learn",
        0.70,
        "Learning takes {share} of the time: add workers while there are free cores, or use a smaller batch or "
        "network.",
    ),
    (
        "act",
        0.50,
        "Choosing actions takes {share} of the time: give each worker more environments, so that one forward pass "
        "serves them all.",
    ),
    (
        "wait",
        0.15,
        "Workers wait for each other {share} of the time: try --sync hogwild, which never waits, or a larger "
        "--sync-every.",
    ),
    (
        "copy",
        0.15,
        "Copying parameters takes {share} of the time: a larger --sync-every copies them less often, at the price of "
        "staler ones.",
    ),
    ("sample", 0.30, "Sampling from memory takes {share} of the time: use a smaller batch, or learn less often."),
)
LABEL = 12  # columns


def advice(shares: Mapping[str, float]) -> str:
    """One sentence on what to change next, from where the time went; it claims no more than the shares show."""
    if not shares:
        return "No share of time was measured, so there is nothing to advise."
    for stage, limit, sentence in RULES:
        share = shares.get(stage, 0.0)
        if share > limit:
            return sentence.format(share=format_share(share))
    named = {stage: share for stage, share in shares.items() if stage != "other"}
    if not named or shares.get("other", 0.0) > max(named.values()):
        return "Most of the time is outside the measured stages: a profiler will tell more than these shares can."
    largest = max(named, key=lambda stage: named[stage])
    return (
        f"No stage stands out (the largest is {largest}, with {format_share(named[largest])}): "
        "add workers while there are free cores."
    )


def render_result(summary: Mapping[str, Any], folder: Path, console: Console) -> None:
    """Print the result of a run whose `summary.json` is given, and what its folder holds."""
    shares = summary.get("shares") or {}
    console.print()
    console.print(_verdict(summary))
    _line(console, "evaluation", _evaluation(summary.get("eval"), summary.get("eval_human_normalised")))
    _line(console, "training", _training(summary))
    _line(console, "speed", _speed(summary))
    if shares:
        _line(console, "time", "  ".join(f"{s} {format_share(shares[s])}" for s in stages_in([shares])))
        _line(console, "advice", advice(shares))
    _files(console, folder)
    _commands(console, folder, summary)


def _verdict(summary: Mapping[str, Any]) -> Text:
    status = str(summary.get("status"))
    words, style = STATUS.get(status, (status, "bold"))
    line = Text(words.capitalize(), style=style)
    if status == "solved" and summary.get("solved_at_seconds") is not None:
        steps = format_count(summary.get("solved_at_steps") or 0)
        episodes = format_count(summary.get("solved_at_episodes") or 0)
        line.append(f" in {format_duration(summary['solved_at_seconds'])}, {steps} steps, {episodes} episodes")
    elif status != "solved" and summary.get("solved_at") is not None:
        line.append(f", not solved (that takes {format_number(float(summary['solved_at']))})")
    what = " · ".join(str(summary[name]) for name in ("env", "algo", "sync", "place") if summary.get(name) is not None)
    line.append(f"  {what}", style="not bold bright_black")
    return line


def _evaluation(found: Mapping[str, Any] | None, human: float | None) -> str:
    if not found:
        return "none was made"
    mean, std, low, high = (format_number(float(found[name])) for name in ("mean", "std", "min", "max"))
    cut = f", {found['cut']} of them cut before their end" if found.get("cut") else ""
    return f"{mean} ± {std}  [{low}, {high}] over {found['episodes']} greedy episodes{cut}{_of_human(human)}"


def _training(summary: Mapping[str, Any]) -> str:
    score = summary.get("return_mean_100")
    steps, episodes = format_count(summary.get("steps", 0)), format_count(summary.get("episodes", 0))
    took = format_duration(summary.get("seconds"))
    mean = UNKNOWN if score is None else format_number(float(score))
    human = _of_human(summary.get("return_human_normalised"))
    frames = summary.get("frames", 0)
    steps += f" steps ({format_count(frames)} frames)" if frames != summary.get("steps", 0) else " steps"
    return f"{mean} mean return of the last 100 episodes{human}; {steps}, {episodes} episodes in {took}"


def _of_human(normalised: float | None) -> str:
    """A score between random play, 0 %, and a human, 100 %."""
    return "" if normalised is None else f", {format_share(normalised)} of human"


def _speed(summary: Mapping[str, Any]) -> str:
    steps, updates = summary.get("steps_per_second", 0.0), summary.get("updates_per_second", 0.0)
    parts = [f"{format_count(steps)} steps/s", f"{format_count(updates)} updates/s"]
    spent = {"start-up": "startup", "training": "train", "evaluation": "evaluation", "checkpoints": "checkpoint"}
    took = {name: summary.get(f"{activity}_seconds") or 0.0 for name, activity in spent.items()}
    if took["training"]:
        parts[-1] += " in training"
        parts += [f"{name} {format_duration(seconds)}" for name, seconds in took.items() if seconds >= 0.05]
    if summary.get("peak_rss_mb"):
        parts.append(f"{summary['peak_rss_mb']:,.0f} MB at most")
    if summary.get("workers_restarted"):
        parts.append(f"workers restarted: {summary['workers_restarted']}")
    return ", ".join(parts)


def _files(console: Console, folder: Path) -> None:
    present = {name: what for name, what in FILES.items() if (folder / name).exists()}
    if not present:
        return
    console.print()
    # Paths and commands are never wrapped: they are there to be copied.
    console.print(Text(str(folder), style="bold"), soft_wrap=True)
    for name, what in present.items():
        shown = f"{name}/" if (folder / name).is_dir() else name
        _line(console, f"  {shown}", what, label=18)


def _commands(console: Console, folder: Path, summary: Mapping[str, Any]) -> None:
    run, passel = shlex.quote(str(folder)), _program()
    # What a run that has ended needs to be told to go on.
    more = {"solved": " --no-until-solved", "finished": f" --steps {2 * int(summary.get('steps', 0))}"}
    commands = {
        f"{passel} resume {run}{more.get(str(summary.get('status')), '')}": "go on from the last checkpoint",
        f"{passel} eval {run}": "play greedy episodes, and count",
        f"{passel} plot {run}": "the learning curve as a picture",
        **_ways_to_look(folder, f"{passel} {{}} {run}"),
    }
    if (folder / "tb").exists():
        commands[f"tensorboard --logdir {shlex.quote(str(folder / 'tb'))}"] = "curves and network in a browser"
    longest = max(len(command) for command in commands)
    captioned = longest + max(len(what) for what in commands.values()) + 4 <= console.width
    console.print()
    for command, what in commands.items():
        line = Text(f"  {command}", style="cyan", no_wrap=True)
        if captioned:
            line.append(f"{' ' * (longest - len(command) + 2)}{what}", style="bright_black")
        console.print(line, soft_wrap=True)


def _ways_to_look(folder: Path, command: str) -> dict[str, str]:
    """A film; of a set of levels a table; and of an environment behind a server nothing, for it sends no pictures."""
    card = json.loads((folder / "card.json").read_text()) if (folder / "card.json").exists() else {}
    if "levels" in card:
        return {command.format("levels"): "every level, trained on or held out"}
    if card.get("env", {}).get("backend") == "remote":
        return {}
    return {command.format("video"): "film the best, median and worst episode"}


def _program() -> str:
    """What to type for passel: its name where the shell knows it, else where this one lies."""
    here = Path(sys.executable).parent / "passel"
    if shutil.which("passel") or not here.exists():
        return "passel"
    below = here.is_relative_to(Path.cwd()) and here.parent != Path.cwd()
    return shlex.quote(str(here.relative_to(Path.cwd()) if below else here))


def _line(console: Console, name: str, text: str, label: int = LABEL) -> None:
    """A label and a text that is wrapped beside it, not beneath it."""
    body = Text(text).wrap(console, max(console.width - label, 20))
    for index, part in enumerate(body):
        part.rstrip()
        line = Text((name if index == 0 else "").ljust(label), style="bright_black")
        line.append_text(Text(part.plain, style="default"))
        console.print(line, soft_wrap=True)
