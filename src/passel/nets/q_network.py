"""A network that says what each action is worth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from passel.maths.q_learning import dueling
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

    def forward(self, obs: Tensor) -> Tensor:
        if self.can_record and not torch.is_grad_enabled():
            return self.record(obs)[0]
        return self._combine(self.perceptron(self.torso(obs)))

    def record(self, obs: Tensor) -> tuple[Tensor, Tape]:
        """As forward, and what `recorded_loss` needs. Call it without gradients."""
        output, tape = self.perceptron.record(self.torso.forward(obs))  # past Module.__call__, which costs as much
        return self._combine(output), tape

    def recorded_loss(self, value: Tensor, tape: Tape, q_grad: Tensor) -> RecordedLoss:
        """The loss `value`, whose gradient at the action values is `q_grad` [B, A]."""
        if self.dueling:
            # Q_a = V + A_a - mean A, so dV = sum_a dQ_a and dA_a = dQ_a - mean_a' dQ_a'.
            total = q_grad.sum(dim=1, keepdim=True)
            q_grad = torch.cat([total, q_grad - total / q_grad.shape[1]], dim=1)
        return RecordedLoss(value, self.perceptron, tape, q_grad)

    def _combine(self, output: Tensor) -> Tensor:
        return dueling(output[:, :1], output[:, 1:]) if self.dueling else output
