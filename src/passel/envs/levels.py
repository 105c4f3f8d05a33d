"""A set of levels as one environment: some to train on, others held out, each with a name.

A set says how to step some of its levels as rows of one batch, and which row is which level. Who holds which levels is
not its business: see place/parts.py.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from torch import Tensor

from passel.arena import Spec, Tensors, prefixed
from passel.envs.base import Envs
from passel.envs.seeds import derive_seed
from passel.types import Array, EnvSpec, Episode, Ints, PasselError, Step

PREFIX = "levels:"


def is_level_set(env: object) -> bool:
    """Whether `--env` names a set of levels."""
    return isinstance(env, str) and env.startswith(PREFIX)


@dataclass(frozen=True)
class Copies:
    """How many copies of a level are wanted, and how: their seed, the threads that may step them, and the tensors that
    keep what a resumed run needs.
    """

    n: int
    seed: int
    threads: int = 1
    tensors: Mapping[str, Tensor] | None = None

    def of_level(self, number: int) -> Copies:
        """Those of one level among several: with a seed and tensors of their own."""
        kept = None if self.tensors is None else Tensors(self.tensors).below(str(number))
        return Copies(self.n, derive_seed(self.seed, number, 0), self.threads, kept)


class LevelSet(ABC):
    """Levels by name. How it is used:

        levels = level_set("levels:breakout-modes")
        envs = levels.make(levels.train[:3], Copies(2, seed=1))    # rows to train on
        envs = levels.each(levels.held_out, Copies(4, seed=2))     # rows to evaluate on: level by level, copy by copy

    `name` is what stands after --env, so that it makes the same set again.
    """

    #: Whether each row plays one level for ever. If not, a row draws a level of its worker's part for each episode.
    listed: ClassVar[bool] = True
    #: Rows that an evaluation may step at once.
    at_once: ClassVar[int] = 128
    #: Whether a step may cost more in one level than in another. If not, nobody measures it before a run.
    costs_differ: ClassVar[bool] = True
    #: Whether anything but the actions is random. If not, greedy play of a level is always the same: once is enough.
    chance: ClassVar[bool] = True

    name: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]

    @abstractmethod
    def describe(self) -> EnvSpec:
        """What every level of the set is alike in."""

    @abstractmethod
    def level(self, name: str, copies: Copies) -> Envs:
        """Copies of one level."""

    @abstractmethod
    def level_specs(self, name: str, copies: int) -> dict[str, Spec]:
        """The tensors that copies of one level keep for a resumed run."""

    def rows(self, levels: Sequence[str], copies: int) -> int:
        """How many rows `make` steps."""
        return len(levels) * copies

    def groups(self, levels: Sequence[str], copies: int) -> Ints | None:
        """Which of `levels` each row of `make` plays, as an index; None if that changes from episode to episode."""
        return np.repeat(np.arange(len(levels)), copies)

    def record_specs(self, levels: Sequence[str], copies: int) -> dict[str, Spec]:
        """The tensors that `make` wants to keep for a resumed run."""
        specs: dict[str, Spec] = {}
        for number, name in enumerate(levels):
            specs |= prefixed(str(number), self.level_specs(name, copies))
        return specs

    def make(self, levels: Sequence[str], copies: Copies) -> Envs:
        """Rows to train on: copies of each level."""
        return self.each(levels, copies)

    def each(self, levels: Sequence[str], copies: Copies) -> Envs:
        """Copies of each level, level by level."""
        spec, parts = self.describe(), list[Envs]()
        try:
            for number, name in enumerate(levels):
                parts.append(self.level(name, copies.of_level(number)))
        except BaseException:
            for part in parts:
                part.close()
            raise
        return LevelEnvs(spec, parts)

    def only(self, level: str) -> Self:
        """The same set with nothing in it but one level, to train on."""
        if level not in (*self.train, *self.held_out):
            known = (*self.train, *self.held_out)
            raise PasselError(f'{self.name} has no level "{level}". {suggestion(level, known)}')
        made = copy.copy(self)
        made.name, made.train, made.held_out = f"{self.name}@{level}", (level,), ()
        return made

    def without_training_levels_held_out(self) -> None:
        """A level that is trained on tells nothing about levels that are not."""
        both = sorted(set(self.train) & set(self.held_out))
        if both:
            raise PasselError(f"{self.name} both trains on and holds out {', '.join(both)}. Keep it in one of the two.")


class LevelEnvs(Envs):
    """Several levels as rows of one batch, level by level. Steps them one after the other."""

    def __init__(self, spec: EnvSpec, parts: Sequence[Envs]) -> None:
        self.spec, self._parts = spec, list(parts)
        self.n = sum(part.n for part in parts)
        ends = np.cumsum([part.n for part in parts])
        self._rows = [slice(int(end) - part.n, int(end)) for end, part in zip(ends, parts, strict=True)]

    def reset(self) -> Array:
        return np.concatenate([part.reset() for part in self._parts])

    def restore(self) -> Array:
        obs = np.concatenate([part.restore() for part in self._parts])
        self.continued = all(part.continued for part in self._parts)
        return obs

    def step(self, actions: Array) -> Step:
        steps = [part.step(actions[rows]) for part, rows in zip(self._parts, self._rows, strict=True)]
        next_obs = np.concatenate([step.next_obs for step in steps])
        same = all(step.obs is step.next_obs for step in steps)
        episodes: list[Episode] = [episode for step in steps for episode in step.episodes]
        return Step(
            obs=next_obs if same else np.concatenate([step.obs for step in steps]),
            next_obs=next_obs,
            reward=np.concatenate([step.reward for step in steps]),
            discount=np.concatenate([step.discount for step in steps]),
            truncated=np.concatenate([step.truncated for step in steps]),
            real=np.concatenate([step.real for step in steps]),
            episodes=episodes,
        )

    def close(self) -> None:
        while self._parts:
            self._parts.pop().close()


def common_spec(name: str, specs: Mapping[str, EnvSpec]) -> EnvSpec:
    """What all levels are alike in; an error that names the odd one if one policy cannot play them all."""
    (first, spec), *others = specs.items()
    for other, found in others:
        for what, mine, its in (
            ("observations of shape", spec.obs_shape, found.obs_shape),
            ("observations of type", spec.obs_dtype, found.obs_dtype),
            ("a number of actions of", spec.n_actions, found.n_actions),
            ("actions between", spec.action_bounds, found.action_bounds),
        ):
            if mine != its:
                raise PasselError(
                    f"one policy plays all levels of {name}, but {first} has {what} {mine} and {other} {its}. "
                    "Leave one of the two out, or wrap it so that they agree."
                )
    limits = [found.max_episode_steps for found in specs.values()]
    return dataclasses.replace(
        spec,
        id=name,
        backend="levels",
        reward_threshold=None,
        max_episode_steps=None if None in limits else max(limit for limit in limits if limit is not None),
        exact_resume=all(found.exact_resume for found in specs.values()),
        bounds=spec.bounds if all(found.bounds == spec.bounds for found in specs.values()) else None,
    )


def suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest of the names that there are, as a sentence."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    if close:
        return f"Did you mean {close[0]}?"
    shown = ", ".join(names[:6]) + (f", ... ({len(names)} in all)" if len(names) > 6 else "")
    return f"It has {shown}."
