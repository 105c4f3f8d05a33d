"""The numbers of a run that workers publish: what a report shows under the names that people look for."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from passel.arena import Arena
from passel.place.board import SCALARS, Board
from passel.place.inline import Inline
from passel.place.plan import Plan
from passel.sync.base import SyncSettings
from small import new_arena, run_over, small_plan
from teams import PLAIN_SGD, SHARING, Team, Weights, total

#: Numbers of every algorithm that has a policy.
POLICY = {"policy_loss", "value_loss", "entropy_loss", "entropy", "explained_variance"}
NAMES = {
    "dqn": {"epsilon", "q_mean"},
    "a3c": POLICY | {"value_mean"},
    "ppo": POLICY | {"value_mean", "approx_kl", "clip_fraction"},
    "awr": POLICY | {"weight_mean", "clip_fraction"},
    "impala": POLICY | {"value_mean", "rho", "approx_kl"},
    "apex": {"epsilon", "q_mean", "samples_per_insert", "samples_owed"},
    "dyna": {"epsilon", "q_mean", "dream_ratio", "model_error", "model_doubt", "dream_gain"},
}


def published(plan: Plan, arena: Arena) -> dict[str, Any]:
    board = Board(arena.below("board"))
    return {name: board.scalar(number) for number, name in enumerate(plan.scalar_names)}


@pytest.mark.parametrize("algo", NAMES)
def test_every_algorithm_shows_the_numbers_that_people_look_for(algo: str) -> None:
    plan = small_plan(algo=algo, workers=1, sync="solo", seed=2)
    assert set(plan.scalar_names) == NAMES[algo] | {"learning_rate", "grad_norm", "refused_gradients"}
    assert len(plan.scalar_names) <= SCALARS
    arena = new_arena(plan)
    assert all(math.isnan(column[0]) for column in published(plan, arena).values()), "nothing is known yet"
    run_over(plan, arena)
    found = published(plan, arena)
    unknown = {"refused_gradients"} | ({"dream_gain"} if algo == "dyna" else set())  # the gain takes a full window
    assert {name for name, column in found.items() if not np.isfinite(column[0])} == unknown
    assert found["learning_rate"][0] == plan.numbers.lr
    assert found["grad_norm"][0] > 0


@pytest.mark.parametrize("shared", ["no", "yes"])
@pytest.mark.parametrize("algo", ["a3c", "ppo"])
def test_the_explained_variance_is_that_of_the_last_rollout(algo: str, shared: str) -> None:
    plan = small_plan(algo=algo, workers=2, sync="hogwild", shared=shared, seed=1)
    arena = new_arena(plan)
    run_over(plan, arena)
    for rank, found in enumerate(published(plan, arena)["explained_variance"]):
        rollout = arena.below(f"worker/{rank}/rollout")
        assert not rollout["counts"].any(), "it was learnt from to its end"
        value, advantage, weight = (rollout[name].double().numpy() for name in ("value", "advantage", "weight"))
        counts = weight > 0
        expected = 1 - np.var(advantage[counts]) / np.var((value + advantage)[counts])
        assert found == pytest.approx(expected, rel=1e-4)


def test_a_rollout_that_is_being_written_over_leaves_the_number_as_it_was() -> None:
    """One network says what states are worth as it acts: values of the next rollout meet advantages of the last."""
    plan = small_plan(algo="ppo", workers=1, sync="solo", shared="yes", steps=64)
    arena = new_arena(plan)
    placement = Inline(plan, arena)
    placement.start()
    placement.resume()
    while placement.board.steps < 32 or arena["worker/0/rollout/counts"].any():
        placement.advance(0.0)
    (worker,) = placement._workers
    before = worker.role.scalars()
    assert math.isfinite(before[0])
    role: Any = worker.role
    for _ in range(3):
        role._actor.collect(placement.board.steps)
    placement.stop()
    assert worker.role.scalars() == before


@pytest.mark.parametrize("sync", ["solo", *SHARING])
def test_the_gradient_norm_is_that_before_the_clip(sync: str) -> None:
    """A gradient of 3 in each of 16 places has a norm of 12; it is clipped to 1."""
    settings = SyncSettings(PLAIN_SGD, max_grad_norm=1.0)
    (learner,) = Team(sync, partial(Weights, 16), 1, settings).syncs
    assert math.isnan(learner.grad_square)
    learner.pull()
    learner.push(3 * total(learner))
    learner.pull()
    assert math.sqrt(learner.grad_square) == pytest.approx(12)


def test_with_local_steps_it_is_the_norm_of_the_gradient_and_not_of_the_exchange() -> None:
    settings = SyncSettings(PLAIN_SGD, every=2)
    (learner,) = Team("hogwild", partial(Weights, 16), 1, settings).syncs
    for _ in range(4):
        learner.pull()
        learner.push(3 * total(learner))
        assert math.sqrt(learner.grad_square) == pytest.approx(12)


def test_the_norm_of_two_networks_is_that_of_both_gradients_together() -> None:
    plan = small_plan(algo="a3c", workers=1, sync="solo", max_grad_norm=1e9, optimizer="sgd")
    arena = new_arena(plan)
    placement = Inline(plan, arena)
    placement.start()
    placement.resume()
    placement.advance(0.0)
    (worker,) = placement._workers
    grads = torch.cat([sync.flat.grads for sync in worker.learner._syncs.values()])
    assert len(worker.learner._syncs) == 2
    assert worker.learner.grad_norm == pytest.approx(float(grads.double().norm()), rel=1e-5)
    placement.stop()


@pytest.mark.parametrize("algo", ["a3c", "ppo"])
def test_a_critic_in_another_process_tells_its_loss_and_its_norm(algo: str) -> None:
    """Inline the halves take turns, and learn what one worker with both networks would."""
    found = []
    for split in (True, False):
        plan = small_plan(algo=algo, workers=1, sync="solo", shared="no", split=split)
        arena = new_arena(plan)
        run_over(plan, arena)
        found.append({name: column[0] for name, column in published(plan, arena).items()})
    for name in ("policy_loss", "value_loss", "entropy", "grad_norm", "explained_variance"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-6), name


def test_the_learning_rate_is_that_of_now() -> None:
    plan = small_plan(algo="a3c", workers=1, sync="solo", lr=1e-2, lr_end=0.0)
    arena = new_arena(plan)
    run_over(plan, arena)
    rate = published(plan, arena)["learning_rate"][0]
    assert 0 <= rate < 0.1e-2, "the run is nearly over"


def test_squares_that_overflow_do_not_cost_the_norm() -> None:
    learner = Team("solo", partial(Weights, 4), settings=SyncSettings(PLAIN_SGD)).syncs[0]
    assert learner.clip(torch.full((4,), 1e25))
    assert math.sqrt(learner.grad_square) == pytest.approx(2e25, rel=1e-6)
