"""One vector in shared memory that every worker writes to: with a lock (`locked`) or without (`hogwild`).

The two schemes differ in the lock and in nothing else, so they are one file.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from passel.arena import Tensors, cells, fence
from passel.nets.flat import Flat
from passel.sync.base import Kit, Scheme, Sync
from passel.sync.optimiser import make_optimiser


class SharedSync(Sync):
    """Copies the shared vector before the forward pass, and steps it with the shared optimiser state after.

    Runs in: each worker. Shared: the vector, the optimiser's state and a counter for each worker (its own cell, so that
    versions are exact even without a lock).
    """

    def __init__(
        self, scheme: Scheme, flat: Flat, tensors: Tensors, lock: AbstractContextManager[Any], rank: int
    ) -> None:
        super().__init__(flat, scheme.settings)
        self._lock = lock
        self._rank = rank
        self._vector = tensors["vector"]
        self._pushes = cells(tensors["pushes"].numpy())
        self._optimiser = make_optimiser(scheme.settings.optimiser, self._vector, tensors.below("optimiser"))
        flat.values.copy_(self._vector)

    def pull(self) -> None:
        asked = time.perf_counter()
        with self._lock:
            entered = time.perf_counter()
            self.version = sum(self._pushes)
            fence()
            self.flat.values.copy_(self._vector)
        self.costs.wait += entered - asked
        self.costs.copy += time.perf_counter() - entered

    def send(self) -> None:
        if not self.clip(self.flat.grads):
            return
        asked = time.perf_counter()
        with self._lock:
            entered = time.perf_counter()
            self.costs.staleness += sum(self._pushes) - self.version
            self._optimiser.step(self.lr, self.flat.grads)
            fence()
            self._pushes[self._rank] += 1
        self.costs.wait += entered - asked
        self.costs.apply += time.perf_counter() - entered


class Locked(Scheme):
    """before: copy, under the lock · after: apply to the shared vector, under the lock · optimiser state: the vector's

    Every update is whole and happens in some order, as if the workers had taken turns. The price is the wait.
    """

    name = "locked"
    summary = "one shared vector, a lock around every copy and every update"

    def links(self, kit: Kit) -> AbstractContextManager[Any]:
        return kit.lock()

    def join(self, flat: Flat, tensors: Tensors, links: Any, rank: int) -> Sync:
        return SharedSync(self, flat, tensors, links, rank)


class Hogwild(Scheme):
    """before: copy · after: apply to the shared vector, no lock · optimiser state: the shared vector's

    Every worker writes to one vector in shared memory without a lock (Niu et al. 2011). A lost write costs one element
    of one update; nothing waits.
    """

    name = "hogwild"
    summary = "one shared vector, no lock at all"

    def join(self, flat: Flat, tensors: Tensors, links: Any, rank: int) -> Sync:
        return SharedSync(self, flat, tensors, nullcontext(), rank)
