"""Asynchronous decentralised SGD (AD-PSGD, Lian et al. 2018): each learner has a vector of its own, and averages it
with one neighbour's at a time.
"""

from __future__ import annotations

import time
from bisect import bisect
from functools import cached_property
from itertools import accumulate

from torch import Tensor

from passel.arena import Spec, Tensors, cells, fence
from passel.nets.flat import Flat
from passel.sync.base import Kit, Semaphore, Sync
from passel.sync.exchange import Alone, ArenaExchange, Exchange
from passel.sync.mixing import chances
from passel.sync.optimiser import make_optimiser
from passel.sync.peers import Decentralised
from passel.sync.topology import Graph, make_graph

WORD = (1 << 64) - 1


def drawn(seed: int, rank: int, number: int) -> float:
    """A number from 0 to 1 that learner `rank` draws at its update `number`: the same whenever it is asked for, so that
    a resumed run draws what it would have drawn (the finaliser of SplitMix64).
    """
    word = seed
    for key in (rank, number):
        word = (word + 0x9E3779B97F4A7C15 * (key + 1)) & WORD
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
        word ^= word >> 31
    return word / (WORD + 1)


class GossipSync(Sync):
    """Finds its gradient at its own vector, averages that with a neighbour's, and steps from the mean.

        g = grad F(x_i);      x_i, x_j = (x_i + x_j) / 2;      x_i = x_i - lr g

    Runs in: each worker. The average lands between the gradient and the step, whoever of the two began it, and neither
    waits for the other; a neighbour that is busy or has stopped is passed over for the next.
    """

    def __init__(self, scheme: Gossip, flat: Flat, tensors: Tensors, permits: list[Semaphore], rank: int) -> None:
        super().__init__(flat, scheme.settings)
        self._rank = rank
        self._pushes = cells(tensors["pushes"].numpy())
        self._vector = scheme.values(tensors, rank)
        self._optimiser = make_optimiser(scheme.settings.optimiser, self._vector, scheme.optimiser(tensors, rank))
        self._exchange = scheme.exchange(tensors, permits, rank)
        self._neighbours = scheme.graph.neighbours[rank] if rank in scheme.graph.active else ()
        self._up_to = list(accumulate(chances(scheme.graph, rank)))[:-1] if self._neighbours else []
        self._copies = scheme.lend(flat, self._vector)

    def pull(self) -> None:
        start = time.perf_counter()
        self._exchange.collect()
        if self._copies:
            self.flat.values.copy_(self._vector)
        self.version = sum(self._pushes)
        self.costs.copy += time.perf_counter() - start

    def send(self) -> None:
        if not self.clip(self.flat.grads):
            return
        start = time.perf_counter()
        self._exchange.collect()
        self._meet_somebody()
        met = time.perf_counter()
        self.costs.staleness += sum(self._pushes) - self.version
        self._optimiser.step(self.lr, self.flat.grads)
        fence()
        self._pushes[self._rank] += 1
        self.costs.copy += met - start
        self.costs.apply += time.perf_counter() - met

    def _meet_somebody(self) -> None:
        """Average with a neighbour drawn by chance; if it has no time, with the first after it that has."""
        if not self._neighbours:
            return
        first = bisect(self._up_to, drawn(self.settings.seed, self._rank, self._pushes[self._rank]))
        for other in (*self._neighbours[first:], *self._neighbours[:first]):
            if self._exchange.meet(other):
                return


class Gossip(Decentralised):
    """before: nothing · after: average with a random neighbour, apply · optimiser state: everybody's own

    Nobody waits, and there is no vector that everybody writes to. An update of one of N learners moves the mean of all
    vectors by an N-th of its step, as it would under an all-reduce.
    """

    name = "gossip"
    summary = "a vector for each learner, averaged with a random neighbour's at every update (AD-PSGD)"
    averages = True

    @cached_property
    def graph(self) -> Graph:
        return make_graph(self.settings.topology, self.workers)

    def specs(self) -> dict[str, Spec]:
        exchange = ArenaExchange.specs(self.graph, self.size) if self.workers > 1 else {}
        return {**super().specs(), **exchange}

    def links(self, kit: Kit) -> list[Semaphore]:
        return ArenaExchange.permits(kit, self.workers)

    def exchange(self, tensors: Tensors, permits: list[Semaphore], rank: int) -> Exchange:
        """The way to the others, if there are any."""
        if self.workers == 1:
            return Alone()
        vectors = [self.values(tensors, peer) for peer in range(self.workers)]
        return ArenaExchange(self.graph, vectors, tensors, permits, rank)

    def gather(self, tensors: Tensors, out: Tensor) -> None:
        super().gather(tensors, out)
        for mail in ArenaExchange.under_way(tensors):
            out.sub_(mail, alpha=1 / self.workers)

    def join(self, flat: Flat, tensors: Tensors, links: list[Semaphore], rank: int) -> Sync:
        return GossipSync(self, flat, tensors, links, rank)
