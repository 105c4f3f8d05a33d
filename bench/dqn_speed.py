"""DQN's steps a second: passel on every core against Stable-Baselines3 and SBX, doing the same work.

    python bench/dqn_speed.py
    python bench/dqn_speed.py --peers-python .venv-bench/bin/python --repeats 5

The same work: LunarLander-v3, one update a step, no double Q-learning, one-step returns, the same network, batch,
memory, exploration, optimiser and interval of the target network. Peers run in their best light: a short trial first
finds the number of environments and threads that suits each best, and that is what is measured. All sides in turn, each
in a process of its own, over a window in the steady state. passel is measured twice: as it comes, where a faster
back-end steps the environments, and with Gymnasium's own environments, which the peers use.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from common import (
    HERE,
    BenchError,
    Progress,
    call,
    machine,
    measure,
    middle,
    number,
    parser,
    peer_versions,
    shares,
    table,
    write,
)

SIZES = {"256-256, batch 128": ([256, 256], 128), "64-64, batch 64": ([64, 64], 64)}
PASSEL = {"passel": "auto", "passel, Gymnasium's environments": "gymnasium"}
PEERS = {"Stable-Baselines3": "sb3", "SBX": "sbx"}
TRIALS = [(envs, threads) for envs in (1, 8, 32) for threads in (1, 2)]
# Everything that decides how much an update costs is said here, so that no preset changes it.
SAME: dict[str, Any] = {
    "env": "LunarLander-v3",
    "sync": "hogwild",
    "sync_every": 1,
    "envs": 32,  # as many as suit the peers best
    "updates_per_step": 1.0,
    "n_step": 1,
    "double": False,
    "dueling": False,
    "prioritized": False,
    "capacity": 50_000,
    "warmup": 1_000,
    "gamma": 0.99,
    "lr": 6.3e-4,
    "lr_end": None,
    "optimizer": "adam",
    "max_grad_norm": 10.0,
    "target_every": 250,
    "target_tau": 1.0,
    "epsilon_start": 0.05,
    "epsilon_end": 0.05,
}

Contender = Callable[[int], dict[str, Any]]
Results = list[dict[str, Any]]


def passel(said: argparse.Namespace, size: str, backend: str) -> Contender:
    hidden, batch = SIZES[size]
    settings = SAME | {"hidden": hidden, "batch": batch, "backend": backend}
    window = ["--seconds", said.seconds, "--warm", said.warm]

    def run(repeat: int) -> dict[str, Any]:
        asked = json.dumps(settings | {"seed": repeat + 1})
        return call([said.python, HERE / "window.py", *window, asked], timeout=said.seconds + said.warm + 120)

    return run


def peer(said: argparse.Namespace, size: str, name: str, envs: int, threads: int, seconds: float) -> Contender:
    hidden, batch = SIZES[size]
    command = [said.peers_python, HERE / "peers.py", "speed", PEERS[name], "--hidden", *hidden, "--batch", batch]
    command += ["--envs", envs, "--threads", threads, "--seconds", seconds, "--warm", said.warm]
    return lambda repeat: call([*command, "--seed", repeat + 1], timeout=seconds + said.warm + 300)


def best_light(said: argparse.Namespace, size: str, name: str, progress: Progress) -> tuple[Contender, Results]:
    """The peer with the number of environments and threads that was fastest in a short trial, and the trials."""
    tried: Results = []
    for envs, threads in TRIALS if said.trial_seconds else ():
        progress.begin(f"{size}: trial of {name} with {envs} environments, {threads} threads")
        tried.append(peer(said, size, name, envs, threads, said.trial_seconds)(0))
        progress.end(told(tried[-1]))
    best = max(tried, key=lambda trial: float(trial["steps_per_second"]), default={"envs": 8, "threads": 1})
    return peer(said, size, name, best["envs"], best["threads"], said.seconds), tried


def told(result: dict[str, Any]) -> str:
    return f"{result['steps_per_second']:,.0f} steps/s, {result['updates_per_second']:,.0f} updates/s"


def compare(said: argparse.Namespace, size: str, progress: Progress) -> dict[str, Any]:
    contenders = {name: passel(said, size, backend) for name, backend in PASSEL.items()}
    trials = {}
    for name in PEERS:
        contenders[name], trials[name] = best_light(said, size, name, progress)
    return {"trials": trials, "rounds": measure(contenders, said.repeats, progress, told)}


def speeds(results: Results) -> list[float]:
    return [float(result["steps_per_second"]) for result in results]


def section(size: str, found: dict[str, Any]) -> str:
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
    return f"## {size}\n\n{table(head, rows)}\n\n{table(ratio_head, ratio_rows)}\n\n{trials(found['trials'])}"


def updates_a_step(results: Results) -> str:
    return f"{middle([result['updates_per_second'] / result['steps_per_second'] for result in results]):.2f}"


def how(result: dict[str, Any]) -> str:
    if "shares" in result:
        return f"every core, hogwild; {shares(result['shares'])}"
    return f"environments: {result['envs']}, threads: {result['threads']}"


def trials(found: dict[str, Results]) -> str:
    """What was tried to find each peer's best light."""
    if not any(found.values()):
        return "No trials: each peer has 8 environments and 1 thread."
    head = ["trial, steps/s", *[f"{envs} env, {threads} thr" for envs, threads in TRIALS]]
    return table(head, [[name, *map(number, speeds(tried))] for name, tried in found.items()])


def main() -> None:
    options = parser(__doc__, peers=True)
    options.add_argument("--repeats", type=int, default=3, help="Rounds (default 3).")
    options.add_argument("--seconds", type=float, default=15.0, help="Length of a window (default 15).")
    options.add_argument("--warm", type=float, default=5.0, help="Seconds of learning before a window (default 5).")
    options.add_argument("--trial-seconds", type=float, default=5.0, help="Length of a trial; 0 for none (default 5).")
    options.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES), help="Which networks.")
    said = options.parse_args()
    card = machine() | {"peers": peer_versions(said.peers_python)}
    tried = len(TRIALS) * len(PEERS) if said.trial_seconds else 0
    progress = Progress(len(said.sizes) * (tried + said.repeats * (len(PASSEL) + len(PEERS))))
    found = {size: compare(said, size, progress) for size in said.sizes}
    peers = ", ".join(f"{name} {version}" for name, version in card["peers"].items())
    intro = (
        f"Peers: {peers}. Windows of {said.seconds:g} s after {said.warm:g} s of learning, all sides in turn, the "
        "order reversed every round. One update a step on both sides; the peers with the environments and threads that "
        "were fastest in a trial. SBX clips no gradient, which spares it some work."
    )
    sections = [intro, *[section(size, result) for size, result in found.items()]]
    write("dqn_speed", "DQN: steps a second against the peers", said.out, card, sections, {"sizes": found})


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"dqn_speed: {error}") from None
