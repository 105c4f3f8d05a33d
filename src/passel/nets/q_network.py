"""A network that says what each action is worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from passel.maths.q_learning import dueling
from passel.maths.shapes import Array, Floats
from passel.nets.perceptron import Perceptron, RecordedLoss, Tape
from passel.nets.torsos import VectorTorso, torso_for


class QNetwork(nn.Module):
    """Observations [B, ...] to action values [B, A]. With `dueling`, the first output is the state's value and the
    others are advantages.
    """

    def __init__(self, obs_shape: Sequence[int], n_actions: int, hidden: Sequence[int], *, dueling: bool) -> None:
        super().__init__()
        self.torso = torso_for(obs_shape)
        outputs = n_actions + 1 if dueling else n_actions
        self.perceptron = Perceptron(self.torso.features, [*hidden, outputs], open_end=True)
        self.dueling = dueling
        #: Whether the gradient can be had without autograd: there are no convolutions.
        self.can_record = isinstance(self.torso, VectorTorso)
        self._perceptron = (self.perceptron,)  # in a tuple, past Module.__getattr__

    def forward(self, obs: Tensor) -> Tensor:
        output: Tensor = self.perceptron(self.torso(obs))
        return dueling(output[:, :1], output[:, 1:]) if self.dueling else output

    def values(self, obs: Array) -> Floats:
        """As forward, for arrays and without gradients."""
        if self.can_record:
            return self.record(obs)[0]
        with torch.no_grad():
            values: Floats = self(torch.from_numpy(obs)).numpy()
        return values

    def record(self, obs: Array) -> tuple[Floats, Tape]:
        """As `values`, and what `recorded_loss` needs."""
        (perceptron,) = self._perceptron
        flat = obs.reshape(len(obs), -1) if obs.ndim > 2 else obs
        output, tape = perceptron.record(flat if flat.dtype == np.float32 else flat.astype(np.float32))
        if self.dueling:
            output = dueling(output[:, :1], output[:, 1:])
        return output, tape

    def recorded_loss(self, value: float, tape: Tape, q_grad: Floats) -> RecordedLoss:
        """The loss `value`, whose gradient at the action values is `q_grad` [B, A]."""
        (perceptron,) = self._perceptron
        if self.dueling:
            # Q_a = V + A_a - mean A, so dV = sum_a dQ_a and dA_a = dQ_a - mean_a' dQ_a'.
            total = q_grad.sum(axis=1, keepdims=True)
            q_grad = np.concatenate([total, q_grad - total / q_grad.shape[1]], axis=1)
        return RecordedLoss(value, perceptron, tape, q_grad)
