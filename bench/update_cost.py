"""What one DQN update costs on one thread: a module and its optimiser as everybody writes them, and passel's way.

    python bench/update_cost.py

Both sides do the same update, which is checked first: target network, Huber loss, gradient, clipping by norm, Adam. The
batch is ready in both cases, so what is timed is the update alone. passel's goes through its Learner and the `solo`
scheme, with all that they check and count. Sides in turn, many rounds.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from common import Progress, alternating, machine, middle, number, parser, table, write
from passel.arena import Arena
from passel.clock import Clock
from passel.data.experience import ReplayExperience
from passel.learner import Learner
from passel.place.plan import Plan
from passel.recipes.resolve import resolve_config
from passel.types import Batch, EnvSpec, Floats

SPEC = EnvSpec("LunarLander-v3", (8,), np.dtype("float32"), 4)
SIZES = [([64, 64], 64), ([128, 128], 128), ([256, 256], 128)]
LR, MAX_NORM = 1e-3, 10.0

Update = Callable[[], None]


class OneBatch:
    """Experience that always has the batch ready that it holds."""

    def __init__(self, batch: Batch) -> None:
        self.held = batch

    def batch(self, steps_so_far: int) -> Batch:
        return self.held

    def feedback(self, batch: Batch, td_abs: Floats | None) -> None:
        pass


def random_batch(size: int) -> Batch:
    rng = np.random.default_rng(0)
    obs, next_obs = rng.standard_normal((2, size, 8), np.float32)
    reward, discount = rng.standard_normal(size, np.float32), np.full(size, 0.99, np.float32)
    return Batch(obs, rng.integers(0, 4, size), reward, discount, next_obs)


class Passel:
    """One learner under `solo`, without an environment."""

    def __init__(self, hidden: list[int], batch: Batch) -> None:
        said = {"sync": "solo", "place": "inline", "hidden": hidden, "batch": len(batch.action), "double": False}
        config, numbers = resolve_config({**said, "lr": LR, "max_grad_norm": MAX_NORM, "target_every": 10**9})
        plan = Plan(config, numbers, SPEC.id, SPEC, 1)
        arena = Arena(plan.specs())
        plan.prepare(arena)
        plan.start(arena)
        algo = plan.make_algorithm(arena.below("worker/0/algo"))
        syncs = {
            name: scheme.attach(algo.flats[name], arena.below(f"sync/{name}"), None, 0)
            for name, scheme in plan.schemes.items()
        }
        self.module = algo.flats["q"].module
        self._learner = Learner(algo, syncs, cast(ReplayExperience, OneBatch(batch)), Clock())
        self._learner.pull()

    def update(self) -> None:
        self._learner.pull()
        self._learner.update(0, LR)


def plain(module: nn.Module, batch: Batch, *, fused: bool | None) -> Update:
    """The update as a tutorial writes it."""
    target = copy.deepcopy(module)
    optimiser = torch.optim.Adam(module.parameters(), lr=LR, fused=fused)
    fields = (batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs)
    obs, action, reward, discount, next_obs = map(torch.from_numpy, fields)

    def update() -> None:
        with torch.no_grad():
            goal = reward + discount * target(next_obs).max(dim=1).values
        value = module(obs).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, goal)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), MAX_NORM)
        optimiser.step()

    return update


def perceptron(hidden: list[int]) -> nn.Sequential:
    widths, layers = [8, *hidden], []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 4))


def like(module: nn.Module, hidden: list[int]) -> nn.Sequential:
    """A plain module with the same weights."""
    made = perceptron(hidden)
    for mine, theirs in zip(made.parameters(), module.parameters(), strict=True):
        mine.data.copy_(theirs.data)
    return made


def check_the_same(hidden: list[int], batch: Batch) -> None:
    """Ten updates of either lead to the same weights."""
    ours = Passel(hidden, batch)
    module = like(ours.module, hidden)
    theirs = plain(module, batch, fused=None)
    for _ in range(10):
        ours.update()
        theirs()
    for mine, other in zip(ours.module.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


def sides(hidden: list[int], batch: Batch) -> dict[str, Update]:
    ours = Passel(hidden, batch)
    return {
        "eager module, Adam": plain(like(ours.module, hidden), batch, fused=None),
        "eager module, fused Adam": plain(like(ours.module, hidden), batch, fused=True),
        "passel": ours.update,
    }


def microseconds(update: Update, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        update()
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=15, help="Rounds (default 15).")
    options.add_argument("--calls", type=int, default=300, help="Updates of a side in a round (default 300).")
    said = options.parse_args()
    card = machine()
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")
    progress = Progress(len(SIZES))
    found: dict[str, dict[str, list[float]]] = {}
    for hidden, size in SIZES:
        name = f"{'-'.join(map(str, hidden))}, batch {size}"
        progress.begin(name)
        batch = random_batch(size)
        check_the_same(hidden, batch)
        updates = sides(hidden, batch)
        times: dict[str, list[float]] = {side: [] for side in updates}
        for update in updates.values():
            microseconds(update, max(said.calls // 10, 5))  # the first calls allocate
        for _, side in alternating(list(updates), said.rounds):
            times[side].append(microseconds(updates[side], said.calls))
        found[name] = times
        progress.end(", ".join(f"{side} {middle(values):.0f} µs" for side, values in times.items()))
    names = list(next(iter(found.values())))
    rows = [[size, *[cell(times[side]) for side in names], ratio(times, names)] for size, times in found.items()]
    sections = [
        f"One thread. Medians of {said.rounds} alternating rounds of {said.calls} updates, the fastest round in "
        "brackets. Ten updates of either side from the same weights gave the same weights.",
        table(["µs an update", *names, "first / passel"], rows),
    ]
    write("update_cost", "What one DQN update costs", said.out, card, sections, {"microseconds": found})


def cell(times: list[float]) -> str:
    return f"{number(middle(times))} ({number(min(times))})"


def ratio(times: dict[str, list[float]], names: list[str]) -> str:
    return f"{middle(times[names[0]]) / middle(times[names[-1]]):.2f}"


if __name__ == "__main__":
    main()
