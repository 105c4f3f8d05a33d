"""Toy environments, small enough to compute by hand; importing this module registers them as `passel/Name-v0`.

From a command line, `passel.testing.envs:passel/Corridor-v0` imports and names one at once.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from passel.types import Floats

Reset = tuple[Floats, dict[str, Any]]
Outcome = tuple[Floats, float, bool, bool, dict[str, Any]]


class Toy(gym.Env[Floats, Any]):
    """What they share: a few float32 numbers to see, a few actions, nothing to render."""

    def __init__(self, size: int, n_actions: int, high: float = 1.0) -> None:
        self.observation_space = Box(0.0, high, (size,), np.float32)
        self.action_space = Discrete(n_actions)


class Corridor(Toy):
    """Cells in a row; action 1 goes right, 0 left. Each step costs 0.1, the last cell pays 1 and ends the episode.

    The best return goes straight: 1 - 0.1 * (cells - 2), which is 0.6 for six cells.
    """

    def __init__(self, cells: int = 6) -> None:
        super().__init__(cells, 2)
        self.cells = cells

    @property
    def best_return(self) -> float:
        return 1.0 - 0.1 * (self.cells - 2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._cell = 0
        return self._observe(), {}

    def step(self, action: Any) -> Outcome:
        self._cell = max(self._cell - 1, 0) if action == 0 else self._cell + 1
        arrived = self._cell == self.cells - 1
        return self._observe(), 1.0 if arrived else -0.1, arrived, False, {}

    def _observe(self) -> Floats:
        return _one_hot(self._cell, self.cells)


class Countdown(Toy):
    """A script for boundary tests: rewards 1, 2, 3, ...; the observation is (steps so far, episodes before).

    Ends after exactly `terminate_after` or `truncate_after` steps, whatever the actions; None means never. Because it
    counts its own episodes it is, by design, no function of the seed: a restored copy counts from 0 again.
    """

    def __init__(self, terminate_after: int | None = 5, truncate_after: int | None = None) -> None:
        super().__init__(2, 2, high=np.inf)
        self.terminate_after, self.truncate_after = terminate_after, truncate_after
        self._episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._steps = 0
        self._episode += 1
        return self._observe(), {}

    def step(self, action: Any) -> Outcome:
        self._steps += 1
        terminated, truncated = self._steps == self.terminate_after, self._steps == self.truncate_after
        return self._observe(), float(self._steps), terminated, truncated, {}

    def _observe(self) -> Floats:
        return np.array([self._steps, self._episode], np.float32)


class Identity(Toy):
    """The observation names the action that pays 1.

    The best return is `steps`; a random policy's is `steps / n_actions` on average.
    """

    def __init__(self, n_actions: int = 4, steps: int = 8) -> None:
        super().__init__(n_actions, n_actions)
        self.n_actions, self.steps = n_actions, steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Outcome:
        reward = float(action == self._paying)
        self._steps += 1
        return self._observe(), reward, self._steps == self.steps, False, {}

    def _observe(self) -> Floats:
        self._paying = int(self.np_random.integers(self.n_actions))
        return _one_hot(self._paying, self.n_actions)


class Aim(Toy):
    """The observation, two numbers, names the action that pays 1: a vector of two, each in a range of its own. To miss
    by half a range costs 1.

    The best return is `steps`. An action outside of its range is an error, as in many a simulator.
    """

    LOW, HIGH = np.array([-3, 0], np.float32), np.array([-1, 10], np.float32)

    def __init__(self, steps: int = 8) -> None:
        super().__init__(2, 1)
        self.action_space = Box(self.LOW, self.HIGH, dtype=np.float32)
        self.steps = steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Outcome:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is no action in {self.action_space}")
        share = (action - self.LOW) / (self.HIGH - self.LOW)
        reward = 1 - 2 * float(np.abs(share - self._wanted).mean())
        self._steps += 1
        return self._observe(), reward, self._steps == self.steps, False, {}

    def _observe(self) -> Floats:
        self._wanted = self.np_random.random(2, np.float32)
        return self._wanted


class TimeLimitTrap(Toy):
    """One state, reward 1 for ever, truncated every `steps` steps.

    Its value is 1 / (1 - gamma). A one-step learner that takes truncation for termination loses the bootstrap once in
    `steps` and settles at 1 / (1 - gamma * (1 - 1 / steps)): with gamma 0.99 and 10 steps at 9.2 in place of 100.
    """

    def __init__(self, steps: int = 10) -> None:
        super().__init__(1, 2)
        self.steps = steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self._steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Outcome:
        self._steps += 1
        return np.ones(1, np.float32), 1.0, False, self._steps == self.steps, {}


class Crash(Identity):
    """Identity, until the step number `at` in this copy's life: then it goes wrong in the way of `how`.

    With `marker`, a path, only the first copy that gets there does so: it leaves that file behind as a sign for the
    others, and for its own successor.
    """

    def __init__(
        self,
        how: Literal["raise", "exit", "kill", "sleep"] = "raise",
        at: int = 10,
        marker: str | None = None,
        seconds: float = 3600.0,
    ) -> None:
        super().__init__()
        self.how, self.at, self.marker, self.seconds = how, at, marker, seconds
        self._life = 0

    def step(self, action: Any) -> Outcome:
        self._life += 1
        if self._life == self.at and self._is_first():
            self._go_wrong()
        return super().step(action)

    def _is_first(self) -> bool:
        if self.marker is None:
            return True
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _go_wrong(self) -> None:
        match self.how:
            case "raise":
                raise RuntimeError(f"this environment raises at step {self.at}, as asked")
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(self.seconds)


class NaN(Identity):
    """Identity, but from the step number `at` in this copy's life its observations are NaN."""

    def __init__(self, at: int = 10) -> None:
        super().__init__()
        self.at = at
        self._life = 0

    def step(self, action: Any) -> Outcome:
        self._life += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self._life >= self.at:
            obs = np.full_like(obs, np.nan)
        return obs, reward, terminated, truncated, info


def _one_hot(index: int, size: int) -> Floats:
    obs = np.zeros(size, np.float32)
    obs[index] = 1.0
    return obs


def _register(toy: type[Toy], reward_threshold: float | None = None, max_episode_steps: int | None = None) -> None:
    gym.register(
        f"passel/{toy.__name__}-v0",
        f"{toy.__module__}:{toy.__name__}",
        reward_threshold=reward_threshold,
        max_episode_steps=max_episode_steps,
    )


_register(Corridor, reward_threshold=0.6, max_episode_steps=50)
_register(Countdown)
_register(Identity, reward_threshold=7.5)
_register(Aim)
_register(TimeLimitTrap)
_register(Crash)
_register(NaN)
