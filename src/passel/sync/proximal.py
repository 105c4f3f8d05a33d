"""Decentralised proximal gradients with a correction (P2D2, Alghunaim, Yuan and Sayed 2019): learners that talk to
their neighbours only, and yet come to the minimiser that all of them together would have found.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from passel.arena import Spec, Tensors, fence
from passel.nets.flat import Flat
from passel.sync.base import Sync, patiently
from passel.sync.mixing import lazy, metropolis
from passel.sync.optimiser import make_optimiser
from passel.sync.peers import Decentralised
from passel.sync.topology import Graph, make_graph

#: Seconds to wait for a neighbour. One that takes longer counts as stopped until it is heard of again.
PATIENCE = 60.0


class Neighbourhood:
    """What learners tell their neighbours: a row of the arena each. Two sets of rows take turns, so that nobody waits
    to write: whoever writes a set has heard from each neighbour that it has done with the one before the last.

        neighbourhood.tell(mine)              # in my row, by the number of times I have spoken
        neighbourhood.combine(weights, out)   # the weighted sum of mine and theirs of the same number

    A neighbour that has stopped is not waited for twice: until it has caught up, my own row stands for its.
    """

    def __init__(self, tensors: Tensors, rank: int) -> None:
        self._rows, self._spoken = tensors["rows"], tensors["spoken"].numpy()
        self._rank = rank
        self._stopped: set[int] = set()

    def tell(self, one: Tensor, other: Tensor) -> None:
        """The sum of the two."""
        torch.add(one, other, out=self._row(self._rank, int(self._spoken[self._rank]) + 1))
        fence()
        self._spoken[self._rank] += 1

    def _row(self, rank: int, number: int) -> Tensor:
        return self._rows[number % 2, rank]

    def combine(self, weights: Mapping[int, float], out: Tensor) -> float:
        """Returns the seconds waited."""
        now = int(self._spoken[self._rank])
        mine, waited = self._row(self._rank, now), 0.0
        torch.mul(mine, weights[self._rank], out=out)
        for other, weight in weights.items():
            if other != self._rank:
                waited += self._await(other, now)
                fence()
                out.add_(mine if other in self._stopped else self._row(other, now), alpha=weight)
        return waited

    def _await(self, other: int, number: int) -> float:
        began = time.perf_counter()
        if self._spoken[other] >= number:
            self._stopped.discard(other)
        elif other not in self._stopped:
            self._stopped.add(other)
            with suppress(TimeoutError):
                patiently(lambda: bool(self._spoken[other] >= number), f"learner {other}", PATIENCE)
                self._stopped.discard(other)
        return time.perf_counter() - began


class ProximalSync(Sync):
    """Adapts, corrects, tells its neighbours; before the next forward pass it combines what they told, and shrinks.

        adapt     psi = w - lr grad J(w), or wherever the optimiser's step leads from w
        correct   z = psi + c
        combine   phi = sum_s C_ks z_s,      C = (I + A) / 2, A the Metropolis weights
                  c = phi - psi
        prox      w = the minimiser of l1 |w|_1 + |w - phi|^2 / (2 lr):   phi, brought closer to 0 by lr l1

    c is the difference between the last combination and the last psi. Over all learners it adds up to 0; without it
    each would be drawn to the minimiser of its own loss. Runs in: each worker.
    """

    def __init__(self, scheme: Proximal, flat: Flat, tensors: Tensors, rank: int) -> None:
        super().__init__(flat, scheme.settings)
        self._rank = rank
        self._pushes = tensors["pushes"].numpy()
        self._applied = int(self._pushes[rank])
        self._combined = scheme.combined(tensors).numpy()
        self._vector = scheme.values(tensors, rank)
        self._correction = scheme.correction(tensors, rank)
        self._weights = scheme.weights(rank)
        self._neighbourhood = Neighbourhood(tensors, rank)
        self._psi, self._phi = self._vector.clone(), torch.empty_like(self._vector)
        self._optimiser = make_optimiser(scheme.settings.optimiser, self._psi, scheme.optimiser(tensors, rank))
        self._copies = scheme.lend(flat, self._vector)

    def pull(self) -> None:
        if self._pushes[self._rank] > self._applied:
            start = time.perf_counter()
            # Aside first: a worker that dies here leaves no sum to which only some have been added.
            waited = self._neighbourhood.combine(self._weights, self._phi)
            torch.sub(self._phi, self._psi, out=self._correction)
            self._vector.copy_(self._shrunk(self._phi))
            self._applied += 1
            self._combined[self._rank] = self._applied
            self.costs.wait += waited
            self.costs.apply += time.perf_counter() - start - waited
        if self._copies:
            start = time.perf_counter()
            self.flat.values.copy_(self._vector)
            self.costs.copy += time.perf_counter() - start
        self.version = self._applied

    def _shrunk(self, vector: Tensor) -> Tensor:
        if not self.settings.l1:
            return vector
        return torch.nn.functional.softshrink(vector, (self.local_lr or self.lr) * self.settings.l1)

    def send(self) -> None:
        finite = self.clip(self.flat.grads)
        start = time.perf_counter()
        self._psi.copy_(self._vector)
        if finite:  # if not, the neighbours hear of a step of 0: they wait for this one
            self._optimiser.step(self.lr, self.flat.grads)
        self._neighbourhood.tell(self._psi, self._correction)
        self._pushes[self._rank] += 1
        self.costs.apply += time.perf_counter() - start


class Proximal(Decentralised):
    """before: combine with neighbours, prox · after: adapt, correct, tell neighbours · optimiser state: everybody's own

    A learner waits for its neighbours, and for nobody else. With strongly convex losses and plain gradients it comes to
    the exact minimiser of their mean plus `l1` |w|_1; of networks nothing is proven. 0: exact diffusion.
    """

    name = "proximal"
    summary = "a vector for each learner, combined with its neighbours' and corrected, with an L1 term (P2D2)"
    averages = True
    collective = True

    @cached_property
    def graph(self) -> Graph:
        return make_graph(self.settings.topology, self.workers)

    def weights(self, rank: int) -> dict[int, float]:
        """What learner `rank` makes of its own row and of each neighbour's."""
        row = lazy(metropolis(self.graph))[rank]
        return {other: float(row[other]) for other in (rank, *self.graph.neighbours[rank])}

    def specs(self) -> dict[str, Spec]:
        return {
            **super().specs(),
            "rows": Spec((2, self.workers, self.size), keep=False),
            "spoken": Spec((self.workers,), torch.int64, keep=False),
            **({"combined": Spec((self.workers,), torch.int64, optional=True)} if self.peers > 1 else {}),
        }

    def peer_specs(self) -> dict[str, Spec]:
        return {**super().peer_specs(), "correction": Spec((self.size,))}

    def correction(self, tensors: Tensors, rank: int) -> Tensor:
        """A learner alone has nothing to correct."""
        return torch.zeros_like(tensors["vector"]) if self.peers == 1 else tensors[f"peer/{rank}/correction"]

    def combined(self, tensors: Tensors) -> Tensor:
        """How many updates each learner has completed: all of them, when all are at rest."""
        return tensors["combined"] if self.peers > 1 else torch.zeros_like(tensors["pushes"])

    def start(self, tensors: Tensors) -> None:
        """One update is one version for everybody. A worker that died within an update leaves some learners with the
        correction of that update and others with the one before: the counters are levelled then, and the corrections
        made to add up to 0 again.
        """
        pushes, combined = tensors["pushes"], self.combined(tensors)
        if self.peers > 1 and not (pushes.min() == pushes.max() == combined.min() == combined.max()):
            pushes.fill_(int(pushes.min()))
            combined.copy_(pushes)
            corrections = [self.correction(tensors, rank) for rank in range(self.workers)]
            excess = torch.stack(corrections).mean(dim=0)
            for correction in corrections:
                correction.sub_(excess)
        super().start(tensors)

    def version(self, tensors: Tensors) -> int:
        return int(tensors["pushes"].min())

    def join(self, flat: Flat, tensors: Tensors, links: Any, rank: int) -> Sync:
        return ProximalSync(self, flat, tensors, rank)
