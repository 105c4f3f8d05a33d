"""A network that says what each action is worth."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from passel.maths.q_learning import dueling
from passel.nets.torsos import torso_for


class QNetwork(nn.Module):
    """Observations [B, ...] to action values [B, A]; with `dueling` heads for value and advantage."""

    def __init__(self, obs_shape: Sequence[int], n_actions: int, hidden: Sequence[int], *, dueling: bool) -> None:
        super().__init__()
        self.torso = torso_for(obs_shape, hidden)
        self.advantage = nn.Linear(self.torso.features, n_actions)
        self.value = nn.Linear(self.torso.features, 1) if dueling else None

    def forward(self, obs: Tensor) -> Tensor:
        features = self.torso(obs)
        advantage: Tensor = self.advantage(features)
        return advantage if self.value is None else dueling(self.value(features), advantage)
