"""Which worker holds which levels of a set, and what its gradient counts for.

Levels are dealt out by what a step of each costs, so that workers that wait for each other at every gradient step wait
little. The mean over all levels is then a mean over workers in which each counts by the levels that it holds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from passel.envs.levels import Copies, LevelSet
from passel.envs.spaces import random_actions
from passel.types import Ints, PasselError

MEASURE_STEPS = 64
MEASURE_SECONDS = 0.05  # a level


@dataclass(frozen=True)
class Parts:
    """The levels of each worker, by name. `costs` are microseconds of a step where that was measured."""

    levels: LevelSet
    held: tuple[tuple[str, ...], ...]
    costs: Mapping[str, float]

    def rows(self, rank: int, copies: int) -> int:
        """How many environments worker `rank` steps at once."""
        return self.levels.rows(self.held[rank], copies)

    def groups(self, rank: int, copies: int) -> Ints | None:
        """Which of the worker's levels each of its rows plays."""
        return self.levels.groups(self.held[rank], copies)

    def weight(self, rank: int) -> float:
        """What worker `rank`'s gradient is multiplied with, so that the mean over workers is the mean over levels.

            g = 1/L sum_l g_l = 1/W sum_w weight_w mean_{l in w} g_l,    weight_w = W/L sum_{l in w} 1 / holders(l)

        With fewer levels than workers a level has several holders, and each of them counts for its part of it.
        """
        everybody = [name for part in self.held for name in part]
        share = sum(1 / everybody.count(name) for name in self.held[rank])
        return len(self.held) * share / len(set(everybody))


def divide(levels: LevelSet, workers: int, costs: Mapping[str, float] | None = None) -> Parts:
    """Deal out the training levels: the dearest first, each to whoever has least to do; without costs all are equal.

    Nobody holds two levels more than another, for to learn from a level costs the same whatever its steps cost.
    """
    names = levels.train
    if len(names) < workers:
        return Parts(levels, tuple((names[rank % len(names)],) for rank in range(workers)), {})
    known = costs or {}
    if not levels.listed:
        return Parts(levels, _ranges(names, workers), {})
    parts: list[list[int]] = [[] for _ in range(workers)]
    loads = [0.0] * workers
    fewest, larger = divmod(len(names), workers)
    for number in sorted(range(len(names)), key=lambda i: (-known.get(names[i], 1.0), i)):
        free = [w for w in range(workers) if len(parts[w]) < fewest + (larger > 0)]
        rank = min(free, key=lambda w: (loads[w], w))
        parts[rank].append(number)
        larger -= len(parts[rank]) > fewest
        loads[rank] += known.get(names[number], 1.0)
    return Parts(levels, tuple(tuple(names[i] for i in sorted(part)) for part in parts), dict(known))


def remembered(levels: LevelSet, held: Sequence[Sequence[str]], costs: Mapping[str, float]) -> Parts:
    """The parts of a run that is resumed: as they were, whatever a new measurement would say."""
    missing = sorted({name for part in held for name in part} - set(levels.train))
    if missing:
        raise PasselError(
            f"{levels.name} no longer has what this run trains on: {', '.join(missing)}. "
            "Put it back, or start a new run."
        )
    return Parts(levels, tuple(map(tuple, held)), costs)


def measure(levels: LevelSet) -> dict[str, float]:
    """Microseconds that a step of each training level takes, at random play: a glance, not a benchmark."""
    spec, rng = levels.describe(), np.random.default_rng(0)
    costs: dict[str, float] = {}
    for name in levels.train:
        envs = levels.level(name, Copies(1, seed=0))
        try:
            envs.reset()
            envs.step(random_actions(spec, 1, rng))  # the first step may pay for what is set up late
            began, steps = time.perf_counter(), 0
            while steps < MEASURE_STEPS and time.perf_counter() - began < MEASURE_SECONDS:
                envs.step(random_actions(spec, 1, rng))
                steps += 1
            costs[name] = round(1e6 * (time.perf_counter() - began) / steps, 1)
        finally:
            envs.close()
    return costs


def _ranges(names: tuple[str, ...], workers: int) -> tuple[tuple[str, ...], ...]:
    """Levels that are drawn from a range of seeds are dealt out as ranges: they are of one kind, and cost the same."""
    ends = [round(rank * len(names) / workers) for rank in range(workers + 1)]
    return tuple(names[ends[rank] : ends[rank + 1]] for rank in range(workers))
