"""Learners that share a vector under some scheme, without any reinforcement learning: in this process or in several.

What a child process runs must be importable by name, so it stands here and not in a test.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from passel.arena import Arena, Spec, Tensors, prefixed
from passel.nets.flat import Flat
from passel.place.forkserver import context, main_hidden, warm_up
from passel.place.inline import InlineKit
from passel.place.processes import ProcessKit
from passel.sync import SCHEMES
from passel.sync.base import Scheme, Sync, SyncSettings, patiently
from passel.sync.optimiser import OptimiserSettings

DECENTRALISED = ["gossip", "proximal", "tokenring"]
SHARING = ["locked", "hogwild", "server", "allreduce", *DECENTRALISED]
#: Nobody waits, and what stands for all learners has the whole of everybody's steps.
ASYNCHRONOUS = ["locked", "hogwild", "server", "tokenring"]

PLAIN_SGD = OptimiserSettings(kind="sgd", lr=1.0)
ADAM = OptimiserSettings(kind="adam", lr=1e-2)


class Weights(nn.Module):
    """A vector as a module: a loss of (c * w).sum() has the gradient c."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))


def total(sync: Sync) -> Tensor:
    """A loss whose gradient is 1 everywhere."""
    assert isinstance(sync.flat.module, Weights)
    return sync.flat.module.w.sum()


def perceptron(seed: int = 0) -> nn.Sequential:
    """A small network whose number of weights (83) is no multiple of anything."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 13), nn.ReLU(), nn.Linear(13, 2), nn.Linear(2, 1))


@dataclass(frozen=True)
class Example:
    x: Tensor
    y: Tensor

    def loss(self, module: nn.Module) -> Tensor:
        return nn.functional.mse_loss(module(self.x), self.y)


def examples(count: int, size: int = 8, seed: int = 1) -> list[Example]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Example(torch.randn(size, 3, generator=generator), torch.randn(size, 1, generator=generator))
        for _ in range(count)
    ]


class Team:
    """All learners of a scheme in this process, over one private arena."""

    def __init__(
        self, name: str, make: Callable[[], nn.Module], workers: int = 1, settings: SyncSettings | None = None
    ) -> None:
        self.flats = [Flat(make()) for _ in range(workers)]
        self.scheme = SCHEMES[name](len(self.flats[0]), workers, settings or SyncSettings())
        self.tensors = Arena(self.scheme.specs())
        self.tensors["vector"].copy_(self.flats[0].values)
        self.scheme.start(self.tensors)
        links = self.scheme.links(InlineKit())
        self.servers = self.scheme.servers(self.tensors, links)
        self.syncs = [self.scheme.attach(flat, self.tensors, links, rank) for rank, flat in enumerate(self.flats)]

    @property
    def vector(self) -> Tensor:
        """The shared vector, when everything that was sent has arrived."""
        for sync in self.syncs:
            sync.pull()
        self.scheme.settle(self.tensors)
        return self.tensors["vector"]

    def learn(self, rank: int, example: Example) -> None:
        self.syncs[rank].pull()
        self.syncs[rank].push(example.loss(self.flats[rank].module))


def by_hand(module: nn.Module, rows: Sequence[Example], settings: OptimiserSettings) -> Tensor:
    """What one learner comes to with nothing of passel's but the flat vector: torch's Adam, step by step."""
    flat = Flat(module)
    weight = nn.Parameter(flat.values)
    optimiser = torch.optim.Adam([weight], lr=settings.lr, eps=settings.eps, fused=True)
    for row in rows:
        flat.backward(row.loss(module))
        weight.grad = flat.grads
        optimiser.step()
    return flat.values


Life = Callable[[Sync, Tensors, int], None]


def in_processes(
    scheme: Scheme, make: Callable[[], nn.Module], life: Life, more: dict[str, Spec] | None = None, patience: float = 30
) -> Arena:
    """Live `life(sync, tensors, rank)` in one process a worker, beside a process a shard; the arena when all is over.

    `more` are tensors for the learners' own use, found under their names in `tensors`.
    """
    warm_up()
    arena = Arena({**prefixed("sync", scheme.specs()), **prefixed("own", {**(more or {}), "over": FLAG})}, shared=True)
    arena["sync/vector"].copy_(Flat(make()).values)
    scheme.start(arena.below("sync"))
    with closing(ProcessKit()) as kit:
        links = scheme.links(kit)
        shards = [_start(_serve, scheme, arena, links, index) for index in range(scheme.server_count)]
        workers = [_start(_learn, scheme, make, life, arena, links, rank) for rank in range(scheme.workers)]
        try:
            for process in workers:
                process.join(patience)
            arena["own/over"].fill_(1)
            for process in shards:
                process.join(patience)
            assert [process.exitcode for process in (*workers, *shards)] == [0] * (len(workers) + len(shards))
        finally:
            for process in (*workers, *shards):
                process.kill()
                process.join()
    return arena


FLAG = Spec((), torch.int64)


def _start(target: Callable[..., None], *args: Any) -> Any:
    process = context().Process(target=target, args=args, daemon=True)
    with main_hidden():
        process.start()
    return process


def _serve(scheme: Scheme, arena: Arena, links: Any, index: int) -> None:
    torch.set_num_threads(1)
    shard = scheme.servers(arena.below("sync"), links)[index]
    while not arena["own/over"]:
        shard.serve(0.05)


def _learn(scheme: Scheme, make: Callable[[], nn.Module], life: Life, arena: Arena, links: Any, rank: int) -> None:
    torch.set_num_threads(1)
    sync = scheme.attach(Flat(make()), arena.below("sync"), links, rank)
    life(sync, arena.below("own"), rank)


def _equals(tensor: Tensor, number: int) -> bool:
    return int(tensor) == number


@dataclass(frozen=True)
class Countdown:
    """loss = w.sum(), so that every gradient is 1; notes what each pull sees.

    Where learners need not meet they take turns, `every` updates each, so that there is one right answer.
    """

    turns: int
    workers: int
    every: int
    collective: bool

    def specs(self, size: int) -> dict[str, Spec]:
        return {"seen": Spec((self.workers, self.turns * self.every + 1, size)), "turn": FLAG}

    def __call__(self, sync: Sync, tensors: Tensors, rank: int) -> None:
        seen, now = tensors["seen"][rank], tensors["turn"]
        for turn in range(self.turns):
            if not self.collective:
                mine = turn * self.workers + rank
                patiently(partial(_equals, now, mine), "my turn", 20)
            for update in range(self.every):
                sync.pull()
                seen[turn * self.every + update].copy_(sync.flat.values)
                sync.push(total(sync))
            sync.pull()
            if not self.collective:
                now += 1
        seen[-1].copy_(sync.flat.values)

    def expected(self, size: int) -> Tensor:
        """Minus the number of updates so far, in the order of the turns."""
        rows = []
        for rank in range(self.workers):
            row = []
            for turn in range(self.turns):
                before = turn if self.collective else turn * self.workers + rank
                row += [-(before * self.every + update) for update in range(self.every)]
            rows.append([*row, row[-1] - 1])
        return torch.tensor(rows, dtype=torch.float32).unsqueeze(2).expand(-1, -1, size)


@dataclass(frozen=True)
class Lesson:
    """Learns from its own column of examples, update by update, with everybody else."""

    updates: int
    batch: int

    def __call__(self, sync: Sync, tensors: Tensors, rank: int) -> None:
        for row in examples(self.updates, self.batch, seed=100 + rank):
            sync.pull()
            sync.push(row.loss(sync.flat.module))
        sync.pull()


def add_one(arena: Arena) -> None:
    """What a child does to an arena that it was given."""
    arena["numbers"].add_(1)
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    arena["room/count"].fill_(parent.pid)
