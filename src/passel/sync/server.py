"""A parameter server in K shards: each shard is a process that owns one slice of the vector and its optimiser state.

Gradients travel through mailboxes in shared memory, one for each worker, which the backward pass writes directly;
parameters travel back through the shared vector, which only shards write. Nothing is pickled, nothing is queued.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from passel.arena import Spec, Tensors, fence
from passel.nets.flat import Flat
from passel.sync.base import Kit, Scheme, Semaphore, Server, Sync, await_bell, patiently
from passel.sync.optimiser import make_optimiser

PATIENCE = 120.0
LINE = 16  # float32 numbers in a cache line of 64 bytes


@dataclass
class ServerLinks:
    """A bell for each shard ("there is mail") and one for each worker ("your gradient was applied")."""

    shared: bool
    shard_bells: list[Semaphore]
    worker_bells: list[Semaphore]
    #: Shards that live in this process (the inline placement): they serve when the bell rings.
    resident: list[Server]


class Shard(Server):
    """Owns `vector[start:end]`; applies gradients one by one, in the order of the workers' ranks.

    Runs in: a process of its own (inline: in the caller's).
    """

    def __init__(self, scheme: ParameterServer, tensors: Tensors, links: ServerLinks, index: int) -> None:
        self.name = f"shard {index}"
        self._index = index
        self._span = scheme.span(index)
        self._mail = tensors["mail"]
        self._lr = tensors["lr"]
        self._sent = tensors["pushes"].numpy()
        self._applied = tensors["applied"][index].numpy()
        self._writing = tensors["writing"].numpy()
        self._met = tensors["met"].numpy()
        self._bell, self._worker_bells = links.shard_bells[index], links.worker_bells
        shared = tensors.below("optimiser")
        # Each shard counts its own steps; shard 0's count is the one that a checkpoint keeps.
        self._counters = {name: tensor.clone() for name, tensor in shared.items() if not tensor.dim()}
        self._kept_counters = {name: shared[name] for name in self._counters} if index == 0 else {}
        state = {
            name: self._counters.get(name, tensor[self._span] if tensor.dim() else tensor)
            for name, tensor in shared.items()
        }
        self._optimiser = make_optimiser(scheme.settings.optimiser, tensors["vector"][self._span], state)

    def serve(self, timeout: float) -> None:
        if not self._bell.acquire(True, timeout):
            return
        for worker, sent in enumerate(self._sent):
            if sent > self._applied[worker]:
                fence()
                self._apply(worker)

    def _apply(self, worker: int) -> None:
        # Odd while the slice is being written: a reader that sees an odd or a changed number copies again.
        self._writing[self._index] += 1
        fence()
        self._optimiser.step(float(self._lr), self._mail[worker, self._span])
        fence()
        self._writing[self._index] += 1
        if self._index == 0:
            self._met[worker] = self._applied.sum()
        self._applied[worker] += 1
        for name, kept in self._kept_counters.items():
            kept.copy_(self._counters[name])
        self._worker_bells[worker].release()


class ServerSync(Sync):
    """Fetches K slices before the forward pass, sends K gradient slices after the backward pass.

    A worker waits until its own last gradient has been applied before it fetches: it reads its own writes, and with one
    worker the scheme equals solo to the bit. Gradients of others arrive meanwhile, which is its staleness.
    """

    def __init__(self, scheme: ParameterServer, flat: Flat, tensors: Tensors, links: ServerLinks, rank: int) -> None:
        super().__init__(flat, scheme.settings)
        flat.bind(grads=tensors["mail"][rank])
        self._rank, self._links = rank, links
        self._spans = [scheme.span(index) for index in range(scheme.settings.shards)]
        self._vector, self._lr = tensors["vector"], tensors["lr"]
        self._sent = tensors["pushes"].numpy()
        self._applied = tensors["applied"].numpy()
        self._met = tensors["met"].numpy()
        self._writing = tensors["writing"].numpy()
        self._outstanding = False
        flat.values.copy_(self._vector)

    def pull(self) -> None:
        start = time.perf_counter()
        if self._outstanding:
            self._await_my_gradient()
            self.costs.staleness += int(self._met[self._rank]) - self.version
            self._outstanding = False
        waited = time.perf_counter()
        self.version = int(self._applied[0].sum())
        for index, span in enumerate(self._spans):
            self._fetch(index, span)
        self.costs.wait += waited - start
        self.costs.copy += time.perf_counter() - waited

    def _await_my_gradient(self) -> None:
        for _ in self._spans:
            await_bell(self._links.worker_bells[self._rank], "the parameter server", PATIENCE)

    def _fetch(self, index: int, span: slice) -> None:
        while True:
            patiently(lambda: self._writing[index] % 2 == 0, f"shard {index} to finish an update")
            before = self._writing[index]
            fence()
            self.flat.values[span].copy_(self._vector[span])
            fence()
            if before == self._writing[index] and before % 2 == 0:
                return

    def send(self) -> None:
        if not self.clip(self.flat.grads):
            return
        self._lr.fill_(self.lr)
        fence()
        self._sent[self._rank] += 1
        self._outstanding = True
        for bell in self._links.shard_bells:
            bell.release()
        for shard in self._links.resident:
            shard.serve(0)


class ParameterServer(Scheme):
    """before: fetch K slices · after: send K gradient slices, each shard applies its own · state: each shard's"""

    name = "server"
    summary = "a parameter server in K shards, each a process that owns a slice"

    def span(self, index: int) -> slice:
        """The slice of the vector that a shard owns, cut at multiples of a cache line: no two shards write to one line,
        and torch's vectorised kernels round as they would on the whole vector.
        """
        cuts = [number * self.size // self.settings.shards // LINE * LINE for number in (index, index + 1)]
        return slice(cuts[0], self.size if index + 1 == self.settings.shards else cuts[1])

    def specs(self) -> dict[str, Spec]:
        shards = self.settings.shards
        return {
            **super().specs(),
            "mail": Spec((self.workers, self.size), keep=False),
            "applied": Spec((shards, self.workers), torch.int64, keep=False),
            # The version that each worker's last gradient met at shard 0: its staleness is counted from there.
            "met": Spec((self.workers,), torch.int64, keep=False),
            "writing": Spec((shards,), torch.int64, keep=False),
            "lr": Spec((), torch.float64, keep=False),
        }

    def start(self, tensors: Tensors) -> None:
        """What was sent and never applied is lost with the run that sent it."""
        tensors["applied"].copy_(tensors["pushes"].expand_as(tensors["applied"]))

    def links(self, kit: Kit) -> ServerLinks:
        return ServerLinks(
            shared=kit.shared,
            shard_bells=[kit.semaphore() for _ in range(self.settings.shards)],
            worker_bells=[kit.semaphore() for _ in range(self.workers)],
            resident=[],
        )

    @property
    def server_count(self) -> int:
        return self.settings.shards

    def servers(self, tensors: Tensors, links: ServerLinks) -> list[Server]:
        """The shards. Where processes are to be had each gets one; inline, they serve when their bell rings."""
        shards: list[Server] = [Shard(self, tensors, links, index) for index in range(self.settings.shards)]
        if not links.shared:
            links.resident = shards
        return shards

    def join(self, flat: Flat, tensors: Tensors, links: ServerLinks, rank: int) -> Sync:
        return ServerSync(self, flat, tensors, links, rank)
