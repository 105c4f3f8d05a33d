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


@dataclass(frozen=True)
class OptimiserSettings:
    """Which of torch's optimisers steps the vector, and its numbers."""

    kind: str = "adam"
    lr: float = 1e-3
    eps: float = 1e-8
    momentum: float = 0.0
    decay: float = 0.99
    centred: bool = False


def state_specs(settings: OptimiserSettings, size: int) -> dict[str, Spec]:
    """The tensors that an optimiser keeps between steps, by torch's own names. All of them start at zero."""
    vector, count = Spec((size,)), Spec(())
    momentum = {"momentum_buffer": vector} if settings.momentum else {}
    mean = {"grad_avg": vector} if settings.centred else {}
    return {
        "adam": {"step": count, "exp_avg": vector, "exp_avg_sq": vector},
        "rmsprop": {"step": count, "square_avg": vector, **momentum, **mean},
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

    def __init__(self, settings: OptimiserSettings, values: Tensor, tensors: Mapping[str, Tensor]) -> None:
        self._eps = settings.eps
        self._count = cells(tensors["step"].numpy().reshape(1))
        self._lists = [[values], [tensors["exp_avg"]], [tensors["exp_avg_sq"]], [], [tensors["step"]]]

    def step(self, lr: float, grads: Tensor) -> None:
        values, *state = self._lists
        self._count[0] += 1
        torch._fused_adam_(
            values,
            [grads],
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

    def __init__(self, settings: OptimiserSettings, values: Tensor, tensors: Mapping[str, Tensor]) -> None:
        self._momentum = settings.momentum
        self._values, self._buffers = [values], list(tensors.values())

    def step(self, lr: float, grads: Tensor) -> None:
        torch._fused_sgd_(
            self._values,
            [grads],
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

    def __init__(self, settings: OptimiserSettings, values: Tensor, tensors: Mapping[str, Tensor]) -> None:
        self._weight = nn.Parameter(values)
        self._optimiser = torch.optim.RMSprop(
            [self._weight],
            lr=settings.lr,
            alpha=settings.decay,
            eps=settings.eps,
            momentum=settings.momentum,
        )
        self._optimiser.state[self._weight] = dict(tensors)

    def step(self, lr: float, grads: Tensor) -> None:
        self._weight.grad = grads
        self._optimiser.param_groups[0]["lr"] = lr
        self._optimiser.step()


class _CentredRMSprop(VectorOptimiser):
    """torch.optim.RMSprop(centered=True), to the bit, but for one thing: a variance is never less than zero.

        v = E[g^2] - E[g]^2,     w -= lr g / (sqrt(max(v, 0)) + eps)

    Rounding can bring v below zero where gradients are all alike, and two learners under Hogwild! do so within minutes,
    for one of them may write the one mean and the other the other; torch takes the root of it all the same.
    """

    def __init__(self, settings: OptimiserSettings, values: Tensor, tensors: Mapping[str, Tensor]) -> None:
        self._settings, self._values = settings, values
        self._count, self._square, self._mean = tensors["step"], tensors["square_avg"], tensors["grad_avg"]
        self._momentum = tensors.get("momentum_buffer")

    def step(self, lr: float, grads: Tensor) -> None:
        decay, eps = self._settings.decay, self._settings.eps
        self._count += 1
        self._square.mul_(decay).addcmul_(grads, grads, value=1 - decay)
        self._mean.lerp_(grads, 1 - decay)
        spread = self._square.addcmul(self._mean, self._mean, value=-1).clamp_min_(0).sqrt_().add_(eps)
        if self._momentum is None:
            self._values.addcdiv_(grads, spread, value=-lr)
            return
        self._momentum.mul_(self._settings.momentum).addcdiv_(grads, spread)
        self._values.add_(self._momentum, alpha=-lr)


KINDS: dict[str, type[_FusedAdam] | type[_FusedSGD] | type[_RMSprop]] = {
    "adam": _FusedAdam,
    "rmsprop": _RMSprop,
    "sgd": _FusedSGD,
}


def make_optimiser(settings: OptimiserSettings, values: Tensor, tensors: Mapping[str, Tensor]) -> VectorOptimiser:
    """The optimiser that `settings` names, over `values`, continuing from the state in `tensors`."""
    if settings.kind == "rmsprop" and settings.centred:
        return _CentredRMSprop(settings, values, tensors)
    return KINDS[settings.kind](settings, values, tensors)
