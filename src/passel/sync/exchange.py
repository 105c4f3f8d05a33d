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


class ArenaExchange(Exchange):
    """Vectors in one arena, each of which only its owner ever writes.

        d = (x_j - x_i) / 2;      x_i += d at once, by i;      x_j -= d when j next looks, by j

    Until then the difference lies in j's mailbox, and whoever put it there has taken j's only permit: a second exchange
    with j begins where the first has ended, so the two are as good as one after the other. Whatever j learns meanwhile
    is added to its vector as before: additions may change places. So an exchange is atomic, element by element, though
    neither of the two stops for it; and one with a learner that has stopped is the last, for its permit stays taken.
    """

    def __init__(self, vectors: Sequence[Tensor], tensors: Tensors, permits: Sequence[Semaphore], rank: int) -> None:
        self._vectors, self._permits, self._rank = vectors, permits, rank
        mailboxes = {other: f"peer/{other}/mail" for other in range(len(vectors))}
        self._mail = {other: tensors[name] for other, name in mailboxes.items() if name in tensors}
        self._posted = cells(tensors["posted"].numpy())
        if self._posted[rank]:  # in a resumed run: whoever put it there had taken the permit
            permits[rank].acquire(False)

    @staticmethod
    def specs(graph: Graph, size: int) -> dict[str, Spec]:
        """A mailbox for everybody with whom somebody begins an exchange."""
        asked = sorted({other for rank in graph.active for other in graph.neighbours[rank]})
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
        mine = self._permits[self._rank]
        if not mine.acquire(False):
            return False  # somebody is averaging with me, which is as good
        if not self._permits[other].acquire(False):
            mine.release()
            return False
        vector, mail = self._vectors[self._rank], self._mail[other]
        torch.sub(self._vectors[other], vector, out=mail).mul_(0.5)
        vector.add_(mail)
        mine.release()
        self._posted[other] = 1
        return True

    def collect(self) -> None:
        if self._posted[self._rank]:
            self._vectors[self._rank].sub_(self._mail[self._rank])
            self._posted[self._rank] = 0
            self._permits[self._rank].release()
