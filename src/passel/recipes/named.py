"""Systems that have a name in the literature, with its numbers, and the scores that were published for them.

A recipe takes a preset's place, and what the user says comes first: `passel train --recipe rainbow-lite --env
ALE/Pong-v5`. What it does not name is as the algorithm's defaults have it.
Periods are the papers' agent steps divided by four: passel counts updates, of which there is one for four steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from passel.envs.atari_protocol import is_atari
from passel.types import PasselError


@dataclass(frozen=True)
class Recipe:
    """`published`: the score on Breakout after 200 million frames, from no-op starts, and by whom."""

    summary: str
    algo: str
    settings: Mapping[str, Any]
    published: float
    source: str


_ATARI: dict[str, Any] = {
    "protocol": "nature",
    "hidden": [512],
    "envs": 8,
    "batch": 32,
    "updates_per_step": 0.25,
    "capacity": 1_000_000,
    "lr_end": None,
    "eval_episodes": 10,
    "steps": 50_000_000,
}
_NATURE: dict[str, Any] = {
    **_ATARI,
    "double": False,
    "n_step": 1,
    "warmup": 50_000,
    "optimizer": "rmsprop",
    "centred": True,
    "rms_decay": 0.95,
    # The paper adds 0.01 / 32^2 to the variance; here it is added to its root.
    "optimizer_eps": 0.1 / 32,
    "lr": 2.5e-4,
    "max_grad_norm": None,
    "target_every": 2_500,
    # The paper's million frames, read as frames of the emulator.
    "epsilon_end": 0.1,
    "epsilon_steps": 250_000,
}

RECIPES: dict[str, Recipe] = {
    "dqn-nature": Recipe("DQN as in Nature, on Atari games", "dqn", _NATURE, 401.2, "Mnih et al. 2015"),
    "double-dqn": Recipe(
        "double DQN, tuned as in its paper, on Atari games",
        "dqn",
        {**_NATURE, "double": True, "target_every": 7_500, "epsilon_end": 0.01},
        375.0,
        "van Hasselt, Guez, Silver 2016",
    ),
    "rainbow-lite": Recipe(
        "Rainbow without its noisy layers: double, dueling, prioritized, 3-step, C51, on Atari games",
        "dqn",
        {
            **_ATARI,
            "double": True,
            "dueling": True,
            "prioritized": True,
            "priority_alpha": 0.5,
            "priority_beta": 0.4,
            "n_step": 3,
            "distributional": True,
            "warmup": 20_000,
            "lr": 6.25e-5,
            "optimizer_eps": 1.5e-4,
            "target_every": 2_000,
            "epsilon_end": 0.01,
            "epsilon_steps": 250_000,
        },
        417.5,
        "Hessel et al. 2018, with noisy layers",
    ),
}


def recipe(name: str, env: object) -> Recipe:
    """The recipe of this name, for this environment."""
    if name not in RECIPES:
        raise PasselError(f"there is no --recipe {name}. Choose from {', '.join(RECIPES)}.")
    if not is_atari(env):
        raise PasselError(f"--recipe {name} is for Atari games, and {env} is none. Use --env ALE/Breakout-v5, say.")
    return RECIPES[name]
