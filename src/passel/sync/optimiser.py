"""torch's optimisers on a vector, with their state in tensors that the caller owns.

An optimiser's state is then a few named tensors in an arena: shared between learners where the scheme says so, written
to a checkpoint like everything else, and never pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from passel.arena import Spec, cells

LINE = 16  # float32 numbers in a cache line of 64 bytes: where a vector may be cut without changing how kernels round


@dataclass(frozen=True)
class OptimiserSettings:
    """Which of torch's optimisers steps the vector, and its numbers."""

    kind: str = "adam"
    lr: float = 1e-3
    eps: float = 1e-8
    momentum: float = 0.0
    decay: float = 0.99


def state_specs(settings: OptimiserSettings, size: int) -> dict[str, Spec]:
    """The tensors that an optimiser keeps between steps, by torch's own names. All of them start at zero."""
    vector, count = Spec((size,)), Spec(())
    momentum = {"momentum_buffer": vector} if settings.momentum else {}
    return {
        "adam": {"step": count, "exp_avg": vector, "exp_avg_sq": vector},
        "rmsprop": {"step": count, "square_avg": vector, **momentum},
        "sgd": momentum,
    }[settings.kind]


class VectorOptimiser(ABC):
    """One optimiser, one vector; its state is `tensors`, whoever owns them.

    Two learners may each hold one over the same shared tensors: that is what Hogwild! does.
    """

    @abstractmethod
    def step(self, lr: float, grads: Tensor) -> None:
        """One step along `grads`."""


class _FusedAdam(VectorOptimiser):
    """torch.optim.Adam's fused kernel, called directly: on a small network the optimiser object around the kernel
    costs ten times the kernel (97 against 10 µs for 5,000 weights). Equal to it to the bit: see tests/sync.
    """

    def __init__(self, settings: OptimiserSettings, values: Tensor, tensors: Mapping[str, Tensor], first: int) -> None:
        self._eps, self._first = settings.eps, first
        self._count = cells(tensors["step"].numpy().reshape(1))
        vectors = (values, tensors["exp_avg"], tensors["exp_avg_sq"])
        self._lists = [_from(first, vector) for vector in vectors]
        self._lists += [[], [tensors["step"]] * len(self._lists[0])]

    def step(self, lr: float, grads: Tensor) -> None:
        values, *state = self._lists
        self._count[0] += 1
        torch._fused_adam_(
            values,
            _from(self._first, grads),
            *state,
            amsgrad=False,
            lr=lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self._eps,
            maximize=False,
        )


class _FusedSGD(VectorOptimiser):
    """torch.optim.SGD's fused kernel, called directly for the same reason."""

    def __init__(self, settings: OptimiserSettings, values: Tensor, tensors: Mapping[str, Tensor], first: int) -> None:
        self._momentum, self._first = settings.momentum, first
        self._values = _from(first, values)
        self._buffers = [part for tensor in tensors.values() for part in _from(first, tensor)]

    def step(self, lr: float, grads: Tensor) -> None:
        torch._fused_sgd_(
            self._values,
            _from(self._first, grads),
            self._buffers,
            weight_decay=0.0,
            momentum=self._momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )


class _RMSprop(VectorOptimiser):
    """torch.optim.RMSprop, which has no fused kernel, given its state before the first step."""

    def __init__(self, settings: OptimiserSettings, values: Tensor, tensors: Mapping[str, Tensor], first: int) -> None:
        self._weight = nn.Parameter(values)
        self._optimiser = torch.optim.RMSprop(
            [self._weight], lr=settings.lr, alpha=settings.decay, eps=settings.eps, momentum=settings.momentum
        )
        self._optimiser.state[self._weight] = dict(tensors)

    def step(self, lr: float, grads: Tensor) -> None:
        self._weight.grad = grads
        self._optimiser.param_groups[0]["lr"] = lr
        self._optimiser.step()


KINDS: dict[str, type[_FusedAdam] | type[_FusedSGD] | type[_RMSprop]] = {
    "adam": _FusedAdam,
    "rmsprop": _RMSprop,
    "sgd": _FusedSGD,
}


def make_optimiser(
    settings: OptimiserSettings, values: Tensor, tensors: Mapping[str, Tensor], first: int = 0
) -> VectorOptimiser:
    """The optimiser that `settings` names, over `values`, continuing from the state in `tensors`.

    A step begins at element `first` and ends there (torch's RMSprop always begins at 0). Learners that step one vector
    at the same time should begin far apart: else they take every cache line out of each other's hands, fall into step,
    and stay there; two workers with a 256-256 network then spent up to 18 % of their time in Adam, and 5 to 9 % now.
    """
    return KINDS[settings.kind](settings, values, tensors, first)


def _from(first: int, vector: Tensor) -> list[Tensor]:
    """The vector in the order in which it is stepped."""
    return [vector[first:], vector[:first]] if first else [vector]
