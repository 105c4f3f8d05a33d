"""A resumed worker whose environment does not lead back begins new episodes, and sums nothing across the gap."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from passel.arena import Arena
from passel.envs import describe
from passel.place.board import Board, Command
from passel.place.inline import InlineKit
from passel.place.plan import Plan
from passel.testing.envs import Countdown
from small import new_arena, small_plan


class Drifts(Countdown):
    """Its second number counts the copies that were ever made: the seed does not decide it."""

    made = 0
    steady = False

    def __init__(self) -> None:
        super().__init__(terminate_after=None, truncate_after=50)
        Drifts.made += 1
        self._number = 0 if self.steady else Drifts.made

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        obs[1] = self._number
        return obs, *rest


class Steady(Drifts):
    steady = True


def interrupted(plan: Plan, arena: Arena, turns: int) -> None:
    """A worker that is stopped in the middle of its episodes."""
    worker, board = plan.build_worker(arena, plan.links(InlineKit()), 0), Board(arena.below("board"))
    board.command = Command.RUN
    while board.steps < turns:
        board.command = Command.RUN
        worker.role._orders.stepped(worker.role._actor.collect(board.steps))  # type: ignore[attr-defined]
    worker.park()
    worker.close()


@pytest.mark.parametrize("env", [Drifts, Steady])
@pytest.mark.parametrize(
    ("algo", "window"),
    [("dqn", "worker/0/nstep/waiting"), ("ppo", "worker/0/rollout/counts")],
)
def test_windows_are_dropped_only_where_an_episode_did_not_continue(algo: str, window: str, env: type[Drifts]) -> None:
    asked: dict[str, Any] = {"n_step": 3} if algo == "dqn" else {"horizon": 8}
    plan = small_plan(algo=algo, sync="solo", workers=1, envs=2, **asked)
    plan = replace(plan, env=env, spec=describe(env))
    arena = new_arena(plan)
    interrupted(plan, arena, 10)
    assert arena[window].any(), "something is half done"
    again = replace(plan, resumed=1)
    again.build_worker(arena, again.links(InlineKit()), 0).close()
    assert bool(arena[window].any()) == env.steady
    notices = again.notices(arena)
    assert len(notices) == (0 if env.steady else 1)
    if notices:
        assert notices[0].startswith("2 interrupted episodes of Drifts could not be continued and began anew: ")
