"""A game of stable-retro as an environment to learn from: sticky frame skip, few buttons, four small gray frames.

Imports no torch: it runs in a process of its own, see apart.py. The only file that knows stable-retro.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from passel.types import Array, Floats, PasselError

FRAME_SKIP = 4
STICKINESS = 0.25
FRAMES = 4
SIZE = 84
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


class RetroGame(gym.Env[Array, Any]):
    """One level of one game.

    A step is four frames with the same buttons held; in the first of them the buttons of the step before are held on
    with probability 0.25 (Nichol et al. 2018), so that no fixed list of moves plays well. `buttons` says what each
    action holds, by name.
    """

    def __init__(self, game: str, state: str, buttons: Sequence[Sequence[str]], scenario: str | None = None) -> None:
        retro = load()
        with _quiet():
            self._env: Any = retro.make(game, state=state, scenario=scenario, render_mode="rgb_array")
        known = list(self._env.buttons)
        self._pads = np.array([[name in held for name in known] for held in buttons], np.int8)
        height, width, _ = self._env.observation_space.shape
        self._rows, self._columns = _shrinking(height), _shrinking(width).T
        self.observation_space = Box(0, 255, (FRAMES, SIZE, SIZE), np.uint8)
        self.action_space = Discrete(len(buttons))
        self._pad: Array | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        screen, _ = self._env.reset(seed=seed)
        self._pad = None
        self._stack = np.repeat(self._small(screen)[None], FRAMES, axis=0)
        return self._stack, {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        wanted, total = self._pads[action], 0.0
        sticks = self._pad is not None and self.np_random.random() < STICKINESS
        for frame in range(FRAME_SKIP):
            pad = self._pad if sticks and frame == 0 else wanted
            screen, reward, terminated, truncated, _ = self._env.step(pad)
            total += float(reward)
            if terminated or truncated:
                break
        self._pad = wanted
        self._stack = np.concatenate([self._stack[1:], self._small(screen)[None]])
        return self._stack, total, bool(terminated), bool(truncated), {}

    def close(self) -> None:
        self._env.close()

    def _small(self, screen: Array) -> Array:
        """84 x 84 pixels, each the mean of those that it covers, in gray."""
        gray = self._rows @ (screen.astype(np.float32) @ _LUMA) @ self._columns
        return np.rint(gray).astype(np.uint8)


def _shrinking(size: int) -> Floats:
    """[SIZE, size]: how much of each of `size` pixels goes into each of SIZE larger ones; each row adds up to 1."""
    edges = np.linspace(0, size, SIZE + 1)
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    share: Floats = (np.clip(overlap, 0, None) * SIZE / size).astype(np.float32)
    return share


def load() -> ModuleType:
    """stable-retro, or the sentence that says how to get it."""
    try:
        with _quiet():
            import stable_retro
    except ImportError as error:
        raise PasselError(
            f"these levels are played by stable-retro, which cannot be used ({error}). "
            "Run: pip install 'passel[levels]'"
        ) from error
    module: ModuleType = stable_retro
    return module


def missing_roms(games: Sequence[str]) -> dict[str, list[str]]:
    """Those of the games whose ROM was not imported, with the SHA-1 of the files that would do."""
    data = load().data
    missing: dict[str, list[str]] = {}
    for game in games:
        try:
            data.get_romfile_path(game)
        except FileNotFoundError:
            with open(data.get_file_path(game, "rom.sha")) as file:
                missing[game] = file.read().split()
    return missing


def _quiet() -> warnings.catch_warnings[None]:
    return warnings.catch_warnings(action="ignore")
