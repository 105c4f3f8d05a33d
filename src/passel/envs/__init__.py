"""Environments: one boundary contract, several back-ends behind it.

Names are imported when they are first used: an environment in a process of its own (apart.py) needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from passel.envs.base import Envs
    from passel.envs.make import describe, make_envs, specs

__all__ = ["Envs", "describe", "make_envs", "specs"]

_HOMES = {
    "Envs": "passel.envs.base",
    "describe": "passel.envs.make",
    "make_envs": "passel.envs.make",
    "specs": "passel.envs.make",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'passel.envs' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
