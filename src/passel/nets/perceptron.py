"""A perceptron that can differentiate itself.

Autograd's bookkeeping costs more than the arithmetic of a small network: for two hidden layers of 64 and a batch of 64,
forward and backward take twice as long through the autograd engine as the matrix products themselves. A stack of linear
layers and ReLUs has a backward pass of four lines, so it is written out here; everything else may use autograd as
ever, and `tests/nets` holds the two to the same gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Tape = list[Tensor]

_relu_backward = torch.ops.aten.threshold_backward.grad_input


class Perceptron(nn.Module):
    """Linear layers of the given widths with a ReLU after each, the last one excepted if `open_end`."""

    def __init__(self, inputs: int, widths: Sequence[int], *, open_end: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Linear(inputs, width), nn.ReLU(inplace=True)]
            inputs = width
        self.layers = nn.Sequential(*(layers[:-1] if open_end else layers))
        self.outputs = inputs
        linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self._weights = [(layer.weight, layer.bias) for layer in linear]
        self._open_end = open_end

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x) if torch.is_grad_enabled() else self.record(x)[0]
        return y

    def record(self, x: Tensor) -> tuple[Tensor, Tape]:
        """The output, and what `backward` needs: the input of every layer. Call it without gradients."""
        tape = []
        last = len(self._weights) - 1
        for number, (weight, bias) in enumerate(self._weights):
            tape.append(x)
            x = functional.linear(x, weight, bias)
            if number < last or not self._open_end:
                x.relu_()
        tape.append(x)
        return x, tape

    @torch.no_grad()
    def backward(self, tape: Tape, output_grad: Tensor) -> None:
        """Write the gradient of every weight to its `.grad`, in place of what was there.

        For y = x W^T + b and z = relu(y):  dy = dz * [z > 0],  dW = dy^T x,  db = sum dy,  dx = dy W
        """
        delta = output_grad
        last = len(self._weights) - 1
        for number in range(last, -1, -1):
            if number < last or not self._open_end:
                _relu_backward(delta, tape[number + 1], 0, grad_input=delta)
            weight, bias = self._weights[number]
            torch.mm(delta.t(), tape[number], out=weight.grad)
            torch.sum(delta, 0, out=bias.grad)
            if number:
                delta = torch.mm(delta, weight)


class RecordedLoss:
    """A loss whose gradient at the network's output is known in closed form. Stands where a scalar tensor would:
    a scheme asks for `item()` and calls `backward()`.
    """

    def __init__(self, value: Tensor, network: Perceptron, tape: Tape, output_grad: Tensor) -> None:
        self._value, self._network, self._tape, self._output_grad = value, network, tape, output_grad

    def item(self) -> float:
        return self._value.item()

    def backward(self) -> None:
        self._network.backward(self._tape, self._output_grad)
