"""A worker's turn: as many steps as an update needs, one update, and rest when it is told."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from passel.algos import ALGORITHMS
from passel.arena import Arena
from passel.nets.perceptron import RecordedLoss
from passel.place.board import Board, Command, State
from passel.place.inline import InlineKit
from passel.place.plan import Plan
from passel.place.worker import Worker
from passel.types import DivergedError, PasselError
from small import new_arena, run_over, small_plan


def one_worker(plan: Plan) -> tuple[Worker, Board, Arena]:
    arena = new_arena(plan)
    board = Board(arena.below("board"))
    return plan.build_worker(arena, plan.links(InlineKit()), 0), board, arena


def work(worker: Worker) -> None:
    """Until it rests."""
    while not worker.resting:
        worker.turn()


def test_a_worker_rests_until_it_is_told_to_run_and_when_the_steps_are_taken() -> None:
    worker, board, _ = one_worker(small_plan(sync="solo", workers=1, steps=100))
    assert worker.resting
    worker.turn()
    assert board.steps == 0
    board.command = Command.RUN
    assert not worker.resting
    work(worker)
    assert 100 <= board.steps < 102
    worker.turn()
    assert 100 <= board.steps < 102
    worker.close()


def test_the_first_turn_lasts_through_the_warm_up_and_each_ends_with_one_update() -> None:
    worker, board, arena = one_worker(small_plan(sync="solo", workers=1, warmup=60, updates_per_step=0.25, envs=2))
    board.command = Command.RUN
    seen = []
    for _ in range(5):
        worker.turn()
        seen.append((board.steps, int(board.column("updates")[0])))
    # Credit is given for steps after the 60th: an update for every fourth.
    assert seen == [(64, 1), (68, 2), (72, 3), (76, 4), (80, 5)]
    assert int(arena["sync/q/pushes"].sum()) == 5
    worker.close()


@pytest.mark.parametrize(("ratio", "envs"), [(0.25, 1), (0.25, 8), (1.0, 4), (2.5, 2), (0.1, 3)])
def test_the_ratio_of_updates_to_steps_is_kept(ratio: float, envs: int) -> None:
    worker, board, _ = one_worker(
        small_plan(sync="solo", workers=1, updates_per_step=ratio, envs=envs, warmup=40, batch=8, steps=240)
    )
    board.command = Command.RUN
    work(worker)
    updates, after_warm_up = board.column("updates")[0], board.steps - 40
    assert ratio * (after_warm_up - 2 * envs) - 1 <= updates <= ratio * after_warm_up
    worker.close()


def test_updates_wait_until_a_batch_is_there_even_without_a_warm_up() -> None:
    worker, board, _ = one_worker(small_plan(sync="solo", workers=1, warmup=0, batch=32, envs=2, n_step=1))
    board.command = Command.RUN
    worker.turn()
    assert 32 <= board.steps <= 40
    worker.close()


def test_a_parked_worker_has_written_down_all_that_it_must_not_lose() -> None:
    plan = small_plan(sync="solo", workers=1)
    worker, board, arena = one_worker(plan)
    board.command = Command.RUN
    for _ in range(5):
        worker.turn()
    assert not arena["worker/0/acting"].any()
    worker.park()
    assert arena["worker/0/acting"].any()
    assert arena["worker/0/sampling"].any()
    assert board.states[0] == State.PARKED
    assert board.column("heartbeat")[0] > 0
    worker.close()


def test_the_shares_of_time_belong_to_stages_that_took_place() -> None:
    worker, board, _ = one_worker(small_plan(sync="locked", workers=1))
    board.command = Command.RUN
    for _ in range(30):
        worker.turn()
    worker.park()
    for stage in ("env", "act", "store", "sample", "learn", "apply", "copy"):
        assert board.column(stage)[0] > 0, stage
    worker.close()


def test_the_learning_rate_of_the_step_reaches_the_optimiser() -> None:
    """With a rate that has fallen to 0 at the last step, the last updates move nothing."""
    plan = small_plan(sync="solo", workers=1, optimizer="sgd", lr=0.1, lr_end=0.0, steps=10**6)
    worker, board, arena = one_worker(plan)
    board.command = Command.RUN
    worker.turn()
    before = arena["sync/q/vector"].clone()
    worker.turn()
    assert not torch.equal(arena["sync/q/vector"], before)
    board.column("steps")[0] = 10**6 - 10
    before = arena["sync/q/vector"].clone()
    worker.turn()
    assert (arena["sync/q/vector"] - before).abs().max() < 1e-5
    worker.close()


def test_finished_episodes_reach_the_board_with_their_true_score() -> None:
    worker, board, _ = one_worker(small_plan(sync="solo", workers=1, steps=300))
    board.command = Command.RUN
    work(worker)
    episodes = board.read_episodes(0, 0)
    assert len(episodes) == board.column("episodes")[0] > 3
    for episode in episodes:
        assert episode.score == pytest.approx(1.0 - 0.1 * (episode.length - 1)) or episode.length == 50
        assert 5 <= episode.length <= 50
    worker.close()


def test_an_environment_that_turns_to_nan_ends_the_run_with_the_cause_and_the_cure() -> None:
    plan = small_plan(sync="solo", workers=1, env="passel.testing.envs:passel/NaN-v0", steps=2000)
    worker, board, arena = one_worker(plan)
    board.command = Command.RUN
    with pytest.raises(PasselError, match="observations hold NaN"):
        work(worker)
    assert torch.isfinite(arena["sync/q/vector"]).all(), "nothing of it was learnt"
    worker.close()


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_loss_that_is_no_number_is_explained_for_every_algorithm(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its batches look like: the search for the cause must not end in an error of its own."""
    plan = small_plan(algo=algo, sync="solo", workers=2 if ALGORITHMS[algo].apart else 1, steps=4000)
    arena = new_arena(plan)
    before = {name: arena[f"sync/{name}/vector"].clone() for name in plan.schemes}
    monkeypatch.setattr(RecordedLoss, "item", lambda _: math.nan)
    with pytest.raises(DivergedError, match=r"^the loss is nan: the targets are no longer finite\. .* smaller --lr"):
        run_over(plan, arena)
    for name, vector in before.items():
        assert torch.equal(arena[f"sync/{name}/vector"], vector), "nothing of it was applied"


@pytest.mark.parametrize("layer", [0, 2])
def test_a_layer_that_overflows_is_named(layer: int) -> None:
    worker, board, _ = one_worker(small_plan(sync="solo", workers=1, steps=2000))
    board.command = Command.RUN
    worker.turn()
    layers = worker.learner._modules[0].perceptron.layers  # type: ignore[union-attr]
    with torch.no_grad():
        layers[layer].weight.fill_(3e38)  # type: ignore[union-attr, operator]
        layers[layer].bias.fill_(3e38)  # type: ignore[union-attr, operator]
    with pytest.raises(
        DivergedError, match=rf"^the loss is (nan|inf): the output of layer .*{layer} is no longer finite"
    ):
        work(worker)
    worker.close()


def test_a_step_that_overflows_names_the_layer_and_the_setting() -> None:
    plan = small_plan(sync="solo", workers=1, optimizer="sgd", lr=1e30, max_grad_norm=None, huber=1e30, steps=2000)
    worker, board, _ = one_worker(plan)
    board.command = Command.RUN
    with pytest.raises(PasselError, match=r"layer .* no longer finite.*--lr|targets are no longer finite.*--lr"):
        work(worker)
    worker.close()


def test_n_step_transitions_and_random_draws_of_a_worker_are_its_own() -> None:
    plan = small_plan(sync="hogwild", workers=2, n_step=3)
    arena = new_arena(plan)
    board = Board(arena.below("board"))
    links = plan.links(InlineKit())
    workers = [plan.build_worker(arena, links, rank) for rank in range(2)]
    board.command = Command.RUN
    workers[0].turn()
    assert arena["worker/0/nstep/obs"].any()
    assert not arena["worker/1/nstep/obs"].any()
    assert np.count_nonzero(board.column("steps")) == 1
    for worker in workers:
        worker.close()
