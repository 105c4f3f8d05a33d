"""Atari games as frames: many stepped by ale-py's own threads, or some, one by one, with a mode and a difficulty.

The only file that imports ale-py. What a step means to a learner is not its business: see atari_backend.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from passel.envs.atari_protocol import FRAME_SKIP, SIDE, game_of
from passel.envs.atari_protocol import Protocol as Rules
from passel.envs.build import nearest
from passel.types import Array, Bools, Floats, Ints, PasselError

#: Cartridges for two or more players. To load some of them ends the process.
NOT_FOR_ONE = ("combat", "joust", "maze_craze", "warlords")


@dataclass(frozen=True)
class Played:
    """What came out of one step of N games. A game that ended has begun anew: `frame` and `lives` are the new one's.

    `last_frame` is what followed on the action, also where the game ended: the same array where none did.
    """

    frame: Array
    last_frame: Array
    reward: Array
    over: Bools
    cut: Bools
    lives: Array


class Games(Protocol):
    """N games in step. Frames are gray [N, 84, 84], the larger of the last two of four, as bytes."""

    def reset(self, seeds: Sequence[int]) -> tuple[Array, Array]:
        """Begin all: the first frames, and the lives."""

    def step(self, actions: Ints) -> Played: ...


def installed() -> bool:
    """Whether ale-py is there, found out without importing it."""
    return importlib.util.find_spec("ale_py") is not None


def rom_of(env: str) -> str:
    """The name of the ROM behind an id such as ALE/MsPacman-v5: ms_pacman."""
    known: dict[str, str] = {
        rom.title().replace("_", ""): rom for rom in _ale(env).roms.get_all_rom_ids() if rom not in NOT_FOR_ONE
    }
    game = game_of(env)
    if game not in known:
        found = nearest(game, known)
        cure = f"Did you mean ALE/{found}-v5?" if found else "They are written as ALE/Breakout-v5."
        raise PasselError(f'there is no Atari game "{env}". {cure}')
    return known[game]


def actions_of(env: str, rules: Rules) -> list[str]:
    """The actions that do something in this game, by name; an error if it has no such mode or difficulty."""
    return Game(env, rules).actions


def make_games(env: str, n: int, rules: Rules, threads: int) -> Games:
    """N games. ale-py's own vector of them cannot set a mode or a difficulty: those are stepped here, on one thread."""
    if rules.mode is None and rules.difficulty is None:
        return VectorGames(env, n, rules, threads)
    return LoopGames(env, n, rules)


class VectorGames:
    """All games in C++, on ale-py's threads."""

    def __init__(self, env: str, n: int, rules: Rules, threads: int) -> None:
        _ale(env)
        from ale_py.vector_env import AtariVectorEnv

        self._vector: Any = AtariVectorEnv(
            rom_of(env),
            n,
            num_threads=min(threads, n),
            autoreset_mode="SameStep",
            max_num_frames_per_episode=rules.max_frames,
            repeat_action_probability=rules.sticky,
            noop_max=rules.noops,
            frameskip=FRAME_SKIP,
            img_height=SIDE,
            img_width=SIDE,
            # It would fill a new game's stack with black; elsewhere the first frame is repeated. So we stack.
            stack_num=1,
            # Both would hide the true score, and the second ends the game.
            reward_clipping=False,
            episodic_life=False,
            use_fire_reset=False,
        )

    def reset(self, seeds: Sequence[int]) -> tuple[Array, Array]:
        # It takes a seed of 0 for none.
        obs, info = self._vector.reset(seed=np.maximum(np.asarray(seeds, np.int64), 1))
        return obs[:, 0], info["lives"]

    def step(self, actions: Ints) -> Played:
        obs, reward, over, cut, info = self._vector.step(actions)
        frame = last_frame = obs[:, 0]
        ended = over | cut
        if ended.any():
            last_frame = frame.copy()
            last_frame[ended] = info["final_obs"][ended, 0]
        return Played(frame, last_frame, reward, over, cut & ~over, info["lives"])


class LoopGames:
    """Games one after the other, each with the mode and the difficulty that the rules say."""

    def __init__(self, env: str, n: int, rules: Rules) -> None:
        self._games = [Game(env, rules) for _ in range(n)]

    def reset(self, seeds: Sequence[int]) -> tuple[Array, Array]:
        frames = np.stack([game.reset(seed) for game, seed in zip(self._games, seeds, strict=True)])
        return frames, self._lives()

    def step(self, actions: Ints) -> Played:
        n = len(self._games)
        last_frame, reward = np.empty((n, SIDE, SIDE), np.uint8), np.empty(n)
        over, cut = np.empty(n, np.bool_), np.empty(n, np.bool_)
        for i, (game, action) in enumerate(zip(self._games, actions.tolist(), strict=True)):
            last_frame[i], reward[i], over[i], cut[i] = game.step(action)
        frame, ended = last_frame, over | cut
        if ended.any():
            frame = last_frame.copy()
            for row in np.flatnonzero(ended).tolist():
                frame[row] = self._games[row].reset()
        return Played(frame, last_frame, reward, over, cut, self._lives())

    def _lives(self) -> Array:
        return np.array([game.lives for game in self._games])


class Game:
    """One game, played as ale-py's vector plays it. Its screen can be filmed."""

    def __init__(self, env: str, rules: Rules) -> None:
        ale_py = _ale(env)
        self._rules, self._ale, self._rom = rules, ale_py.ALEInterface(), ale_py.roms.get_rom_path(rom_of(env))
        self._ale.setFloat("repeat_action_probability", rules.sticky)
        self._load(0)
        for what, chosen, there in (
            ("mode", rules.mode, self._ale.getAvailableModes()),
            ("difficulty", rules.difficulty, self._ale.getAvailableDifficulties()),
        ):
            if chosen is not None and chosen not in there:
                raise PasselError(f"{env} has no {what} {chosen}. It has {', '.join(map(str, there))}.")
        self._buttons = self._ale.getMinimalActionSet()
        self.actions = [button.name for button in self._buttons]
        self._screens = np.zeros((2, *self._ale.getScreenDims()), np.uint8)

    @property
    def lives(self) -> int:
        return int(self._ale.lives())

    def screen(self) -> Array:
        """What a person would see now: [210, 160, 3]."""
        return np.asarray(self._ale.getScreenRGB())

    def reset(self, seed: int | None = None) -> Array:
        """Begin a game; with a seed, as a machine that was just switched on. Its first frame."""
        if seed is not None:
            self._load(seed)
            self._rng = np.random.default_rng(seed)
        self._ale.reset_game()
        for _ in range(self._rng.integers(self._rules.noops, endpoint=True)):
            self._ale.act(self._buttons[0])
            if self._ale.game_over():
                self._ale.reset_game()
        self._frames = 0
        self._ale.getScreenGrayscale(self._screens[0])
        self._screens[1] = 0
        return self._seen()

    def step(self, action: int) -> tuple[Array, float, bool, bool]:
        """Hold a button for four frames: the frame that follows, the reward, whether the game is over, or cut off."""
        reward, over = 0.0, False
        for number in range(FRAME_SKIP):
            reward += self._ale.act(self._buttons[action])
            if number >= FRAME_SKIP - 2:
                self._ale.getScreenGrayscale(self._screens[number - FRAME_SKIP + 2])
            over = bool(self._ale.game_over())
            if over:
                break
        self._frames += FRAME_SKIP
        return self._seen(), reward, over, self._frames >= self._rules.max_frames and not over

    def _load(self, seed: int) -> None:
        self._ale.setInt("random_seed", seed)
        self._ale.loadROM(self._rom)
        if self._rules.mode in self._ale.getAvailableModes():
            self._ale.setMode(self._rules.mode)
        if self._rules.difficulty in self._ale.getAvailableDifficulties():
            self._ale.setDifficulty(self._rules.difficulty)

    def _seen(self) -> Array:
        frame: Array = np.rint(_shrunk(_shrunk(self._screens.max(axis=0)).T).T).astype(np.uint8)
        return frame


def _shrunk(picture: Array) -> Floats:
    """The picture at a height of 84: each new row is the mean of the old ones that it covers, whole or in part.

    Sums of few rows, and not a product of matrices: small ones are slow where BLAS has threads.
    """
    rows, weights = _covered(len(picture))
    total: Floats = np.zeros((SIDE, picture.shape[1]), np.float32)
    for row, weight in zip(rows, weights, strict=True):
        total += picture[row] * weight
    return total


@cache
def _covered(size: int) -> tuple[Ints, Floats]:
    """The old rows that each of 84 new ones covers, and by which share: [K, 84] and [K, 84, 1]."""
    edges = np.arange(SIDE + 1) * size / SIDE
    most = int(np.ceil(size / SIDE)) + 1
    rows = np.floor(edges[:-1]).astype(np.int64) + np.arange(most)[:, None]
    covered = np.minimum(edges[1:], rows + 1) - np.maximum(edges[:-1], rows)
    weights = (np.maximum(covered, 0) * (SIDE / size)).astype(np.float32)
    return np.minimum(rows, size - 1), weights[:, :, None]


def _ale(env: str) -> Any:
    """ale-py, which is told not to greet."""
    try:
        import ale_py
    except ImportError as error:
        raise PasselError(
            f"{env} is played by ale-py, which cannot be used ({error}). Run: pip install 'passel[atari]'"
        ) from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py
