"""The closing screen: what came out, where the time went, what lies where, and what to type next."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from passel.types import counted
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
    "episodes.csv": "one row a training episode: return, length, when it ended",
    "checkpoints": "weights, optimiser, memory and random streams, to resume from",
    "best": "the policy that evaluated best during training",
    "tb": "TensorBoard events",
    "videos": "the best, median and worst evaluation episode",
    "levels.json": "the score of each level, trained on and held out",
    "summary.json": "this result, for programs",
}
LABEL = 12  # columns
#: Schemes under which no worker waits for another.
NEVER_WAIT = ("solo", "hogwild", "gossip", "tokenring")


@dataclass(frozen=True)
class Situation:
    """What an advice depends on beside the shares of time. Zero and empty mean: not known."""

    sync: str = ""
    place: str = "processes"
    backend: str = ""
    workers: int = 0
    cores: int = 0
    roles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, summary: Mapping[str, Any], card: Mapping[str, Any]) -> Situation:
        """From a run's summary, with the shares of each role, and its card."""
        return cls(
            sync=str(summary.get("sync") or ""),
            place=str(summary.get("place") or "processes"),
            backend=str(card.get("env", {}).get("backend") or ""),
            workers=int(summary.get("workers") or 0),
            cores=int(card.get("usable_cores") or 0),
            roles=summary.get("roles") or {},
        )

    @property
    def free_cores(self) -> bool:
        """Whether one more worker would have a core; also where neither number is known."""
        return self.place == "processes" and (self.workers < self.cores or not (self.workers and self.cores))

    @property
    def add_workers(self) -> str:
        return f"use --workers {self.cores}" if self.cores else "add workers while there are free cores"


def advice(shares: Mapping[str, float], situation: Situation | None = None) -> str:
    """One sentence on what to change next, from where the time went; it claims no more than is known."""
    now = situation or Situation()
    if not shares:
        return "No share of time was measured, so there is nothing to advise."
    if now.place == "processes" and now.cores and now.workers > now.cores:
        return f"{now.workers} workers share {counted(now.cores, 'core')}: use --workers {now.cores}."
    if "learner" in now.roles and "actor" in now.roles:
        return _advice_apart(now.roles["learner"], now.roles["actor"], now)
    # A slow environment or learner makes others wait, so the cause is asked for before the waiting.
    for rule in (_slow_env, _slow_learner, _slow_acting, _waiting, _copying, _sampling):
        sentence = rule(shares, now)
        if sentence:
            return sentence
    return _nothing_stands_out(shares, now)


def _slow_env(shares: Mapping[str, float], now: Situation, who: str = "each worker") -> str:
    share = shares.get("env", 0.0)
    if share <= 0.50:
        return ""
    fast = ", or use EnvPool if it has this environment" if now.backend in ("", "gymnasium") else ""
    return (
        f"Stepping the environment takes {format_share(share)} of the time: give {who} more environments (--envs), so "
        f"that they are stepped as a batch{fast}."
    )


def _slow_learner(shares: Mapping[str, float], now: Situation) -> str:
    share = shares.get("learn", 0.0)
    if share <= 0.70:
        return ""
    more = f"{now.add_workers}, or " if now.free_cores and now.sync != "solo" else ""
    return f"Learning takes {format_share(share)} of the time: {more}use a smaller batch or network."


def _slow_acting(shares: Mapping[str, float], now: Situation) -> str:
    share = shares.get("act", 0.0)
    if share <= 0.50:
        return ""
    return (
        f"Choosing actions takes {format_share(share)} of the time: give each worker more environments (--envs), so "
        "that one forward pass serves them all."
    )


def _waiting(shares: Mapping[str, float], now: Situation) -> str:
    share = shares.get("wait", 0.0)
    if share <= 0.15 or now.sync in NEVER_WAIT or any(role in now.roles for role in ("player", "dreamer")):
        return ""
    return (
        f"Workers wait for each other {format_share(share)} of the time: try --sync hogwild, which never waits, or a "
        "larger --sync-every."
    )


def _copying(shares: Mapping[str, float], now: Situation) -> str:
    share = shares.get("copy", 0.0)
    if share <= 0.15 or now.sync == "solo":
        return ""
    return (
        f"Copying parameters takes {format_share(share)} of the time: a larger --sync-every copies them less often, at "
        "the price of staler ones."
    )


def _sampling(shares: Mapping[str, float], now: Situation) -> str:
    share = shares.get("sample", 0.0)
    if share <= 0.30:
        return ""
    return f"Sampling from memory takes {format_share(share)} of the time: use a smaller batch, or learn less often."


def _advice_apart(learner: Mapping[str, float], actor: Mapping[str, float], now: Situation) -> str:
    """Where some only act and others only learn: the one who waits names the other as the cause."""
    starved, blocked = learner.get("wait", 0.0), actor.get("wait", 0.0)
    if starved > 0.30 and starved >= blocked:
        cure = f"add actors (--workers {now.cores})" if now.free_cores and now.cores else "add actors or environments"
        if now.cores and not now.free_cores:
            cure = "every core has a worker, so give each actor more environments (--envs)"
        return f"Learners wait for experience {format_share(starved)} of their time: {cure}."
    if blocked > 0.30:
        return (
            f"Actors wait for the learner {format_share(blocked)} of their time: use fewer actors, or a smaller batch "
            "or network."
        )
    if learner.get("learn", 0.0) > 0.70:
        share = format_share(learner["learn"])
        return f"Learning takes {share} of the learners' time, and actors keep up: use a smaller batch or network."
    return _slow_env(actor, now, "each actor") or "Actors and learners keep up with each other."


def _nothing_stands_out(shares: Mapping[str, float], now: Situation) -> str:
    """Resting is no stage of work, and what was not measured can be anything."""
    named = {stage: share for stage, share in shares.items() if stage not in ("other", "idle")}
    if not named or shares.get("other", 0.0) > max(named.values()):
        return "Most of the time is outside the measured stages: a profiler will tell more than these shares can."
    largest = max(named, key=lambda stage: named[stage])
    seen = f"No stage stands out (the largest is {largest}, with {format_share(named[largest])})"
    if now.place == "inline":
        return f"{seen}: --place processes runs the workers at the same time."
    if not now.free_cores:
        return f"{seen}, and every core has a worker."
    return f"{seen}: {now.add_workers}{' and --sync hogwild' if now.sync == 'solo' else ''}."


def render_result(summary: Mapping[str, Any], folder: Path, console: Console) -> None:
    """Print the result of a run whose `summary.json` is given, and what its folder holds."""
    shares = summary.get("shares") or {}
    console.print()
    console.print(_verdict(summary))
    _line(console, "evaluation", _evaluation(summary))
    _line(console, "training", _training(summary))
    _line(console, "speed", _speed(summary))
    for warning in summary.get("warnings") or ():
        _line(console, "warning", str(warning))
    if shares:
        _line(console, "time", "  ".join(f"{s} {format_share(shares[s])}" for s in stages_in([shares])))
        _line(console, "advice", advice(shares, Situation.of(summary, _card(folder))))
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
    elif status != "solved" and summary.get("solved_at_steps") is not None:
        line.append(f", solved after {format_count(summary['solved_at_steps'])} steps")
    elif status != "solved" and summary.get("solved_at") is not None:
        takes, mean = float(summary["solved_at"]), summary.get("return_mean_100")
        unconfirmed = not summary.get("eval") and mean is not None and mean >= takes
        said = "no evaluation has confirmed that it is solved" if unconfirmed else "not solved"
        line.append(f", {said} (that takes {format_number(takes)})")
    what = " · ".join(str(summary[name]) for name in ("env", "algo", "sync", "place") if summary.get(name) is not None)
    line.append(f"  {what}", style="not bold bright_black")
    return line


def _evaluation(summary: Mapping[str, Any]) -> str:
    found, human, step = summary.get("eval"), summary.get("eval_human_normalised"), summary.get("best_step")
    if not found:
        return "none was made"
    mean, std, low, high = (format_number(float(found[name])) for name in ("mean", "std", "min", "max"))
    cut = f", {found['cut']} of them cut before their end" if found.get("cut") else ""
    best = "" if step is None or step == summary.get("steps") else f", by the best policy, of step {step:,}"
    return f"{mean} ± {std}  [{low}, {high}] over {found['episodes']} greedy episodes{cut}{_of_human(human)}{best}"


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
    commands = {
        f"{passel} resume {run}{_to_go_on(summary)}": "go on from the last checkpoint",
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


def _to_go_on(summary: Mapping[str, Any]) -> str:
    """What a run that has ended needs to be told to go on. It may be solved, or stopped, with no step left."""
    status, steps, total = summary.get("status"), int(summary.get("steps", 0)), summary.get("total_steps")
    used_up = status == "finished" if total is None else steps >= int(total)
    solved = " --no-until-solved" if status == "solved" else ""
    return (f" --steps {2 * steps}" if used_up else "") + solved


def _ways_to_look(folder: Path, command: str) -> dict[str, str]:
    """A film; of a set of levels a table; and of an environment behind a server nothing, for it sends no pictures."""
    card = _card(folder)
    if "levels" in card:
        return {command.format("levels"): "every level, trained on or held out"}
    if card.get("env", {}).get("backend") == "remote":
        return {}
    return {command.format("video"): "film the best, median and worst episode"}


def _card(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "card.json").read_text()) if (folder / "card.json").exists() else {}
    return found


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
