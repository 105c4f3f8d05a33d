"""Steps a second of passel against Stable-Baselines3 and SBX doing the same work: what every such comparison shares.

Peers run in their best light: a short trial first finds the number of environments and threads that suits each best,
and that is what is measured. All sides in turn, each in a process of its own, over a window in the steady state. passel
is measured twice: as it comes, where a faster back-end steps the environments, and with Gymnasium's own environments,
which the peers use.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common import HERE, Progress, call, machine, measure, middle, number, parser, peer_versions, shares, table, write

PASSEL = {"passel": "auto", "passel, Gymnasium's environments": "gymnasium"}
PEERS = {"Stable-Baselines3": "sb3", "SBX": "sbx"}

Contender = Callable[[int], dict[str, Any]]
Results = list[dict[str, Any]]


@dataclass(frozen=True)
class Size:
    """One piece of work, as each side is told of it."""

    settings: Mapping[str, Any]
    peer_flags: Sequence[object]


@dataclass(frozen=True)
class Race:
    """What is compared: sizes of work, and what to try to find each peer's best light, as (environments, threads)."""

    name: str
    title: str
    how: str
    sizes: Mapping[str, Size]
    trials: Sequence[tuple[int, int]]


def passel(said: argparse.Namespace, size: Size, backend: str) -> Contender:
    window = ["--seconds", said.seconds, "--warm", said.warm]

    def run(repeat: int) -> dict[str, Any]:
        asked = json.dumps({**size.settings, "backend": backend, "seed": repeat + 1})
        return call([said.python, HERE / "window.py", *window, asked], timeout=said.seconds + said.warm + 120)

    return run


def peer(said: argparse.Namespace, size: Size, name: str, envs: int, threads: int, seconds: float) -> Contender:
    command = [said.peers_python, HERE / "peers.py", "speed", PEERS[name], *size.peer_flags]
    command += ["--envs", envs, "--threads", threads, "--seconds", seconds, "--warm", said.warm]
    return lambda repeat: call([*command, "--seed", repeat + 1], timeout=seconds + said.warm + 300)


def best_light(
    race: Race, said: argparse.Namespace, label: str, name: str, progress: Progress
) -> tuple[Contender, Results]:
    """The peer with the number of environments and threads that was fastest in a short trial, and the trials."""
    size, tried = race.sizes[label], Results()
    for envs, threads in race.trials if said.trial_seconds else ():
        progress.begin(f"{label}: trial of {name} with {envs} environments, {threads} threads")
        tried.append(peer(said, size, name, envs, threads, said.trial_seconds)(0))
        progress.end(told(tried[-1]))
    first = {"envs": race.trials[0][0], "threads": race.trials[0][1]}
    best = max(tried, key=lambda trial: float(trial["steps_per_second"]), default=first)
    return peer(said, size, name, best["envs"], best["threads"], said.seconds), tried


def told(result: dict[str, Any]) -> str:
    return f"{result['steps_per_second']:,.0f} steps/s, {result['updates_per_second']:,.0f} updates/s"


def compare(race: Race, said: argparse.Namespace, label: str, progress: Progress) -> dict[str, Any]:
    contenders = {name: passel(said, race.sizes[label], backend) for name, backend in PASSEL.items()}
    trials = {}
    for name in PEERS:
        contenders[name], trials[name] = best_light(race, said, label, name, progress)
    return {"trials": trials, "rounds": measure(contenders, said.repeats, progress, told)}


def speeds(results: Results) -> list[float]:
    return [float(result["steps_per_second"]) for result in results]


def section(race: Race, label: str, found: dict[str, Any]) -> str:
    rounds: dict[str, Results] = found["rounds"]
    count = len(next(iter(rounds.values())))
    head = ["steps/s", *[f"round {n + 1}" for n in range(count)], "median", "updates a step", "how"]
    rows = [
        [
            name,
            *map(number, speeds(results)),
            number(middle(speeds(results))),
            updates_a_step(results),
            how(results[-1]),
        ]
        for name, results in rounds.items()
    ]
    ratio_head = ["times as fast", *[f"round {n + 1}" for n in range(count)], "median"]
    ratio_rows = []
    for ours in PASSEL:
        for theirs in PEERS:
            ratios = [a / b for a, b in zip(speeds(rounds[ours]), speeds(rounds[theirs]), strict=True)]
            cells = [f"{ratio:.1f}" for ratio in (*ratios, middle(ratios))]
            ratio_rows.append([f"{ours} / {theirs}", *cells])
    return f"## {label}\n\n{table(head, rows)}\n\n{table(ratio_head, ratio_rows)}\n\n{tried(race, found['trials'])}"


def updates_a_step(results: Results) -> str:
    return f"{middle([result['updates_per_second'] / result['steps_per_second'] for result in results]):.4g}"


def how(result: dict[str, Any]) -> str:
    if "shares" in result:
        return f"every core, hogwild; {shares(result['shares'])}"
    return f"environments: {result['envs']}, threads: {result['threads']}"


def tried(race: Race, found: dict[str, Results]) -> str:
    """What was tried to find each peer's best light."""
    if not any(found.values()):
        return f"No trials: each peer has {race.trials[0][0]} environments and {race.trials[0][1]} threads."
    head = ["trial, steps/s", *[f"{envs} env, {threads} thr" for envs, threads in race.trials]]
    return table(head, [[name, *map(number, speeds(results))] for name, results in found.items()])


def run(race: Race, text: str | None) -> None:
    """The command line of a comparison."""
    options = parser(text, peers=True)
    options.add_argument("--repeats", type=int, default=3, help="Rounds (default 3).")
    options.add_argument("--seconds", type=float, default=15.0, help="Length of a window (default 15).")
    options.add_argument("--warm", type=float, default=5.0, help="Seconds of learning before a window (default 5).")
    options.add_argument("--trial-seconds", type=float, default=5.0, help="Length of a trial; 0 for none (default 5).")
    options.add_argument("--sizes", nargs="+", choices=list(race.sizes), default=list(race.sizes), help="Which work.")
    said = options.parse_args()
    card = machine() | {"peers": peer_versions(said.peers_python)}
    trials = len(race.trials) * len(PEERS) if said.trial_seconds else 0
    progress = Progress(len(said.sizes) * (trials + said.repeats * (len(PASSEL) + len(PEERS))))
    found = {label: compare(race, said, label, progress) for label in said.sizes}
    peers = ", ".join(f"{name} {version}" for name, version in card["peers"].items())
    intro = (
        f"Peers: {peers}. Windows of {said.seconds:g} s after {said.warm:g} s of learning, all sides in turn, the "
        "order reversed every round; the peers with the environments and threads that were fastest in a trial. "
        f"{race.how}"
    )
    sections = [intro, *[section(race, label, result) for label, result in found.items()]]
    write(race.name, race.title, said.out, card, sections, {"sizes": found})
