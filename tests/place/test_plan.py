"""The plan: what is in the arena, what every worker starts from, and what a number of the configuration turns into."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import cloudpickle
import pytest
import torch

from passel.arena import Arena
from passel.place.diets import ReplayDiet
from passel.place.inline import InlineKit
from passel.place.refusals import why_not
from passel.sync import SCHEMES
from small import new_arena, small_plan


def test_the_arena_has_a_place_for_everything_by_name() -> None:
    plan = small_plan(sync="hogwild", workers=2, n_step=3)
    specs = plan.specs()
    rooms = {name.split("/")[0] for name in specs}
    assert rooms == {"board", "sync", "memory", "worker"}
    for rank in range(2):
        for part in ("acting", "sampling", "algo/target", "envs/episode", "nstep/obs", "experience/credit"):
            assert f"worker/{rank}/{part}" in specs
    assert "worker/2/acting" not in specs


def test_local_memories_divide_the_capacity_and_a_global_one_has_a_stripe_for_each_worker() -> None:
    local = small_plan(sync="hogwild", workers=2, memory="local", capacity=1000).specs()
    together = small_plan(sync="hogwild", workers=2, memory="global", capacity=1000).specs()
    assert local["memory/0/rows"].shape[:2] == local["memory/1/rows"].shape[:2] == (1, 500)
    assert together["memory/0/rows"].shape[:2] == (2, 500)
    assert not any(name.startswith("memory/1/") for name in together)


def test_priorities_have_their_place_only_where_they_are_used() -> None:
    plain, prioritised = (small_plan(sync="solo", workers=1, prioritized=on).specs() for on in (False, True))
    assert set(prioritised) > set(plain)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_first_weights_depend_on_the_seed_alone(seed: int) -> None:
    plans = [
        small_plan(sync=sync, workers=workers, seed=seed, place=place)
        for sync, workers, place in (("solo", 1, "inline"), ("server", 2, "inline"), ("allreduce", 2, "processes"))
    ]
    first, *others = (new_arena(plan)["sync/q/vector"] for plan in plans)
    assert first.any()
    assert all(torch.equal(first, other) for other in others)
    assert not torch.equal(first, new_arena(small_plan(sync="solo", workers=1, seed=seed + 2))["sync/q/vector"])


def test_workers_begin_alike_and_see_different_experience() -> None:
    plan = small_plan(sync="hogwild", workers=2, env="CartPole-v1", backend="gymnasium")
    arena = new_arena(plan)
    links = plan.links(InlineKit())
    workers = [plan.build_worker(arena, links, rank) for rank in range(2)]
    observations = [worker.role._actor._obs for worker in workers]
    draws = [[stream.rng.random() for stream in worker._streams] for worker in workers]
    assert (observations[0] != observations[1]).all()
    assert len({number for pair in draws for number in pair}) == 4
    for worker in workers:
        worker.close()


def test_one_more_worker_does_not_change_what_the_others_draw() -> None:
    drawn = []
    for workers in (2, 3):
        plan = small_plan(sync="hogwild", workers=workers)
        arena = new_arena(plan)
        worker = plan.build_worker(arena, plan.links(InlineKit()), 1)
        drawn.append([stream.rng.random() for stream in worker._streams])
        worker.close()
    assert drawn[0] == drawn[1]


def test_the_global_random_state_is_left_alone_by_laying_out() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    small_plan(sync="server", workers=2).specs()
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("lr_end", "at_half"), [(None, 1e-3), (0.0, 5e-4), (5e-4, 7.5e-4)])
def test_the_learning_rate_falls_in_a_straight_line_to_the_last_step(lr_end: float | None, at_half: float) -> None:
    plan = small_plan(sync="solo", workers=1, lr=1e-3, lr_end=lr_end, steps=400)
    assert plan.lr(0) == 1e-3
    assert plan.lr(200) == pytest.approx(at_half)
    assert plan.lr(400) == plan.lr(800) == (1e-3 if lr_end is None else lr_end)


def test_the_correction_of_priorities_grows_to_one() -> None:
    plan = small_plan(sync="solo", workers=1, prioritized=True, priority_beta=0.4, steps=400)
    assert cast(ReplayDiet, plan.diet)._beta(0) == 0.4
    assert cast(ReplayDiet, plan.diet)._beta(200) == pytest.approx(0.7)
    assert cast(ReplayDiet, plan.diet)._beta(400) == 1.0


@pytest.mark.parametrize("name", SCHEMES)
def test_numbers_of_the_configuration_reach_the_scheme(name: str) -> None:
    more = {"shards": 3} if name == "server" else {}
    plan = small_plan(
        sync=name,
        workers=1,
        optimizer="rmsprop",
        lr=0.25,
        optimizer_eps=0.125,
        momentum=0.5,
        max_grad_norm=2.0,
        **more,
    )
    asked = plan.schemes["q"].requested
    optimiser = dataclasses.asdict(asked.optimiser)
    assert {key: optimiser[key] for key in ("kind", "lr", "eps", "momentum")} == {
        "kind": "rmsprop",
        "lr": 0.25,
        "eps": 0.125,
        "momentum": 0.5,
    }
    assert (asked.max_grad_norm, asked.every, asked.shards) == (2.0, 1, 3 if name == "server" else 1)


@pytest.mark.parametrize(
    ("sync", "more"),
    [
        ("gossip", {"topology": "ring"}),
        ("proximal", {"topology": "complete", "l1": 0.5}),
        ("tokenring", {"group_size": 2}),
    ],
)
def test_numbers_of_learners_without_a_centre_reach_the_scheme(sync: str, more: dict[str, Any]) -> None:
    plans = [small_plan(sync=sync, workers=4, seed=seed, **more) for seed in (1, 2)]
    asked = [dataclasses.asdict(plan.schemes["q"].requested) for plan in plans]
    assert {key: asked[0][key] for key in more} == more
    assert asked[0]["seed"] != asked[1]["seed"], "another seed draws other neighbours"


def test_a_plan_can_be_sent_to_a_worker() -> None:
    plan = small_plan(sync="server", workers=2, shards=2)
    assert plan.schemes
    copy = cloudpickle.loads(cloudpickle.dumps(plan))
    assert (copy.config, copy.numbers, copy.spec) == (plan.config, plan.numbers, plan.spec)
    assert copy.specs() == plan.specs()


@pytest.mark.parametrize("place", ["inline", "processes"])
def test_why_not_says_nothing_of_what_runs(place: str) -> None:
    assert why_not("solo", place, 1) is None
    assert why_not("hogwild", place, 64) is None
    assert "Use --workers 1" in (why_not("solo", place, 2) or "")


def test_an_arena_of_one_run_fits_the_next_of_the_same_settings_only() -> None:
    plan, other = small_plan(sync="solo", workers=1), small_plan(sync="solo", workers=1, hidden=[17])
    saved = new_arena(plan).kept()
    Arena(plan.specs()).load(saved)
    with pytest.raises(Exception, match="the checkpoint has no"):
        Arena(other.specs()).load(saved)
