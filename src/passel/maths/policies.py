"""What a network's outputs say about actions: a chance for each of some, or a Gaussian over vectors.

Each kind knows how likely an action is, how uncertain the policy, how either changes with the outputs, and how to draw.
Losses are written once, for any of them: they take the kind as `head`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from passel.maths.shapes import Array, Floats, check_shapes

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Policy(Protocol):
    """The policy in B states, as read from outputs [B, K]."""

    def logp(self, action: Array) -> Floats:
        """log pi(a|s): [B]."""

    def entropy(self) -> Floats:
        """H(pi(s)) in nats: [B]."""

    def slope(self, action: Array, gain: Floats, bonus: Floats) -> Floats:
        """The derivative of -(gain log pi(a|s) + bonus H(pi(s))) by the outputs: [B, K]."""

    def draw(self, rng: np.random.Generator) -> Array:
        """An action for each state."""

    def best(self) -> Array:
        """The likeliest action in each state."""


Head = Callable[[Floats], Policy]


def log_softmax(logits: Floats) -> Floats:
    """log pi(a|s) of logits [B, A]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


class Categorical:
    """One of A actions; the outputs are logits [B, A], actions are whole numbers [B].

    d log pi(a) / d logit_b = [a = b] - pi(b),     dH / d logit_b = -pi(b) (log pi(b) + H)
    """

    def __init__(self, logits: Floats) -> None:
        self._logits = logits
        self._logp = log_softmax(logits)
        self._chance: Floats = np.exp(self._logp)
        self._rows = np.arange(len(logits))

    def logp(self, action: Array) -> Floats:
        check_shapes("B", action, self._rows)
        chosen: Floats = self._logp[self._rows, action]
        return chosen

    def entropy(self) -> Floats:
        entropy: Floats = -(self._chance * self._logp).sum(axis=1)
        return entropy

    def slope(self, action: Array, gain: Floats, bonus: Floats) -> Floats:
        slope: Floats = gain[:, None] * self._chance
        slope[self._rows, action] -= gain
        slope += bonus[:, None] * self._chance * (self._logp + self.entropy()[:, None])
        return slope

    def draw(self, rng: np.random.Generator) -> Array:
        # The first action whose cumulated probability passes a number between 0 and 1; rounding must not pass the last.
        passed = self._chance.cumsum(axis=1) > rng.random((len(self._rows), 1))
        passed[:, -1] = True
        drawn: Array = passed.argmax(axis=1)
        return drawn

    def best(self) -> Array:
        best: Array = self._logits.argmax(axis=1)
        return best


class Gaussian:
    """A vector of A numbers, each with a mean and a spread; the outputs are [B, 2A], the log-spreads before the means.

        a = middle + reach (mean + exp(log_std) z),     z from N(0, 1)
        d log pi(a) / d mean = z / exp(log_std),   d log pi(a) / d log_std = z^2 - 1,   dH / d log_std = 1

    `middle` and `reach` [A] say where the range of an action lies, so that a network speaks in numbers around 1,
    whatever the unit. Nothing is clipped here: an action beyond its range is as likely as the Gaussian says.
    """

    def __init__(self, outputs: Floats, middle: Floats, reach: Floats) -> None:
        size = len(middle)
        self._log_std, self._mean = outputs[:, :size], outputs[:, size:]
        self._middle, self._reach = middle, reach

    def logp(self, action: Array) -> Floats:
        z = self._z(action)
        each = -0.5 * z * z - self._log_std - np.log(self._reach) - np.float32(_HALF_LOG_TAU)
        total: Floats = each.sum(axis=1)
        return total

    def entropy(self) -> Floats:
        each = self._log_std + np.log(self._reach) + np.float32(0.5 + _HALF_LOG_TAU)
        total: Floats = each.sum(axis=1)
        return total

    def slope(self, action: Array, gain: Floats, bonus: Floats) -> Floats:
        z, gain = self._z(action), gain[:, None]
        by_log_std = gain * (1 - z * z) - bonus[:, None]
        by_mean = -gain * z * np.exp(-self._log_std)
        slope: Floats = np.concatenate([by_log_std, by_mean], axis=1, dtype=np.float32)
        return slope

    def draw(self, rng: np.random.Generator) -> Array:
        z = rng.standard_normal(self._mean.shape, np.float32)
        return self._middle + self._reach * (self._mean + np.exp(self._log_std) * z)

    def best(self) -> Array:
        best: Floats = self._middle + self._reach * self._mean
        return best

    def _z(self, action: Array) -> Floats:
        check_shapes("B A", action, self._mean)
        z: Floats = ((action - self._middle) / self._reach - self._mean) * np.exp(-self._log_std)
        return z
