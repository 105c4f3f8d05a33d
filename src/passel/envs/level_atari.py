"""Breakout's 24 variants, 12 modes in 2 difficulties, by EnvPool: one game, many rules.

One mode of each of the game's three families is held out, in both difficulties. Observations are the last four frames,
gray, of 84 x 84 pixels, of which a rollout keeps each once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from passel.arena import Spec
from passel.envs import envpool_backend
from passel.envs.base import Envs
from passel.envs.levels import PREFIX, Copies, LevelSet
from passel.types import EnvSpec, PasselError

ID = "Breakout-v5"
MODES = range(0, 48, 4)
DIFFICULTIES = (0, 1)
HELD_OUT_MODES = (8, 24, 40)
FRAMES = 4
#: Five minutes of play. EnvPool's own limit is half an hour, in which a policy that waits for ever would be evaluated.
MAX_STEPS = 4_500


@dataclass
class BreakoutModes(LevelSet):
    """Each level is a pool of its own, for a pool has one mode."""

    name: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    _specs: dict[str, EnvSpec] = field(default_factory=dict)

    def describe(self) -> EnvSpec:
        if not self._specs:
            found = envpool_backend.describe(ID, {"max_episode_steps": MAX_STEPS})
            self._specs[ID] = replace(found, reward_threshold=None, frames=FRAMES)
        return replace(self._specs[ID], id=self.name, backend="levels")

    def level(self, name: str, copies: Copies) -> Envs:
        mode, difficulty = LEVELS[name]
        arguments = {"mode": mode, "difficulty": difficulty, "max_episode_steps": MAX_STEPS, "stack_num": FRAMES}
        spec = replace(self.describe(), id=ID)
        return envpool_backend.EnvPoolEnvs(
            spec,
            copies.n,
            copies.seed,
            threads=min(copies.threads, copies.n),
            env_args=arguments,
            tensors=copies.tensors,
        )

    def level_specs(self, name: str, copies: int) -> dict[str, Spec]:
        return envpool_backend.record_specs()


#: Mode and difficulty of each level.
LEVELS = {f"mode{mode}-difficulty{difficulty}": (mode, difficulty) for mode in MODES for difficulty in DIFFICULTIES}


def read(text: str) -> BreakoutModes:
    """The set; there is nothing to choose."""
    if text:
        raise PasselError(f'breakout-modes has nothing to choose, and "{text}" stands behind it. Leave it out.')
    if not envpool_backend.installed():
        raise PasselError(
            "breakout-modes is played by EnvPool, which is not installed. Run: pip install 'passel[fast]'"
        )
    held_out = tuple(name for name, (mode, _) in LEVELS.items() if mode in HELD_OUT_MODES)
    train = tuple(name for name in LEVELS if name not in held_out)
    return BreakoutModes(f"{PREFIX}breakout-modes", train, held_out)
