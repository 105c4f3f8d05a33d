"""Procgen (Cobbe et al. 2020) by EnvPool: games whose levels are numbered, without end.

    levels:procgen:jumper                  200 levels to train on, 50 held out, easy
    levels:procgen:ninja:hard:500+100      500 and 100, hard

A worker has one pool for its range of level seeds, and a row draws a level of that range for each episode: a pool for
each level would be three times as slow. For an evaluation each level has a pool of its own, so that each is played
equally often. Held-out seeds begin at a million, where no training set reaches.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

from passel.arena import Spec
from passel.envs import envpool_backend
from passel.envs.base import Envs
from passel.envs.levels import PREFIX, Copies, LevelSet, suggestion
from passel.types import EnvSpec, Ints, PasselError

GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot"),
    *("heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)
DISTRIBUTIONS = ("easy", "hard", "extreme", "memory", "exploration")
COUNTS = "200+50"
HELD_OUT_FROM = 1_000_000

#: What EnvPool's Procgen draws with, in the order in which they need each other.
QT_LIBRARIES = ("libicudata.so.56", "libicuuc.so.56", "libicui18n.so.56", "libQt5Core.so.5", "libQt5Gui.so.5")


@dataclass
class ProcgenLevels(LevelSet):
    """Levels by their seed."""

    listed: ClassVar[bool] = False

    name: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    id: str
    _specs: dict[str, EnvSpec] = field(default_factory=dict)

    def describe(self) -> EnvSpec:
        _prepare()
        if not self._specs:
            found = envpool_backend.describe(self.id, None)
            # What EnvPool says about a limit is not what it does: the games end by themselves.
            self._specs[self.id] = replace(found, max_episode_steps=None, reward_threshold=None)
        return replace(self._specs[self.id], id=self.name, backend="levels")

    def level(self, name: str, copies: Copies) -> Envs:
        return self._pool((name,), replace(copies, threads=1))

    def level_specs(self, name: str, copies: int) -> dict[str, Spec]:
        return envpool_backend.record_specs()

    def rows(self, levels: Sequence[str], copies: int) -> int:
        return copies

    def groups(self, levels: Sequence[str], copies: int) -> Ints | None:
        return None

    def record_specs(self, levels: Sequence[str], copies: int) -> dict[str, Spec]:
        return envpool_backend.record_specs()

    def make(self, levels: Sequence[str], copies: Copies) -> Envs:
        """Rows that draw one of these levels, which follow each other, for each episode."""
        return self._pool(levels, copies)

    def _pool(self, levels: Sequence[str], copies: Copies) -> Envs:
        spec = replace(self.describe(), id=self.id)
        span = {"start_level": int(levels[0]), "num_levels": len(levels)}
        return envpool_backend.EnvPoolEnvs(
            spec, copies.n, copies.seed, threads=copies.threads, env_args=span, tensors=copies.tensors
        )


def read(text: str) -> ProcgenLevels:
    """From GAME[:DISTRIBUTION][:TRAIN+HELD_OUT] to the set."""
    game, *rest = text.split(":")
    if game not in GAMES:
        raise PasselError(f'Procgen has no game "{game}". {suggestion(game, GAMES)}')
    counts = rest.pop() if rest and "+" in rest[-1] else COUNTS
    distribution = rest.pop() if rest else "easy"
    if distribution not in DISTRIBUTIONS or rest:
        raise PasselError(
            f'"{text}" does not say which levels. Write procgen:{game}, or more fully procgen:{game}:easy:{COUNTS} '
            f"({', '.join(DISTRIBUTIONS)}; levels to train on + held out)."
        )
    train, held_out = _numbers(counts)
    return ProcgenLevels(
        f"{PREFIX}procgen:{text}",
        tuple(map(str, range(train))),
        tuple(map(str, range(HELD_OUT_FROM, HELD_OUT_FROM + held_out))),
        _known(game, distribution),
    )


def _numbers(counts: str) -> tuple[int, int]:
    train, _, held_out = counts.partition("+")
    numbers = train.isdecimal() and held_out.isdecimal() and max(len(train), len(held_out)) < 20
    if not (numbers and 1 <= int(train) <= HELD_OUT_FROM and int(held_out) <= HELD_OUT_FROM):
        raise PasselError(f'"{counts}" is no number of levels. Write how many to train on + held out, as {COUNTS}.')
    return int(train), int(held_out)


def _known(game: str, distribution: str) -> str:
    """EnvPool's id of a game; not every game has every distribution."""
    if not envpool_backend.installed():
        raise PasselError("Procgen is played by EnvPool, which is not installed. Run: pip install 'passel[levels]'")
    name = f"{game.title()}{distribution.title()}-v0"
    ids = envpool_backend.ids()
    if name not in ids:
        there = [each for each in DISTRIBUTIONS if f"{game.title()}{each.title()}-v0" in ids]
        raise PasselError(f"Procgen's {game} has no {distribution} levels. It has: {', '.join(there)}.")
    return name


@cache
def _prepare() -> None:
    """Once in a process: Qt for EnvPool to find. An EnvPool that was imported without has given Procgen up, and must
    look again.
    """
    _load_qt()
    sys.modules.pop("envpool.procgen", None)


def _load_qt() -> None:
    """Procgen draws with Qt 5, which EnvPool expects to find: from the system, or from the wheel PyQt5-Qt5."""
    try:
        ctypes.CDLL("libQt5Gui.so.5", mode=ctypes.RTLD_GLOBAL)
        return
    except OSError:
        found = importlib.util.find_spec("PyQt5")
    if found is None or not found.submodule_search_locations:
        raise PasselError(
            "EnvPool's Procgen draws with Qt 5, which is not installed. Run: pip install 'passel[levels]' "
            "(or, as root: apt-get install libqt5gui5)"
        )
    folder = Path(next(iter(found.submodule_search_locations))) / "Qt5" / "lib"
    try:
        for library in QT_LIBRARIES:
            ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise PasselError(
            f"Qt 5, which EnvPool's Procgen draws with, cannot be loaded ({error}). "
            "Run: pip install --force-reinstall PyQt5-Qt5"
        ) from error
