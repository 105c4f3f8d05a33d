"""Atari as a learner should see it: stacks of four gray frames, whole games scored truly.

A life lost and a reward clipped are for learning only. The game goes on over the first, and the score is counted before
the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from passel.arena import Spec
from passel.envs.atari_games import Game, actions_of, make_games, rom_of
from passel.envs.atari_protocol import FRAME_SKIP, SIDE, STACK, Protocol, read_protocol, reference_scores
from passel.envs.base import Envs
from passel.envs.build import Factory
from passel.envs.seeds import derive_seed
from passel.types import Array, Bools, EnvSpec, Episode, Ints, PasselError, Step

FIRE = "FIRE"


def describe(env: str | Factory, env_args: Mapping[str, Any] | None) -> EnvSpec:
    """What the game is, and by which rules it is played."""
    if not isinstance(env, str):
        raise PasselError("ale-py plays games by id only, and this is a factory. Use --backend gymnasium.")
    rules = read_protocol(env_args)
    actions = actions_of(env, rules)
    if rules.fire_reset and FIRE not in actions:
        raise PasselError(f"--fire-reset has no effect on {env}, which has no FIRE. Leave it out.")
    return EnvSpec(
        id=env,
        obs_shape=(STACK, SIDE, SIDE),
        obs_dtype=np.dtype(np.uint8),
        n_actions=len(actions),
        max_episode_steps=-(-rules.max_frames // FRAME_SKIP),
        frame_skip=FRAME_SKIP,
        backend="ale",
        exact_resume=False,
        frames=STACK,
        protocol=rules.facts(),
        reference_scores=reference_scores().get(rom_of(env)),
    )


def record_specs() -> dict[str, Spec]:
    """How often the games were begun: a resumed run must not see the same first ones again."""
    return {"starts": Spec((1,), torch.int64)}


class AtariEnvs(Envs):
    """N games whose ends and next beginnings happen in the same step: every row is real.

    Where a life is lost, and that counts as an end, the row terminates for the learner and for nobody else:
    `step.obs` is the next frame of the same game, and `step.episodes` knows nothing of it.
    """

    def __init__(
        self,
        spec: EnvSpec,
        n: int,
        seed: int,
        *,
        threads: int = 1,
        env_args: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.spec, self.n = spec, n
        self._rules, self._seed = read_protocol(env_args), seed
        self._games: Any = make_games(spec.id, n, self._rules, threads)
        self._fire = actions_of(spec.id, self._rules).index(FIRE) if self._rules.fire_reset else None
        self._starts = (torch.zeros(1, dtype=torch.int64) if tensors is None else tensors["starts"]).numpy()
        self._real = np.ones(n, np.bool_)

    def reset(self) -> Array:
        start = int(self._starts[0])
        self._starts[0] += 1
        frame, self._lives = self._games.reset([derive_seed(self._seed, i, start) for i in range(self.n)])
        self._score, self._length = np.zeros(self.n), np.zeros(self.n, np.int64)
        self._begun = np.ones(self.n, np.bool_)
        self._obs = np.repeat(frame[:, None], STACK, axis=1)
        return self._obs

    def step(self, actions: Ints) -> Step:
        if self._fire is not None:
            actions = np.where(self._begun, self._fire, actions)
        played = self._games.step(actions)
        self._score += played.reward
        self._length += 1
        ended = played.over | played.cut
        lost = (played.lives < self._lives) & ~ended
        self._lives, self._begun = played.lives, ended | lost
        terminated = played.over | lost if self._rules.life_loss else played.over
        next_obs = np.concatenate((self._obs[:, 1:], played.last_frame[:, None]), axis=1)
        self._obs, episodes = self._turn_over(next_obs, played.frame, ended)
        reward = np.clip(played.reward, -1, 1) if self._rules.clip_rewards else played.reward
        return Step(
            obs=self._obs,
            next_obs=next_obs,
            reward=reward.astype(np.float32),
            discount=(~terminated).astype(np.float32),
            truncated=played.cut,
            real=self._real.copy(),
            episodes=episodes,
        )

    def close(self) -> None:
        self._games = None

    def _turn_over(self, next_obs: Array, frame: Array, ended: Bools) -> tuple[Array, list[Episode]]:
        """Report the games that ended, and begin the stacks of the next ones: one frame, again and again."""
        if not ended.any():
            return next_obs, []
        rows, obs = np.flatnonzero(ended), next_obs.copy()
        obs[rows] = frame[rows, None]
        episodes = [Episode(float(self._score[i]), int(self._length[i])) for i in rows]
        self._score[rows], self._length[rows] = 0.0, 0
        return obs, episodes


class FilmedGame(gym.Env[Array, int]):
    """One game by the same rules, with a picture for the camera."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60 / FRAME_SKIP}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, env: str, env_args: Mapping[str, Any] | None) -> None:
        self._rules: Protocol = read_protocol(env_args)
        self._game = Game(env, self._rules)
        self._fire = self._game.actions.index(FIRE) if self._rules.fire_reset else None
        self.observation_space = Box(0, 255, (STACK, SIDE, SIDE), np.uint8)
        self.action_space = Discrete(len(self._game.actions))  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        frame = self._game.reset(int(self.np_random.integers(2**31)))
        self._obs, self._begun, self._lives = np.repeat(frame[None], STACK, axis=0), True, self._game.lives
        return self._obs, {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        pressed = self._fire if self._begun and self._fire is not None else int(action)
        frame, reward, over, cut = self._game.step(pressed)
        self._begun, self._lives = self._game.lives < self._lives, self._game.lives
        self._obs = np.concatenate((self._obs[1:], frame[None]))
        return self._obs, reward, over, cut, {}

    def render(self) -> Any:
        return self._game.screen()
