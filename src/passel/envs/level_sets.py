"""From what stands after --env to a set of levels."""

from __future__ import annotations

from collections.abc import Callable

from passel.envs import level_toml
from passel.envs.levels import PREFIX, LevelSet, suggestion
from passel.types import PasselError

#: The built-in sets, by the word before the first colon; what stands behind it is for the set to read.
BUILT_IN: dict[str, Callable[[str], LevelSet]] = {}
#: What there is, for people.
SUMMARIES = {
    "FILE.toml": "your own list of environment ids and arguments",
}


def level_set(env: str) -> LevelSet:
    """The set that `env` names: levels:NAME, or levels:NAME@LEVEL for one level of it alone."""
    name, _, only = env.removeprefix(PREFIX).partition("@")
    kind, _, rest = name.partition(":")
    if kind in BUILT_IN:
        found = BUILT_IN[kind](rest)
    elif name.endswith(".toml"):
        found = level_toml.read(name)
    else:
        raise PasselError(f'there is no set of levels "{name}". {suggestion(name, SUMMARIES)}')
    found.without_training_levels_held_out()
    return found.only(only) if only else found
