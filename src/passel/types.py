"""The nouns that walk through the rooms: what one room hands to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Bounds = tuple[tuple[float, ...], tuple[float, ...]]


class PasselError(Exception):
    """A mistake with a cause and a cure: the command line prints it alone, without a traceback, and exits with 2."""


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def printable(text: object, longest: int = 300) -> str:
    """Text from a file or a server on one line, safe to print: what is not printable is escaped, as `repr` does, and a
    text of more than `longest` characters is cut.

    Control characters reach a terminal as commands, and direction marks reorder the line around them.
    """
    words = str(text)
    shown = words if len(words) <= longest else words[:longest] + "..."
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in shown)


class DivergedError(PasselError):
    """Losses or parameters are no longer finite: what the arena holds is no better than the checkpoint before."""


@dataclass(frozen=True)
class EnvSpec:
    """What an environment is, as far as an agent must know before it starts."""

    id: str
    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype[Any]
    #: How many actions there are to choose from; 0 where actions are vectors.
    n_actions: int
    reward_threshold: float | None = None
    max_episode_steps: int | None = None
    frame_skip: int = 1
    backend: str = "gymnasium"
    #: Whether the back-end can rebuild the middle of an episode, so that a resumed run continues it.
    exact_resume: bool = True
    #: The least and the largest that each number of an observation can be, where that is known and finite.
    bounds: Bounds | None = None
    #: The most copies that one group may have; None: as many as the machine bears.
    max_copies: int | None = None
    #: How many frames an observation stacks along its first axis, the newest last; memories keep each of them once.
    frames: int = 1
    #: The least and the largest of each number of an action, where actions are vectors; None where they are discrete.
    action_bounds: Bounds | None = None
    #: By which rules it is played, where there is a choice: what a score must be read with.
    protocol: Mapping[str, Any] | None = field(default=None, hash=False)
    #: What random play and a human score, where that was published.
    reference_scores: tuple[float, float] | None = None
    #: What a network divides the numbers of a vector by: the largest that bytes can be, 1 for every other type.
    obs_scale: float = 1.0

    @property
    def net_shape(self) -> tuple[int, ...]:
        """The shape of an observation as networks read it: a plane of bytes is an image with one channel."""
        plane = len(self.obs_shape) == 2 and self.obs_dtype == np.uint8
        return (1, *self.obs_shape) if plane else self.obs_shape

    def net_bounds(self, scale_obs: bool) -> Bounds | None:
        """The bounds between which networks bring the numbers of a vector to [-1, 1]; one pair may stand for all."""
        if scale_obs:
            return self.bounds
        return None if self.obs_scale == 1 else ((-self.obs_scale,), (self.obs_scale,))

    def human_normalised(self, score: float | None) -> float | None:
        """The score on a scale on which random play is 0 and a human is 1; None where nobody published theirs."""
        if score is None or self.reference_scores is None:
            return None
        random, human = self.reference_scores
        return (score - random) / (human - random)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Of one action: a whole number has none."""
        return () if self.action_bounds is None else (len(self.action_bounds[0]),)

    def legal(self, actions: Array) -> Array:
        """Actions as the environment takes them: of vectors, the nearest that lie within the bounds."""
        if self.action_bounds is None:
            return actions
        low, high = self.action_bounds
        return np.clip(actions, low, high).astype(np.float32)


@dataclass(frozen=True)
class Episode:
    """One finished episode, by the environment's own score. `cut`: it had not ended when an evaluation left it."""

    score: float
    length: int
    cut: bool = False


@dataclass(frozen=True)
class Step:
    """What came out of one step of N environments, after the boundary contract.

    `next_obs` is the true successor of the observation that was acted on, also when the episode ended there.
    `obs` is what the next action is taken on: the same, or the first observation of a new episode.
    `discount` is 0 where the episode terminated and 1 elsewhere, truncation included.
    `real` is False where the row is no transition at all (a back-end spent this step on a reset).
    """

    obs: Array
    next_obs: Array
    reward: Floats
    discount: Floats
    truncated: Bools
    real: Bools
    episodes: list[Episode] = field(default_factory=list)

    @property
    def ended(self) -> Bools:
        """Where the episode ended, by either way; the chain of returns is cut here."""
        ended: Bools = self.truncated | (self.discount == 0)
        return ended


@dataclass(frozen=True)
class Transitions:
    """K transitions at rest, ready to be stored: (s, a, R, discount, s'), n-step sums already built.

    `discount` multiplies the bootstrap value of `next_obs`: gamma^m, and 0 after a termination.
    """

    obs: Array
    action: Ints
    reward: Floats
    discount: Floats
    next_obs: Array

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True)
class Batch:
    """A sample of transitions, [B, ...] each; `index` and `weight` are set by a prioritised memory."""

    obs: Array
    action: Array
    reward: Floats
    discount: Floats
    next_obs: Array
    index: Ints | None = None
    weight: Floats | None = None


@dataclass(frozen=True)
class Vision:
    """What would come of some actions, by somebody who has not taken them: [B, ...] each.

    `over` is the chance that the episode terminates there. `doubt` is by how much the models disagree, in units of how
    wrong they usually are; 0 where there is no doubt.
    """

    next_obs: Floats
    reward: Floats
    over: Floats
    doubt: Floats


@dataclass(frozen=True)
class Opinion:
    """What the critic and the policy said of one step when they acted; both [N]."""

    value: Floats
    logp: Floats


@dataclass(frozen=True)
class Judgement:
    """What the critic and the policy said of a rollout; all [T, N]."""

    value: Floats
    logp: Floats
    advantage: Floats


@dataclass(frozen=True)
class Minibatch:
    """Some rows of a rollout, [B, ...] each. `weight` is 0 where a row is no transition, and 1 elsewhere.

    `target` is what the critic should have said: the advantage and the value together. With levels that are apart,
    the weights of each add up to 1.
    """

    obs: Array
    action: Array
    advantage: Floats
    target: Floats
    logp: Floats
    value: Floats
    weight: Floats
    #: Which level each row is of, as an index, where levels are apart: each has the same weight, and its own scale.
    group: Ints | None = None


@dataclass(frozen=True)
class Rollouts:
    """B rollouts of T steps in N environments, as they were acted; an older policy may have done it.

    `obs`, and `last_obs`, which follow them, are flat: [B * T * N, ...] and [B * N, ...]. The rest is [B, T, N]: `logp`
    of the policy that acted, and `weight`, 0 where a row is no transition; actions may be vectors, [B, T, N, A].
    `discount` is 0 where an episode ended, by either way; at a truncation the value of the true last observation is
    part of the reward.
    """

    obs: Array
    last_obs: Array
    action: Array
    logp: Floats
    reward: Floats
    discount: Floats
    weight: Floats


@dataclass(frozen=True)
class Account:
    """What the critic makes of old trajectories: the return that each step led to, and how much better that is than
    what the critic expected; both [T, N].
    """

    target: Floats
    advantage: Floats


@dataclass(frozen=True)
class Recollection:
    """Some steps of old trajectories, [B, ...] each, with their account, and which network should learn from them."""

    network: str
    obs: Array
    action: Array
    target: Floats
    advantage: Floats


class Grid(Protocol):
    """[T, N, ...], of which the steps of some time can be had as an array."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, times: slice, /) -> Array: ...


@dataclass(frozen=True)
class WorkerRow:
    """One worker's line in a report. `shares` are parts of its time, by stage; they add up to about 1."""

    name: str
    state: str
    steps: int
    updates: int
    steps_per_second: float
    shares: Mapping[str, float]
    staleness: float


@dataclass(frozen=True)
class Report:
    """The state of a run at one moment: a line of metrics.jsonl, a frame of the display."""

    steps: int
    frames: int
    seconds: float
    episodes: int
    updates: int
    return_mean_100: float | None
    steps_per_second: float
    updates_per_second: float
    staleness: float
    shares: Mapping[str, float]
    scalars: Mapping[str, float]
    workers: tuple[WorkerRow, ...]
    total_steps: int
    solved_at: float | None = None
    phase: str = "train"
    #: The mean return where random play is 0 and a human is 1, if theirs are known.
    human_normalised: float | None = None
    #: The last evaluation during training: at which step, and the mean return.
    eval_steps: int | None = None
    eval_mean: float | None = None
    #: The mean length of the last 100 training episodes, in steps.
    length_mean_100: float | None = None
