"""n-step transitions, built as the steps come in, so that memory only ever holds finished ones.

For each environment a window holds the last steps that still wait for their successor n steps on. The windows of all
environments turn together like one clock hand, so a push in mid-episode is a few array operations however many
environments there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec
from passel.data.ring import torch_dtype
from passel.types import Array, Bools, Floats, Ints, PasselError, Step, Transitions


class NStep:
    """Turns steps into transitions over m steps,

        (s_t, a_t, sum_{k<m} gamma^k r_{t+k}, gamma^m, s_{t+m}),

    m = n in mid-episode. Where an episode ends all that waits is given out with what m it has: after a termination with
    a discount of 0, after a truncation with gamma^m and the true last observation. Nothing crosses the border between
    two episodes.

    Runs in: the actor.
    """

    @staticmethod
    def specs(n: int, envs: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype[Any]) -> dict[str, Spec]:
        """The windows; a single step needs none."""
        if n < 1:
            raise PasselError(f"n-step returns over {n} steps do not exist. Use --n-step 1 or more.")
        if n == 1:
            return {}
        return {
            "obs": Spec((n, envs, *obs_shape), torch_dtype(np.dtype(obs_dtype))),
            "action": Spec((n, envs), torch.int64),
            "reward": Spec((n, envs), torch.float32),
            "waiting": Spec((envs,), torch.int64),
            "clock": Spec((1,), torch.int64),
        }

    def __init__(self, tensors: Mapping[str, Tensor], *, n: int, gamma: float) -> None:
        self.n, self.gamma = n, np.float32(gamma)
        if n == 1:
            return
        self._obs: Array = tensors["obs"].numpy()
        self._action: Ints = tensors["action"].numpy()
        self._reward: Floats = tensors["reward"].numpy()
        self._waiting: Ints = tensors["waiting"].numpy()
        self._clock: Ints = tensors["clock"].numpy()
        ages = np.arange(n)
        #: gamma^1 ... gamma^n, and the powers of gamma with which the reward of each age enters a sum of each length.
        self._discounts = (gamma ** (ages + 1)).astype(np.float32)
        self._powers = np.tril(gamma ** np.maximum(ages[:, None] - ages, 0)).astype(np.float32)
        #: The same for a full window, by slot instead of age, for each place of the clock's hand.
        self._powers_at = (gamma ** ((ages - ages[:, None] - 1) % n)).astype(np.float32)

    def push(self, obs: Array, action: Array, step: Step) -> Transitions:
        """The transitions that this step completed, perhaps none. `obs` is what the action was taken on.

        With n = 1 the arrays are passed on, not copied: they are good until the environment's next step.
        """
        real = step.real
        if self.n == 1:
            single = Transitions(obs, action, step.reward, self.gamma * step.discount, step.next_obs)
            return single if real.all() else _rows(single, real)
        hand = self._remember(obs, action, step.reward)
        waiting, ended = self._waiting, step.ended
        waiting += 1
        if not real.all():
            waiting[~real] = 0
        full = waiting == self.n
        if not ended.any():
            done = self._full(hand, step, full)
        else:
            done = _joined(self._full(hand, step, full & ~ended), self._flushed(hand, step, np.flatnonzero(ended)))
            waiting[ended] = 0
        np.minimum(waiting, self.n - 1, out=waiting)
        return done

    def clear(self) -> None:
        """Forget what waits: the environments were restarted without a step that says so."""
        if self.n > 1:
            self._waiting[:] = 0

    def keep_step_with(self, other: NStep) -> None:
        """Unless the same steps wait here and there, forget them: whoever pushes to both died between the two."""
        if self.n == 1 or (self._clock[0] == other._clock[0] and (self._waiting == other._waiting).all()):
            return
        self.clear()
        other.clear()
        self._clock[0] = other._clock[0]

    def check_valid(self) -> None:
        """Raise AssertionError, with the reason, if the windows cannot be right."""
        if self.n == 1:
            return
        if not ((self._waiting >= 0) & (self._waiting < self.n)).all():
            raise AssertionError(f"a window of {self.n} steps holds {self._waiting.tolist()}")
        if self._clock[0] < min(self.n - 1, int(self._waiting.max(initial=0))):
            raise AssertionError(f"more steps wait than the {int(self._clock[0])} that were pushed")

    def _remember(self, obs: Array, action: Array, reward: Floats) -> int:
        hand = int(self._clock[0]) % self.n
        self._obs[hand] = obs
        self._action[hand] = action
        self._reward[hand] = reward
        self._clock[0] += 1
        return hand

    def _full(self, hand: int, step: Step, full: Bools) -> Transitions:
        """Windows of n steps whose episode goes on."""
        oldest = (hand + 1) % self.n
        done = Transitions(
            self._obs[oldest],
            self._action[oldest],
            self._powers_at[hand] @ self._reward,
            self._discounts[-1:].repeat(len(full)),
            step.next_obs,
        )
        if not full.all():
            return _rows(done, full)
        # The next push overwrites this slot: what is given away must be a copy.
        return replace(done, obs=done.obs.copy(), action=done.action.copy())

    def _flushed(self, hand: int, step: Step, ended: Ints) -> Transitions:
        """All that waits in the environments `ended`, the newest step first."""
        slots = (hand - np.arange(self.n)) % self.n
        age, column = np.nonzero(np.arange(self.n)[:, None] < self._waiting[ended])
        env = ended[column]
        returns = self._powers @ self._reward[np.ix_(slots, ended)]
        return Transitions(
            self._obs[slots[age], env],
            self._action[slots[age], env],
            returns[age, column],
            self._discounts[age] * step.discount[env],
            step.next_obs[env],
        )


def _rows(transitions: Transitions, rows: Bools) -> Transitions:
    t = transitions
    return Transitions(t.obs[rows], t.action[rows], t.reward[rows], t.discount[rows], t.next_obs[rows])


def _joined(first: Transitions, second: Transitions) -> Transitions:
    if not len(first):
        return second
    pairs = (
        (getattr(first, name), getattr(second, name)) for name in ("obs", "action", "reward", "discount", "next_obs")
    )
    return Transitions(*(np.concatenate(pair) for pair in pairs))
