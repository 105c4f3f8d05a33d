"""One vector behind a module: all weights are views into it, all gradients into another.

A synchronisation scheme then has one thing to copy, average, slice or lock, and an optimiser has one tensor to step.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

#: Up to so many numbers numpy's BLAS takes one thread for a product of two vectors, whatever it may.
ONE_THREAD = 10_000


def squared_norm(vector: Tensor) -> float:
    """The sum of the squares of a vector; not finite where one of its elements is not.

    numpy's product of small vectors costs a tenth of torch's; of large ones it wakes threads of its own, which then
    fight torch's for the cores. Unlike `dot`, `vdot` is silent about an overflow.
    """
    if vector.is_cpu and len(vector) <= ONE_THREAD:
        array = vector.numpy()
        return float(np.vdot(array, array))
    return float(vector.dot(vector))


class Loss(Protocol):
    """A scalar tensor, or anything that puts its gradient where autograd would."""

    def backward(self) -> None: ...


class Flat:
    """Moves a module's weights into one contiguous float32 vector and keeps them there.

    `values` and `grads` are the vectors. A scheme may `bind` them to memory of its own, in shared memory say.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.values = torch.cat([weight.detach().reshape(-1) for weight in module.parameters()])
        self.grads = torch.zeros_like(self.values)
        self._ends: list[tuple[int, str]] = []
        end = 0
        for name, weight in module.named_parameters():
            if weight.dtype != torch.float32:
                raise ValueError(f"{name} is {weight.dtype}; every weight must be float32 to live in one vector")
            end += weight.numel()
            self._ends.append((end, name))
        self.bind(self.values, self.grads)

    def bind(self, values: Tensor | None = None, grads: Tensor | None = None) -> None:
        """Look at these vectors from now on. The module takes the values that it finds there."""
        for vector in (values, grads):
            if vector is not None and (vector.shape != self.values.shape or vector.dtype != torch.float32):
                raise ValueError(f"a float32 vector of {len(self)} is needed, not {vector.dtype} {tuple(vector.shape)}")
        self.values = self.values if values is None else values
        self.grads = self.grads if grads is None else grads
        start = 0
        for (end, _), weight in zip(self._ends, self.module.parameters(), strict=True):
            weight.data = self.values[start:end].view(weight.shape)
            weight.grad = self.grads[start:end].view(weight.shape)
            start = end

    def __len__(self) -> int:
        return self.values.numel()

    def name_at(self, position: int) -> str:
        """The weight that an element of the vector belongs to."""
        return next(name for end, name in self._ends if position < end)

    def backward(self, loss: Loss) -> None:
        """The gradient of `loss`, into `grads`; what was there before is gone.

        Gradients are views that autograd adds to, so they are zeroed and never set to None: the much-copied Hogwild!
        code that lets `zero_grad` replace them trains on gradients that nobody applies.
        """
        if not getattr(loss, "overwrites", False):
            self.grads.zero_()
        loss.backward()
