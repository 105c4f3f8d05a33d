"""What it costs to serve environments from another interpreter: time added to a batched step, and Tetris' throughput.

The first part steps 8 pictures of 84 x 84 bytes, made at no cost, in process and through a server over tcp and ipc:
the difference is the price of the way. The second part plays NES Tetris (`passel env install tetris`) in its own
interpreter without a socket, and through its server. Random actions; contenders alternate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from common import HERE, Progress, call, machine, measure, middle, number, parser, scratch, table, write
from passel.envs import make_envs, packaged
from passel.envs.base import Envs

COPIES = 8
TARGET_US = 200
TARGET_SHARE = 0.9


class Pictures(gym.Env[Any, Any]):
    """The same picture for ever: whatever time is measured, it is not the environment's."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
        self.action_space = gym.spaces.Discrete(4)
        self._picture = np.random.default_rng(0).integers(0, 256, (84, 84)).astype(np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._picture, {}

    def step(self, action: Any) -> Any:
        return self._picture, 1.0, False, False, {}


gym.register("Pictures-v0", "remote_envs:Pictures")


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--repeats", type=int, default=7, help="Rounds of the first part (default 7).")
    made.add_argument("--steps", type=int, default=3000, help="Batched steps of a round (default 3000).")
    made.add_argument("--tetris-repeats", type=int, default=3, help="Rounds of the second part (default 3).")
    made.add_argument("--tetris-seconds", type=float, default=15.0, help="Seconds of a window (default 15).")
    said = made.parse_args()
    tetris = packaged.installed("tetris")
    rounds = 3 * said.repeats + (2 * said.tetris_repeats if tetris else 0)
    card, progress = machine(), Progress(rounds)
    steps = step_times(said.repeats, said.steps, progress)
    games = tetris_speeds(said.tetris_repeats, said.tetris_seconds, progress) if tetris else {}
    sections = [*step_section(steps, said.steps), *(tetris_section(games) if games else [])]
    write(
        "remote_envs",
        "Environments in their own interpreter",
        said.out,
        card,
        sections,
        {"step": steps, "tetris": games},
    )


def step_times(repeats: int, steps: int, progress: Progress) -> dict[str, list[dict[str, Any]]]:
    """Microseconds of a batched step: in process, over tcp, over ipc."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        folder.mkdir()
        groups = {"in process": make_envs("remote_envs:Pictures-v0", COPIES, 0, backend="gymnasium")}
        for name, bind in (("tcp", "tcp://127.0.0.1:*"), ("ipc", f"ipc://{folder}/s")):
            groups[name] = make_envs(stack.enter_context(serving(bind)), COPIES, 0)
        for group in groups.values():
            stack.callback(group.close)
            group.reset()
            window(group, steps // 4)

        def contender(name: str) -> Callable[[int], dict[str, Any]]:
            return lambda _: {"us": window(groups[name], steps)}

        contenders = {name: contender(name) for name in groups}
        return measure(contenders, repeats, progress, lambda result: f"{result['us']:.0f} us a step")


def window(envs: Envs, steps: int) -> float:
    """Mean microseconds of a step."""
    actions = np.zeros(envs.n, np.int64)
    began = time.perf_counter()
    for _ in range(steps):
        envs.step(actions)
    return (time.perf_counter() - began) / steps * 1e6


@contextmanager
def serving(bind: str) -> Iterator[str]:
    """The address of a server of the pictures."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(packaged.SERVER), "remote_envs:Pictures-v0", "--bind", bind]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split(" at ")[1].split(",")[0]
        finally:
            process.terminate()


def step_section(found: dict[str, list[dict[str, Any]]], steps: int) -> list[str]:
    base = [result["us"] for result in found["in process"]]
    rows = []
    for name, results in found.items():
        times = [result["us"] for result in results]
        added = middle([a - b for a, b in zip(times, base, strict=True)])
        rows.append([name, *map(number, times), number(middle(times)), number(added)])
    return [
        f"## What a batched step costs more\n\n{COPIES} pictures of 84 x 84 bytes, {steps:,} steps a round: "
        f"microseconds a step. Target: at most {TARGET_US} added.",
        table(["", *[f"round {n + 1}" for n in range(len(base))], "median", "added (median)"], rows),
    ]


def tetris_speeds(repeats: int, seconds: float, progress: Progress) -> dict[str, list[dict[str, Any]]]:
    """Agent steps a second of Tetris."""
    package = packaged.find("tetris")
    inside = [packaged.interpreter("tetris"), HERE / "in_process.py", packaged.SERVER.parent, COPIES, seconds]
    words = [f"{package.module}:{package.env}", *package.flags]

    def in_process(_: int) -> dict[str, Any]:
        return call([*inside, *words], timeout=seconds + 120)

    def served(_: int) -> dict[str, Any]:
        envs, dice = make_envs("tetris", COPIES, 0), np.random.default_rng(0)
        try:
            envs.reset()
            done, began = 0, time.perf_counter()
            while time.perf_counter() - began < seconds:
                envs.step(dice.integers(envs.spec.n_actions, size=COPIES))
                done += COPIES
            return {"steps_per_second": done / (time.perf_counter() - began)}
        finally:
            envs.close()

    contenders = {"in process": in_process, "through the server": served}
    return measure(contenders, repeats, progress, lambda result: f"{result['steps_per_second']:.0f} steps/s")


def tetris_section(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    speeds = {name: [result["steps_per_second"] for result in results] for name, results in found.items()}
    ratios = [b / a for a, b in zip(*speeds.values(), strict=True)]
    rows = [
        [name, *[number(each) for each in each_round], number(middle(each_round))]
        for name, each_round in speeds.items()
    ]
    rows.append(["ratio", *[number(each, 3) for each in ratios], number(middle(ratios), 3)])
    return [
        f"## Tetris\n\n{COPIES} copies of TetrisA, frames 3 x 240 x 256, frame skip 4, over ipc: agent steps a second. "
        f"Target: a ratio of at least {TARGET_SHARE}.",
        table(["", *[f"round {n + 1}" for n in range(len(ratios))], "median"], rows),
    ]


if __name__ == "__main__":
    sys.modules["remote_envs"] = sys.modules["__main__"]
    main()
