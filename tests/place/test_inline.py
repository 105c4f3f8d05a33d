"""Inline: round-robin, repeatable, and exact across a resume. It is the oracle, so its promises are the strictest."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from passel.arena import Arena
from passel.place.board import State
from passel.place.inline import Bell, Inline, InlineKit
from passel.place.plan import Plan
from passel.sync import SCHEMES, allreduce
from passel.sync.base import patiently
from small import new_arena, run_over, small_plan

KINDS: list[dict[str, Any]] = [
    {},
    {"updates_per_step": 1.5},
    {"memory": "global"},
    {"prioritized": True},
    {"prioritized": True, "memory": "global", "n_step": 1},
    {"optimizer": "rmsprop", "momentum": 0.5, "dueling": True},
]


def continued(plan: Plan, steps: int) -> Plan:
    """The plan of the run that is resumed from this one."""
    return dataclasses.replace(plan, config=dataclasses.replace(plan.config, steps=steps), resumed=plan.resumed + 1)


def resumed_arena(plan: Plan, saved: Arena) -> Arena:
    """A new arena with no more in it than a checkpoint keeps."""
    arena = Arena(plan.specs())
    arena.load({name: tensor.clone() for name, tensor in saved.kept().items()})
    plan.start(arena)
    return arena


def test_a_round_gives_every_worker_one_turn() -> None:
    plan = small_plan(sync="hogwild", workers=3)
    arena = new_arena(plan)
    placement = Inline(plan, arena)
    placement.start()
    assert placement.board.states.tolist() == [State.READY] * 3
    placement.advance(0.0)
    assert placement.board.steps == 0, "nobody moves before resume"
    placement.resume()
    for rounds in range(1, 5):
        placement.advance(0.0)
        assert placement.board.column("updates").tolist() == [rounds] * 3
    placement.pause()
    assert placement.board.states.tolist() == [State.PARKED] * 3
    placement.stop()


def test_pausing_keeps_everybody_at_rest_until_the_block_ends() -> None:
    plan = small_plan(sync="locked", workers=2, steps=10_000)
    placement = Inline(plan, new_arena(plan))
    placement.start()
    placement.resume()
    placement.advance(0.0)
    with placement.paused():
        steps = placement.board.steps
        placement.advance(0.0)
        assert placement.board.steps == steps
    placement.advance(0.0)
    assert placement.board.steps > steps
    placement.stop()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_is_the_plan_s_while_it_runs_and_the_caller_s_after(threads: int) -> None:
    plan = dataclasses.replace(small_plan(sync="solo", workers=1), threads=threads)
    before = torch.get_num_threads()
    placement = Inline(plan, new_arena(plan))
    placement.start()
    assert torch.get_num_threads() == threads
    placement.stop()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", SCHEMES)
def test_a_resumed_run_is_the_run_that_was_never_stopped(name: str, kind: dict[str, Any]) -> None:
    """One run pauses half-way and goes on; the other is thrown away there but for what a checkpoint keeps."""
    workers = 1 if name == "solo" else 2
    plan = small_plan(sync=name, workers=workers, steps=10_000, lr_end=1e-4, **kind)
    whole = new_arena(plan)
    placement = Inline(plan, whole)
    placement.start()
    placement.resume()
    for _ in range(15):
        placement.advance(0.0)
    placement.pause()
    half = Arena(plan.specs())
    half.load(whole.kept())
    placement.resume()
    for _ in range(15):
        placement.advance(0.0)
    placement.pause()
    placement.stop()

    again = continued(plan, 10_000)
    arena = resumed_arena(again, half)
    placement = Inline(again, arena)
    placement.start()
    placement.resume()
    for _ in range(15):
        placement.advance(0.0)
    placement.pause()
    placement.stop()

    counters = {"board/counters"}  # seconds are among them
    different = [key for key in whole.kept() if key not in counters and not torch.equal(whole[key], arena[key])]
    assert different == []
    for column in ("steps", "updates", "episodes"):
        assert placement.board.column(column).any()


@pytest.mark.parametrize("steps", [203, 205, 208, 211])
@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "solo"])
def test_a_run_that_ended_in_the_middle_of_a_round_goes_on(
    name: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step may fall between two workers' turns, so that one has made a local step more than the other."""

    def impatiently(ready: Any, what: str, patience: float = 3.0) -> float:
        return patiently(ready, what, min(patience, 3.0))

    monkeypatch.setattr(allreduce, "patiently", impatiently)
    plan = small_plan(sync=name, workers=2, sync_every=3, steps=steps)
    arena = new_arena(plan)
    run_over(plan, arena)
    more = continued(plan, steps + 100)
    arena = resumed_arena(more, arena)
    run_over(more, arena)
    assert arena["board/counters"][:, 0].sum() >= steps + 100


def test_a_bell_rings_as_often_as_it_was_pulled_and_never_waits() -> None:
    bell = Bell()
    assert not bell.acquire(True, 1000.0)
    bell.release()
    bell.release()
    assert [bell.acquire() for _ in range(3)] == [True, True, False]


def test_inline_needs_no_locks() -> None:
    kit = InlineKit()
    assert not kit.shared
    with kit.lock(), kit.lock():
        pass


def test_stop_after_a_failed_start_does_not_raise() -> None:
    plan = small_plan(sync="solo", workers=1)
    broken = dataclasses.replace(plan, env="NoSuchEnvironment-v0")
    placement = Inline(broken, new_arena(plan))
    with pytest.raises(Exception, match="NoSuchEnvironment"):
        placement.start()
    placement.stop()
    placement.stop()


@pytest.mark.parametrize("sync", ["allreduce", "proximal"])
def test_who_updates_together_also_acts_between_the_same_updates(sync: str) -> None:
    """Each spends other rows on resets than the other; what they are owed, and so when they act, is the same."""
    plan = small_plan(
        sync=sync, workers=2, envs=4, env="CartPole-v1", backend="envpool", updates_per_step=1.0, steps=10_000
    )
    arena = new_arena(plan)
    placement = Inline(plan, arena)
    placement.start()
    placement.resume()
    apart = 0
    for _ in range(400):
        placement.advance(0.0)
        first, second = (float(arena[f"worker/{rank}/experience/credit"]) for rank in range(2))
        assert first == second
        apart += len(set(placement.board.column("steps").tolist())) > 1
    placement.stop()
    assert apart, "no reset told the two apart: this proves nothing"
