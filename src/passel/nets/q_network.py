"""A network that says what each action is worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from passel.maths.q_learning import dueling
from passel.maths.shapes import Array, Floats
from passel.nets.network import AnyTape, AutogradLoss, Network
from passel.nets.perceptron import RecordedLoss
from passel.nets.torsos import Bounds


class QNetwork(Network):
    """Observations [B, ...] to action values [B, A]. With `dueling`, the first output is the state's value and the
    others are advantages.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        n_actions: int,
        hidden: Sequence[int],
        *,
        dueling: bool,
        bounds: Bounds | None = None,
        precision: torch.dtype = torch.float32,
        layer_norm: bool = False,
    ) -> None:
        outputs = n_actions + 1 if dueling else n_actions
        super().__init__(obs_shape, outputs, hidden, bounds, precision=precision, layer_norm=layer_norm)
        self.dueling = dueling

    def forward(self, obs: Tensor) -> Tensor:
        output = super().forward(obs)
        return dueling(output[:, :1], output[:, 1:]) if self.dueling else output

    def values(self, obs: Array) -> Floats:
        output = super().values(obs)
        return dueling(output[:, :1], output[:, 1:]) if self.dueling else output

    def record(self, obs: Array) -> tuple[Floats, AnyTape]:
        output, tape = super().record(obs)
        if self.dueling:
            output = dueling(output[:, :1], output[:, 1:])
        return output, tape

    def loss(self, value: float, tape: AnyTape, output_grad: Floats) -> RecordedLoss | AutogradLoss:
        if self.dueling:
            # Q_a = V + A_a - mean A, so dV = sum_a dQ_a and dA_a = dQ_a - mean_a' dQ_a'.
            total = output_grad.sum(axis=1, keepdims=True)
            output_grad = np.concatenate([total, output_grad - total / output_grad.shape[1]], axis=1)
        return super().loss(value, tape, output_grad)
