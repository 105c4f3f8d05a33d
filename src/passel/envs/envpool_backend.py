"""EnvPool: N environments stepped in C++, for the ids that it has.

The faster back-end wherever it exists, at two prices. Its seeds are fixed when the pool is made and its state cannot be
read, so a resumed run begins new episodes. And the step after an episode's end is spent on the reset: that row is no
transition, and the boundary contract marks it so.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec
from passel.envs.base import Envs
from passel.envs.build import Factory, nearest
from passel.envs.outcomes import check_batch
from passel.envs.seeds import derive_seed
from passel.envs.spaces import Spaces, read_spaces
from passel.types import Array, Bounds, EnvSpec, Episode, PasselError, Step

_FLOAT = np.dtype(np.float32)
_PI = math.pi

#: Ids that play like Gymnasium's own (tested: spaces, limits, scores of fixed policies), with what they look like, so
#: that they can be described without the second that it takes to import EnvPool.
SAME_AS_GYMNASIUM: Mapping[str, Spaces] = {
    "Acrobot-v1": Spaces((6,), _FLOAT, 3, 0),
    "CartPole-v1": Spaces((4,), _FLOAT, 2, 0),
    "LunarLander-v3": Spaces((8,), _FLOAT, 4, 0),
    "MountainCar-v0": Spaces((2,), _FLOAT, 3, 0),
}
#: What Gymnasium says of their observations; EnvPool does not always know.
BOUNDS: Mapping[str, Bounds] = {
    "Acrobot-v1": ((-1.0, -1.0, -1.0, -1.0, -4 * _PI, -9 * _PI), (1.0, 1.0, 1.0, 1.0, 4 * _PI, 9 * _PI)),
    "LunarLander-v3": (
        (-2.5, -2.5, -10.0, -10.0, -2 * _PI, -10.0, 0.0, 0.0),
        (2.5, 2.5, 10.0, 10.0, 2 * _PI, 10.0, 1.0, 1.0),
    ),
    "MountainCar-v0": ((-1.2, -0.07), (0.6, 0.07)),
}
JUMANJI = "envpool.jumanji.registration"
#: The arguments that mean the same to both makers.
COMMON_ARGUMENTS = frozenset({"max_episode_steps"})


def installed() -> bool:
    """Whether it can be used, found out without the cost of the import."""
    return importlib.util.find_spec("envpool") is not None


def ids() -> list[str]:
    """Every id that EnvPool has without its slowest part."""
    found: list[str] = load().list_all_envs()
    return found


def interchangeable(env: str | Factory, env_args: Mapping[str, Any] | None) -> bool:
    """Whether EnvPool may stand in for Gymnasium unasked."""
    return isinstance(env, str) and env in SAME_AS_GYMNASIUM and COMMON_ARGUMENTS.issuperset(env_args or {})


def describe(env: str | Factory, env_args: Mapping[str, Any] | None) -> EnvSpec:
    """What the environment is; thresholds come from Gymnasium's registry, which is what people compare with."""
    if not isinstance(env, str):
        raise PasselError("EnvPool makes environments by id only, and this one is a factory. Use --backend gymnasium.")
    arguments = dict(env_args or {})
    known = gym.registry.get(env)
    if not installed():
        raise _not_usable("it is not installed")
    if interchangeable(env, env_args) and known is not None:
        spaces, limit, skip = SAME_AS_GYMNASIUM[env], known.max_episode_steps, 1
    else:
        spaces, limit, skip = _ask_envpool(env, arguments)
    return EnvSpec(
        id=env,
        obs_shape=spaces.obs_shape,
        obs_dtype=spaces.obs_dtype,
        n_actions=spaces.n_actions,
        reward_threshold=known.reward_threshold if known is not None else None,
        max_episode_steps=arguments.get("max_episode_steps", limit),
        frame_skip=skip,
        backend="envpool",
        exact_resume=False,
        bounds=BOUNDS.get(env),
        action_bounds=spaces.action_bounds,
        obs_scale=spaces.obs_scale,
    )


def record_specs() -> dict[str, Spec]:
    """How often the pool was begun: a resumed run must not see the same first episodes again."""
    return {"starts": Spec((1,), torch.int64)}


class EnvPoolEnvs(Envs):
    """One pool, synchronous, of which the boundary hides that it resets one step late."""

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
        self._seed, self._threads, self._arguments = seed, threads, dict(env_args or {})
        self._starts = (torch.zeros(1, dtype=torch.int64) if tensors is None else tensors["starts"]).numpy()
        self._pool: Any = None
        self._first_action = 0

    def reset(self) -> Array:
        """Begin every copy in a new pool, for a pool cannot be seeded twice."""
        self.close()
        start = int(self._starts[0])
        self._starts[0] += 1
        seeds = [derive_seed(self._seed, i, start) for i in range(self.n)]
        with _quiet():
            self._pool = _load_for(self.spec.id).make(
                self.spec.id,
                env_type="gymnasium",
                num_envs=self.n,
                num_threads=self._threads,
                seed=seeds,
                **self._arguments,
            )
            self._first_action = 0 if self.spec.action_shape else int(self._pool.action_space.start)
            obs, _ = self._pool.reset()
        self._resetting = np.zeros(self.n, np.bool_)
        self._score, self._length = np.zeros(self.n), np.zeros(self.n, np.int64)
        return self._boundary(obs)

    def step(self, actions: Array) -> Step:
        own = self.spec.legal(actions) if self.spec.action_shape else (actions + self._first_action).astype(np.int32)
        returned, reward, terminated, truncated, _ = self._pool.step(own)
        obs = self._boundary(returned)
        real = ~self._resetting
        reward = np.where(real, reward, np.float32(0))
        check_batch(obs, reward, f"{self.spec.id} by EnvPool")
        terminated, truncated = terminated & real, truncated & real
        self._score += reward
        self._length += real
        self._resetting = terminated | truncated
        return Step(
            obs=obs,
            next_obs=obs,
            reward=reward,
            discount=(~terminated).astype(np.float32),
            truncated=truncated,
            real=real,
            episodes=self._finish(self._resetting),
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _finish(self, ended: Array) -> list[Episode]:
        if not ended.any():
            return []
        rows = np.flatnonzero(ended)
        episodes = [Episode(float(self._score[i]), int(self._length[i])) for i in rows]
        self._score[rows], self._length[rows] = 0.0, 0
        return episodes

    def _boundary(self, obs: Array) -> Array:
        return obs.astype(self.spec.obs_dtype, copy=False)


def load() -> Any:
    """EnvPool, without Jumanji's games: registering those imports matplotlib, half of the time of it all."""
    left_out = JUMANJI not in sys.modules
    if left_out:
        sys.modules[JUMANJI] = ModuleType(JUMANJI)
    try:
        import envpool
    except ImportError as error:
        raise _not_usable(str(error)) from error
    finally:
        if left_out:
            del sys.modules[JUMANJI]
    return envpool


def _load_for(env: str) -> Any:
    """EnvPool, with all that `env` needs."""
    envpool = load()
    if env not in SAME_AS_GYMNASIUM and env not in envpool.list_all_envs():
        importlib.import_module(JUMANJI)
    return envpool


def _not_usable(reason: str) -> PasselError:
    return PasselError(
        f"EnvPool cannot be used ({reason}). Run: pip install 'passel[fast]', or use --backend gymnasium."
    )


def _ask_envpool(env: str, arguments: dict[str, Any]) -> tuple[Spaces, int | None, int]:
    envpool = _load_for(env)
    ids = envpool.list_all_envs()
    if env not in ids:
        found = nearest(env, ids)
        hint = f"Did you mean {found}? Otherwise use" if found else "Use"
        raise PasselError(f'EnvPool has no environment "{env}". {hint} --backend gymnasium.')
    with _quiet():
        try:
            made = envpool.make_spec(env, **arguments)
        except Exception as error:
            raise PasselError(f"EnvPool could not make {env} ({error}). Check its arguments.") from error
        spaces = read_spaces(env, made.observation_space, made.action_space)
    limit = getattr(made.config, "max_episode_steps", None)
    return spaces, limit, int(getattr(made.config, "frame_skip", 1))


def _quiet() -> warnings.catch_warnings[None]:
    """EnvPool states the bounds of its spaces in double precision, about which Gymnasium warns at each make."""
    return warnings.catch_warnings(action="ignore")
