"""A user's own list of levels: a TOML file of environment ids and their arguments.

[[train]]
id = "CartPole-v1"

[[train]]
id = "CartPole-v1"
name = "sutton"
kwargs = { sutton_barto_reward = true }

[[held_out]]
id = "CartPole-v1"
name = "short"
kwargs = { max_episode_steps = 100 }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from passel.arena import Spec
from passel.envs import gymnasium_backend
from passel.envs.base import Envs
from passel.envs.levels import PREFIX, Copies, LevelSet, common_spec, suggestion
from passel.reading import read_regular
from passel.types import EnvSpec, PasselError

PARTS = ("train", "held_out")
KEYS = ("id", "name", "kwargs")
MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Entry:
    """One level of the file."""

    id: str
    kwargs: Mapping[str, Any]


@dataclass
class TomlLevels(LevelSet):
    """Each level is a Gymnasium environment, stepped in a plain loop, so a resumed run goes on in mid-episode."""

    name: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    entries: Mapping[str, Entry]
    _specs: dict[str, EnvSpec] = field(default_factory=dict)

    def describe(self) -> EnvSpec:
        return common_spec(self.name, {name: self._spec(name) for name in (*self.train, *self.held_out)})

    def level(self, name: str, copies: Copies) -> Envs:
        entry = self.entries[name]
        return gymnasium_backend.GymnasiumEnvs(entry.id, copies.n, copies.seed, entry.kwargs, copies.tensors)

    def level_specs(self, name: str, copies: int) -> dict[str, Spec]:
        return gymnasium_backend.record_specs(self._spec(name), copies)

    def _spec(self, name: str) -> EnvSpec:
        if name not in self._specs:
            entry = self.entries[name]
            self._specs[name] = gymnasium_backend.describe(entry.id, entry.kwargs)
        return self._specs[name]


def read(path: str) -> TomlLevels:
    """The set in a file, or what is wrong with it, in a sentence."""
    try:
        content = tomllib.loads(read_regular(path, MOST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise PasselError(f"there is no file {path}. Give --env levels: the path of a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PasselError(f"{path} is not valid TOML ({error}). Mend it.") from None
    except OSError as error:
        raise PasselError(f"{path} cannot be read ({error.strerror}). Make it readable.") from None
    _check_keys(content, PARTS, path)
    entries: dict[str, Entry] = {}
    parts = {part: tuple(_entries(content.get(part, []), part, path, entries)) for part in PARTS}
    if not parts["train"]:
        raise PasselError(f"{path} has no level to train on. Add one: [[train]] and, below it, id = ...")
    return TomlLevels(PREFIX + path, parts["train"], parts["held_out"], entries)


def _entries(tables: Any, part: str, path: str, entries: dict[str, Entry]) -> list[str]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise PasselError(f"{part} in {path} must be a list of tables. Write [[{part}]] above each level.")
    names = []
    for number, table in enumerate(tables, start=1):
        where = f"level {number} of {part} in {path}"
        _check_keys(table, KEYS, where)
        env, kwargs = table.get("id"), table.get("kwargs", {})
        if not isinstance(env, str):
            raise PasselError(f'{where} has no id. Add one, for instance id = "CartPole-v1".')
        if not isinstance(kwargs, dict):
            raise PasselError(f"the kwargs of {where} must be a table. Write kwargs = {{ name = value }}.")
        name = str(table.get("name", _called(env, kwargs)))
        if name in entries:
            raise PasselError(f'two levels in {path} are called "{name}". Give one of them another name = ...')
        entries[name] = Entry(env, kwargs)
        names.append(name)
    return names


def _called(env: str, kwargs: Mapping[str, Any]) -> str:
    """What a level is called if the file does not say."""
    return " ".join([env, *(f"{key}={value}" for key, value in kwargs.items())])


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise PasselError(f'there is no "{key}" in a set of levels ({where}). {suggestion(key, known)}')
