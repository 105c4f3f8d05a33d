"""The one way to an environment: choose a back-end, describe it, make it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from passel.arena import Spec
from passel.envs import atari_backend, envpool_backend, gymnasium_backend, packaged, remote
from passel.envs.atari_protocol import is_atari
from passel.envs.base import Envs
from passel.envs.build import AnyEnv, Factory, build, render_args
from passel.envs.level_sets import level_set
from passel.envs.levels import is_level_set
from passel.envs.remote_place import Address, Place, is_address
from passel.types import EnvSpec, PasselError

Backend = Literal["auto", "ale", "gymnasium", "envpool", "remote"]
Kind = Literal["ale", "gymnasium", "envpool", "remote"]


def make_envs(
    env: str | Factory,
    n: int,
    seed: int,
    *,
    backend: Backend = "auto",
    threads: int = 1,
    env_args: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> Envs:
    """N copies of `env`: an id (`Name-v0`, `package:Name-v0`), a function that returns a gymnasium.Env, or the address
    of a server (`tcp://127.0.0.1:5555`), or the name of an installed one (`tetris`).

    `env_args` are passed to whatever makes the environment; for a server they are `key` and `reconnect`, for Atari
    `protocol` and its rules. `threads` is how many the back-end may use; a loop over Gymnasium environments uses one.
    `tensors`, shaped as `specs` says, keep what `Envs.restore` needs.
    """
    if n < 1:
        raise PasselError(f"{n} copies of an environment were asked for. Ask for at least 1.")
    if seed < 0:
        raise PasselError(f"the seed is {seed}, and seeds cannot be negative. Use 0 or more.")
    kind = choose(env, backend, env_args)
    if kind == "gymnasium":
        return gymnasium_backend.GymnasiumEnvs(env, n, seed, env_args, tensors)
    if kind == "remote":
        return remote.RemoteEnvs(_place(env), n, seed, **(env_args or {}), tensors=tensors)
    if kind == "ale":
        spec = atari_backend.describe(env, env_args)
        return atari_backend.AtariEnvs(spec, n, seed, threads=threads, env_args=env_args, tensors=tensors)
    spec = envpool_backend.describe(env, env_args)
    return envpool_backend.EnvPoolEnvs(spec, n, seed, threads=threads, env_args=env_args, tensors=tensors)


def describe(env: str | Factory, backend: Backend = "auto", env_args: Mapping[str, Any] | None = None) -> EnvSpec:
    """What the environment is. Makes at most one copy (of each level), and closes it."""
    if is_level_set(env):
        return level_set(str(env)).describe()
    kind = choose(env, backend, env_args)
    if kind == "gymnasium":
        return gymnasium_backend.describe(env, env_args)
    if kind == "remote":
        spec = remote.describe(_place(env), (env_args or {}).get("key", ""))
        return replace(spec, max_copies=packaged.EVALUATION_COPIES) if packaged.is_name(env) else spec
    if kind == "ale":
        return atari_backend.describe(env, env_args)
    return envpool_backend.describe(env, env_args)


def make_filmed(env: str, backend: str, env_args: Mapping[str, Any] | None = None) -> AnyEnv:
    """One copy that shows what a person would see."""
    if backend == "ale":
        return atari_backend.FilmedGame(env, env_args)
    return build(env, {**(env_args or {}), **render_args(env)})


def specs(spec: EnvSpec, n: int) -> dict[str, Spec]:
    """The tensors that n copies want to keep for a resumed run."""
    if spec.backend == "remote":
        return remote.record_specs()
    if spec.backend == "ale":
        return atari_backend.record_specs()
    return gymnasium_backend.record_specs(spec, n) if spec.backend == "gymnasium" else envpool_backend.record_specs()


def is_served(env: object) -> bool:
    """Whether the environment runs in an interpreter of its own, behind a socket."""
    return is_address(env) or packaged.is_name(env)


def choose(env: str | Factory, backend: Backend, env_args: Mapping[str, Any] | None = None) -> Kind:
    """What `auto` means: ale-py for Atari, EnvPool if installed and known to play like Gymnasium, else Gymnasium."""
    if is_served(env):
        if backend not in ("auto", "remote"):
            raise PasselError(f"--backend {backend} has no effect on {env}, whose server steps it. Leave it out.")
        return "remote"
    if backend != "auto":
        return backend
    if is_atari(env):
        return "ale"
    fast = envpool_backend.interchangeable(env, env_args) and envpool_backend.installed()
    return "envpool" if fast else "gymnasium"


def _place(env: str | Factory) -> Place:
    return packaged.server(str(env)) if packaged.is_name(env) else Address(str(env))
