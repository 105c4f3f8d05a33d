"""--algo auto: the algorithm that suits an environment, by its spaces."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from passel.algos import ALGORITHMS, CANDIDATES
from passel.config import AUTO, RunConfig
from passel.recipes.resolve import resolve_config
from passel.types import PasselError


class Choice(NamedTuple):
    """An algorithm, and the reason for it in a few words."""

    algo: str
    reason: str


def choose(*, levels: bool = False, vectors: bool = False, images: bool = False) -> Choice:
    """The algorithm for a set of levels, for actions that are vectors, for observations that are images, and for the
    rest. DQN cannot act in vectors; images and levels take many steps, of which PPO takes more per second.
    """
    for applies, reason in (
        (levels, "the environment is a set of levels"),
        (vectors, "actions are vectors"),
        (images, "observations are images"),
    ):
        if applies:
            return Choice("ppo", reason)
    return Choice("dqn", "actions are discrete")


def is_open(said: Mapping[str, Any]) -> bool:
    """Whether the environment decides about the algorithm: it is auto, or neither a setting nor a recipe names one."""
    return said.get("algo", AUTO) == AUTO and not said.get("recipe")


def resolve_open(said: Mapping[str, Any]) -> tuple[RunConfig, Any]:
    """The configuration by the algorithm that was named, or, before the environment is known, by the first candidate
    that takes these settings. What none of them takes is refused before anything is imported or asked, with the reason
    of the one that knows most of the settings.
    """
    if not is_open(said):
        return resolve_config(said)
    errors: list[PasselError] = []
    for algo in sorted(CANDIDATES, key=partial(_unknown, said)) if "algo" in said else CANDIDATES[:1]:
        try:
            return resolve_config({**said, "algo": algo})
        except PasselError as error:
            errors.append(error)
    raise errors[0]


def _unknown(said: Mapping[str, Any], algo: str) -> int:
    """How many of these settings neither the run nor the algorithm has."""
    known = {field.name for config in (RunConfig, ALGORITHMS[algo].Config) for field in dataclasses.fields(config)}
    return len(set(said) - known)
