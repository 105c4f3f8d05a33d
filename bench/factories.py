"""Environments of the studies that no id alone makes. Imported by passel and by the peers, each in its own Python."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Catch(gym.Env[Any, Any]):
    """A ball falls down a board of 10 x 5; the paddle in the lowest row is moved left, right or not at all. +1 for a
    catch, -1 for a miss (Osband et al. 2020, bsuite).
    """

    ROWS, COLUMNS = 10, 5

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (self.ROWS * self.COLUMNS,), np.float32)
        self.action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._ball = [0, int(self.np_random.integers(self.COLUMNS))]
        self._paddle = self.COLUMNS // 2
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self._paddle = int(np.clip(self._paddle + int(action) - 1, 0, self.COLUMNS - 1))
        self._ball[0] += 1
        over = self._ball[0] == self.ROWS - 1
        reward = (1.0 if self._ball[1] == self._paddle else -1.0) if over else 0.0
        return self._observe(), reward, over, False, {}

    def _observe(self) -> Any:
        board = np.zeros((self.ROWS, self.COLUMNS), np.float32)
        board[self._ball[0], self._ball[1]] = board[-1, self._paddle] = 1.0
        return board.ravel()


class Planes(gym.ObservationWrapper[Any, Any, Any]):
    """MinAtar's boolean planes (10 x 10 x channels), which the convolutions of neither library take, as a vector."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        assert env.observation_space.shape is not None
        self.observation_space = Box(0.0, 1.0, (int(np.prod(env.observation_space.shape)),), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation, np.float32).ravel()


def catch() -> Any:
    return Catch()


def _minatar(game: str) -> Any:
    from minatar.gym import register_envs

    if f"MinAtar/{game}-v1" not in gym.registry:
        register_envs()
    return gym.wrappers.TimeLimit(Planes(gym.make(f"MinAtar/{game}-v1")), 5_000)


def minatar_breakout() -> Any:
    return _minatar("Breakout")


def minatar_asterix() -> Any:
    return _minatar("Asterix")


def minatar_freeway() -> Any:
    return _minatar("Freeway")


def minatar_space_invaders() -> Any:
    return _minatar("SpaceInvaders")


def minatar_seaquest() -> Any:
    return _minatar("Seaquest")


def _minigrid(name: str) -> Any:
    """Its 7 x 7 x 3 view, scaled to [0, 1], as a vector; the mission is always the same."""
    import minigrid  # noqa: F401 - registers
    from minigrid.wrappers import ImgObsWrapper

    env = ImgObsWrapper(gym.make(name))
    size = int(np.prod(env.observation_space.shape))
    space = Box(0.0, 1.0, (size,), np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: (np.asarray(obs, np.float32) / 10).ravel(), space)


def minigrid_empty() -> Any:
    return _minigrid("MiniGrid-Empty-8x8-v0")


def minigrid_doorkey() -> Any:
    return _minigrid("MiniGrid-DoorKey-5x5-v0")


def flappy_bird() -> Any:
    """Twelve numbers about the pipes and the bird, not the lidar, which is the package's default."""
    import flappy_bird_gymnasium  # noqa: F401 - registers

    return gym.make("FlappyBird-v0", use_lidar=False)
