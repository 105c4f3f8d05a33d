"""What schemes without a centre have in common: a vector for each learner, and a mean that stands for all."""

from __future__ import annotations

from torch import Tensor

from passel.arena import Spec, Tensors, prefixed
from passel.nets.flat import Flat
from passel.sync.base import Scheme
from passel.sync.optimiser import state_specs


class Decentralised(Scheme):
    """Each learner keeps a vector and an optimiser of its own, and talks to some of the others.

    `peer/K/...` in the arena is what learner K keeps (learner 0's optimiser is `optimiser/...`, where every scheme has
    one), so that a run can be resumed; `vector`, their mean, is what is evaluated, checkpointed and acted with. It is
    gathered where it is needed and nowhere else: by whoever reads, and when everybody is at rest.

    A learner alone is its own mean: its vector is `vector` itself. Until the first update everybody's is.
    """

    @property
    def peers(self) -> int:
        """How many vectors there are."""
        return self.workers

    def specs(self) -> dict[str, Spec]:
        specs = super().specs()
        if self.peers > 1:
            for peer in range(self.peers):
                specs |= prefixed(f"peer/{peer}", self.peer_specs())
            for peer in range(1, self.peers):
                specs |= prefixed(f"peer/{peer}/optimiser", state_specs(self.settings.optimiser, self.size))
        return specs

    def peer_specs(self) -> dict[str, Spec]:
        """What each keeps beside its optimiser."""
        return {"values": Spec((self.size,))}

    def values(self, tensors: Tensors, peer: int) -> Tensor:
        return tensors["vector"] if self.peers == 1 else tensors[f"peer/{peer}/values"]

    def optimiser(self, tensors: Tensors, peer: int) -> Tensors:
        return tensors.below(f"peer/{peer}/optimiser" if peer else "optimiser")

    def lend(self, flat: Flat, vector: Tensor) -> bool:
        """Let a learner look at its own vector where it lies, for nobody else writes to it; unless there are local
        steps, which are nobody's business until they are done. Returns whether it has a copy, to be kept up to date.
        """
        copies = self.requested.every > 1
        if copies:
            flat.values.copy_(vector)
        else:
            flat.bind(values=vector)
        return copies

    def start(self, tensors: Tensors) -> None:
        if not tensors["pushes"].any():
            for peer in range(self.peers):
                self.values(tensors, peer).copy_(tensors["vector"])

    def look(self, tensors: Tensors, out: Tensor) -> None:
        if self.peers == 1 or not tensors["pushes"].any():
            super().look(tensors, out)
        else:
            self.gather(tensors, out)

    def settle(self, tensors: Tensors) -> None:
        self.look(tensors, tensors["vector"])

    def gather(self, tensors: Tensors, out: Tensor) -> None:
        """The vector that stands for all: their mean, unless a scheme knows better."""
        out.copy_(self.values(tensors, 0))
        for peer in range(1, self.peers):
            out.add_(self.values(tensors, peer))
        out.mul_(1 / self.peers)
