"""Games of stable-retro as sets of levels: Sonic's 58 acts as the Retro Contest used them, and Airstriker, whose ROM is
free. Each level is an emulator in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from gymnasium.wrappers import TimeLimit

from passel.arena import Spec
from passel.envs import gymnasium_backend
from passel.envs.apart import Apart
from passel.envs.base import Envs
from passel.envs.build import AnyEnv
from passel.envs.levels import PREFIX, Copies, LevelSet
from passel.envs.retro_game import FRAME_SKIP, FRAMES, missing_roms
from passel.types import EnvSpec, PasselError

MAX_STEPS = 4_500
Buttons = tuple[tuple[str, ...], ...]

SONIC_1, SONIC_2 = "SonicTheHedgehog-Genesis-v0", "SonicTheHedgehog2-Genesis-v0"
SONIC_3 = "SonicAndKnuckles3-Genesis-v0"
SONIC_BUTTONS: Buttons = (
    *(("LEFT",), ("RIGHT",), ("LEFT", "DOWN"), ("RIGHT", "DOWN")),
    *(("DOWN",), ("DOWN", "B"), ("B",)),
)
#: The acts of the Retro Contest (Nichol et al. 2018), by game: 47 to train on, 11 to test on.
SONIC_TRAIN = {
    SONIC_1: (
        *("SpringYardZone.Act3", "SpringYardZone.Act2", "GreenHillZone.Act3", "GreenHillZone.Act1"),
        *("StarLightZone.Act2", "StarLightZone.Act1", "MarbleZone.Act2", "MarbleZone.Act1", "MarbleZone.Act3"),
        *("ScrapBrainZone.Act2", "LabyrinthZone.Act2", "LabyrinthZone.Act1", "LabyrinthZone.Act3"),
    ),
    SONIC_2: (
        *("EmeraldHillZone.Act1", "EmeraldHillZone.Act2", "ChemicalPlantZone.Act2", "ChemicalPlantZone.Act1"),
        *("MetropolisZone.Act1", "MetropolisZone.Act2", "OilOceanZone.Act1", "OilOceanZone.Act2"),
        *("MysticCaveZone.Act2", "MysticCaveZone.Act1", "HillTopZone.Act1", "CasinoNightZone.Act1"),
        *("WingFortressZone", "AquaticRuinZone.Act2", "AquaticRuinZone.Act1"),
    ),
    SONIC_3: (
        *("LavaReefZone.Act2", "CarnivalNightZone.Act2", "CarnivalNightZone.Act1", "MarbleGardenZone.Act1"),
        *("MarbleGardenZone.Act2", "MushroomHillZone.Act2", "MushroomHillZone.Act1", "DeathEggZone.Act1"),
        *("DeathEggZone.Act2", "FlyingBatteryZone.Act1", "SandopolisZone.Act1", "SandopolisZone.Act2"),
        *("HiddenPalaceZone", "HydrocityZone.Act2", "IcecapZone.Act1", "IcecapZone.Act2"),
        *("AngelIslandZone.Act1", "LaunchBaseZone.Act2", "LaunchBaseZone.Act1"),
    ),
}
SONIC_HELD_OUT = {
    SONIC_1: ("SpringYardZone.Act1", "GreenHillZone.Act2", "StarLightZone.Act3", "ScrapBrainZone.Act1"),
    SONIC_2: ("MetropolisZone.Act3", "HillTopZone.Act2", "CasinoNightZone.Act2"),
    SONIC_3: ("LavaReefZone.Act1", "FlyingBatteryZone.Act2", "HydrocityZone.Act1", "AngelIslandZone.Act2"),
}

AIRSTRIKER = "Airstriker-Genesis-v0"
AIRSTRIKER_BUTTONS: Buttons = ((), ("LEFT",), ("RIGHT",), ("B",), ("LEFT", "B"), ("RIGHT", "B"))


@dataclass
class RetroLevels(LevelSet):
    """Levels by the name of the state that they begin in."""

    at_once: ClassVar[int] = 8  # processes

    name: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    games: Mapping[str, str]
    buttons: Buttons
    scenario: str | None = None
    _specs: dict[str, EnvSpec] = field(default_factory=dict)

    def describe(self) -> EnvSpec:
        """All levels look the same and have the same buttons: one is enough to look at."""
        if not self._specs:
            found = gymnasium_backend.describe(self._maker(self.train[0]), None)
            self._specs[""] = replace(found, frame_skip=FRAME_SKIP, frames=FRAMES)
        return replace(self._specs[""], id=self.name, backend="levels")

    def level(self, name: str, copies: Copies) -> Envs:
        return gymnasium_backend.GymnasiumEnvs(self._maker(name), copies.n, copies.seed, None, copies.tensors)

    def level_specs(self, name: str, copies: int) -> dict[str, Spec]:
        return gymnasium_backend.record_specs(self.describe(), copies)

    def _maker(self, name: str) -> partial[AnyEnv]:
        return partial(_make, self.games[name], name, self.buttons, self.scenario)


def _make(game: str, state: str, buttons: Buttons, scenario: str | None) -> AnyEnv:
    arguments = {"game": game, "state": state, "buttons": buttons, "scenario": scenario}
    return TimeLimit(Apart("passel.envs.retro_game:RetroGame", arguments), MAX_STEPS)


def read_sonic(text: str) -> RetroLevels:
    """The contest's levels, if their ROMs are there."""
    _nothing_behind("sonic", text)
    missing = missing_roms(list(SONIC_TRAIN))
    if missing:
        files = "\n".join(f"  {game.removesuffix('-v0')}: SHA-1 {' or '.join(sha)}" for game, sha in missing.items())
        raise PasselError(
            f"levels:sonic needs ROMs that cannot be shipped and were not imported:\n{files}\n"
            "Put the files (.md or .zip) into a folder and run: python -m stable_retro.import FOLDER"
        )
    games = {level: game for part in (SONIC_TRAIN, SONIC_HELD_OUT) for game, levels in part.items() for level in levels}
    train, held_out = (tuple(x for levels in part.values() for x in levels) for part in (SONIC_TRAIN, SONIC_HELD_OUT))
    return RetroLevels(f"{PREFIX}sonic", train, held_out, games, SONIC_BUTTONS, "contest")


def read_airstriker(text: str) -> RetroLevels:
    """A set of one level, whose ROM comes with stable-retro: it plays as all the others do."""
    _nothing_behind("airstriker", text)
    missing_roms([])
    return RetroLevels(f"{PREFIX}airstriker", ("Level1",), (), {"Level1": AIRSTRIKER}, AIRSTRIKER_BUTTONS)


def _nothing_behind(name: str, text: str) -> None:
    if text:
        raise PasselError(f'{name} has nothing to choose, and "{text}" stands behind it. Leave it out.')
