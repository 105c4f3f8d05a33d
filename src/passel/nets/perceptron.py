"""A perceptron that can differentiate itself.

Small networks spend their time between the matrix products, not in them. For two hidden layers of 64 and a batch of 64
the arithmetic of an update takes 80 µs; autograd's bookkeeping and torch's dispatcher make 900 of it. A stack of linear
layers and ReLUs has a backward pass of four lines, so it is written out here, as calls of numpy into BLAS on buffers
that are made once (bench/results/update_cost.md has the figures). Inside, an observation is a column of a matrix, not a
row: y = W x is the product that BLAS does best, where x W^T takes an eighth longer. Everything else may use `forward`
and autograd as ever; `tests/nets` holds the two to the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor, nn

from passel.maths.shapes import Floats, like_torch

Tape = list[Floats]

_EPSILON = 1e-5  # torch's, of the variance in a layer norm
_DESKS = 4  # batch sizes whose buffers are kept: to act, to learn, to evaluate, and one more


class Perceptron(nn.Module):
    """Linear layers of the given widths with a ReLU after each, the last one excepted if `open_end`.

    With `layer_norm` the outputs of each hidden layer have mean 0 and variance 1 in every row before the ReLU (Ba et
    al. 2016), without a scale and an offset to learn: those of the next layer are enough.
    """

    def __init__(self, inputs: int, widths: Sequence[int], *, open_end: bool = False, layer_norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, width in enumerate(widths, start=1):
            layers.append(nn.Linear(inputs, width))
            if number < len(widths):
                layers += [nn.LayerNorm(width, eps=_EPSILON, elementwise_affine=False)] if layer_norm else []
            if number < len(widths) or not open_end:
                layers.append(nn.ReLU(inplace=True))
            inputs = width
        self.layers = nn.Sequential(*layers)
        self.outputs = inputs
        self._linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self._first = (self._linear[0].weight,)  # in a tuple, past Module.__getattr__
        self._open_end, self._layer_norm = open_end, layer_norm
        self._wires: list[_Wire] = []
        self._wired_to: tuple[int, int] = (0, 0)
        self._desks: dict[int, list[_Desk]] = {}

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y

    @like_torch
    def record(self, x: Floats) -> tuple[Floats, Tape]:
        """The output [B, K], and what `backward` needs: the input of every layer, and the output, [width, B] each.

        The output is the caller's. The rest of the tape lies in buffers that the next `record` of as many rows uses
        again, so call `backward` first.
        """
        *hidden, last = self._wire()
        column = x.T
        tape = [column]
        for wire, desk in zip(hidden, self._desk(len(x)), strict=True):
            column = wire.apply(column, desk.output)
            np.maximum(desk.normalize() if self._layer_norm else column, desk.zeros, out=column)
            tape.append(column)
        column = last.apply(column, None)
        if not self._open_end:
            np.maximum(column, 0, out=column)
        tape.append(column)
        return column.T, tape

    @like_torch
    def backward(self, tape: Tape, output_grad: Floats) -> None:
        """Write the gradient of every weight to its `.grad`, in place of what was there.

        For y = W x + b and z = relu(y):  dy = dz * [z > 0],  dW = dy x^T,  db = sum dy,  dx = W^T dy
        """
        wires, desks = self._wire(), self._desk(len(output_grad))
        delta = output_grad.T if self._open_end else output_grad.T * (tape[-1] > 0)
        for number in range(len(wires) - 1, -1, -1):
            wires[number].write_gradient(tape[number], delta)
            if number:
                desk = desks[number - 1]
                np.matmul(wires[number].weight_t, delta, out=desk.delta)
                delta = np.multiply(desk.delta, tape[number] > 0, out=desk.delta)
                if self._layer_norm:
                    desk.normalize_back()

    def _wire(self) -> list[_Wire]:
        """numpy's view of the weights and gradients, made anew when the module was bound to other memory."""
        (first,) = self._first
        now = (first.data_ptr(), 0 if first.grad is None else first.grad.data_ptr())
        if now != self._wired_to:
            self._wires = [_Wire(layer) for layer in self._linear]
            self._wired_to = now
        return self._wires

    def _desk(self, rows: int) -> list[_Desk]:
        """Buffers for the hidden layers and so many rows: memory that stays in the cache from update to update."""
        desks = self._desks.get(rows)
        if desks is None:
            if len(self._desks) >= _DESKS:
                self._desks.clear()
            desks = self._desks[rows] = [_Desk(rows, layer.out_features) for layer in self._linear[:-1]]
        return desks


class _Wire:
    """One layer's weights and gradients as arrays."""

    def __init__(self, layer: nn.Linear) -> None:
        self.weight: Floats = layer.weight.detach().numpy()
        self.weight_t, self._bias = self.weight.T, layer.bias.detach().numpy()[:, None]
        self._weight_grad, self._bias_grad = (
            None if weight.grad is None else weight.grad.numpy() for weight in (layer.weight, layer.bias)
        )
        self._ones = np.ones(0, np.float32)

    def apply(self, x: Floats, out: Floats | None) -> Floats:
        """y = W x + b."""
        y: Floats = np.matmul(self.weight, x, out=out)
        y += self._bias
        return y

    def write_gradient(self, x: Floats, delta: Floats) -> None:
        """dW = delta x^T and db = sum delta."""
        if self._weight_grad is None:
            raise ValueError("there is no place for the gradient: put the module behind a Flat first")
        if len(self._ones) != delta.shape[1]:
            self._ones = np.ones(delta.shape[1], np.float32)
        np.matmul(delta, x.T, out=self._weight_grad)
        np.matmul(delta, self._ones, out=self._bias_grad)  # half the price of a sum over rows


class _Desk:
    """Where one hidden layer works on a batch: its output, and the loss's slope there."""

    def __init__(self, rows: int, width: int) -> None:
        self.output: Floats = np.empty((width, rows), np.float32)
        self.delta: Floats = np.empty((width, rows), np.float32)
        self.zeros: Floats = np.zeros((width, rows), np.float32)  # a maximum with an array costs a third of one with 0
        self._mean: Floats = np.full(width, 1 / width, np.float32)  # a product with it is a mean over the layer
        self._scale: Floats = np.empty(rows, np.float32)
        self._normal: Floats = np.empty((width, rows), np.float32)
        self._product: Floats = np.empty((width, rows), np.float32)

    def normalize(self) -> Floats:
        """The output with mean 0 and variance 1 in every row, in memory of its own: `normalize_back` needs it."""
        self.output -= self._mean @ self.output
        variance = self._mean @ np.square(self.output, out=self._product)
        np.sqrt(variance + np.float32(_EPSILON), out=self._scale)
        np.reciprocal(self._scale, out=self._scale)
        return np.multiply(self.output, self._scale, out=self._normal)

    def normalize_back(self) -> None:
        """From the slope at what `normalize` gave to the slope at the output, in place.

        For n = (y - mean y) / std y:  dy = (dn - mean dn - n mean(n dn)) / std y
        """
        inner = self._mean @ np.multiply(self._normal, self.delta, out=self._product)
        self.delta -= self._mean @ self.delta
        self.delta -= np.multiply(self._normal, inner, out=self._product)
        self.delta *= self._scale


class RecordedLoss:
    """A loss whose gradient at the network's output is known in closed form. Stands where a scalar tensor would:
    a scheme asks for `item()` and calls `backward()`.
    """

    #: Gradients are written over what was there, not added to it.
    overwrites = True

    def __init__(self, value: float, backward: Callable[[], None]) -> None:
        self._value, self.backward = value, backward

    def item(self) -> float:
        return self._value
