"""How Atari games are played: which ids they have, the named protocols, and the scores that people compare with."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from passel.types import PasselError

#: ALE/Breakout-v5, with or without the module that Gymnasium wants before it.
ID = re.compile(r"(?:ale_py:)?ALE/(?P<game>\w+)-v5")
FRAME_SKIP = 4
STACK = 4
SIDE = 84


@dataclass(frozen=True)
class Protocol:
    """The rules of play. Two results can be compared if these are equal.

    `life_loss` and `clip_rewards` are for learning only: scores and evaluations are of whole games and true rewards.
    """

    name: str
    #: The chance that a frame repeats the action of the frame before, whatever was chosen (Machado et al. 2018).
    sticky: float
    #: A game is cut off after so many frames.
    max_frames: int
    #: A lost life counts as an end of the episode; the game goes on.
    life_loss: bool
    #: Rewards are brought to [-1, 1].
    clip_rewards: bool = True
    #: A game begins after at most so many frames without an action.
    noops: int = 30
    #: The first action of a game and after a lost life is FIRE, whatever was chosen.
    fire_reset: bool = False
    #: The game's own switches; None: as the cartridge starts.
    mode: int | None = None
    difficulty: int | None = None

    def facts(self) -> dict[str, Any]:
        """What a reader of a score must know."""
        return {**asdict(self), "frame_skip": FRAME_SKIP, "scores": "whole games, true rewards"}


PROTOCOLS = {
    # Gymnasium's ids: half an hour of play, sticky actions against memorised openings.
    "v5": Protocol("v5", sticky=0.25, max_frames=108_000, life_loss=False),
    # Mnih et al. 2015: five minutes of play, chance only in the no-ops, a life lost is an end for learning.
    "nature": Protocol("nature", sticky=0.0, max_frames=18_000, life_loss=True),
}
SETTINGS = tuple(field.name for field in fields(Protocol) if field.name != "name")


def is_atari(env: object) -> bool:
    """Whether `--env` names a game of the Arcade Learning Environment as Gymnasium does."""
    return isinstance(env, str) and ID.fullmatch(env) is not None


def game_of(env: str) -> str:
    """Breakout, of ALE/Breakout-v5."""
    found = ID.fullmatch(env)
    if found is None:
        raise PasselError(f"{env} is not the id of an Atari game. They are written as ALE/Breakout-v5.")
    return found["game"]


def read_protocol(env_args: Mapping[str, Any] | None) -> Protocol:
    """The named protocol, with whatever else `env_args` says over it; None leaves a rule as it is."""
    said = dict(env_args or {})
    name = said.pop("protocol", "v5")
    if name not in PROTOCOLS:
        raise PasselError(f'there is no protocol "{name}" for Atari games. Choose from {", ".join(PROTOCOLS)}.')
    unknown = [key for key in said if key not in SETTINGS]
    if unknown:
        raise PasselError(f"Atari games have no argument {unknown[0]}. There are protocol, {', '.join(SETTINGS)}.")
    return replace(PROTOCOLS[name], **{key: value for key, value in said.items() if value is not None})


@cache
def reference_scores() -> dict[str, tuple[float, float]]:
    """What random play and a human score, by the name of the game's ROM."""
    content = tomllib.loads((Path(__file__).parent / "atari_scores.toml").read_text())
    return {game: (float(random), float(human)) for game, (random, human) in content.items()}
