"""N Gymnasium environments in one plain loop, each of whose episodes can be begun again and replayed.

Gymnasium's own vector environments seed only the first reset. Here every reset has a seed, derived from (seed, copy,
episode), and the actions since that reset are written down. So the middle of any episode is a function of a few
integers: a resumed run resets with the same seed, replays the actions, and stands where the stopped run stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.wrappers import TimeLimit
from torch import Tensor

from passel.arena import Spec
from passel.envs.base import Envs
from passel.envs.build import AnyEnv, Factory, build, name_of, spaces_of
from passel.envs.seeds import derive_seed
from passel.envs.spaces import read_bounds
from passel.types import Array, EnvSpec, Episode, Step

#: How many actions of an episode are kept when the environment states no limit of its own.
UNLIMITED_RECORD = 10_000


def describe(env: str | Factory, env_args: Mapping[str, Any] | None) -> EnvSpec:
    """What the environment is, read from one copy that is closed again."""
    copy = build(env, env_args)
    try:
        return _spec_of(env, copy)
    finally:
        copy.close()


def record_specs(spec: EnvSpec, n: int) -> dict[str, Spec]:
    """The tensors from which `restore` rebuilds the middle of each episode; zeros mean that nothing was played yet."""
    limit = spec.max_episode_steps or UNLIMITED_RECORD
    return {
        "episode": Spec((n,), torch.int64),
        "length": Spec((n,), torch.int64),
        "actions": Spec((n, limit, *spec.action_shape), torch.float32 if spec.action_shape else torch.int32),
    }


class GymnasiumEnvs(Envs):
    """A synchronous loop over N copies. An episode's end and the next one's reset happen in the same step."""

    def __init__(
        self,
        env: str | Factory,
        n: int,
        seed: int,
        env_args: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._envs = [build(env, env_args)]
        self.spec, self.n = _spec_of(env, self._envs[0]), n
        self._envs += [build(env, env_args) for _ in range(n - 1)]
        self._first_action = spaces_of(self.spec.id, self._envs[0]).first_action
        self._seed = seed
        if tensors is None:
            tensors = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in record_specs(self.spec, n).items()}
        self._episode = tensors["episode"].numpy()
        self._length = tensors["length"].numpy()
        self._actions = tensors["actions"].numpy()
        self._limit = self._actions.shape[1]
        self._score = np.zeros(n)
        self._rows = np.arange(n)
        self._real = np.ones(n, np.bool_)

    def reset(self) -> Array:
        """Begin an episode in every copy: never again one that the record says was already begun and left."""
        obs = self._empty_obs()
        for i in range(self.n):
            obs[i] = self._begin_next(i) if self._length[i] else self._begin(i)
        return obs

    def restore(self) -> Array:
        obs = self._empty_obs()
        for i in range(self.n):
            replayed = self._replay(i)
            obs[i] = self._begin_next(i) if replayed is None else replayed
        return obs

    def step(self, actions: Array) -> Step:
        actions = self.spec.legal(actions)
        # Written before the act and counted after it: killed in between, the record still tells a true story.
        self._actions[self._rows, np.minimum(self._length, self._limit - 1)] = actions
        next_obs, reward = self._empty_obs(), np.empty(self.n)
        terminated, truncated = np.empty(self.n, np.bool_), np.empty(self.n, np.bool_)
        for i, action in enumerate(self._own(actions)):
            next_obs[i], reward[i], terminated[i], truncated[i], _ = self._envs[i].step(action)
        self._score += reward
        self._length += 1
        truncated &= ~terminated
        obs, episodes = self._turn_over(next_obs, terminated | truncated)
        return Step(
            obs=obs,
            next_obs=next_obs,
            reward=reward.astype(np.float32),
            discount=(~terminated).astype(np.float32),
            truncated=truncated,
            real=self._real.copy(),
            episodes=episodes,
        )

    def close(self) -> None:
        while self._envs:
            self._envs.pop().close()

    def _turn_over(self, next_obs: Array, ended: Array) -> tuple[Array, list[Episode]]:
        """Report the episodes that ended, and put the first observation of the next one in their rows."""
        if not ended.any():
            return next_obs, []
        obs, episodes = next_obs.copy(), []
        for i in np.flatnonzero(ended).tolist():
            episodes.append(Episode(float(self._score[i]), int(self._length[i])))
            obs[i] = self._begin_next(i)
        return obs, episodes

    def _begin(self, i: int) -> Array:
        self._score[i] = 0.0
        obs, _ = self._envs[i].reset(seed=derive_seed(self._seed, i, int(self._episode[i])))
        return np.asarray(obs)

    def _begin_next(self, i: int) -> Array:
        # The length first: killed in between, this episode is begun again, not the next with this one's actions.
        self._length[i] = 0
        self._episode[i] += 1
        return self._begin(i)

    def _replay(self, i: int) -> Array | None:
        """Play the recorded episode up to its last action; None if it outgrew its record, or ends on the way."""
        if self._length[i] > self._limit:
            return None
        obs = self._begin(i)
        for action in self._own(self._actions[i, : self._length[i]].copy()):
            obs, reward, terminated, truncated, _ = self._envs[i].step(action)
            if terminated or truncated:
                return None
            self._score[i] += float(reward)
        return np.asarray(obs)

    def _own(self, actions: Array) -> list[Any]:
        """The actions as the environment counts them: whole numbers from its first, or vectors."""
        return list(actions) if self.spec.action_shape else (actions + self._first_action).tolist()

    def _empty_obs(self) -> Array:
        return np.empty((self.n, *self.spec.obs_shape), self.spec.obs_dtype)


def _spec_of(env: str | Factory, copy: AnyEnv) -> EnvSpec:
    name = name_of(env, copy)
    spaces = spaces_of(name, copy)
    return EnvSpec(
        id=name,
        obs_shape=spaces.obs_shape,
        obs_dtype=spaces.obs_dtype,
        n_actions=spaces.n_actions,
        reward_threshold=copy.spec.reward_threshold if copy.spec is not None else None,
        max_episode_steps=_time_limit(copy),
        frame_skip=_frame_skip(copy),
        backend="gymnasium",
        exact_resume=True,
        bounds=read_bounds(copy.observation_space),
        action_bounds=spaces.action_bounds,
    )


def _time_limit(env: AnyEnv) -> int | None:
    """The tightest TimeLimit around it; a factory may add one that the registered spec does not know."""
    limits = [layer._max_episode_steps for layer in _layers(env) if isinstance(layer, TimeLimit)]
    return min(limits, default=None)


def _frame_skip(env: AnyEnv) -> int:
    """Emulator frames in a step: what the emulator skips itself, times what wrappers like AtariPreprocessing skip."""
    own = env.spec.kwargs.get("frameskip", 1) if env.spec is not None else 1
    skips = [own] + [vars(layer).get("frame_skip", 1) for layer in _layers(env) if isinstance(layer, gym.Wrapper)]
    return int(np.prod([skip for skip in skips if isinstance(skip, int)]))


def _layers(env: AnyEnv) -> Iterator[AnyEnv]:
    yield env
    while isinstance(env, gym.Wrapper):
        env = env.env
        yield env
