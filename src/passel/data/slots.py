"""Rollouts on their way from actors to learners: they are written where they will be read, and only numbers travel.

Every actor has some slots, a rollout each, which it fills in turn. Two counters, each with one writer, say what holds:

    written   by the actor: so many slots were filled so far; the next one is number `written % slots`
    taken     by its learner: so many of these were learnt from, and may be filled again

An actor may fill one more while `written - taken < slots`; from when it is written until it is taken, a slot is the
learner's. No slot can be lost or read twice, nothing is locked, and an actor that dies leaves a slot that is not yet
written, which its successor goes on to fill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec, cells, fence
from passel.data.lag import Lag
from passel.data.rollout import Frames, Recording, RolloutShape
from passel.types import Array, Floats, Rollouts, Step


class Behaviour(Protocol):
    """Whoever acts: it knows how likely its last actions were, and what states are worth."""

    @property
    def acted_logp(self) -> Floats:
        """log mu(a|s) of the actions that were taken last, [N]."""

    def values(self, obs: Array) -> Floats: ...


def slot_specs(slots: int, shape: RolloutShape) -> dict[str, Spec]:
    """One actor's slots."""
    one = {
        **Recording.specs(shape),
        "logp": Spec((shape.horizon, shape.envs)),
        "version": Spec((shape.horizon,), torch.int64),
    }
    return {
        **{name: Spec((slots, *spec.shape), spec.dtype) for name, spec in one.items()},
        "written": Spec((1,), torch.int64),
        "taken": Spec((1,), torch.int64),
    }


class SlotWriter:
    """An actor's side: it fills one slot after the other, as long as there is one that may be filled.

    `version` is how many updates the parameters had seen that it acts with. Runs in: each actor.
    """

    @staticmethod
    def specs() -> dict[str, Spec]:
        """What is nobody else's business: how many steps of the present slot are filled."""
        return {"filled": Spec((1,), torch.int64)}

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        own: Mapping[str, Tensor],
        behaviour: Behaviour,
        version: Callable[[], int],
        *,
        gamma: float,
        reward_scale: float = 1.0,
    ) -> None:
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._written, self._taken = cells(arrays.pop("written")), cells(arrays.pop("taken"))
        self._filled = cells(own["filled"].numpy())
        self._logp, self._version_of = arrays["logp"], arrays["version"]
        self._slots, self._horizon = self._logp.shape[:2]
        self._steps = [
            Recording(
                {name: array[slot] for name, array in arrays.items()},
                behaviour.values,
                gamma=gamma,
                reward_scale=reward_scale,
            )
            for slot in range(self._slots)
        ]
        self._behaviour, self._version = behaviour, version

    def room(self) -> bool:
        return bool(self._written[0] - self._taken[0] < self._slots)

    def push(self, obs: Array, actions: Array, step: Step, steps_so_far: int) -> int:
        """Keep what came out of one step; there must be room. Returns how many real transitions there were."""
        slot, t = self._written[0] % self._slots, self._filled[0]
        if t == 0:
            fence()  # the learner has copied what was here before it said so
        real: int = self._steps[slot].write(t, obs, actions, step)
        self._logp[slot, t], self._version_of[slot, t] = self._behaviour.acted_logp, self._version()
        self._filled[0] = t + 1
        if t + 1 == self._horizon:
            self._filled[0] = 0
            fence()
            self._written[0] += 1
        return real

    def park(self) -> None:
        """Nothing to do: everything is in the arena."""


class SlotReader:
    """A learner's side: the oldest slots of its actors, some at a time, each once.

    `version` is how many updates the parameters have seen that learn; `lag` is how many more that is than those that
    acted had seen. `together` are the readers of the other learners, where an update needs them all.
    Runs in: each learner.
    """

    def __init__(
        self,
        actors: Sequence[Mapping[str, Tensor]],
        version: Callable[[], int],
        *,
        batch: int,
        together: Sequence[SlotReader] = (),
    ) -> None:
        self._actors = [_Queue(tensors) for tensors in actors]
        self._version, self._batch, self._together = version, batch, together
        self.lag: Lag | None
        self.lag = self._lag = Lag()

    def due(self) -> bool:
        return sum(actor.waiting for actor in self._actors) >= self._batch

    def unlearnt(self) -> bool:
        """Whether whole rollouts wait for an update that no learner would have to collect another rollout for."""
        return self.due() and all(reader.due() for reader in self._together)

    def batch(self, steps_so_far: int) -> Rollouts:
        """The next `batch` slots, copied: they may be filled again while they are learnt from."""
        oldest = sorted(
            (actor.version(ahead), ahead, number)
            for number, actor in enumerate(self._actors)
            for ahead in range(min(actor.waiting, self._batch))
        )[: self._batch]
        self._lag.add(self._version() - sum(version for version, _, _ in oldest) / len(oldest))
        return joined([self._actors[number].take() for _, _, number in oldest])

    def feedback(self, batch: Rollouts, td_abs: Floats | None) -> None:
        """Nothing to do: nothing is kept for longer."""

    def abandon(self) -> None:
        """Nothing to do: no slot is learnt from twice."""

    def park(self) -> None:
        """Nothing to do: everything is in the arena."""

    def scalars(self) -> list[float]:
        return []


class _Queue:
    """The slots of one actor, as its learner sees them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._written, self._taken = cells(self._arrays["written"]), cells(self._arrays["taken"])
        self._slots = len(self._arrays["logp"])
        self._obs_shape = self._arrays["last_obs"].shape[2:]

    @property
    def waiting(self) -> int:
        return int(self._written[0] - self._taken[0])

    def version(self, ahead: int) -> float:
        """The mean version that acted in the slot which is `ahead` places from the front."""
        return float(self._arrays["version"][(self._taken[0] + ahead) % self._slots].mean())

    def take(self) -> Rollouts:
        fence()
        slot = self._taken[0] % self._slots
        one = {name: array[slot] for name, array in self._arrays.items() if name not in ("written", "taken")}
        frames = Frames(one["obs"], one.get("born"), self._obs_shape)
        rows = np.arange(one["reward"].size)
        names = ("action", "logp", "reward", "discount", "weight")
        numbers = {name: one[name][None].copy() for name in names}
        copy = Rollouts(frames.take(rows), one["last_obs"].copy(), **numbers)
        fence()
        self._taken[0] += 1
        return copy


def joined(parts: Sequence[Rollouts]) -> Rollouts:
    """Several rollouts as one batch."""
    if len(parts) == 1:
        return parts[0]
    names = ("obs", "last_obs", "action", "logp", "reward", "discount", "weight")
    return Rollouts(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
