"""Hogwild! in groups that a token joins (after Hogwild++, Zhang, Hsieh and Akella 2016): workers of a group share one
vector without a lock, and no other group ever writes to it. For several sockets, between which writes are dear.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

import torch
from torch import Tensor

from passel.arena import Spec, Tensors, cells, fence
from passel.nets.flat import Flat
from passel.sync.base import Kit, Semaphore, Sync
from passel.sync.peers import Decentralised
from passel.sync.shared import SharedSync

#: Updates of mine for which the token may lie where it is. A group that has not come for it by then is passed over.
PATIENCE = 16
#: Times that a reader copies anew because the token was being exchanged meanwhile.
LOOKS = 10


class Token:
    """The token: a vector that holds every change that it was given, and goes from group to group.

        c = x_g - s_g;     t = t + c;     x_g = t;     s_g = t

    c is what the group has learnt since the token was last there, when it left with s_g; the rest is what all others
    have. So every group's change reaches every other once, whole, within one round. Where it lies is a cell of the
    arena; who handles it holds the one permit, and who cannot have that at once lets it be.

    The new t is written to `spare` first, and `pending` names the group from then on until all three are equal to it:
    an exchange whose worker died is completed from there (see `complete`).
    """

    def __init__(self, tensors: Tensors, permit: Semaphore, group: int) -> None:
        self._permit, self._group = permit, group
        self._sum, self._spare = tensors["token"], tensors["spare"]
        self._left = [tensors[name] for name in _names(tensors)]
        self._at, self._moves = cells(tensors["at"].numpy()), cells(tensors["moves"].numpy())
        self._pending = cells(tensors["pending"].numpy())
        self._read = torch.empty_like(self._sum)

    @property
    def moves(self) -> int:
        return int(self._moves[0])

    def visit(self, vector: Tensor, late: bool) -> None:
        """Exchange changes with the token and send it on, if it is here or (`late`) is not being fetched."""
        if (self._at[0] != self._group and not late) or not self._permit.acquire(False):
            return
        if self._at[0] == self._group or late:
            self._exchange(vector, self._left[self._group])
        self._permit.release()

    def _exchange(self, vector: Tensor, left: Tensor) -> None:
        # What others of the group write after this copy is found at the next visit, and so is what rounding leaves: the
        # group has left with what the token has, not with what its vector is.
        read, spare = self._read.copy_(vector), self._spare
        torch.sub(read, left, out=spare).add_(self._sum)
        self._pending[0] = self._group + 1
        fence()
        vector.add_(torch.sub(spare, read, out=read))
        left.copy_(spare)
        self._sum.copy_(spare)
        self._at[0] = (self._group + 1) % len(self._left)
        self._moves[0] += 1
        fence()
        self._pending[0] = 0


def complete(tensors: Tensors) -> None:
    """Finish the exchange within which a worker died, if one did; all workers have ended. What the others of its group
    wrote during the exchange is lost with it.
    """
    pending = int(tensors["pending"])
    if pending:
        for name in ("token", f"peer/{pending - 1}/left", f"peer/{pending - 1}/values"):
            tensors[name].copy_(tensors["spare"])
        tensors["at"].fill_(pending % len(_names(tensors)))
        tensors["moves"].add_(1)
        tensors["pending"].zero_()


def _last_exchange(tensors: Tensors) -> int | None:
    """The number of the last exchange, None in the middle of one."""
    if "pending" not in tensors:
        return 0
    return None if int(tensors["pending"]) else int(tensors["moves"])


def _names(tensors: Tensors) -> list[str]:
    groups = sum(name.startswith("peer/") and name.endswith("/left") for name in tensors)
    return [f"peer/{group}/left" for group in range(groups)]


class TokenSync(SharedSync):
    """As under hogwild within the group. Whoever of it has pushed an update while the token is there handles it.

    Runs in: each worker. A group that stops keeps nobody: after some updates the token is taken from where it lies.
    """

    def __init__(self, scheme: TokenRing, flat: Flat, tensors: Tensors, permit: Semaphore, rank: int) -> None:
        group = scheme.group(rank)
        vector = scheme.values(tensors, group)
        own = {f"optimiser/{name}": tensor for name, tensor in scheme.optimiser(tensors, group).items()}
        shared = Tensors({"vector": vector, "pushes": tensors["pushes"], **own})
        super().__init__(scheme, flat, shared, nullcontext(), rank)
        self._token = Token(tensors, permit, group) if scheme.peers > 1 else None
        if self._token is not None:
            self._seen = cells(tensors["seen"][rank].numpy())

    def send(self) -> None:
        super().send()
        if self._token is not None:
            start = time.perf_counter()
            self._token.visit(self._vector, self._is_late(self._token.moves))
            self.costs.copy += time.perf_counter() - start

    def _is_late(self, moves: int) -> bool:
        """Whether I have made many updates since I last saw the token move."""
        if self._seen[0] != moves:
            self._seen[0], self._seen[1] = moves, self._pushes[self._rank]
        return bool(self._pushes[self._rank] - self._seen[1] > PATIENCE)


class TokenRing(Decentralised):
    """before: copy · after: apply to the group's vector, no lock; a token carries changes on · state: each group's

    One group is Hogwild!. With several, an update reaches the other groups when the token has come round.
    """

    name = "tokenring"
    summary = "Hogwild! in groups of workers, joined by a token that carries their changes round a ring (Hogwild++)"

    @property
    def peers(self) -> int:
        """How many groups there are; the last may have fewer workers."""
        return -(-self.workers // self.settings.group_size)

    def group(self, rank: int) -> int:
        return rank // self.settings.group_size

    def specs(self) -> dict[str, Spec]:
        token = {
            "token": Spec((self.size,)),
            "at": Spec((1,), torch.int64),
            "moves": Spec((1,), torch.int64),
            "seen": Spec((self.workers, 2), torch.int64),
            "spare": Spec((self.size,), keep=False),
            "pending": Spec((1,), torch.int64, keep=False),
        }
        return {**super().specs(), **(token if self.peers > 1 else {})}

    def peer_specs(self) -> dict[str, Spec]:
        return {**super().peer_specs(), "left": Spec((self.size,))}

    def start(self, tensors: Tensors) -> None:
        super().start(tensors)
        if self.peers > 1:
            complete(tensors)
        if self.peers > 1 and not tensors["pushes"].any():
            for name in ("token", *_names(tensors)):
                tensors[name].copy_(tensors["vector"])

    def look(self, tensors: Tensors, out: Tensor) -> None:
        """As of every scheme without a centre, and not from the middle of an exchange: that would be a change counted
        twice. One that takes long is not waited for.
        """
        for _ in range(LOOKS if self.peers > 1 else 1):
            before = _last_exchange(tensors)
            fence()
            super().look(tensors, out)
            fence()
            if before is not None and before == _last_exchange(tensors):
                return

    def settle(self, tensors: Tensors) -> None:
        if self.peers > 1:
            complete(tensors)
        super().settle(tensors)

    def gather(self, tensors: Tensors, out: Tensor) -> None:
        """Every change, whether the token has it or not yet."""
        out.copy_(tensors["token"])
        for group in range(self.peers):
            out.add_(self.values(tensors, group)).sub_(tensors[f"peer/{group}/left"])

    def links(self, kit: Kit) -> Semaphore:
        permit = kit.semaphore()
        permit.release()
        return permit

    def join(self, flat: Flat, tensors: Tensors, links: Semaphore, rank: int) -> Sync:
        return TokenSync(self, flat, tensors, links, rank)
