"""Who holds which levels, and what each worker's gradient counts for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passel.arena import Spec
from passel.envs.base import Envs
from passel.envs.levels import Copies, LevelSet
from passel.place.parts import Parts, divide, measure, remembered
from passel.testing.envs import Identity
from passel.types import EnvSpec, PasselError


class Named(LevelSet):
    """Levels with names and nothing else."""

    def __init__(self, count: int) -> None:
        self.name, self.train, self.held_out = "levels:named", tuple(f"level {i}" for i in range(count)), ()

    def describe(self) -> EnvSpec:
        return EnvSpec(self.name, (4,), np.dtype(np.float32), 4)

    def level(self, name: str, copies: Copies) -> Envs:
        from passel.envs.gymnasium_backend import GymnasiumEnvs

        return GymnasiumEnvs(Identity, copies.n, copies.seed)

    def level_specs(self, name: str, copies: int) -> dict[str, Spec]:
        return {}


class Drawn(Named):
    listed = False


def load(parts: Parts, costs: Mapping[str, float]) -> list[float]:
    return [sum(costs[name] for name in held) for held in parts.held]


def test_dear_levels_are_dealt_out_first() -> None:
    levels = Named(4)
    costs = dict(zip(levels.train, (1.0, 8.0, 7.0, 2.0), strict=True))
    parts = divide(levels, 2, costs)
    assert parts.held == (("level 0", "level 1"), ("level 2", "level 3"))
    assert load(parts, costs) == [9, 9]


@given(
    costs=st.lists(st.floats(1, 1000), min_size=1, max_size=40),
    workers=st.integers(1, 6),
)
def test_every_level_is_held_once_and_nobody_holds_two_more_than_another(costs: list[float], workers: int) -> None:
    levels = Named(len(costs))
    parts = divide(levels, workers, dict(zip(levels.train, costs, strict=True)))
    if len(costs) >= workers:
        assert sorted(name for held in parts.held for name in held) == sorted(levels.train)
        sizes = [len(held) for held in parts.held]
        assert max(sizes) - min(sizes) <= 1
    assert all(parts.held)
    assert sum(parts.weight(rank) for rank in range(workers)) == pytest.approx(workers)


def test_costs_are_balanced_better_than_in_the_order_of_the_list() -> None:
    levels = Named(24)
    costs = {name: 1.0 + 10.0 * (number < 12) for number, name in enumerate(levels.train)}
    assert load(divide(levels, 2, costs), costs) == [72, 72]


def test_without_costs_the_parts_are_the_same_each_time() -> None:
    assert divide(Named(5), 2).held == divide(Named(5), 2).held


def test_levels_that_are_drawn_are_dealt_out_as_ranges() -> None:
    held = divide(Drawn(5), 2).held
    assert held == (("level 0", "level 1"), ("level 2", "level 3", "level 4"))


@pytest.mark.parametrize(
    ("held", "weights"),
    [
        ((("a",), ("b",)), (1, 1)),
        ((("a", "b"), ("c",)), (4 / 3, 2 / 3)),
        ((("a",), ("a",)), (1, 1)),
        ((("a",), ("b",), ("c",), ("a",)), (2 / 3, 4 / 3, 4 / 3, 2 / 3)),
    ],
)
def test_a_worker_counts_for_the_levels_that_it_holds(
    held: tuple[tuple[str, ...], ...], weights: tuple[float, ...]
) -> None:
    parts = Parts(Named(3), held, {})
    assert [parts.weight(rank) for rank in range(len(held))] == pytest.approx(list(weights))


def test_fewer_levels_than_workers_are_held_by_several() -> None:
    assert divide(Named(1), 3).held == (("level 0",),) * 3


def test_every_level_is_measured() -> None:
    costs = measure(Named(3))
    assert set(costs) == set(Named(3).train)
    assert all(cost > 0 for cost in costs.values())


def test_a_resumed_run_keeps_its_parts_whatever_is_measured_now() -> None:
    parts = remembered(Named(3), [["level 2"], ["level 0", "level 1"]], {"level 2": 5.0})
    assert parts.held == (("level 2",), ("level 0", "level 1"))
    with pytest.raises(PasselError, match=r"no longer has what this run trains on: level 7\. Put it back"):
        remembered(Named(3), [["level 7"], ["level 0"]], {})
