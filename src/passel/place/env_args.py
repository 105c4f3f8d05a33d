"""What a run's settings say to whoever makes its environments."""

from __future__ import annotations

from typing import Any

from passel.config import RunConfig
from passel.envs.atari_protocol import is_atari
from passel.envs.make import is_served


def env_args(config: RunConfig, *, learning: bool = True) -> dict[str, Any] | None:
    """For environments to learn in, or to be judged in; None if the settings say nothing to these."""
    if is_served(config.env):
        return {"key": config.env_key, "reconnect": config.reconnect}
    if not plays_atari(config):
        return None
    return {
        "protocol": config.protocol,
        # An evaluation is of whole games, and of their own rewards.
        "life_loss": config.life_loss if learning else False,
        "clip_rewards": config.clip_rewards if learning else False,
        "fire_reset": config.fire_reset,
        "mode": config.game_mode,
        "difficulty": config.game_difficulty,
    }


def plays_atari(config: RunConfig) -> bool:
    """Whether the rules of Atari games mean anything to this run."""
    return is_atari(config.env) and config.backend in ("auto", "ale")
