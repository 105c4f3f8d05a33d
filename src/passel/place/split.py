"""A worker in two halves: one computes the policy's gradients, the other, at the same time, the critic's.

The rollout lies in the arena, where both see it; a lesson is a number that says which part of it to learn from. The
worker keeps a copy of the critic to judge with, which it takes over when its other half has learnt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from passel.arena import Spec, Tensors
from passel.learner import explain
from passel.nets.flat import Flat
from passel.nets.network import AutogradLoss
from passel.nets.perceptron import RecordedLoss
from passel.sync.base import Costs, Kit, NonFiniteError, Semaphore, Server, Sync, await_bell
from passel.types import DivergedError, Minibatch

PATIENCE = 120.0


class Critic(Protocol):
    """An algorithm that can find its critic's loss alone."""

    def value_loss(self, batch: Minibatch) -> RecordedLoss | AutogradLoss: ...


class Lessons(Protocol):
    """Experience whose parts have numbers."""

    given: int

    def rows(self, part: int) -> Minibatch: ...


@dataclass
class HalfLinks:
    """Two bells: "there is a lesson" and "it is learnt". A half that lives in this process learns when it is asked."""

    lesson: Semaphore
    learnt: Semaphore
    resident: list[CriticHalf] = field(default_factory=list)

    @staticmethod
    def made_by(kit: Kit) -> HalfLinks:
        return HalfLinks(kit.semaphore(), kit.semaphore())


def half_specs(size: int) -> dict[str, Spec]:
    return {
        "values": Spec((size,), keep=False),
        "part": Spec((1,), torch.int64, keep=False),
        "lr": Spec((1,), torch.float64, keep=False),
        "refused": Spec((1,), torch.int64, keep=False),
        "told": Spec((2,), torch.float64, keep=False),
    }


class CriticHalf(Server):
    """Learns what the critic should from a worker's rollout. Runs in: a process of its own (inline: the worker's)."""

    def __init__(
        self, rank: int, critic: Critic, sync: Sync, lessons: Lessons, tensors: Tensors, links: HalfLinks
    ) -> None:
        self.name = f"critic {rank}"
        self._critic, self._sync, self._lessons, self._links = critic, sync, lessons, links
        self._values, self._part, self._lr = tensors["values"], tensors["part"].numpy(), tensors["lr"].numpy()
        self._refused = tensors["refused"].numpy()
        #: The last loss, and the squared norm of the last gradient.
        self._told = tensors["told"].numpy()
        self._told[:] = math.nan
        self._values.copy_(sync.flat.values)

    def serve(self, timeout: float) -> None:
        if self._links.lesson.acquire(True, timeout):
            self.learn()
            self.fetch()
            self._links.learnt.release()

    def learn(self) -> None:
        batch = self._lessons.rows(int(self._part[0]))
        self._sync.lr = float(self._lr[0])
        try:
            self._told[0] = self._sync.push(self._critic.value_loss(batch))
        except NonFiniteError as error:
            raise DivergedError(explain(error, [self._sync.flat.module], batch, self._lessons)) from error

    def fetch(self) -> None:
        """Bring the critic up to date, and lay it where the worker finds it."""
        try:
            self._sync.pull()
        except NonFiniteError as error:
            raise DivergedError(explain(error, [self._sync.flat.module])) from error
        self._refused[0] = self._sync.costs.refused
        self._told[1] = self._sync.grad_square
        self._values.copy_(self._sync.flat.values)


class OtherHalf:
    """The worker's side: asks for a lesson when it begins its own, and waits for it before it acts again. `note` is
    told the loss of each.
    """

    def __init__(
        self, flat: Flat, lessons: Lessons, tensors: Tensors, links: HalfLinks, note: Callable[[float], None]
    ) -> None:
        self.costs = Costs()
        self.grad_square = math.nan
        self._flat, self._lessons, self._links = flat, lessons, links
        self._values, self._part, self._lr = tensors["values"], tensors["part"].numpy(), tensors["lr"].numpy()
        self._refused = tensors["refused"].numpy()
        self._told, self._note = tensors["told"].numpy(), note
        self._asked = False

    def ask(self, lr: float) -> None:
        self._part[0], self._lr[0] = self._lessons.given, lr
        self._asked = True
        for half in self._links.resident:
            half.learn()
        if not self._links.resident:
            self._links.lesson.release()

    def join(self) -> None:
        start = time.perf_counter()
        for half in self._links.resident:
            half.fetch()
        if self._asked and not self._links.resident:
            await_bell(self._links.learnt, "the critic", PATIENCE)
        self._asked = False
        waited = time.perf_counter()
        self._flat.values.copy_(self._values)
        self.costs.refused = int(self._refused[0])
        loss, self.grad_square = self._told.tolist()
        self._note(loss)
        self.costs.wait += waited - start
        self.costs.copy += time.perf_counter() - waited
