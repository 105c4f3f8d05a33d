"""From what stands after --env to a set of levels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from passel.envs import level_atari, level_mario, level_procgen, level_retro, level_toml
from passel.envs.levels import PREFIX, LevelSet, suggestion
from passel.types import PasselError

#: The built-in sets, by the word before the first colon; what stands behind it is for the set to read.
BUILT_IN: dict[str, Callable[[str], LevelSet]] = {
    "airstriker": level_retro.read_airstriker,
    "breakout-modes": level_atari.read,
    "mario": level_mario.read,
    "procgen": level_procgen.read,
    "sonic": level_retro.read_sonic,
}
FILE = ".toml"
#: What there is, for people.
SUMMARIES = {
    "procgen:GAME": "Procgen's numbered levels: procgen:jumper, procgen:ninja:hard:500+100",
    "breakout-modes": "the 24 modes and difficulties of Breakout, 6 of them held out",
    "sonic": "47 acts of Sonic to train on and 11 held out, as in the Retro Contest (bring your ROMs)",
    "airstriker": "one level of Airstriker, whose ROM is free",
    "mario": "26 stages of Super Mario Bros to train on and 6 held out (passel env install mario)",
    "FILE.toml": "your own list of environment ids and arguments",
}


def from_anywhere(env: str) -> str:
    """The same set by a name that means it in every folder: a run is resumed, or evaluated, from another one too."""
    file, only = file_of(env), _split(env)[1]
    if file is None:
        return env
    return f"{PREFIX}{Path(file).resolve()}" + (f"@{only}" if only else "")


def file_of(env: str) -> str | None:
    """The file that lists the set's levels; None for a built-in set."""
    name, _ = _split(env)
    return None if name.partition(":")[0] in BUILT_IN or not name.endswith(FILE) else name


def level_set(env: str) -> LevelSet:
    """The set that `env` names: levels:NAME, or levels:NAME@LEVEL for one level of it alone."""
    name, only = _split(env)
    kind, _, rest = name.partition(":")
    if kind in BUILT_IN:
        found = BUILT_IN[kind](rest)
    elif name.endswith(FILE):
        found = level_toml.read(name)
    else:
        raise PasselError(f'there is no set of levels "{name}". {suggestion(name, SUMMARIES)}')
    found.without_training_levels_held_out()
    return found.only(only) if only else found


def _split(env: str) -> tuple[str, str]:
    """A set, and one level of it if there is one. The folders of a file may have an @ in their names."""
    text = env.removeprefix(PREFIX)
    file, at, only = text.partition(f"{FILE}@")
    if at:
        return file + FILE, only
    name, _, only = (text, "", "") if text.endswith(FILE) else text.partition("@")
    return name, only
