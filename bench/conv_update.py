"""What one DQN update on images costs: the Nature network, a batch of 32 stacks of 4 x 84 x 84 bytes, ready in memory.

    python bench/conv_update.py
    python bench/conv_update.py --before ../older/src      and the engine as it was, for before and after

An update is: the target network on the next states, the online network there and back, Huber, clipping by norm, Adam.
Sides: PyTorch as anybody writes it, the same with what its manual recommends, and passel's learner under `solo` with
all that it checks and counts. Each side runs in a process of its own with as many threads as there are cores; the sides
of "two processes" in two with one thread each, as two Hogwild! workers would, and there the milliseconds are halved.
Then the same for acting, and how much of this machine's own peak (a product of two large matrices) each layer reaches.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from common import BenchError, Progress, alternating, call, machine, middle, number, parser, scratch, table, write
from passel.arena import Arena
from passel.clock import Clock
from passel.data.experience import ReplayExperience
from passel.learner import Learner
from passel.place.budget import at_most
from passel.place.plan import Plan
from passel.recipes.resolve import resolve_config
from passel.types import Batch, EnvSpec
from update_cost import OneBatch

SPEC = EnvSpec("ALE/Breakout-v5", (4, 84, 84), np.dtype("uint8"), 4)
LR, MAX_NORM, SIZE = 1e-4, 10.0, 32
ACTING = (8, 16, 32)
PATIENCE = 240.0  # seconds; compiling takes most of a minute

Work = Callable[[], object]


def random_batch(size: int) -> Batch:
    rng = np.random.default_rng(0)
    obs, next_obs = rng.integers(0, 256, (2, size, *SPEC.obs_shape), np.uint8)
    reward, discount = rng.standard_normal(size, np.float32), np.full(size, 0.99, np.float32)
    return Batch(obs, rng.integers(0, SPEC.n_actions, size), reward, discount, next_obs)


class Passel:
    """One learner under `solo`, without an environment."""

    def __init__(self, batch: Batch, *, double: bool = False, **more: Any) -> None:
        said = {"sync": "solo", "place": "inline", "hidden": [512], "batch": len(batch.action), "double": double}
        said |= {"lr": LR, "max_grad_norm": MAX_NORM, "target_every": 10**9, **more}
        config, numbers = resolve_config(said)
        plan = Plan(config, numbers, SPEC.id, SPEC, 1)
        arena = Arena(plan.specs())
        plan.prepare(arena)
        plan.start(arena)
        self._algo = plan.make_algorithm(arena.below("worker/0/algo"))
        syncs = {
            name: scheme.attach(self._algo.flats[name], arena.below(f"sync/{name}"), None, 0)
            for name, scheme in plan.schemes.items()
        }
        self.module = self._algo.flats["q"].module
        self.lesson, self._lr = OneBatch(batch), numbers.lr
        self._learner = Learner(self._algo, syncs, cast(ReplayExperience, self.lesson), Clock())
        self._learner.pull()

    def update(self) -> None:
        self._learner.pull()
        self._learner.update(0, self._lr)

    def act(self, obs: np.ndarray) -> object:
        return self._algo.act_greedily(obs)


class Nature(nn.Module):
    """The network as anybody writes it."""

    def __init__(self, layout: torch.memory_format = torch.contiguous_format) -> None:
        super().__init__()
        self._layout = layout
        self.layers = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, SPEC.n_actions),
        ).to(memory_format=layout)

    def forward(self, obs: Tensor) -> Tensor:
        q: Tensor = self.layers((obs.float() / 255).contiguous(memory_format=self._layout))
        return q


def plain(
    batch: Batch, layout: torch.memory_format = torch.contiguous_format, *, fused: bool = False, compiled: bool = False
) -> Work:
    """The update as a tutorial writes it."""
    module = Nature(layout)
    target = copy.deepcopy(module)
    optimiser = torch.optim.Adam(module.parameters(), lr=LR, fused=fused or None)
    fields = (batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs)
    obs, action, reward, discount, next_obs = map(torch.from_numpy, fields)

    def forward() -> Tensor:
        with torch.no_grad():
            goal = reward + discount * target(next_obs).max(dim=1).values
        value = module(obs).gather(1, action[:, None]).squeeze(1)
        return nn.functional.smooth_l1_loss(value, goal)

    forward = torch.compile(forward) if compiled else forward

    def update() -> None:
        loss = forward()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), MAX_NORM)
        optimiser.step()

    return update


LAST = torch.channels_last
UPDATES: dict[str, Callable[[Batch], Work]] = {
    "eager": plain,
    "eager, channels last": lambda batch: plain(batch, LAST),
    "eager, channels last, fused Adam": lambda batch: plain(batch, LAST, fused=True),
    "compiled": lambda batch: plain(batch, compiled=True, fused=True),
    "compiled, channels last": lambda batch: plain(batch, LAST, compiled=True, fused=True),
    "passel": lambda batch: Passel(batch).update,
    "passel, C51": lambda batch: Passel(batch, distributional=True).update,
    "passel, bfloat16": lambda batch: Passel(batch, precision="bfloat16").update,
    "passel, double": lambda batch: Passel(batch, double=True).update,
}
TWO = ("eager", "passel")


def frozen(obs: Tensor) -> Work:
    """Weights packed once for oneDNN: only for as long as they do not change."""
    traced = torch.jit.trace(Nature(LAST).eval(), obs)
    packed = torch.jit.optimize_for_inference(torch.jit.freeze(traced))
    return lambda: packed(obs)


def narrow(obs: Tensor) -> Work:
    """In bfloat16, which this processor may or may not multiply faster."""
    module = Nature(LAST)

    def act() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            q: Tensor = module(obs)
        return q

    return act


def simply(module: nn.Module, obs: Tensor) -> Work:
    return lambda: module(obs).argmax(1).numpy()


def ours(obs: Tensor, **more: Any) -> Work:
    passel, array = Passel(random_batch(SIZE), **more), obs.numpy()
    return lambda: passel.act(array)


FORWARDS: dict[str, Callable[[Tensor], Work]] = {
    "eager": lambda obs: simply(Nature(), obs),
    "eager, channels last": lambda obs: simply(Nature(LAST), obs),
    "frozen, channels last": frozen,
    "bfloat16, channels last": narrow,
    "passel": ours,
    "passel, bfloat16": lambda obs: ours(obs, precision="bfloat16"),
}


def milliseconds(work: Work, seconds: float) -> list[float]:
    """The time of each call, for so many seconds; the first calls, which allocate, apart."""
    for _ in range(3):
        work()
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def in_this_process(side: str, threads: int, seconds: float) -> dict[str, Any]:
    """What a process of its own is started for: one side of one of the two tables, or the layers."""
    torch.manual_seed(0)
    with at_most(threads):
        if side == "layers":
            return {"layers": layers(seconds)}
        kind, _, name = side.partition(": ")
        begin = time.perf_counter()
        if kind == "update":
            work = UPDATES[name](random_batch(SIZE))
            work()
            first = time.perf_counter() - begin
            return {"times": milliseconds(work, seconds), "first_seconds": first}
        with torch.no_grad():
            obs = {size: torch.from_numpy(random_batch(size).obs) for size in ACTING}
            return {str(size): middle(milliseconds(FORWARDS[name](obs[size]), seconds / 3)) for size in ACTING}


def layers(seconds: float) -> list[list[Any]]:
    """GFLOP/s of each layer, there and back, by oneDNN in either order of channels and by BLAS on patches that are
    already there; the first row is the peak.
    """
    share = seconds / 40

    def speed(work: Work, operations: float) -> float:
        return operations / min(milliseconds(work, share)) / 1e6

    def conv_back(slope: Tensor, x: Tensor, weight: Tensor, stride: int, wanted: list[bool]) -> Work:
        sizes, steps = [weight.shape[0]], [stride, stride]
        return lambda: torch.ops.aten.convolution_backward(
            slope, x, weight, sizes, steps, [0, 0], [1, 1], False, [0, 0], 1, wanted
        )

    found: list[list[Any]] = []
    square, other = torch.randn(2, 1024, 1024)
    found.append(["1024 x 1024 x 1024", "product", speed(lambda: square @ other, 2 * 1024**3), None, None])
    for inputs, filters, kernel, stride, width in ((4, 32, 8, 4, 84), (32, 64, 4, 2, 20), (64, 64, 3, 1, 9)):
        speeds: dict[str, list[float]] = {"forward": [], "by weights": [], "by input": []}
        for layout in (torch.contiguous_format, LAST):
            x = torch.rand(SIZE, inputs, width, width).contiguous(memory_format=layout)
            weight = torch.randn(filters, inputs, kernel, kernel).contiguous(memory_format=layout)
            y = nn.functional.conv2d(x, weight, stride=stride)
            operations = 2.0 * y.numel() * inputs * kernel**2
            slope = torch.randn_like(y)

            def forward(x: Tensor = x, weight: Tensor = weight, stride: int = stride) -> object:
                return nn.functional.conv2d(x, weight, stride=stride)

            speeds["forward"].append(speed(forward, operations))
            for name, wanted in (("by weights", [False, True, True]), ("by input", [True, False, False])):
                speeds[name].append(speed(conv_back(slope, x, weight, stride, wanted), operations))
        rows, patch = y.numel() // filters, inputs * kernel**2
        patches, slopes, weights = torch.rand(rows, patch), torch.randn(rows, filters), torch.randn(filters, patch)
        for name, sides in (
            ("forward", (patches, weights.T)),
            ("by weights", (slopes.T, patches)),
            ("by input", (slopes, weights)),
        ):
            speeds[name].append(speed(lambda sides=sides: torch.mm(*sides), operations))  # type: ignore[misc]
        found += [[f"{inputs}-{filters}, {kernel} x {kernel} / {stride}", name, *each] for name, each in speeds.items()]
    x, weight, slope = torch.rand(SIZE, 3136), torch.randn(512, 3136), torch.randn(SIZE, 512)
    column, place, operations = slope.T.contiguous(), torch.empty(512, 3136), 2.0 * SIZE * 3136 * 512
    halves = place.view(2, 256, 3136), column.view(2, 256, SIZE), x.expand(2, -1, -1)
    for name, as_rows, as_columns in (
        ("forward", lambda: x @ weight.T, lambda: weight @ x.T),
        ("by weights", lambda: torch.mm(slope.T, x, out=place), lambda: torch.bmm(*halves[1:], out=halves[0])),
        ("by input", lambda: slope @ weight, lambda: weight.T @ column),
    ):
        found.append(["3136-512", name, speed(as_rows, operations), None, speed(as_columns, operations)])
    return found


class Sides:
    """Starts the sides, each in a process of its own."""

    def __init__(self, said: argparse.Namespace) -> None:
        self._python, self._before = said.python, said.before
        self._more = ["--seconds", said.seconds, *(["--undisturbed"] if said.undisturbed else [])]
        self._cores = machine()["usable_cores"]

    def run(self, side: str, *, before: bool = False) -> dict[str, Any]:
        with scratch() as nothing_compiled_yet:
            env = {**self._env(before), "TORCHINDUCTOR_CACHE_DIR": str(nothing_compiled_yet)}
            return call(self._command(side, self._cores), timeout=PATIENCE, env=env)

    def run_two(self, side: str, *, before: bool = False) -> dict[str, Any]:
        """Two at a time, a thread each."""
        env = {**os.environ, **self._env(before)}
        words = self._command(side, 1)
        both = [subprocess.Popen(words, stdout=subprocess.PIPE, env=env, text=True) for _ in range(2)]
        said = [each.communicate(timeout=PATIENCE)[0] for each in both]
        if any(each.returncode for each in both):
            raise BenchError(f"{side}, two processes: failed")
        found = [json.loads(text.splitlines()[-1]) for text in said]
        return {"times": [time / 2 for each in found for time in each["times"]], "first_seconds": 0.0}

    def _command(self, side: str, threads: int) -> list[str]:
        return [str(word) for word in (self._python, __file__, "--side", side, "--threads", threads, *self._more)]

    def _env(self, before: bool) -> dict[str, str]:
        return {"PYTHONPATH": str(self._before.resolve())} if before and self._before else {}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--before", type=Path, help="The src folder of an older version, for a comparison.")
    options.add_argument("--rounds", type=int, default=5, help="Rounds (default 5).")
    options.add_argument("--seconds", type=float, default=2.0, help="Seconds of a side in a round (default 2).")
    options.add_argument(
        "--undisturbed", action="store_true", help="Go before everybody else on this machine, while a side is timed."
    )
    options.add_argument("--no-compiled", action="store_true", help="Leave out the sides that need a compiler.")
    options.add_argument("--side", help="(for itself) measure this, and print it as JSON")
    options.add_argument("--threads", type=int, default=0, help="(for itself)")
    said = options.parse_args()
    if said.side:
        if said.undisturbed:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # threads that are yet to start inherit it
        print(json.dumps(in_this_process(said.side, said.threads, said.seconds)))
        return
    card, sides = machine(), Sides(said)
    names = [name for name in UPDATES if not (said.no_compiled and name.startswith("compiled"))]
    contenders: dict[str, Work] = {name: lambda name=name: sides.run(f"update: {name}") for name in names}  # type: ignore[misc]
    for name in TWO:
        contenders[f"{name}, two processes"] = lambda name=name: sides.run_two(f"update: {name}")  # type: ignore[misc]
    acting: dict[str, Work] = {name: lambda name=name: sides.run(f"act: {name}") for name in FORWARDS}  # type: ignore[misc]
    if said.before:
        contenders["passel before"] = lambda: sides.run("update: passel", before=True)
        contenders["passel before, double"] = lambda: sides.run("update: passel, double", before=True)
        contenders["passel before, two processes"] = lambda: sides.run_two("update: passel", before=True)
        acting["passel before"] = lambda: sides.run("act: passel", before=True)
    updates = in_turn(contenders, said.rounds)
    forwards = in_turn(acting, said.rounds)
    peak = sides.run("layers")["layers"]
    report(said, card, updates, forwards, peak)


def in_turn(contenders: dict[str, Work], rounds: int) -> dict[str, list[dict[str, Any]]]:
    progress = Progress(len(contenders) * rounds)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for repeat, name in alternating(list(contenders), rounds):
        progress.begin(name)
        if repeat and name.startswith("compiled"):
            progress.end("measured once: most of it is compiling")
            continue
        try:
            answer = cast(dict[str, Any], contenders[name]())
        except BenchError as error:
            if not name.startswith("compiled"):
                raise
            progress.end(f"left out: {error}")  # no compiler, or one that takes too long
            continue
        found[name].append(answer)
        progress.end(
            ", ".join(
                f"{key} {middle(value) if isinstance(value, list) else value:.2f}" for key, value in answer.items()
            )
        )
    return found


def report(said: Any, card: Any, updates: Any, forwards: Any, peak: list[list[Any]]) -> None:
    rounds = {name: [middle(answer["times"]) for answer in answers] for name, answers in updates.items() if answers}
    base = middle(rounds["eager"])
    fastest = {name: min(min(answer["times"]) for answer in answers) for name, answers in updates.items() if answers}
    rows = [
        [name, number(middle(times), 2), number(fastest[name], 2), f"{base / middle(times):.2f}", first(updates[name])]
        for name, times in sorted(rounds.items(), key=lambda item: -middle(item[1]))
    ]
    acts = [
        [name, *(number(middle([answer[str(size)] for answer in answers]), 2) for size in ACTING)]
        for name, answers in forwards.items()
    ]
    layered = [[layer, what, *(number(speed) for speed in speeds)] for layer, what, *speeds in peak]
    ahead = "Each side was timed ahead of all other processes of a busy machine. " if said.undisturbed else ""
    sections = [
        f"{ahead}Medians of {said.rounds} alternating rounds of {said.seconds:g} s a side, each in a fresh process. "
        "The first update includes what is compiled and allocated once; compiled sides have one round.",
        table(["update, batch 32", "ms", "fastest update", "times eager", "first update, s"], rows),
        "## Acting\n\nFrom bytes to actions (eager, passel) or action values (the others), ms.",
        table(["side", *(f"batch {size}" for size in ACTING)], acts),
        "## Where the peak is\n\nGFLOP/s on all cores. The first line is this machine's peak. Patches are taken to be "
        "there already, so BLAS on patches is faster here than it could be in an update.",
        table(["layer", "what", "NCHW (rows)", "channels last", "BLAS on patches (columns)"], layered),
    ]
    write(
        "conv_update",
        "What one DQN update on images costs",
        said.out,
        card,
        sections,
        {"updates": rounds, "acting": forwards, "layers": peak},
    )


def first(answers: list[dict[str, Any]]) -> str:
    seconds = max(answer["first_seconds"] for answer in answers)
    return number(seconds, 1) if seconds else "–"


if __name__ == "__main__":
    main()
