"""What a synchronisation scheme is: a short rule about who may write which part of a vector, and when.

A scheme never knows that reinforcement learning exists. It sees a module behind one vector and a loss; it calls
`backward()` and owns the optimiser.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from passel.arena import Spec, Tensors, prefixed
from passel.nets.flat import Flat, squared_norm
from passel.sync.optimiser import OptimiserSettings, make_optimiser, state_specs

#: Gradients in a row that are refused before the run ends.
REFUSALS = 10


@dataclass(frozen=True)
class SyncSettings:
    """The numbers of a scheme."""

    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    max_grad_norm: float | None = None
    every: int = 1
    shards: int = 1
    transport: str = "auto"
    topology: str = "bipartite"
    l1: float = 0.0
    group_size: int = 1
    seed: int = 0


@dataclass
class Costs:
    """What sharing has cost one learner so far: seconds waiting, copying and applying; staleness in versions; gradients
    that were refused because they were not finite.
    """

    wait: float = 0.0
    copy: float = 0.0
    apply: float = 0.0
    staleness: float = 0.0
    pushes: int = 0
    refused: int = 0


class Semaphore(Protocol):
    def acquire(self, block: bool = ..., timeout: float | None = ...) -> bool: ...
    def release(self) -> None: ...


class Kit(Protocol):
    """What a placement lends to a scheme to join learners: locks and semaphores of the kind that works there."""

    shared: bool

    def lock(self) -> AbstractContextManager[Any]: ...
    def semaphore(self) -> Semaphore: ...
    def meeting_point(self) -> str: ...


class Differentiable(Protocol):
    """A loss: a scalar tensor, or anything that knows its value and can put its gradient where autograd would."""

    def item(self) -> float | int | bool: ...
    def backward(self) -> None: ...


class NonFiniteError(Exception):
    """The loss or, again and again, its gradient is not finite. Nothing of it was applied: the vector is as it was
    before. `layer` is where the gradient is not finite, if the loss is.
    """

    def __init__(self, message: str, layer: str = "") -> None:
        super().__init__(message)
        self.layer = layer


class Sync(ABC):
    """One learner's side of a scheme.

        while training:
            sync.pull()           # my vector is now as fresh as the scheme lets it be
            loss = ...            # a forward pass of sync.flat.module
            sync.push(loss)       # backward, and my gradient is on its way to everybody

    `version` is how many updates the vector that I hold has seen. Runs in: each worker.

    A decision that everybody must take alike (to stop early, say) is taken on a number that everybody has: `told` goes
    along with my gradient, and `agreed`, after the next pull, is the mean over all whose gradients were averaged with
    mine. Where nobody waits for me I need nobody's consent, and it is my own.
    """

    def __init__(self, flat: Flat, settings: SyncSettings) -> None:
        self.flat = flat
        self.settings = settings
        self.lr = settings.optimiser.lr
        self.version = 0
        self.told = 0.0
        self.costs = Costs()
        #: What my gradients are multiplied with: other than 1 where a mean over learners should count some for more.
        self.weight = 1.0
        #: The learning rates of all the local steps that an exchange sums up; 0 where there are none.
        self.local_lr = 0.0
        #: Gradients refused since the last one that was not.
        self._refused_in_a_row = 0
        #: The squared norm of the last gradient that was applied or sent, before it was clipped.
        self.grad_square = math.nan

    @property
    def agreed(self) -> float:
        return self.told

    @abstractmethod
    def pull(self) -> None:
        """Bring `flat.values` up to date."""

    @abstractmethod
    def send(self) -> None:
        """`flat.grads` holds this learner's gradient: clip it where this scheme clips, and share it."""

    def push(self, loss: Differentiable) -> float:
        """Differentiate, check and share. Returns the loss as a number."""
        value = float(loss.item())
        if not math.isfinite(value):
            raise NonFiniteError(f"the loss is {value}")
        self.flat.backward(loss)
        if self.weight != 1:
            self.flat.grads.mul_(self.weight)
        self.send()
        self.costs.pushes += 1
        return value

    def clip(self, grads: Tensor) -> bool:
        """Scale `grads` down to the largest norm that is allowed. Returns False where they are not finite: such a
        gradient is counted, and must not be applied. Raises NonFiniteError when that repeats.
        """
        square = squared_norm(grads)
        if not math.isfinite(square):
            if not torch.isfinite(grads).all():
                self._refuse(grads)
                return False
            square = float(grads.double().square().sum())  # only the squares overflow
        self._refused_in_a_row = 0
        self.grad_square = square
        limit = self.settings.max_grad_norm
        if limit is not None:
            norm = math.sqrt(square)
            if norm > limit:
                grads.mul_(limit / norm)
        return True

    def _refuse(self, grads: Tensor) -> None:
        self.costs.refused += 1
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= REFUSALS:
            layer = self.flat.name_at(int((~torch.isfinite(grads)).nonzero()[0]))
            raise NonFiniteError(f"the last {REFUSALS} gradients were not finite", layer)


class Server(ABC):
    """A role beside the learners that a scheme needs: a shard of a parameter server."""

    name: str

    @abstractmethod
    def serve(self, timeout: float) -> None:
        """Handle what is waiting; wait at most `timeout` seconds for it."""


class Scheme(ABC):
    """The plan of a scheme for one vector: what it keeps in the arena, what joins the learners, who serves.

        specs = scheme.specs()                           # the placement allocates them
        scheme.start(tensors)
        links = scheme.links(kit)                        # locks and semaphores, made once, given to every worker
        servers = scheme.servers(tensors, links)         # roles of their own, often none
        sync = scheme.attach(flat, tensors, links, rank) # in each worker

    Whatever the scheme, `vector` and `optimiser/...` in the arena are the state of the run, so a checkpoint of one
    scheme is a checkpoint of all; schemes whose learners have vectors of their own keep those beside it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    #: Every learner takes part in every update: nobody may rest while another waits for its gradient.
    collective: ClassVar[bool] = False
    #: An update is one step along the mean of all learners' gradients, and all hold the same vector.
    joint: ClassVar[bool] = False
    #: A learner's update moves the mean of all learners' vectors by its N-th part only.
    averages: ClassVar[bool] = False
    one_learner: ClassVar[bool] = False

    def __init__(self, size: int, workers: int, settings: SyncSettings) -> None:
        self.size, self.workers = size, workers
        self.requested = settings
        # With local steps in between, the learners exchange how far they have moved: a pseudo-gradient that the shared
        # side follows by exactly its length, whatever optimiser each learner uses for its own steps.
        self.settings = settings if settings.every == 1 else replace(settings, optimiser=OUTER, max_grad_norm=None)

    def specs(self) -> dict[str, Spec]:
        specs = {
            "vector": Spec((self.size,)),
            "pushes": Spec((self.workers,), torch.int64),
            **prefixed("optimiser", state_specs(self.settings.optimiser, self.size)),
        }
        if self.requested.every > 1:
            for rank in range(self.workers):
                specs |= prefixed(f"local/{rank}", LocalSteps.specs(self.requested, self.size))
        return specs

    def start(self, tensors: Tensors) -> None:
        """Make the scheme's own counters agree, once, before anybody attaches to a new or a resumed run."""
        return

    def version(self, tensors: Tensors) -> int:
        """How many updates the shared vector has seen."""
        return int(tensors["pushes"].sum())

    def look(self, tensors: Tensors, out: Tensor) -> None:
        """Copy the vector that stands for all learners to `out`. Whoever writes to it need not stop for that."""
        out.copy_(tensors["vector"])

    def settle(self, tensors: Tensors) -> None:
        """Everybody is at rest: make `vector` the one that stands for all learners, where it is not."""
        return

    def links(self, kit: Kit) -> Any:
        return None

    @property
    def server_count(self) -> int:
        """How many roles of its own the scheme needs beside the learners."""
        return 0

    def servers(self, tensors: Tensors, links: Any) -> list[Server]:
        return []

    def attach(self, flat: Flat, tensors: Tensors, links: Any, rank: int) -> Sync:
        """This learner's side. `flat` takes the values of the shared vector."""
        sync = self.join(flat, tensors, links, rank)
        if self.requested.every > 1:
            sync = LocalSteps(sync, self.requested, tensors.below(f"local/{rank}"), joint=self.joint)
        return sync

    @abstractmethod
    def join(self, flat: Flat, tensors: Tensors, links: Any, rank: int) -> Sync:
        """As attach, for one exchange an update."""


OUTER = OptimiserSettings(kind="sgd", lr=1.0)

#: The version of a `base` while it is written.
HALF_WRITTEN = -1


class LocalSteps(Sync):
    """K steps of one's own, then one exchange of how far they led.

    The inner steps use this learner's own optimiser. The exchange gives the scheme the pseudo-gradient
    `base - values`, which it follows with plain SGD of step 1: for all-reduce this is the mean of everybody's vectors
    (local SGD), for a shared vector it is the sum of everybody's progress.

    In a `joint` scheme the learners agree at the exchange, on the mean of the numbers of their last local steps;
    between two exchanges there is no common number, and `agreed` is 0.
    """

    def __init__(
        self, outer: Sync, settings: SyncSettings, tensors: Mapping[str, Tensor], *, joint: bool = False
    ) -> None:
        super().__init__(outer.flat, settings)
        self.outer = outer
        self._joint, self._agreed = joint, 0.0
        self.costs = outer.costs
        self._tensors = Tensors(tensors)
        self._count, self._base = tensors["count"], tensors["base"]
        self._inner = make_optimiser(settings.optimiser, self.flat.values, self._tensors.below("optimiser"))
        if int(self._count) % settings.every:  # resumed between two exchanges
            self.flat.values.copy_(tensors["vector"])
            outer.version = int(tensors["version"])

    @staticmethod
    def specs(settings: SyncSettings, size: int) -> dict[str, Spec]:
        return {
            "vector": Spec((size,)),
            "base": Spec((size,)),
            "count": Spec((), torch.int64),
            "version": Spec((), torch.int64),
            **prefixed("optimiser", state_specs(settings.optimiser, size)),
        }

    @property
    def agreed(self) -> float:
        return self._agreed if self._joint else self.told

    def pull(self) -> None:
        if int(self._count) % self.settings.every == 0:
            if int(self._count):
                self.flat.values.copy_(self._base)
            self.outer.pull()
            # A base that a dead worker has half written is recognized by its version.
            self._tensors["version"].fill_(HALF_WRITTEN)
            self._base.copy_(self.flat.values)
            self._tensors["version"].fill_(self.outer.version)
            self._agreed = self.outer.agreed
        else:
            self._agreed = 0.0
        self.version = self.outer.version * self.settings.every + int(self._count) % self.settings.every

    def send(self) -> None:
        if self.clip(self.flat.grads):
            self._inner.step(self.lr, self.flat.grads)
        if (int(self._count) + 1) % self.settings.every == 0:
            self._count += 1
            torch.sub(self._base, self.flat.values, out=self.flat.grads)
            self.outer.local_lr = self.settings.every * self.lr
            self.outer.told = self.told
            self.outer.send()
        else:
            # The vector first: a worker that dies between the two leaves no vector of the round before.
            self._tensors["vector"].copy_(self.flat.values)
            self._count += 1


#: What a learner that waits for another calls every now and then: a sign that it does not hang itself.
on_wait: list[Callable[[], None]] = [lambda: None]
LONG = 0.5  # seconds of waiting after which that is worth a sign


def patiently(ready: Callable[[], bool], what: str, patience: float = 120.0) -> float:
    """Wait until `ready()`: spin a little, then yield, then sleep. Returns the seconds waited.

    A wait here is tens of microseconds when all goes well, less than a sleep costs; and it must not burn a core that
    the awaited process may need.
    """
    if ready():
        return 0.0
    start = time.perf_counter()
    while not ready():
        waited = time.perf_counter() - start
        if waited > patience:
            raise TimeoutError(f"waited {patience:.0f} s for {what}")
        if waited > LONG:
            on_wait[-1]()
        time.sleep(0 if waited < 300e-6 else 50e-6 if waited < 20e-3 else 1e-3)
    return time.perf_counter() - start


def await_bell(bell: Semaphore, what: str, patience: float) -> None:
    """Wait until a bell rings."""
    deadline = time.monotonic() + patience
    while not bell.acquire(True, LONG):
        on_wait[-1]()
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience:.0f} s for {what}")
