"""The 32 stages of Super Mario Bros as a set of levels, by a server in the interpreter that they need.

Each worker has one server, whose emulators play all its stages: half a megabyte each, where a process each would be 50.
Observations are the last four frames, gray, of 84 x 84 pixels; they travel once and are stacked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from passel.arena import Spec
from passel.envs import packaged, remote
from passel.envs.base import Envs
from passel.envs.levels import PREFIX, Copies, LevelSet
from passel.envs.stacked import Stacked, stacked_spec
from passel.types import EnvSpec, PasselError

STAGES = tuple(f"{world}-{stage}" for world in range(1, 9) for stage in range(1, 5))
#: Of six worlds, and of every kind that there is more than one of: three on the ground, one underground (4-2), one in
#: the trees (6-3), one castle (3-4). Five stages come back later with other enemies (1-3 as 5-3, 1-4 as 6-4, 2-2 as
#: 7-2, 2-3 as 7-3, 2-4 as 5-4): such pairs are trained on, for one would tell how the other goes.
HELD_OUT = ("2-1", "3-4", "4-2", "5-1", "6-3", "8-2")
FRAMES = 4
#: Enough to walk through the longest stage, 8-1, and half of what the game's clock allows: a policy that stands still
#: is evaluated for as long.
MAX_STEPS = 1_200
FLAGS = ("--gray", "--resize", "84x84", "--limit", str(MAX_STEPS))


@dataclass
class MarioLevels(LevelSet):
    """Stages by world and number."""

    at_once: ClassVar[int] = len(STAGES)
    costs_differ: ClassVar[bool] = False
    chance: ClassVar[bool] = False

    name: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    _specs: dict[str, EnvSpec] = field(default_factory=dict)

    def describe(self) -> EnvSpec:
        """All stages look the same and have the same moves: one is enough to look at."""
        if not self._specs:
            self._specs[""] = replace(remote.describe(self._server(self.train[:1])), reward_threshold=None)
        return replace(stacked_spec(self._specs[""], FRAMES), id=self.name, backend="levels")

    def level(self, name: str, copies: Copies) -> Envs:
        return self.each((name,), copies)

    def level_specs(self, name: str, copies: int) -> dict[str, Spec]:
        return remote.record_specs()

    def record_specs(self, levels: Sequence[str], copies: int) -> dict[str, Spec]:
        return remote.record_specs()

    def each(self, levels: Sequence[str], copies: Copies) -> Envs:
        """All in one session with one server."""
        kinds, server = np.repeat(np.arange(len(levels)), copies.n), self._server(levels)
        rows = remote.RemoteEnvs(server, len(kinds), copies.seed, kinds=kinds, tensors=copies.tensors)
        return Stacked(rows, FRAMES)

    def _server(self, stages: Sequence[str]) -> packaged.OwnServer:
        games = [f"SuperMarioBros-{stage}-v0" for stage in stages]
        return packaged.OwnServer("mario", games, FLAGS, called=self.name)


def read(text: str) -> MarioLevels:
    """The set, if the game is installed; there is nothing to choose."""
    if text:
        raise PasselError(f'mario has nothing to choose, and "{text}" stands behind it. Leave it out.')
    packaged.check_installed("mario")
    return MarioLevels(f"{PREFIX}mario", tuple(stage for stage in STAGES if stage not in HELD_OUT), HELD_OUT)
