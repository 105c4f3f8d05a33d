"""How far float32 arithmetic may lie from the exact result: bounds that follow from the size of the sum.

Two correct programs that add the same float32 products in another order differ in the last bits, and the order depends
on the processor: the width of its registers, its fused multiplications, the blocks of its BLAS. A test that compares
float32 with a fixed tolerance is therefore green on one processor and red on the next. Here the reference is computed
in float64, and the tolerance is derived.

One sum. With the unit roundoff u = 2^-24, every operation returns the exact result times (1 + d), |d| <= u. A product
that passes through at most n operations is multiplied by n such factors, whose product differs from 1 by at most

    gamma(n) = n u / (1 - n u)

(Higham, Accuracy and Stability of Numerical Algorithms, lemma 3.1). So, for any order of the additions,

    |fl(sum x_i y_i) - sum x_i y_i| <= gamma(n) sum |x_i y_i| + n 2^-126,

where the last term is underflow, for processors may take numbers below 2^-126 for zero.

Several layers. The factors of one layer multiply those of the next, so that n is the number of operations on the
longest path: `roundings` counts fan-in and fan-out of every layer, and the rows and positions over which a weight's
gradient is summed. The size of the sum is taken at the last one, sum over rows of |gradient of the row|, as its largest
element in each tensor: an element that is small because it lost digits by cancellation in an earlier layer is judged by
its tensor. What remains is the growth of an error on its way through the
layers. Rounding errors are independent enough to add up to sqrt(n) u rather than n u (Higham and Mary 2019), and this
reserve of sqrt(n), 50 for a network of convolutions, covers it: measured errors are 1/10 of the bound or less.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

#: Unit roundoff of float32.
UNIT = 2.0**-24

#: The smallest normal number of float32.
TINY = 2.0**-126

#: Operations of a loss of one row, from the outputs of a network to their slopes: differences, products, a softmax.
LOSS = 32


def gamma(terms: int) -> float:
    """The largest relative error of a float32 product that passes through `terms` operations."""
    assert terms * UNIT < 0.5, "so many terms leave no digit of float32"
    return terms * UNIT / (1 - terms * UNIT)


def assert_rounded(found: Any, exact: Any, terms: int, size: Any) -> None:
    """`found` differs from `exact` by no more than float32 rounding in sums of `terms` terms of total size `size`.

    found, exact  arrays or tensors of one shape; `exact` is computed in float64
    size          the sum of the absolute terms: one number, or one for each element
    """
    found, exact, size = (np.asarray(_detached(array), np.float64) for array in (found, exact, size))
    assert found.shape == exact.shape, f"shapes {found.shape} and {exact.shape}"
    error, bound = np.abs(found - exact), np.broadcast_to(gamma(terms) * size + terms * TINY, exact.shape)
    wrong = ~(error <= bound)
    if wrong.any():
        where = np.unravel_index(np.argmax(np.where(wrong, error / np.maximum(bound, 1e-300), 0)), error.shape)
        raise AssertionError(
            f"{wrong.sum()} of {wrong.size} elements differ by more than rounding. The worst, "
            f"{tuple(map(int, where))}: {found[where]!r} for {exact[where]!r}, an error of {error[where]:.3g}, where "
            f"sums of {terms} terms allow {bound[where]:.3g}"
        )


def _detached(array: Any) -> Any:
    return array.detach().numpy() if isinstance(array, Tensor) else array


def assert_sum(found: Any, terms: Any, axis: int = 0) -> None:
    """`found` is the sum of float32 `terms` along `axis`, added in some order."""
    exact = np.asarray(_detached(terms), np.float64)
    assert_rounded(found, exact.sum(axis=axis), exact.shape[axis], np.abs(exact).sum(axis=axis))


@dataclass(frozen=True)
class Gradient:
    """The exact gradient of a module's weights, as one vector, with what bounds a float32 result."""

    exact: Tensor
    size: Tensor
    terms: int

    def check(self, found: Tensor) -> None:
        assert_rounded(found, self.exact, self.terms, self.size)


def gradient_of(module: nn.Module, rows: int, loss: Callable[[Any, int], Tensor]) -> Gradient:
    """The gradient of sum_row loss(module, row) in float64, at the float32 weights that `module` has.

    `loss` is called with a copy of the module in float64, and gives it float64 inputs.
    """
    exact = copy.deepcopy(module).double()
    weights = list(exact.parameters())
    total = [torch.zeros_like(weight) for weight in weights]
    size = [torch.zeros_like(weight) for weight in weights]
    watch = _Fans(exact)
    for row in range(rows):
        value = loss(exact, row)
        assert value.dtype == torch.float64, "the reference is computed in float64"
        for at, gradient in enumerate(torch.autograd.grad(value, weights, allow_unused=True)):
            if gradient is not None:
                total[at] += gradient
                size[at] += gradient.abs()
    watch.close()
    sizes = [torch.full_like(each, float(each.max())) for each in size]
    return Gradient(_vector(total), _vector(sizes), watch.roundings(rows))


def _vector(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class _Fans:
    """Counts the operations on the longest path through a module and back, as its layers are called."""

    def __init__(self, module: nn.Module) -> None:
        self._fans: dict[nn.Module, int] = {}
        self._positions = 1
        layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        self._handles = [layer.register_forward_hook(self._called) for layer in layers]

    def _called(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        positions = output[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
        # With its bias forwards; backwards the fan-out, at every position of a kernel.
        self._fans[layer] = weight[0].numel() + 1 + weight[:, 0].numel()
        self._positions = max(self._positions, positions)

    def roundings(self, rows: int) -> int:
        return sum(self._fans.values()) + rows * self._positions + LOSS

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
