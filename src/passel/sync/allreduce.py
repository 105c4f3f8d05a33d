"""Everybody holds the same vector, averages the gradients, and takes the same step.

The mean is made by torch.distributed (gloo), or, where all learners see one arena, in place by adding up
rows of shared memory: see docs/schemes.md for what each costs.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from passel.arena import Spec, Tensors, fence
from passel.nets.flat import Flat
from passel.sync.base import LONG, Kit, Scheme, Sync, on_wait, patiently
from passel.sync.optimiser import make_optimiser


class Mean(ABC):
    """The mean of one vector a learner, and of one number that goes along at its end: `start` offers mine, `finish`
    waits for everybody's and returns the mean, and the seconds waited.
    """

    @abstractmethod
    def start(self, mine: Tensor, number: float) -> None: ...

    @abstractmethod
    def finish(self) -> tuple[Tensor, float]: ...


class ArenaMean(Mean):
    """Rows in one arena, one a learner. Two sets of rows take turns, so that writers never wait for readers:
    whoever writes a set has seen that everybody finished reading the one before the last.
    """

    def __init__(self, tensors: Tensors, rank: int, workers: int) -> None:
        self._rows = tensors["rows"]
        self._offered = tensors["offered"].numpy()
        self._rank, self._workers = rank, workers
        self._mean = torch.empty_like(self._rows[0, 0])

    def start(self, mine: Tensor, number: float) -> None:
        row = self._rows[int(self._offered[self._rank]) % 2, self._rank]
        row[:-1].copy_(mine)
        row[-1] = number
        fence()
        self._offered[self._rank] += 1

    def finish(self) -> tuple[Tensor, float]:
        mine = int(self._offered[self._rank])
        waited = patiently(lambda: bool(self._offered.min() >= mine), "the other learners' gradients")
        fence()
        torch.mean(self._rows[(mine - 1) % 2], dim=0, out=self._mean)
        return self._mean, waited


class DistributedMean(Mean):
    """torch.distributed's all-reduce (gloo), started when the gradient is ready and awaited when the mean is needed.

    Each network has a group of its own, of the workers that learn it, and not torch's default group, of which a process
    has only one.
    """

    def __init__(self, rank: int, workers: int, meeting_point: str) -> None:
        import torch.distributed

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        made: Any = torch.distributed  # its stubs leave out what it exports
        store = made.FileStore(meeting_point, workers)
        self._group = made.ProcessGroupGloo(store, rank, workers, timedelta(minutes=10))
        self._workers = workers
        self._pending: tuple[Any, Tensor] | None = None

    def start(self, mine: Tensor, number: float) -> None:
        offer = torch.cat([mine, mine.new_tensor([number])])
        self._pending = self._group.allreduce([offer]), offer

    def finish(self) -> tuple[Tensor, float]:
        assert self._pending is not None, "finish() follows start()"
        work, total = self._pending
        start = time.perf_counter()
        while not self._waited(work):
            on_wait[-1]()
        return total.div_(self._workers), time.perf_counter() - start

    def _waited(self, work: Any) -> bool:
        """Whether everybody's offer has come within a short time: a learner that waits for long says so in between."""
        try:
            work.wait(timedelta(seconds=LONG))
        except RuntimeError as error:
            if work.is_completed():  # a learner is gone, or came too late for gloo
                reason = str(error).partition("\n")[0]
                raise TimeoutError(f"waited in vain for the other learners' gradients ({reason})") from error
            return False
        return True


class AllReduceSync(Sync):
    """Offers its gradient after the backward pass; takes the step along the mean before the next forward pass.

    Runs in: each worker. The norm is clipped after the mean, so that everybody clips alike. Rank 0's vector and
    optimiser state are the ones that a checkpoint keeps; all the others' are equal to them. With local steps every
    learner's vector is private, and rank 0 keeps a copy of the common vector of the last exchange.
    """

    def __init__(self, scheme: AllReduce, flat: Flat, tensors: Tensors, mean: Mean, rank: int) -> None:
        super().__init__(flat, scheme.settings)
        self._mean = mean
        self._pushes = tensors["pushes"].numpy()
        # Rank 0's learning rate is everybody's: each looks at the schedule at another moment, and vectors that follow
        # one mean at different rates would drift apart. Two cells take turns, as the rows of gradients do.
        self._lr = tensors["lr"].numpy()
        self._rank = rank
        self._agreed = 0.0
        self._applied = int(self._pushes[rank])
        state = tensors.below("optimiser")
        local = scheme.requested.every > 1
        self._kept = tensors["vector"] if rank == 0 and local else None
        if rank == 0 and not local:
            flat.bind(values=tensors["vector"])
        else:
            flat.values.copy_(tensors["vector"])
            state = Tensors({name: tensor.clone() for name, tensor in state.items()})
        self._optimiser = make_optimiser(scheme.settings.optimiser, flat.values, state)

    @property
    def agreed(self) -> float:
        return self._agreed

    def pull(self) -> None:
        if self._pushes[self._rank] > self._applied:
            start = time.perf_counter()
            offers, waited = self._mean.finish()
            mean, self._agreed = offers[:-1], float(offers[-1])
            if self.clip(mean):  # every learner sees the same mean, so all refuse it alike
                self._optimiser.step(float(self._lr[self._applied % 2]), mean)
                if self._kept is not None:
                    self._kept.copy_(self.flat.values)
            self._applied += 1
            self.costs.wait += waited
            self.costs.apply += time.perf_counter() - start - waited
        self.version = self._applied

    def send(self) -> None:
        if self._rank == 0:
            self._lr[int(self._pushes[0]) % 2] = self.lr
        start = time.perf_counter()
        self._mean.start(self.flat.grads, self.told)
        self.costs.copy += time.perf_counter() - start
        self._pushes[self._rank] += 1


class AllReduce(Scheme):
    """before: nothing · after: average the gradients, apply · optimiser state: everybody's, identical"""

    name = "allreduce"
    summary = "everybody averages gradients and takes the same step, in lockstep"
    averages = True
    collective = True
    joint = True

    def specs(self) -> dict[str, Spec]:
        return {
            **super().specs(),
            "rows": Spec((2, self.workers, self.size + 1), keep=False),
            "lr": Spec((2,), torch.float64, keep=False),
            "offered": Spec((self.workers,), torch.int64, keep=False),
        }

    def start(self, tensors: Tensors) -> None:
        """One update is one version for everybody: what a dead worker left behind is brought to one state."""
        if self.requested.every == 1:
            tensors["pushes"].fill_(int(tensors["pushes"].min()))
        else:
            self._level(tensors)

    def _level(self, tensors: Tensors) -> None:
        """All local steps begin from the common vector of the newest exchange that any learner has completed.

        A learner that died after its offer has not seen the mean. If all of them died while they wrote it to their
        bases, `vector` holds it: rank 0 writes that first. Before the first exchange `vector` is the common one.
        """
        vector, learners = tensors["vector"], [tensors.below(f"local/{rank}") for rank in range(self.workers)]
        versions = [int(learner["version"]) for learner in learners]
        newest = max(versions)
        if newest > 0:
            vector.copy_(learners[versions.index(newest)]["base"])
        newest = newest if newest >= 0 else int(tensors["pushes"].min())
        for learner, version in zip(learners, versions, strict=True):
            if version != newest:
                learner["base"].copy_(vector)
                learner["version"].fill_(newest)
        tensors["pushes"].fill_(newest)

    def links(self, kit: Kit) -> str | None:
        return kit.meeting_point() if self.transport(kit) == "distributed" else None

    def version(self, tensors: Tensors) -> int:
        return int(tensors["pushes"].min())

    def transport(self, kit: Kit) -> str:
        return self.settings.transport if kit.shared else "arena"

    def join(self, flat: Flat, tensors: Tensors, links: str | None, rank: int) -> Sync:
        mean: Mean = (
            ArenaMean(tensors, rank, self.workers) if links is None else DistributedMean(rank, self.workers, links)
        )
        return AllReduceSync(self, flat, tensors, mean, rank)
