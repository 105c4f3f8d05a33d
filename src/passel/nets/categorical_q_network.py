"""A network that says how each action's return is distributed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from passel.maths.distributional import expected
from passel.maths.policy_gradient import log_softmax
from passel.maths.shapes import Array, Floats
from passel.nets.network import AnyTape, AutogradLoss, Network
from passel.nets.perceptron import RecordedLoss
from passel.nets.torsos import Bounds


class CategoricalQNetwork(Network):
    """Observations [B, ...] to a distribution over the atoms `support` for each action; as a module, and by `values`,
    to what these are worth, [B, A]. With `dueling` the first distribution is the state's, and Q = V + A - mean A holds
    for each atom before the softmax (Hessel et al. 2018).
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        n_actions: int,
        hidden: Sequence[int],
        support: Floats,
        *,
        dueling: bool,
        bounds: Bounds | None = None,
        precision: torch.dtype = torch.float32,
        layer_norm: bool = False,
    ) -> None:
        outputs = (n_actions + dueling) * len(support)
        super().__init__(obs_shape, outputs, hidden, bounds, precision=precision, layer_norm=layer_norm)
        self.support, self.dueling = support, dueling

    def forward(self, obs: Tensor) -> Tensor:
        output = super().forward(obs)
        z = torch.from_numpy(self.support).to(output.device)
        logits = output.view(len(output), -1, len(z))
        if self.dueling:
            logits = logits[:, :1] + logits[:, 1:] - logits[:, 1:].mean(1, keepdim=True)
        values: Tensor = logits.softmax(2) @ z
        return values

    def values(self, obs: Array) -> Floats:
        return expected(self.distributions(obs), self.support)

    def distributions(self, obs: Array) -> Floats:
        """How probable each atom is, without gradients, [B, A, N]."""
        logits = self._logits(super().values(obs))
        return np.exp(log_softmax(logits.reshape(-1, len(self.support)))).reshape(logits.shape)

    def record(self, obs: Array) -> tuple[Floats, AnyTape]:
        """The logits [B, A, N], and what `loss` needs to find their gradient."""
        output, tape = super().record(obs)
        return self._logits(output), tape

    def loss(self, value: float, tape: AnyTape, output_grad: Floats) -> RecordedLoss | AutogradLoss:
        """The loss `value`, whose gradient at the logits is `output_grad` [B, A, N]."""
        if self.dueling:
            total = output_grad.sum(axis=1, keepdims=True)
            output_grad = np.concatenate([total, output_grad - total / output_grad.shape[1]], axis=1)
        return super().loss(value, tape, output_grad.reshape(len(output_grad), -1))

    def _logits(self, output: Floats) -> Floats:
        logits = output.reshape(len(output), -1, len(self.support))
        if self.dueling:
            state, actions = logits[:, :1], logits[:, 1:]
            logits = state + actions - actions.mean(axis=1, keepdims=True)
        return logits
