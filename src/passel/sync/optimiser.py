"""torch's optimisers on a vector, with their state in tensors that the caller owns.

An optimiser's state is then a few named tensors in an arena: shared between learners where the scheme says so, written
to a checkpoint like everything else, and never pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from passel.arena import Spec


@dataclass(frozen=True)
class OptimiserSettings:
    """Which of torch's optimisers steps the vector, and its numbers."""

    kind: str = "adam"
    lr: float = 1e-3
    eps: float = 1e-8
    momentum: float = 0.0
    decay: float = 0.99


def build(settings: OptimiserSettings, values: Tensor, grads: Tensor | None) -> torch.optim.Optimizer:
    """The optimiser over one vector. Fused where torch has a fused kernel: one pass over memory instead of many."""
    weight = nn.Parameter(values)
    weight.grad = grads
    if settings.kind == "adam":
        return torch.optim.Adam([weight], lr=settings.lr, eps=settings.eps, fused=True)
    if settings.kind == "rmsprop":
        return torch.optim.RMSprop(
            [weight], lr=settings.lr, alpha=settings.decay, eps=settings.eps, momentum=settings.momentum, foreach=True
        )
    if settings.kind == "sgd":
        return torch.optim.SGD([weight], lr=settings.lr, momentum=settings.momentum, fused=True)
    raise ValueError(f"no optimiser is called {settings.kind!r}")


def _first_state(settings: OptimiserSettings, size: int) -> dict[str, Tensor]:
    """The state tensors after one step on nothing: torch makes them at the first step, we need them before."""
    optimiser = build(settings, torch.zeros(size), torch.zeros(size))
    optimiser.step()
    (state,) = optimiser.state.values() or ({},)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def state_specs(settings: OptimiserSettings, size: int) -> dict[str, Spec]:
    """The tensors that the optimiser of a vector of `size` keeps between steps. All of them start at zero."""
    sizes = {name: value.dim() for name, value in _first_state(settings, 1).items()}
    types = {name: value.dtype for name, value in _first_state(settings, 1).items()}
    return {name: Spec((size,) if sizes[name] else (), types[name]) for name in sizes}


class VectorOptimiser:
    """One optimiser, one vector; `tensors` is its state, whoever owns it.

    Two learners may each hold a VectorOptimiser over the same shared tensors: that is what Hogwild! does.
    """

    def __init__(
        self, settings: OptimiserSettings, values: Tensor, grads: Tensor | None, tensors: Mapping[str, Tensor]
    ) -> None:
        self._optimiser = build(settings, values, grads)
        (self._weight,) = self._optimiser.param_groups[0]["params"]
        if tensors:
            self._optimiser.state[self._weight] = dict(tensors)

    def step(self, lr: float, grads: Tensor | None = None) -> None:
        """One step along `grads` (or along the vector of gradients given at the start)."""
        if grads is not None:
            self._weight.grad = grads
        self._optimiser.param_groups[0]["lr"] = lr
        self._optimiser.step()
