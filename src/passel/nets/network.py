"""A network from observations to numbers: a torso, and a perceptron behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from passel.maths.shapes import Array, Floats
from passel.nets.perceptron import Perceptron, RecordedLoss, Tape
from passel.nets.torsos import FILTERS, Bounds, VectorTorso, torso_for

#: Numbers of observations. What a convolution leaves for its way back is some twenty times their bytes, in each network
#: at the same time; a larger batch is seen twice, which costs a third more time, and then its gradients are added up.
DIFFERENTIATED_AT_ONCE = 1 << 22


class Network(nn.Module):
    """Observations [B, ...] to outputs [B, K]. How an algorithm uses it, whatever it is made of:

        output, tape = network.record(obs)                  # arrays
        loss = network.loss(value, tape, output_grad)       # the derivative of the loss by the output
        loss.backward()                                     # the scheme: into the gradients of the weights

    Vectors go through a perceptron that differentiates itself; images through convolutions and autograd.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        outputs: int,
        hidden: Sequence[int],
        bounds: Bounds | None = None,
        filters: Sequence[int] = FILTERS,
    ) -> None:
        super().__init__()
        self.torso = torso_for(obs_shape, bounds, filters)
        self.perceptron = Perceptron(self.torso.features, [*hidden, outputs], open_end=True)
        #: Past autograd, for vectors; in a tuple, past Module.__getattr__.
        self._short_cut = (self.torso, self.perceptron) if isinstance(self.torso, VectorTorso) else None

    def forward(self, obs: Tensor) -> Tensor:
        output: Tensor = self.perceptron(self.torso(obs))
        return output

    def values(self, obs: Array) -> Floats:
        """The output, without gradients."""
        if self._short_cut:
            return self.record(obs)[0]
        with torch.no_grad():
            return self.record(obs)[0]

    def record(self, obs: Array) -> tuple[Floats, Tape | Tensor | Array]:
        """The output, and what `loss` needs to find its gradient: of many images, the images themselves."""
        if self._short_cut:
            torso, perceptron = self._short_cut
            return perceptron.record(torso.of_arrays(obs))
        if torch.is_grad_enabled() and obs.size > DIFFERENTIATED_AT_ONCE:
            with torch.no_grad():
                parts = [Network.forward(self, torch.from_numpy(obs[part])) for part in spans(obs)]
            return torch.cat(parts).numpy(), obs
        output: Tensor = Network.forward(self, torch.from_numpy(obs))
        return output.detach().numpy(), output

    def loss(self, value: float, tape: Tape | Tensor | Array, output_grad: Floats) -> RecordedLoss | AutogradLoss:
        """The loss `value`, whose gradient at the outputs is `output_grad` [B, K]."""
        if isinstance(tape, Tensor):
            return AutogradLoss(value, tape, output_grad)
        if isinstance(tape, np.ndarray):
            return PiecewiseLoss(value, self, tape, output_grad)
        assert self._short_cut
        return RecordedLoss(value, self._short_cut[1], tape, output_grad)

    @torch.no_grad()
    def start_orthogonal(self, last_gain: float) -> None:
        """Orthogonal weights with the gain of a ReLU, `last_gain` at the end, and no biases (Saxe et al. 2014)."""
        layers = [module for module in self.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else nn.init.calculate_gain("relu"))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def spans(obs: Array) -> list[slice]:
    """Parts of a batch that are small enough to be differentiated at once."""
    stride = max(1, DIFFERENTIATED_AT_ONCE // max(1, obs[0].size))
    return [slice(start, start + stride) for start in range(0, len(obs), stride)]


class AutogradLoss:
    """A loss whose gradient at the network's output is known in closed form, and from there on by autograd."""

    def __init__(self, value: float, output: Tensor, output_grad: Floats) -> None:
        self._value, self._output, self._output_grad = value, output, output_grad

    def item(self) -> float:
        return self._value

    def backward(self) -> None:
        self._output.backward(torch.from_numpy(self._output_grad))  # type: ignore[no-untyped-call]


class PiecewiseLoss(AutogradLoss):
    """The same for a batch whose way through the network is too large to keep: it is gone again, part by part."""

    def __init__(self, value: float, network: Network, obs: Array, output_grad: Floats) -> None:
        self._value, self._network, self._obs, self._output_grad = value, network, obs, output_grad

    def backward(self) -> None:
        for part in spans(self._obs):
            output = Network.forward(self._network, torch.from_numpy(self._obs[part]))
            output.backward(torch.from_numpy(self._output_grad[part]))  # type: ignore[no-untyped-call]
