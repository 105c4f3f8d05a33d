"""Breakout: steps a second of DQN, PPO and IMPALA on every core, against Stable-Baselines3 and the bare arithmetic.

    python bench/breakout_speed.py --peers-python .venv-bench/bin/python
    python bench/breakout_speed.py --dqn             only DQN and the bare updates: results/breakout_dqn.md

The same work on all sides: no sticky actions, four frames a step, stacks of four 84 x 84 pictures, the Nature network.
DQN learns from a batch of 32 for every four steps. PPO makes four epochs over 128 steps of each environment in
minibatches of 256 (two workers with half of each under allreduce), its policy and its critic sharing the network, as
Stable-Baselines3's do. The bare updates are passel's own DQN update on one batch that lies in memory, in two processes
of one thread each: what would be left if acting, environments, memory and sharing cost nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
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

GAME: dict[str, Any] = {"env": "ALE/Breakout-v5", "protocol": "nature"}
DQN: dict[str, Any] = {
    "algo": "dqn",
    "sync": "hogwild",
    "workers": 2,
    "warmup": 500,
    "double": False,
    "n_step": 1,
}
PASSEL: dict[str, dict[str, Any]] = {
    "passel DQN": {**DQN, "envs": 16},
    "passel DQN, 64 games a worker": {**DQN, "envs": 64},
    "passel PPO": {"algo": "ppo", "sync": "allreduce", "workers": 2, "envs": 4, "minibatches": 4, "epochs": 4},
    "passel IMPALA": {"algo": "impala", "sync": "solo", "workers": 2},
    # Few first steps: the learner catches up with them before it waits for new ones.
    "passel Ape-X": {"algo": "apex", "sync": "solo", "workers": 2, "warmup": 100},
}
PEERS = {
    "Stable-Baselines3 DQN": ["--algo", "dqn", "--batch", 32, "--capacity", 20_000, "--warmup", 1_000, "--envs", 8],
    "Stable-Baselines3 PPO": ["--algo", "ppo", "--envs", 8],
}
BARE = "bare updates, times four"
#: What is compared, and the least that it should be.
TARGETS = [
    ("passel DQN", BARE, 0.9),
    ("passel DQN, 64 games a worker", BARE, 0.9),
    ("passel DQN", "Stable-Baselines3 DQN", 1.5),
    ("passel PPO", "Stable-Baselines3 PPO", 1.5),
    ("passel IMPALA", "Stable-Baselines3 PPO", 3.0),
]

Contender = Callable[[int], dict[str, Any]]


def bare(seconds: float) -> dict[str, Any]:
    """Two processes of one thread that do nothing but update."""
    command = [sys.executable, str(HERE / "breakout_speed.py"), "--bare-process", str(seconds)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    rates = [float(process.communicate(timeout=seconds + 120)[0].splitlines()[-1]) for process in both]
    return {"steps_per_second": 4 * sum(rates), "updates_per_second": sum(rates)}


def bare_process(seconds: float) -> float:
    """Updates a second of one process, over the last three quarters of its time: both have begun by then."""
    import time

    import torch

    from conv_update import Passel, random_batch
    from passel.place.budget import at_most

    torch.set_num_threads(1)
    with at_most(1):
        side = Passel(random_batch(32))
        began = time.perf_counter()
        while time.perf_counter() - began < seconds / 4:
            side.update()
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds * 3 / 4:
            side.update()
            count += 1
        return count / (time.perf_counter() - start)


def told(result: dict[str, Any]) -> str:
    return f"{result['steps_per_second']:,.0f} steps/s, {result['updates_per_second']:,.1f} updates/s"


def where_time_went(name: str, result: dict[str, Any]) -> list[list[str]]:
    """Of everybody together where all do the same, else of each."""
    workers = result["workers"]
    if all(worker.startswith("worker") for worker in workers):
        return [[name, shares(result["shares"])]]
    return [[f"{name}, {worker}", shares(found)] for worker, found in workers.items()]


def main() -> None:
    options = parser(__doc__, peers=True)
    options.add_argument("--repeats", type=int, default=3, help="Rounds (default 3).")
    options.add_argument("--seconds", type=float, default=15.0, help="Length of a window (default 15).")
    options.add_argument("--warm", type=float, default=5.0, help="Seconds of learning before a window (default 5).")
    options.add_argument("--dqn", action="store_true", help="Only DQN against the bare updates, without peers.")
    options.add_argument("--bare-process", type=float, help="Only measure this process, for so many seconds.")
    said = options.parse_args()
    if said.bare_process:
        print(bare_process(said.bare_process))
        return
    card = machine() | {"peers": {} if said.dqn else peer_versions(said.peers_python)}
    window = ["--seconds", said.seconds, "--warm", said.warm]

    def ours(settings: dict[str, Any]) -> Contender:
        def run(repeat: int) -> dict[str, Any]:
            asked = json.dumps({**GAME, **settings, "seed": repeat + 1})
            return call([said.python, HERE / "window.py", *window, asked], timeout=said.seconds + said.warm + 180)

        return run

    def theirs(flags: list[object]) -> Contender:
        command = [said.peers_python, HERE / "peers.py", "speed", "sb3", "--env", GAME["env"], *flags]
        command += ["--threads", 2, *window]
        return lambda repeat: call([*command, "--seed", repeat + 1], timeout=said.seconds + said.warm + 300)

    mine = {name: settings for name, settings in PASSEL.items() if not said.dqn or settings["algo"] == "dqn"}
    contenders: dict[str, Contender] = {name: ours(settings) for name, settings in mine.items()}
    if not said.dqn:
        contenders |= {name: theirs(flags) for name, flags in PEERS.items()}
    contenders[BARE] = lambda repeat: bare(said.seconds)
    progress = Progress(said.repeats * len(contenders))
    rounds = measure(contenders, said.repeats, progress, told)

    def speeds(name: str) -> list[float]:
        return [float(result["steps_per_second"]) for result in rounds[name]]

    each = [f"round {n + 1}" for n in range(said.repeats)]
    rows = [
        [
            name,
            *map(number, speeds(name)),
            number(middle(speeds(name))),
            f"{middle([r['updates_per_second'] / r['steps_per_second'] for r in results]):.4g}",
            number(max(r["peak_mb"] for r in results)) if "peak_mb" in results[0] else "–",
        ]
        for name, results in rounds.items()
    ]
    ratios = []
    for one, other, target in (row for row in TARGETS if row[0] in rounds and row[1] in rounds):
        found = [a / b for a, b in zip(speeds(one), speeds(other), strict=True)]
        ratios.append([f"{one} / {other}", *(f"{r:.2f}" for r in (*found, middle(found))), f"{target:g}"])
    where = [row for name in mine for row in where_time_went(name, rounds[name][-1])]
    peers = ", ".join(f"{name} {version}" for name, version in card["peers"].items())
    told_of = f"Peers: {peers}; 8 environments, 2 threads. " if peers else ""
    sections = [
        f"{told_of}Windows of {said.seconds:g} s after {said.warm:g} s of learning, "
        "all sides in turn, the order reversed every round. Memory is the largest of the rounds: of passel the whole "
        "process tree, each page once; the peers' DQN keeps 20,000 transitions, passel's what its preset says.",
        table(["steps/s", *each, "median", "updates a step", "MB at most"], rows),
        table(["times as fast", *each, "median", "target"], ratios),
        "## Where the time went\n\nParts of all workers' time, in the last round; where actors and learners are apart, "
        "of each one's.",
        table(["", "shares"], where),
    ]
    name = "breakout_dqn" if said.dqn else "breakout_speed"
    write(name, "Breakout: steps a second", said.out, card, sections, {"rounds": rounds})


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        main()
    except BenchError as error:
        raise SystemExit(f"breakout_speed: {error}") from None
