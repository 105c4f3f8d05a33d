"""What carries an exchange between two learners without a centre: the transport of `gossip`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from passel.arena import Spec, Tensors, cells
from passel.sync.base import Kit, Semaphore
from passel.sync.topology import Graph


class Exchange(ABC):
    """One learner's way to the others. Nobody ever waits here.

    exchange.collect()            # what others have averaged with me meanwhile takes effect
    exchange.meet(other)          # my vector and other's become their mean; False: other is busy, or has stopped
    """

    @abstractmethod
    def meet(self, other: int) -> bool: ...

    @abstractmethod
    def collect(self) -> None: ...


class Alone(Exchange):
    """Nobody there."""

    def meet(self, other: int) -> bool:
        return False

    def collect(self) -> None:
        return


class ArenaExchange(Exchange):
    """Vectors in one arena, each of which only its owner ever writes.

        d = (x_j - x_i) / 2;      x_i += d at once, by i;      x_j -= d when j next looks, by j

    Until then the difference lies in j's mailbox, and whoever comes next sees x_j as it will be without it. Whatever j
    learns meanwhile is added to its vector as before, for additions may change places: an exchange is atomic, element
    by element, though neither of the two stops for it. A permit guards each mailbox, and who cannot have it at once
    goes on without. A mailbox is full when it was used as often as there are neighbours who might: a learner that has
    stopped is soon left alone.
    """

    def __init__(
        self, graph: Graph, vectors: Sequence[Tensor], tensors: Tensors, permits: Sequence[Semaphore], rank: int
    ) -> None:
        self._vectors, self._permits, self._rank = vectors, permits, rank
        self._room = {asked: len(callers(graph, asked)) for asked in range(len(graph))}
        self._mail = {asked: tensors[f"peer/{asked}/mail"] for asked, room in self._room.items() if room}
        self._posted = cells(tensors["posted"].numpy())
        self._apart = torch.empty_like(vectors[rank])

    @staticmethod
    def specs(graph: Graph, size: int) -> dict[str, Spec]:
        """A mailbox for everybody with whom somebody begins an exchange, and how often each was used."""
        asked = [rank for rank in range(len(graph)) if callers(graph, rank)]
        return {**{f"peer/{rank}/mail": Spec((size,)) for rank in asked}, "posted": Spec((len(graph),), torch.int64)}

    @staticmethod
    def permits(kit: Kit, learners: int) -> list[Semaphore]:
        """One for each learner, there to be taken."""
        permits = [kit.semaphore() for _ in range(learners)]
        for permit in permits:
            permit.release()
        return permits

    @staticmethod
    def under_way(tensors: Tensors) -> list[Tensor]:
        """What has been added to one vector and not yet taken from the other."""
        return [tensors[f"peer/{rank}/mail"] for rank, posted in enumerate(tensors["posted"]) if posted]

    def meet(self, other: int) -> bool:
        if self._posted[other] >= self._room[other] or not self._permits[self._rank].acquire(False):
            return False  # it has had no time for long; or somebody is averaging with me, which is as good
        free = self._permits[other].acquire(False)
        if free:
            self._empty_mailbox()
            self._average_with(other)
            self._permits[other].release()
        self._permits[self._rank].release()
        return free

    def _average_with(self, other: int) -> None:
        mine, mail, apart = self._vectors[self._rank], self._mail[other], self._apart
        torch.sub(self._vectors[other], mine, out=apart)
        if self._posted[other]:
            mail.add_(apart.sub_(mail).mul_(0.5))
        else:
            mail.copy_(apart.mul_(0.5))
        mine.add_(apart)
        self._posted[other] += 1

    def collect(self) -> None:
        if self._posted[self._rank] and self._permits[self._rank].acquire(False):
            self._empty_mailbox()
            self._permits[self._rank].release()

    def _empty_mailbox(self) -> None:
        if self._posted[self._rank]:
            self._vectors[self._rank].sub_(self._mail[self._rank])
            self._posted[self._rank] = 0


def callers(graph: Graph, asked: int) -> list[int]:
    """Who may begin an exchange with this learner."""
    return [rank for rank in graph.neighbours[asked] if rank in graph.active]
