"""A policy and a critic: two networks apart, or one with two heads.

Apart, each has a vector, a scheme and a norm of its own, and neither disturbs what the other has learnt to see. Joined,
images go through the convolutions once instead of twice, which is nearly all of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from passel.maths.shapes import Array, Floats
from passel.nets.gaussian_network import GaussianNetwork, Spread
from passel.nets.network import AutogradLoss, Network
from passel.nets.perceptron import RecordedLoss

AnyLoss = RecordedLoss | AutogradLoss
#: A loss of what a network said, and its derivative by that.
Slope = Callable[[Floats], tuple[float, Floats]]
#: The same where policy and critic must know of each other: of logits and values, the policy's and the critic's.
Slopes = Callable[[Floats, Floats], tuple[tuple[float, Floats], tuple[float, Floats]]]

EVEN = 0.01  # gain of the policy's last layer: the first policy is nearly even
PLAIN = 1.0


class ActorAndCritic(Protocol):
    """What an algorithm asks of the two, however they are made."""

    networks: Mapping[str, Network]

    def logits(self, obs: Array) -> Floats:
        """Of the policy: [B, ...] -> [B, A]; of a Gaussian the log-spreads and the means, [B, 2A]."""

    def values(self, obs: Array) -> Floats:
        """Of the critic: [B, ...] -> [B]."""

    def both(self, obs: Array) -> tuple[Floats, Floats]: ...

    def losses(self, obs: Array, policy: Slope, critic: Slope) -> dict[str, AnyLoss]:
        """The loss of each network; slopes are by the logits [B, A] and by the values [B]."""

    def losses_of_both(self, obs: Array, slopes: Slopes) -> dict[str, AnyLoss]:
        """The same, where each depends on what the other said."""


def _policy_network(spread: Spread | None, **shape: Any) -> Network:
    return Network(**shape) if spread is None else GaussianNetwork(spread, **shape)


class Apart:
    """Two networks. `n_actions` are how many to choose from or, with a `spread`, how many numbers an action has."""

    def __init__(self, n_actions: int, spread: Spread | None = None, **shape: Any) -> None:
        self._policy = _policy_network(spread, outputs=n_actions, **shape)
        self._critic = Network(outputs=1, **shape)
        self._policy.start_orthogonal(EVEN)
        self._critic.start_orthogonal(PLAIN)
        self.networks: Mapping[str, Network] = {"policy": self._policy, "value": self._critic}

    def logits(self, obs: Array) -> Floats:
        return self._policy.values(obs)

    def values(self, obs: Array) -> Floats:
        values: Floats = self._critic.values(obs)[:, 0]
        return values

    def both(self, obs: Array) -> tuple[Floats, Floats]:
        return self.logits(obs), self.values(obs)

    def losses(self, obs: Array, policy: Slope, critic: Slope) -> dict[str, AnyLoss]:
        return {"policy": self.policy_loss(obs, policy), "value": self.critic_loss(obs, critic)}

    def losses_of_both(self, obs: Array, slopes: Slopes) -> dict[str, AnyLoss]:
        (logits, policy_tape), (output, critic_tape) = self._policy.record(obs), self._critic.record(obs)
        (of_policy, by_logits), (of_critic, by_value) = slopes(logits, output[:, 0])
        return {
            "policy": self._policy.loss(of_policy, policy_tape, by_logits),
            "value": self._critic.loss(of_critic, critic_tape, by_value[:, None]),
        }

    def policy_loss(self, obs: Array, policy: Slope) -> AnyLoss:
        logits, tape = self._policy.record(obs)
        value, slope = policy(logits)
        return self._policy.loss(value, tape, slope)

    def critic_loss(self, obs: Array, critic: Slope) -> AnyLoss:
        output, tape = self._critic.record(obs)
        value, slope = critic(output[:, 0])
        return self._critic.loss(value, tape, slope[:, None])


class Joined:
    """One network, whose last output is the value. Its loss is the policy's and `critic_weight` times the critic's."""

    def __init__(self, n_actions: int, critic_weight: float, spread: Spread | None = None, **shape: Any) -> None:
        self._network, self._critic_weight = _policy_network(spread, outputs=n_actions + 1, **shape), critic_weight
        self._network.start_orthogonal(EVEN)
        head = [module for module in self._network.modules() if isinstance(module, nn.Linear)][-1]
        with torch.no_grad():
            nn.init.orthogonal_(head.weight[-1:], PLAIN)
        self.networks: Mapping[str, Network] = {"policy": self._network}

    def logits(self, obs: Array) -> Floats:
        return self.both(obs)[0]

    def values(self, obs: Array) -> Floats:
        return self.both(obs)[1]

    def both(self, obs: Array) -> tuple[Floats, Floats]:
        output = self._network.values(obs)
        return output[:, :-1], output[:, -1]

    def losses(self, obs: Array, policy: Slope, critic: Slope) -> dict[str, AnyLoss]:
        return self.losses_of_both(obs, lambda logits, values: (policy(logits), critic(values)))

    def losses_of_both(self, obs: Array, slopes: Slopes) -> dict[str, AnyLoss]:
        output, tape = self._network.record(obs)
        (of_policy, by_logits), (of_critic, by_value) = slopes(output[:, :-1], output[:, -1])
        weight = self._critic_weight
        slope: Floats = np.concatenate([by_logits, weight * by_value[:, None]], axis=1, dtype=np.float32)
        return {"policy": self._network.loss(of_policy + weight * of_critic, tape, slope)}
