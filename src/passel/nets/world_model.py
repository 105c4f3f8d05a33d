"""A model of an environment: several perceptrons that learn the same thing apart, in one vector.

Each layer of all members is one parameter, [M, out, in], and one call of numpy's matmul: M small networks cost little
more than one of their size. As in `perceptron.py`, a row of a batch is a column of a matrix, and the backward pass is
written out; `tests/nets` holds it to autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from passel.maths.shapes import Array, Floats, like_torch

Tape = list[Floats]


class WorldModel(nn.Module):
    """(state, action) to (change of state, reward, logit of termination), `members` times over.

    Inputs are [M, I, B], or [I, B] for all members alike: a scaled state and the action as one of A ones. Outputs are
    [M, S + 2, B]. Members differ by where they start and by what they are shown.
    """

    def __init__(self, obs_size: int, n_actions: int, hidden: Sequence[int], members: int) -> None:
        super().__init__()
        self.members, self.obs_size, self.n_actions = members, obs_size, n_actions
        widths = [obs_size + n_actions, *hidden, obs_size + 2]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in pairwise(widths):
            reach = 1 / math.sqrt(inputs)  # as torch starts a linear layer
            self.weights.append(nn.Parameter(torch.empty(members, outputs, inputs).uniform_(-reach, reach)))
            self.biases.append(nn.Parameter(torch.empty(members, outputs, 1).uniform_(-reach, reach)))
        self._wires: list[_Wire] = []
        self._wired_to: tuple[int, int] = (0, 0)

    def forward(self, x: Tensor) -> Tensor:
        """As `record`, by torch. Of states alone, [B, S], the outputs where no action is taken."""
        if x.dim() == 2 and x.shape[1] == self.obs_size:
            x = nn.functional.pad(x, (0, self.n_actions)).T
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = weight @ (x.relu() if number else x) + bias
        return x

    def inputs(self, scaled_obs: Floats, action: Array) -> Floats:
        """[..., B, S] and [..., B] to [..., I, B]."""
        chosen = (action[..., None, :] == np.arange(self.n_actions)[:, None]).astype(np.float32)
        return np.concatenate([np.swapaxes(scaled_obs, -1, -2), chosen], axis=-2, dtype=np.float32)

    @like_torch
    def record(self, x: Floats) -> tuple[Floats, Tape]:
        """The outputs, and what `backward` needs: the input of every layer."""
        tape = [x]
        for number, wire in enumerate(self._wire()):
            if number:
                x = np.maximum(x, 0, out=x)
                tape.append(x)
            x = np.matmul(wire.weight, x)
            x += wire.bias
        return x, tape

    @like_torch
    def backward(self, tape: Tape, output_grad: Floats) -> None:
        """Write the gradient of every weight to its `.grad`, in place of what was there. `tape` is of [M, I, B].

        For y = W x + b:  dW = dy x^T,  db = sum dy,  dx = W^T dy, and through a ReLU  dx * [x > 0]
        """
        wires, delta = self._wire(), output_grad
        for number in range(len(wires) - 1, -1, -1):
            wire, x = wires[number], tape[number]
            np.matmul(delta, x.swapaxes(1, 2), out=wire.weight_grad)
            np.sum(delta, axis=2, keepdims=True, out=wire.bias_grad)
            if number:
                delta = np.matmul(wire.weight.swapaxes(1, 2), delta)
                delta *= x > 0

    def _wire(self) -> list[_Wire]:
        """numpy's view of the weights and gradients, made anew when the module was bound to other memory."""
        first = self.weights[0]
        now = (first.data_ptr(), 0 if first.grad is None else first.grad.data_ptr())
        if now != self._wired_to:
            self._wires = [_Wire(*pair) for pair in zip(self.weights, self.biases, strict=True)]
            self._wired_to = now
        return self._wires


class _Wire:
    """One layer's weights and gradients, of all members, as arrays."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight: Floats = weight.detach().numpy()
        self.bias: Floats = bias.detach().numpy()
        # Without a Flat there is no place for a gradient, and nobody asks for one.
        self.weight_grad, self.bias_grad = (
            np.empty(0, np.float32) if each.grad is None else each.grad.numpy() for each in (weight, bias)
        )
