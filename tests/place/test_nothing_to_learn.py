"""Batches in which there is nothing to learn, or nothing at all: a run goes through them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from passel.api import make_plan
from passel.place.board import Board
from passel.recipes.resolve import resolve_config
from small import new_arena, run_over, settings_for, small_plan


class Unrewarded(gym.Env[Any, Any]):
    """Twenty steps a game, and none of them pays."""

    observation_space, action_space = Box(-1, 1, (2,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left = 20
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._look(), 0.0, self._left == 0, False, {}

    def _look(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


def test_a_distributional_learner_by_priority_goes_on_when_its_errors_have_vanished() -> None:
    """The divergences then round to either side of 0."""
    settings = settings_for(
        workers=1, sync="solo", steps=700, warmup=100, lr=3e-2, lr_end=1e-4, updates_per_step=2.0, n_step=1, batch=32
    )
    numbers = {"prioritized": True, "distributional": True, "atoms": 11, "v_min": -1.0, "v_max": 1.0}
    config, resolved = resolve_config({**settings, **numbers, "env": "Unrewarded"})
    plan = make_plan(config, resolved, Unrewarded)
    arena = new_arena(plan)
    run_over(plan, arena)
    board = Board(arena.below("board"))
    assert board.steps >= 700
    assert board.column("updates")[0] > 1000


#: Lessons of so few rows that some hold nothing but the one that EnvPool spends on each reset.
FEW: dict[str, dict[str, Any]] = {
    "a3c": {"algo": "a3c", "workers": 1, "envs": 1, "horizon": 1},
    "a2c": {"algo": "a3c", "sync": "allreduce", "workers": 2, "envs": 1, "horizon": 1},
    "ppo": {"algo": "ppo", "workers": 1, "envs": 1, "horizon": 4, "minibatches": 4, "epochs": 1},
    "joined": {"algo": "ppo", "workers": 1, "envs": 1, "horizon": 4, "minibatches": 4, "epochs": 1, "shared": "yes"},
    "ppo-together": {
        **{"algo": "ppo", "sync": "allreduce", "workers": 2, "envs": 1},
        **{"horizon": 4, "minibatches": 4, "epochs": 1},
    },
    "impala": {"algo": "impala", "workers": 1, "envs": 1, "horizon": 1},
}


@pytest.mark.parametrize("case", FEW)
def test_a_lesson_of_reset_rows_alone_changes_nothing_and_ends_nothing(case: str) -> None:
    plan = small_plan(**FEW[case], env="CartPole-v1", backend="envpool", steps=150)
    arena = new_arena(plan)
    run_over(plan, arena)
    board = Board(arena.below("board"))
    assert board.column("episodes").sum() >= 2, "resets were met"
    updates = board.column("updates")
    assert updates.min() >= 150 // plan.workers - plan.numbers.horizon
    for name in plan.schemes:
        assert torch.isfinite(arena[f"sync/{name}/vector"]).all()
