"""The configuration as TOML, without loss: TOML has no null, so the fields that are None are listed by name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import tomli_w

NONE_FIELDS = "none_fields"


def to_toml(config: Mapping[str, Any]) -> str:
    """TOML text of `config`. A field left out would come back as its default, which need not be None."""
    none_fields = list(_none_fields(config))
    return tomli_w.dumps({**({NONE_FIELDS: none_fields} if none_fields else {}), **_without_none(config)})


def from_toml(text: str) -> dict[str, Any]:
    """The configuration that `to_toml` was given, its None fields included."""
    config = tomllib.loads(text)
    for field in config.pop(NONE_FIELDS, []):
        *tables, last = field.split(".")
        table = config
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = None
    return config


def _none_fields(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if value is None:
            yield f"{prefix}{key}"
        elif isinstance(value, Mapping):
            yield from _none_fields(value, f"{prefix}{key}.")


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }
