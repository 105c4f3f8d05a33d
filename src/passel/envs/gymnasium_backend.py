"""N Gymnasium environments in one plain loop, each of whose episodes can be begun again and replayed.

Gymnasium's own vector environments seed only the first reset. Here every reset has a seed, derived from (seed, copy,
episode), and the actions since that reset are written down. So the middle of any episode is a function of a few
integers: a resumed run resets with the same seed, replays the actions, and stands where the stopped run stood.
"""

from __future__ import annotations

import math
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
from passel.envs.outcomes import (
    LARGEST,
    NotFiniteError,
    OutcomeError,
    check_finite,
    not_five,
    read_end,
    read_observation,
    read_reset,
    read_reward,
)
from passel.envs.seeds import derive_seed
from passel.envs.spaces import read_bounds
from passel.types import Array, EnvSpec, Episode, PasselError, Step

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
        # What the next actions are taken on, to compare a replay with.
        "shown": Spec((n, math.prod(spec.obs_shape) * spec.obs_dtype.itemsize), torch.uint8, optional=True),
        # Episodes that `restore` had to begin anew.
        "anew": Spec((1,), torch.int64, keep=False),
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
        self._shown = tensors["shown"].numpy().view(self.spec.obs_dtype).reshape(n, *self.spec.obs_shape)
        self._anew = tensors["anew"].numpy()
        self._limit = self._actions.shape[1]
        self._score = np.zeros(n)
        self._rows = np.arange(n)
        self._real = np.ones(n, np.bool_)
        self._floats = self.spec.obs_dtype.kind == "f"

    def reset(self) -> Array:
        """Begin an episode in every copy: never again one that the record says was already begun and left."""
        obs = self._empty_obs()
        for i in range(self.n):
            self._begin_next(i, obs[i]) if self._length[i] else self._begin(i, obs[i])
        return self._show(obs)

    def restore(self) -> Array:
        """Continue every episode whose replay ends in the observation that was kept, and begin the others anew."""
        obs = self._empty_obs()
        anew = [i for i in range(self.n) if not self._replay(i, obs[i])]
        for i in anew:
            self._begin_next(i, obs[i])
        self._anew[0] = len(anew)
        self.continued = not anew
        return self._show(obs)

    def step(self, actions: Array) -> Step:
        actions = self.spec.legal(actions)
        # Written before the act and counted after it: killed in between, the record still tells a true story.
        self._actions[self._rows, np.minimum(self._length, self._limit - 1)] = actions
        next_obs, reward, ended = self._empty_obs(), np.empty(self.n), list[int]()
        terminated, truncated = np.zeros(self.n, np.bool_), np.zeros(self.n, np.bool_)
        dtype, shape, array = next_obs.dtype, self.spec.obs_shape, np.ndarray
        i = 0
        try:
            # What is usual is recognized by its type alone; the rest is read with care, see outcomes.py.
            for i, action in enumerate(self._own(actions)):
                returned = self._envs[i].step(action)
                try:
                    seen, paid, over, cut, _ = returned
                except (TypeError, ValueError):
                    raise not_five(returned) from None
                if type(seen) is array and seen.dtype is dtype and seen.shape == shape:
                    next_obs[i] = seen
                else:
                    read_observation(seen, next_obs[i])
                reward[i] = paid if type(paid) is float and -LARGEST <= paid <= LARGEST else read_reward(paid)
                if over is not False or cut is not False:
                    terminated[i] = read_end("terminated", over)
                    truncated[i] = read_end("truncated", cut) and not terminated[i]
                    if terminated[i] or truncated[i]:
                        ended.append(i)
            if self._floats:
                check_finite(next_obs)
        except NotFiniteError as fault:
            raise self._error(fault.row, fault) from None
        except OutcomeError as fault:
            raise self._error(i, fault) from None
        self._score += reward
        self._length += 1
        obs, episodes = self._turn_over(next_obs, ended) if ended else (next_obs, [])
        return Step(
            obs=self._show(obs),
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

    def _turn_over(self, next_obs: Array, ended: list[int]) -> tuple[Array, list[Episode]]:
        """Report the episodes that ended, and put the first observation of the next one in their rows."""
        obs, episodes = next_obs.copy(), []
        for i in ended:
            episodes.append(Episode(float(self._score[i]), int(self._length[i])))
            self._begin_next(i, obs[i])
        return obs, episodes

    def _begin(self, i: int, row: Array) -> None:
        """Begin the episode of the record, and write its first observation to `row`."""
        self._score[i] = 0.0
        try:
            returned = self._envs[i].reset(seed=self._seed_of(i))
        except TypeError as error:
            if "unexpected keyword argument 'seed'" not in str(error):
                raise
            raise PasselError(
                f"reset() of {self.spec.id} takes no seed. Define it as reset(self, *, seed=None, options=None)."
            ) from error
        try:
            read_observation(read_reset(returned), row)
            if self._floats:
                check_finite(row)
        except OutcomeError as fault:
            raise self._error(i, fault) from None

    def _begin_next(self, i: int, row: Array) -> None:
        # The length first: killed in between, this episode is begun again, not the next with this one's actions.
        self._length[i] = 0
        self._episode[i] += 1
        self._begin(i, row)

    def _replay(self, i: int, row: Array) -> bool:
        """Play the recorded episode up to its last action. False if it outgrew its record, ends on the way, or leads to
        another observation than the one that was kept: then the environment is not a function of its seed.
        """
        if self._length[i] > self._limit:
            return False
        self._begin(i, row)
        try:
            for action in self._own(self._actions[i, : self._length[i]].copy()):
                returned = self._envs[i].step(action)
                try:
                    seen, paid, over, cut, _ = returned
                except (TypeError, ValueError):
                    raise not_five(returned) from None
                if read_end("terminated", over) or read_end("truncated", cut):
                    return False
                read_observation(seen, row)
                self._score[i] += read_reward(paid)
        except OutcomeError as fault:
            raise self._error(i, fault) from None
        kept = self._shown[i]
        return bool(np.array_equal(row, kept)) or not kept.any()  # zeros: a record in which nothing was kept

    def _show(self, obs: Array) -> Array:
        """Keep what the next actions are taken on."""
        self._shown[...] = obs
        return obs

    def _seed_of(self, i: int) -> int:
        """The seed of the episode that copy `i` is in."""
        return derive_seed(self._seed, i, int(self._episode[i]))

    def _error(self, i: int, fault: OutcomeError) -> PasselError:
        """The fault as the user reads it: what, where, and the cure. The seed leads there again."""
        where = f"{self.spec.id}, copy {i}, step {int(self._length[i])} of the episode with seed {self._seed_of(i)}"
        return PasselError(f"{fault.cause} ({where}). {fault.cure}")

    def _own(self, actions: Array) -> list[Any]:
        """The actions as the environment counts them: whole numbers from its first, or vectors."""
        return list(actions) if self.spec.action_shape else (actions + self._first_action).tolist()

    def _empty_obs(self) -> Array:
        return np.empty((self.n, *self.spec.obs_shape), self.spec.obs_dtype)


def _spec_of(env: str | Factory, copy: AnyEnv) -> EnvSpec:
    name = name_of(env, copy)
    if not (hasattr(copy, "observation_space") and hasattr(copy, "action_space")):
        raise PasselError(f"{name} declares no observation_space or no action_space. Set both in its __init__.")
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
        obs_scale=spaces.obs_scale,
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
