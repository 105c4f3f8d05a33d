"""Gradients that are not finite though the loss is: refused, counted, and the end of a run when it repeats."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from passel.nets.flat import Flat
from passel.place.board import Board, Command
from passel.place.inline import InlineKit
from passel.sync import SCHEMES
from passel.sync.base import REFUSALS, NonFiniteError, Sync, SyncSettings
from passel.types import PasselError
from small import new_arena, run_over, small_plan
from teams import ADAM, PLAIN_SGD, Team, Weights, total

SIZE = 37


class Overflowing:
    """A finite loss whose gradient is 1, but for one element."""

    def __init__(self, sync: Sync, bad: float = math.nan) -> None:
        self._grads, self._bad = sync.flat.grads, bad

    def item(self) -> float:
        return 1.0

    def backward(self) -> None:
        self._grads.fill_(1)
        self._grads[5] = self._bad


def team_of(name: str, workers: int, **settings: Any) -> Team:
    return Team(name, partial(Weights, SIZE), workers, SyncSettings(ADAM, **settings))


def updates(team: Team, broken: dict[int, set[int]], rounds: int = 4, *, skip: bool = False) -> torch.Tensor:
    """Rounds in which every learner pushes a gradient of 1, but for those that `broken` names, round by round: theirs
    are not finite, or with `skip` they push none.
    """
    for number in range(rounds):
        for rank, sync in enumerate(team.syncs):
            sync.pull()
            bad = rank in broken.get(number, ())
            if not (bad and skip):
                sync.push(Overflowing(sync, math.inf) if bad else total(sync))
    return team.vector.clone()


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("name", sorted(set(SCHEMES) - {"proximal"}))
def test_a_run_goes_on_as_if_the_gradient_had_not_been(name: str, limit: float | None) -> None:
    """Vector and optimiser are to the bit what they are without it."""
    workers = 1 if SCHEMES[name].one_learner else 2
    team, other = team_of(name, workers, max_grad_norm=limit), team_of(name, workers, max_grad_norm=limit)
    found = updates(team, {1: {0}})
    missed = set(range(workers)) if SCHEMES[name].collective else {0}
    assert torch.equal(found, updates(other, {1: missed}, skip=True))
    for key, tensor in other.tensors.below("optimiser").items():
        assert torch.equal(team.tensors["optimiser/" + key], tensor), key
    assert [sync.costs.refused for sync in team.syncs] == [int(rank in missed) for rank in range(workers)]


@pytest.mark.parametrize("every", [1, 2])
def test_all_learners_of_an_all_reduce_refuse_alike(every: int) -> None:
    team = team_of("allreduce", 3, every=every)
    updates(team, {1: {2}}, rounds=6)
    assert torch.isfinite(team.vector).all()
    assert len(set(team.tensors["pushes"].tolist())) == 1
    if every == 1:
        assert torch.equal(team.flats[0].values, team.flats[1].values)
        assert torch.equal(team.flats[0].values, team.flats[2].values)


@pytest.mark.parametrize("every", [1, 2])
def test_neighbours_hear_of_a_step_of_nothing(every: int) -> None:
    team = team_of("proximal", 3, every=every)
    updates(team, {1: {0}, 2: {0, 1}}, rounds=6)
    assert torch.isfinite(team.vector).all()
    assert team.tensors["pushes"].tolist() == [6 // every] * 3
    assert [sync.costs.refused for sync in team.syncs] == [2, 1, 0]


@pytest.mark.parametrize("name", SCHEMES)
def test_when_it_repeats_it_is_an_error_that_names_the_layer(name: str) -> None:
    team = team_of(name, 1, max_grad_norm=1.0)
    (sync,) = team.syncs
    first = total(sync)
    for _ in range(2):
        sync.pull()
        sync.push(total(sync))
        before = team.vector.clone()
        for _ in range(REFUSALS - 1):
            sync.pull()
            sync.push(Overflowing(sync))
    assert torch.equal(team.vector, before)

    def once_more() -> None:
        sync.pull()
        sync.push(Overflowing(sync))
        sync.pull()

    with pytest.raises(NonFiniteError, match=f"the last {REFUSALS} gradients were not finite") as caught:
        once_more()
    assert caught.value.layer == "w"
    assert sync.costs.refused == 2 * REFUSALS - 1
    assert math.isfinite(first.item())


def test_a_finite_gradient_whose_square_overflows_is_clipped_and_not_refused() -> None:
    sync = Team("solo", partial(Weights, 4), settings=SyncSettings(PLAIN_SGD, max_grad_norm=2.0)).syncs[0]
    for value in (1e25, 3e38):
        grads = torch.full((4,), value)
        assert sync.clip(grads)
        torch.testing.assert_close(grads, torch.ones(4))
    assert sync.costs.refused == 0


def spoil(monkeypatch: pytest.MonkeyPatch, numbers: range) -> None:
    """Let the gradients of these numbers, counted over all learners, be NaN."""
    backward, count = Flat.backward, iter(range(1_000_000))

    def backwards(self: Flat, loss: Any) -> None:
        backward(self, loss)
        if next(count) in numbers:
            self.grads[-1] = math.nan

    monkeypatch.setattr(Flat, "backward", backwards)


def test_a_worker_counts_them_where_a_report_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, range(3, 6))
    plan = small_plan(workers=1, sync="solo", steps=200)
    arena = new_arena(plan)
    run_over(plan, arena)
    board = Board(arena.below("board"))
    assert board.scalar(plan.scalar_names.index("refused_gradients")).tolist() == [3]
    assert torch.isfinite(arena["sync/q/vector"]).all()
    assert int(arena["sync/q/pushes"].sum()) == board.column("updates")[0] - 3


def test_where_there_are_none_the_number_is_not_shown() -> None:
    plan = small_plan(workers=1, sync="solo", steps=100)
    arena = new_arena(plan)
    run_over(plan, arena)
    assert Board(arena.below("board")).scalar(plan.scalar_names.index("refused_gradients")).tolist() != [0]


@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "dqn", "sync": "solo", "workers": 1},
        {"algo": "dqn", "sync": "allreduce", "workers": 2},
        {"algo": "ppo", "sync": "solo", "workers": 1, "split": True},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_a_run_whose_gradients_are_never_finite_ends_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    spoil(monkeypatch, range(1_000_000))
    plan = small_plan(**settings, steps=2000)
    arena = new_arena(plan)
    first = {name: arena[f"sync/{name}/vector"].clone() for name in plan.schemes}
    with pytest.raises(PasselError, match=r"gradients were not finite, first at layer .* though the loss was.*--lr"):
        run_over(plan, arena)
    for name, vector in first.items():
        assert torch.equal(arena[f"sync/{name}/vector"], vector), "nothing of it was applied"


@pytest.mark.parametrize("algo", ["ppo", "a3c", "awr"])
def test_rewards_that_are_nan_are_named_as_such(algo: str) -> None:
    """A minibatch has advantages in place of rewards: the cause is looked for where the rollout is kept."""
    arena = new_arena(plan := small_plan(algo=algo, workers=1, sync="solo", horizon=8, steps=8))
    run_over(plan, arena)
    arena[f"worker/0/{'trajectories' if algo == 'awr' else 'rollout'}/reward"][:4] = math.nan
    plan = small_plan(algo=algo, workers=1, sync="solo", horizon=8, steps=1000)
    worker = plan.build_worker(arena, plan.links(InlineKit()), 0)
    Board(arena.below("board")).command = Command.RUN

    def work() -> None:
        while not worker.resting:
            worker.turn()

    with pytest.raises(PasselError, match="the environment's rewards hold NaN"):
        work()
    worker.close()
