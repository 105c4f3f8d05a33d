"""The trail: every real step in the order in which it was taken, with the step that led to it.

This is what a model of the environment learns from and where dreams start. It holds single steps, whatever sums of
rewards the replay memory is made of, and nothing that was dreamt.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec
from passel.data.replay import Replay
from passel.data.ring import Ring
from passel.types import Array, Batch, Floats, Ints, Step, Transitions

#: A step that nobody has looked back at yet comes before all others.
UNSEEN = np.float32(np.finfo(np.float32).max)


class TrailRing(Ring):
    """Rows that know which row came before, and how much another look at them is worth."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        #: The count of the step before, plus one; 0 for an episode's first.
        self.before: Ints = tensors["before"].numpy()
        self.priority: Floats = tensors["priority"].numpy()
        self._links: Ints = np.empty(0, np.int64)

    def follow(self, transitions: Transitions, links: Ints) -> tuple[int, int]:
        """Append rows that come after the rows that `links` names."""
        self._links = links
        return self.append(transitions)

    def _write(self, transitions: Transitions, start: int, stop: int, slot: int) -> None:
        super()._write(transitions, start, stop, slot)
        here = slice(slot, slot + stop - start)
        self.before[here] = self._links[start:stop]
        self.priority[here] = UNSEEN


class Trail(Replay):
    """Real steps. One worker writes them; everybody may read.

    Runs in: the worker that acts, and every dreamer. `priority` belongs to the dreamers, who change it without a lock:
    two may look at the same step at the same moment, which costs a little and breaks nothing.
    """

    @staticmethod
    def trail_specs(capacity: int, obs_shape: tuple[int, ...]) -> dict[str, Spec]:
        return {
            **Ring.specs(capacity, obs_shape, np.dtype(np.float32)),
            "before": Spec((capacity,), torch.int64),
            "priority": Spec((capacity,)),
        }

    @staticmethod
    def last_spec(envs: int) -> Spec:
        """What the writer remembers: the count of each environment's last step, plus one; 0 if its episode has only
        begun.
        """
        return Spec((envs,), torch.int64)

    def __init__(self, tensors: Mapping[str, Tensor], last: Tensor | None = None) -> None:
        self._trail = self._ring = TrailRing(tensors)
        self._last: Ints = np.empty(0, np.int64) if last is None else last.numpy()

    def follow(self, obs: Array, action: Array, step: Step) -> None:
        """Keep one step of every environment."""
        real = np.flatnonzero(step.real)
        rows = Transitions(obs[real], action[real], step.reward[real], step.discount[real], step.next_obs[real])
        first, last = self._trail.follow(rows, self._last[real])
        self._last[real] = np.where(step.ended[real], 0, np.arange(first, last) + 1)

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Counts of `n` steps, all equally likely."""
        return self._draw(n, rng)[1]

    def window(self) -> tuple[int, int]:
        """The counts of all steps that are there: low <= count < high."""
        return self._ring.window_of(0)

    def steps(self, counts: Ints) -> tuple[Batch, Ints]:
        """These steps, as far as they are still there, and their counts."""
        while True:
            fetched = self._ring.gather(self._ring.slots(0, counts))
            whole = ~self._ring.overwritten(0, counts)
            if whole.all():
                return self._ring.batch(fetched), counts
            counts = counts[whole]  # fetched anew, and looked at anew: the writer goes on meanwhile

    def before(self, counts: Ints) -> Ints:
        """The counts of the steps that led to these; -1 where there is none, or it is gone."""
        found: Ints = self._trail.before[counts % self._ring.stripe] - 1
        return np.where(found >= self.window()[0], found, -1)

    def priorities(self) -> tuple[int, Floats]:
        """The first count that is there, and how much a look at it and at each one after it is worth."""
        low, high = self.window()
        start = low % self._ring.stripe
        priority = self._trail.priority
        end = start + high - low
        if end <= self._ring.stripe:
            return low, priority[start:end]
        return low, np.concatenate([priority[start:], priority[: end - self._ring.stripe]])

    def priority_of(self, counts: Ints) -> Floats:
        return self._trail.priority[counts % self._ring.stripe]

    def set_priority(self, counts: Ints, priority: Floats | float) -> None:
        self._trail.priority[counts % self._ring.stripe] = priority
