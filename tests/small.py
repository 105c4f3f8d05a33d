"""Training runs so small that a test can afford many: a toy environment, a network of sixteen, a few hundred steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from passel.algos import ALGORITHMS
from passel.api import make_plan
from passel.arena import Arena
from passel.place.board import Board
from passel.place.inline import Inline
from passel.place.plan import Plan
from passel.recipes.resolve import resolve_config
from passel.testing.envs import Identity

CORRIDOR = "passel.testing.envs:passel/Corridor-v0"
IDENTITY = "passel.testing.envs:passel/Identity-v0"
AIM = "passel.testing.envs:passel/Aim-v0"
TRAP = "passel.testing.envs:passel/TimeLimitTrap-v0"

SMALL: dict[str, Any] = {
    "env": CORRIDOR,
    "place": "inline",
    "steps": 400,
    "envs": 2,
    "hidden": [16],
    "batch": 16,
    "warmup": 60,
    "capacity": 1000,
    "updates_per_step": 0.25,
    "layer_norm": "no",
    "lr_end": "none",
    "target_every": 20,
    "epsilon_steps": 200,
    "eval_episodes": 2,
    "eval_every": "none",
    "tensorboard": False,
    "quiet": True,
}


def make_two() -> Identity:
    return Identity(n_actions=2)


def make_three() -> Identity:
    return Identity(n_actions=3)


#: What of these is DQN's own, and what stands in its place where experience comes in rollouts.
REPLAY = ("batch", "warmup", "capacity", "n_step", "updates_per_step", "layer_norm", "target_every", "epsilon_steps")
ROLLOUT: dict[str, Any] = {"horizon": 8}
TRAJECTORIES: dict[str, Any] = {"horizon": 8, "critic_updates": 3, "policy_updates": 5, "capacity": 200, "batch": 16}


#: What is DQN's alone, and what stands in its place where one memory is everybody's.
ALONE = ("updates_per_step", "epsilon_steps")
SHARED: dict[str, Any] = {"samples_per_insert": 4.0, "fetch_every": 10}


#: What is Dyna's own.
DREAMS: dict[str, Any] = {
    "dream_capacity": 500,
    "dream_ratio": 2.0,
    "dream_age": 20,
    "model_hidden": [16],
    "model_batch": 16,
    "model_updates_per_step": 0.25,
}


def settings_for(**changes: Any) -> dict[str, Any]:
    algorithm = ALGORITHMS.get(changes.get("algo", "dqn"))
    small = dict(SMALL)
    if algorithm is not None and algorithm.diet == "shared":
        small = {key: value for key, value in SMALL.items() if key not in ALONE} | SHARED
    elif algorithm is not None and algorithm.diet == "dreams":
        small |= DREAMS
    elif algorithm is not None and algorithm.diet != "replay":
        own = {"rollout": ROLLOUT, "slots": ROLLOUT, "trajectories": TRAJECTORIES}[algorithm.diet]
        small = {key: value for key, value in SMALL.items() if key not in REPLAY} | own
    return {**small, **changes}


def small_plan(**changes: Any) -> Plan:
    """A plan with some of the small settings changed."""
    config, numbers = resolve_config(settings_for(**changes))
    return make_plan(config, numbers, config.env)


def new_arena(plan: Plan, *, shared: bool = False) -> Arena:
    """The plan's arena, with its first weights, ready for workers."""
    arena = Arena(plan.specs(), shared=shared)
    plan.prepare(arena)
    plan.start(arena)
    return arena


def run_over(plan: Plan, arena: Arena) -> None:
    """Train inline to the last step, and come to rest."""
    placement = Inline(plan, arena)
    placement.start()
    try:
        placement.resume()
        while placement.board.steps < plan.config.steps:
            placement.advance(0.0)
        placement.pause()
    finally:
        placement.stop()


def inline_run(plan: Plan) -> Tensor:
    """The vector that a whole inline run ends with."""
    arena = new_arena(plan)
    run_over(plan, arena)
    assert Board(arena.below("board")).column("updates").sum() > 10, "this run has learnt nothing"
    vector = torch.cat([arena[f"sync/{name}/vector"] for name in plan.schemes])
    assert torch.isfinite(vector).all()
    return vector
