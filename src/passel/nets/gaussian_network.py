"""A network that says where a Gaussian lies, and beside it, for all states alike, how wide it is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from passel.maths.shapes import Array, Floats
from passel.nets.network import AnyTape, AutogradLoss, Network
from passel.nets.perceptron import RecordedLoss


class Spread(NamedTuple):
    """How wide a policy's Gaussian is at the start, in each of `size` numbers, and whether that is learnt."""

    size: int
    log_std: float
    learnt: bool


class GaussianNetwork(Network):
    """As a Network, with the log-spreads as the first outputs: [B, A + K]. They are weights like others, or fixed."""

    def __init__(self, spread: Spread, **shape: Any) -> None:
        super().__init__(**shape)
        start = torch.full((spread.size,), spread.log_std)
        self.log_std: Tensor
        if spread.learnt:
            self.log_std = nn.Parameter(start)
        else:
            self.register_buffer("log_std", start, persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        output = super().forward(obs)
        return torch.cat([self.log_std.expand(len(output), -1), output], dim=1)

    def values(self, obs: Array) -> Floats:
        return self._with_spread(super().values(obs))

    def record(self, obs: Array) -> tuple[Floats, AnyTape]:
        output, tape = super().record(obs)
        return self._with_spread(output), tape

    def _with_spread(self, output: Floats) -> Floats:
        log_std = np.broadcast_to(self.log_std.detach().cpu().numpy(), (len(output), len(self.log_std)))
        return np.concatenate([log_std, output], axis=1)

    def loss(self, value: float, tape: AnyTape, output_grad: Floats) -> RecordedLoss | AutogradLoss:
        size = len(self.log_std)
        rest = super().loss(value, tape, np.ascontiguousarray(output_grad[:, size:]))
        return SpreadLoss(value, rest, self.log_std, output_grad[:, :size].sum(axis=0))


class SpreadLoss(AutogradLoss):
    """The loss of the means, and with it that of the spreads, whose gradient is the sum over all states."""

    def __init__(self, value: float, rest: RecordedLoss | AutogradLoss, log_std: Tensor, grad: Floats) -> None:
        self._value, self._rest, self._log_std, self._grad = value, rest, log_std, grad
        self.overwrites = getattr(rest, "overwrites", False)

    def backward(self) -> None:
        self._rest.backward()
        if self._log_std.grad is not None:
            self._log_std.grad.copy_(torch.from_numpy(self._grad))
