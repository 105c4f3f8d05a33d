"""The learner: turns experience into gradients, and hands them to the scheme."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from passel.algos.base import Loss
from passel.clock import Clock
from passel.sync.base import Costs, NonFiniteError, Sync
from passel.types import DivergedError, Floats


class Partner(Protocol):
    """Somebody who learns from the same batches at the same time, another network."""

    costs: Costs
    #: The squared norm of its last gradient.
    grad_square: float

    def ask(self, lr: float) -> None:
        """Learn from the batch that was just drawn."""

    def join(self) -> None:
        """Return when that is done."""


class Draws(Protocol):
    """Where batches come from: experience, or the learner's side of it."""

    def batch(self, steps_so_far: int) -> Any: ...
    def feedback(self, batch: Any, td_abs: Floats | None) -> None: ...
    def abandon(self) -> None: ...


class Pupil(Protocol):
    """What is taught: an algorithm, or another network with a loss."""

    @property
    def flats(self) -> Mapping[str, Any]: ...
    def refresh(self, version: int) -> None: ...
    def enough(self, agreed: float) -> bool: ...
    def loss(self, batch: Any, progress: float = 0.0) -> Loss: ...


class Learner:
    """One update at a time: pull, draw, differentiate, push. `stage` is what its time is called.

    Runs in: each learner.
    """

    def __init__(
        self,
        algo: Pupil,
        syncs: Mapping[str, Sync],
        experience: Draws,
        clock: Clock,
        partner: Partner | None = None,
        stage: str = "learn",
    ) -> None:
        self._algo, self._syncs, self._experience, self._clock = algo, syncs, experience, clock
        self._partner, self._stage = partner, stage
        self._sharing = [sync.costs for sync in syncs.values()] + ([partner.costs] if partner else [])
        self._first = next(iter(syncs.values()))
        self.loss = 0.0
        #: The learning rate of the last update.
        self.lr = math.nan
        self._costs = (0.0, 0.0, 0.0)

    def pull(self) -> None:
        """Bring every network up to date."""
        try:
            for sync in self._syncs.values():
                sync.pull()
        except NonFiniteError as error:
            raise DivergedError(explain(error, self._modules)) from error
        if self._partner:
            self._partner.join()
        self._algo.refresh(self._first.version)
        if self._algo.enough(self._first.agreed):
            self._experience.abandon()
        self._mark()

    def update(self, steps_so_far: int, lr: float, progress: float = 0.0) -> None:
        """One update of every network."""
        batch = self._experience.batch(steps_so_far)
        self._clock.mark("sample")
        if self._partner:
            self._partner.ask(lr)
        loss = self._algo.loss(batch, progress)
        self.lr = lr
        for sync in self._syncs.values():
            sync.lr, sync.told = lr, loss.told
        try:
            self.loss = sum(sync.push(loss.losses[name]) for name, sync in self._syncs.items() if name in loss.losses)
        except NonFiniteError as error:
            raise DivergedError(explain(error, self._modules, batch, self._experience)) from error
        self._experience.feedback(batch, loss.td_abs)
        self._mark()

    @property
    def _modules(self) -> list[nn.Module]:
        return [flat.module for flat in self._algo.flats.values()]

    @property
    def refused(self) -> int:
        """Gradients that were not finite, and were not applied."""
        return sum(costs.refused for costs in self._sharing)

    @property
    def grad_norm(self) -> float:
        """The norm of the last gradients of all networks together, before they were clipped; nan if there is none."""
        squares = [sync.grad_square for sync in self._syncs.values()]
        squares += [self._partner.grad_square] if self._partner else []
        known = [square for square in squares if not math.isnan(square)]
        return math.sqrt(sum(known)) if known else math.nan

    def remember(self, staleness: float, updates: int) -> None:
        """Go on counting from what a resumed run had counted."""
        costs = self._first.costs
        costs.staleness, costs.pushes = staleness * updates, updates

    @property
    def staleness(self) -> float:
        """Mean number of versions that went by between a pull and the update that came of it."""
        costs = [sync.costs for sync in self._syncs.values()]
        return sum(c.staleness for c in costs) / max(sum(c.pushes for c in costs), 1)

    def _mark(self) -> None:
        """What has passed was learning, except for what the schemes say they spent on sharing."""
        self._clock.mark(self._stage)
        costs = self._sharing
        now = (sum(c.wait for c in costs), sum(c.copy for c in costs), sum(c.apply for c in costs))
        for stage, before, after in zip(("wait", "copy", "apply"), self._costs, now, strict=True):
            self._clock.move(after - before, self._stage, stage)
        self._costs = now


def explain(error: NonFiniteError, networks: Iterable[nn.Module], batch: Any = None, experience: Any = None) -> str:
    """Where the first number that is not finite came from: the data, a weight, the output of a layer or a gradient."""
    rewards = getattr(batch, "reward", getattr(experience, "rewards", None))
    cure = (
        _too_large("observations", getattr(batch, "obs", None))
        or _too_large("rewards", rewards)
        or "Train again with a smaller --lr or --max-grad-norm; what was learnt until then is kept."
    )
    for name, what in (("obs", "observations"), ("next_obs", "observations"), ("reward", "rewards")):
        if _holds_nan(getattr(batch, name, None)):
            return f"{error}: {_NAN_DATA.format(what)}"
    for module in networks:
        for name, weight in module.named_parameters():
            if not torch.isfinite(weight).all():
                return f"{error}: the weights of layer {name} are no longer finite. {cure}"
        layer = None if batch is None else _first_layer_to_overflow(module, torch.from_numpy(batch.obs))
        if layer:
            return f"{error}: the output of layer {layer} is no longer finite. {cure}"
    if error.layer:
        return f"{error}, first at layer {error.layer}, though the loss was. {cure}"
    # A minibatch has advantages in place of rewards. These may hold a value of the critic, which is finite by now.
    if _holds_nan(rewards):
        return f"{error}: {_NAN_DATA.format('rewards')}"
    return f"{error}: the targets are no longer finite. {cure}"


_NAN_DATA = "the environment's {} hold NaN or infinity. Mend it, or clip what it returns."


#: From this size on, squares of numbers, or of sums of many, overflow in single precision.
LARGE = 1e15


def _too_large(what: str, array: Any) -> str:
    """The cure where numbers of the environment are finite and too large to be learnt from; else empty."""
    if array is None or array.dtype.kind != "f" or not len(array):
        return ""
    largest = np.abs(array).max()
    if not largest > LARGE:
        return ""
    return f"The environment's {what} are as large as {largest:.0e}: scale them down in a wrapper."


def _holds_nan(array: Any) -> bool:
    return array is not None and not np.isfinite(array).all()


def _first_layer_to_overflow(module: nn.Module, obs: Tensor) -> str | None:
    found: list[str] = []

    def watch(name: str) -> object:
        def hook(_: nn.Module, __: object, output: Tensor) -> None:
            if not torch.isfinite(output).all():
                found.append(name)

        return hook

    handles = [
        layer.register_forward_hook(watch(name)) for name, layer in module.named_modules() if not list(layer.children())
    ]
    module(obs)
    for handle in handles:
        handle.remove()
    return found[0] if found else None
