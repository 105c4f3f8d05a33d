"""A network from observations to numbers: a torso, and a perceptron behind it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from passel.maths.shapes import Array, Floats
from passel.nets.images import ImagePath, ImageTape
from passel.nets.perceptron import Perceptron, RecordedLoss, Tape
from passel.nets.torsos import FILTERS, Bounds, ImageTorso, VectorTorso, torso_for

AnyTape = Tape | ImageTape | Array | Tensor


class Network(nn.Module):
    """Observations [B, ...] to outputs [B, K]. How an algorithm uses it, whatever it is made of:

        output, tape = network.record(obs)                  # arrays
        loss = network.loss(value, tape, output_grad)       # the derivative of the loss by the output
        loss.backward()                                     # the scheme: into the gradients of the weights

    Vectors go through a perceptron that differentiates itself, images through convolutions that do; `precision` is what
    these multiply in. Weights that are not on the CPU are left to autograd.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        outputs: int,
        hidden: Sequence[int],
        bounds: Bounds | None = None,
        filters: Sequence[int] = FILTERS,
        precision: torch.dtype = torch.float32,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.torso = torso_for(obs_shape, bounds, filters)
        self.perceptron = Perceptron(self.torso.features, [*hidden, outputs], open_end=True, layer_norm=layer_norm)
        #: Past autograd; in a tuple, past Module.__getattr__.
        self._vectors = (self.torso, self.perceptron) if isinstance(self.torso, VectorTorso) else None
        self._images = ImagePath(self.torso, self.perceptron, precision) if isinstance(self.torso, ImageTorso) else None

    def forward(self, obs: Tensor) -> Tensor:
        output: Tensor = self.perceptron(self.torso(obs))
        return output

    def values(self, obs: Array) -> Floats:
        """The output, without gradients."""
        if self._vectors:
            return Network.record(self, obs)[0]
        if self._images and self._on_cpu:
            return self._images.values(obs)
        with torch.no_grad():
            return Network.record(self, obs)[0]

    def record(self, obs: Array) -> tuple[Floats, AnyTape]:
        """The output, and what `loss` needs to find its gradient."""
        if self._vectors:
            torso, perceptron = self._vectors
            return perceptron.record(torso.of_arrays(obs))
        if self._images and self._on_cpu:
            return self._images.record(obs)
        output = Network.forward(self, torch.from_numpy(obs).to(next(self.parameters()).device))
        return output.detach().cpu().numpy(), output

    def loss(self, value: float, tape: AnyTape, output_grad: Floats) -> RecordedLoss | AutogradLoss:
        """The loss `value`, whose gradient at the outputs is `output_grad` [B, K]."""
        if isinstance(tape, list):
            assert self._vectors
            return RecordedLoss(value, partial(self._vectors[1].backward, tape, output_grad))
        if isinstance(tape, Tensor):
            return AutogradLoss(value, tape, output_grad)
        assert self._images
        return RecordedLoss(value, partial(self._images.backward, tape, output_grad))

    @property
    def _on_cpu(self) -> bool:
        return next(self.parameters()).is_cpu

    @torch.no_grad()
    def start_orthogonal(self, last_gain: float) -> None:
        """Orthogonal weights with the gain of a ReLU, `last_gain` at the end, and no biases (Saxe et al. 2014)."""
        layers = [module for module in self.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else nn.init.calculate_gain("relu"))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class AutogradLoss:
    """A loss whose gradient at the network's output is known in closed form, and from there on by autograd."""

    def __init__(self, value: float, output: Tensor, output_grad: Floats) -> None:
        self._value, self._output, self._output_grad = value, output, output_grad

    def item(self) -> float:
        return self._value

    def backward(self) -> None:
        self._output.backward(torch.from_numpy(self._output_grad).to(self._output.device))  # type: ignore[no-untyped-call]
