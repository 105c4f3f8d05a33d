"""Prioritised replay, the proportional kind (Schaul et al. 2016, arXiv:1511.05952): surprises are seen more often.

    P(i) = p_i^alpha / sum_j p_j^alpha,     p_i = |TD error of i| + eps
    w_i  = (N P(i))^-beta / max_j (N P(j))^-beta,     the maximum over the batch, so that the largest weight is 1

In the quotient N and the sum cancel: w_i = (min_j p_j^alpha / p_i^alpha)^beta, which is how it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec, Tensors, prefixed
from passel.data.frames import open_ring
from passel.data.replay import split
from passel.data.ring import Fetched, Ring
from passel.data.sumtree import Doubles, SumTree
from passel.types import Array, Batch, Bools, Ints, PasselError, Transitions


class PrioritisedReplay:
    """A ring of transitions, sampled by priority: one from each of n equal slices of the sum of all priorities.

    Runs in: every process that adds, samples or updates. Shared: all of it, if the tensors are, and then `lock` must be
    one lock for them all, since sums, unlike rows, are changed by everybody. New transitions get the largest priority
    seen so far, at least 1, so that each is likely to be seen once. What a process leaves half-done when it dies inside
    the lock (or a checkpoint catches it there), the next one to come mends.
    """

    @staticmethod
    def specs(
        capacity: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype[Any], writers: int = 1, *, paged: bool = False
    ) -> dict[str, Spec]:
        return {
            **Ring.specs(capacity, obs_shape, obs_dtype, writers, paged=paged),
            **prefixed("tree", SumTree.specs(capacity // writers, writers)),
            "highest": Spec((1,), torch.float64),
            "changing": Spec((1,), torch.int64),
        }

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        writer: int = 0,
        *,
        alpha: float = 0.6,
        eps: float = 1e-6,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        if alpha < 0 or eps <= 0:
            raise PasselError(f"alpha is {alpha} and eps is {eps}. Use an alpha of at least 0 and an eps above 0.")
        self.alpha, self.eps = alpha, eps
        self._lock: AbstractContextManager[Any] = nullcontext() if lock is None else lock
        self._ring = open_ring(tensors, writer)
        self._tree = SumTree(Tensors(tensors).below("tree"))
        self._highest: Doubles = tensors["highest"].numpy()
        self._changing: Ints = tensors["changing"].numpy()

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def capacity(self) -> int:
        return self._ring.capacity

    def add(self, transitions: Transitions, td_abs: Array | None = None) -> None:
        """Keep these, as surprising as they are said to be, or else with the largest priority so far; in a full stripe
        the oldest go.
        """
        if not len(transitions):
            return
        surprise = None if td_abs is None else self._surprise(td_abs)
        with self._lock:
            self._mend()
            self._changing[0] = 1
            first, last = self._ring.append(transitions)
            count = np.arange(max(first, last - self._ring.stripe), last)
            if surprise is None:
                self._tree.set(self._leaves(self._ring.writer, count), self._newcomer())
            else:
                self._tree.set(self._leaves(self._ring.writer, count), surprise[count - first] ** self.alpha)
                self._highest[0] = max(surprise.max(), self._highest[0])
            self._changing[0] = 0

    def sample(self, n: int, rng: np.random.Generator, beta: float = 1.0) -> Batch:
        """`n` transitions, with the `index` that `update_priorities` wants back, and each one's `weight`."""
        return self._sample(1, n, rng, beta)

    def sample_many(self, k: int, n: int, rng: np.random.Generator, beta: float = 1.0) -> list[Batch]:
        """`k` batches of `n`, distributed as `k` calls of `sample` with no update between them."""
        return split(self._sample(k, n, rng, beta), k)

    def update_priorities(self, index: Ints | None, td_abs: Array) -> None:
        """Say how surprising these were; those that were overwritten since they were drawn are passed over."""
        if index is None:
            raise PasselError("these transitions were not drawn by priority. Pass the `index` of the sampled batch.")
        priority = self._surprise(td_abs)
        count, stripe = np.divmod(index, self._ring.writers)
        with self._lock:
            self._mend()
            self._changing[0] = 1
            kept = ~self._ring.overwritten(stripe, count)
            self._tree.set(self._leaves(stripe, count)[kept], priority[kept] ** self.alpha)
            self._highest[0] = max(priority.max(initial=self.eps), self._highest[0])
            self._changing[0] = 0

    def own_window(self) -> tuple[int, int]:
        """What may be read of our own stripe: low <= count < high."""
        return self._ring.window_of(self._ring.writer)

    def forget_before(self, count: int) -> None:
        """Give up our own rows with lower counts: what they refer to is about to go."""
        with self._lock:
            self._mend()
            self._changing[0] = 1
            low, _ = self.own_window()
            self._ring.give_up(count)
            self._tree.set(self._leaves(self._ring.writer, np.arange(low, count)), 0.0)
            self._changing[0] = 0

    def check_valid(self) -> None:
        """Raise AssertionError, with the reason, where the memory contradicts itself."""
        with self._lock:
            self._mend()
            self._ring.check_valid()
            self._tree.check_valid()
            leaves = self._tree.leaves.reshape(self._ring.writers, -1)
            readable = self._readable()
            if (leaves[:, self._ring.stripe :] != 0).any() or (leaves[:, : self._ring.stripe][~readable] != 0).any():
                raise AssertionError("a slot without a transition has a priority")
            if (leaves[:, : self._ring.stripe][readable] == 0).any():
                raise AssertionError("a transition has no priority, and would never be drawn")
            if leaves.max() > self._newcomer() * (1 + 1e-9):
                raise AssertionError("a transition has a larger priority than was ever given")

    def _sample(self, k: int, n: int, rng: np.random.Generator, beta: float) -> Batch:
        fraction = (np.arange(n) + rng.random((k, n))) / n
        fetched, index, drawn = self._fetch(fraction.ravel(), rng)
        drawn = drawn.reshape(k, n)
        weight = ((drawn.min(axis=1, keepdims=True) / drawn) ** beta).astype(np.float32)
        return self._ring.batch(fetched, index, weight.ravel())

    def _fetch(self, fraction: Doubles, rng: np.random.Generator) -> tuple[Fetched, Ints, Doubles]:
        """The rows at these fractions of the sum of all priorities, their indices, and their priorities."""
        ring, tree = self._ring, self._tree
        with self._lock:
            self._mend()
            if not len(ring):
                raise PasselError("the memory is empty, so nothing can be sampled. Add transitions first.")
            leaf = tree.find(fraction)
            stripe, slot = np.divmod(leaf, tree.stride)
            count = self._newest(ring.committed[stripe], slot)
            gathered = ring.gather(stripe * ring.stripe + slot)
            drawn = tree.leaves[leaf]
        index = count * ring.writers + stripe
        # Frames are unpacked outside of the lock: that takes longer than all of the above.
        fetched, torn = ring.expand(gathered, stripe, count)
        if len(torn):
            fresh, index[torn], drawn[torn] = self._fetch(rng.random(len(torn)), rng)
            fetched.replace(torn, fresh)
        return fetched, index, drawn

    def _surprise(self, td_abs: Array) -> Doubles:
        priority: Doubles = np.asarray(td_abs, np.float64) + self.eps
        if not (priority.min(initial=self.eps) >= self.eps and priority.max(initial=self.eps) < np.inf):
            raise PasselError("a TD error is negative or not finite: the learner diverged. Lower the learning rate.")
        return priority

    def _leaves(self, stripe: Ints | int, count: Ints) -> Ints:
        return stripe * self._tree.stride + count % self._ring.stripe

    def _newcomer(self) -> float:
        return float(max(1.0, self._highest[0]) ** self.alpha)

    def _newest(self, committed: Ints, slot: Ints) -> Ints:
        """The count of the newest row in each slot; negative if there is none yet."""
        newest = committed - 1
        return newest - (newest - slot) % self._ring.stripe

    def _readable(self) -> Bools:
        """For every slot of every stripe, whether a whole transition is in it."""
        window = self._ring.window()
        newest = self._newest(window.high[:, None], np.arange(self._ring.stripe))
        readable: Bools = newest >= window.low[:, None]
        return readable

    def _mend(self) -> None:
        """If the last change was cut short, bring the tree back into step with the rows: rows never lie, sums might."""
        if not self._changing[0]:
            return
        leaves = self._tree.leaves.reshape(self._ring.writers, -1)[:, : self._ring.stripe]
        readable = self._readable()
        leaves[~readable] = 0
        leaves[readable & (leaves == 0)] = self._newcomer()
        self._tree.rebuild()
        self._changing[0] = 0
