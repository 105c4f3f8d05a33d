"""One copy of a Gymnasium environment from an id or a factory, or the reason why not in one sentence."""

from __future__ import annotations

import difflib
import importlib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.error import DependencyNotInstalled

from passel.envs.spaces import Spaces, read_spaces
from passel.types import PasselError

AnyEnv = gym.Env[Any, Any]
Factory = Callable[..., AnyEnv]


def build(env: str | Factory, env_args: Mapping[str, Any] | None = None) -> AnyEnv:
    """Make one copy, without rendering and without Gymnasium's checker: both would sit in the hot loop."""
    arguments = dict(env_args or {})
    if not isinstance(env, str):
        return _call(env, arguments)
    _import_and_find(env)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hints about newer versions, and noise from imports of the simulators
        try:
            return gym.make(env, disable_env_checker=True, **arguments)
        except (DependencyNotInstalled, ModuleNotFoundError) as error:
            raise PasselError(_missing_dependency(env, error)) from error
        except Exception as error:
            raise PasselError(f"{env} could not be made ({_brief(error)}). Check its arguments.") from error


def spaces_of(name: str, env: AnyEnv) -> Spaces:
    """The spaces of a made copy."""
    return read_spaces(name, env.observation_space, env.action_space)


def name_of(env: str | Factory, made: AnyEnv) -> str:
    """The id that makes it again; for a factory, what its product is called."""
    if isinstance(env, str):
        return env
    return made.spec.id if made.spec is not None else type(made.unwrapped).__name__


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known id most like `name`: case does not count, and of two equally near ones the newer version wins."""
    wanted, candidates = name.lower(), list(known)
    same_name = [each for each in candidates if _unversioned(each) == _unversioned(name)]
    pool = same_name or candidates
    close = set(difflib.get_close_matches(wanted, {each.lower() for each in pool}, n=5, cutoff=0.6))
    ranked = [each for each in pool if each.lower() in close]
    return max(ranked, key=lambda each: (_likeness(wanted, each), _version(each)), default=None)


def _call(factory: Factory, arguments: dict[str, Any]) -> AnyEnv:
    name = getattr(factory, "__name__", type(factory).__name__)
    try:
        env = factory(**arguments)
    except Exception as error:
        raise PasselError(f"the factory {name} failed ({_brief(error)}). Correct it, or its arguments.") from error
    if not isinstance(env, gym.Env):
        raise PasselError(
            f"the factory {name} returned a {type(env).__name__}, not a gymnasium.Env. "
            "Return an environment that subclasses gymnasium.Env."
        )
    return env


def _import_and_find(env: str) -> None:
    module, _, name = env.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise PasselError(
                f'the environment "{env}" asks for the module {module}, which cannot be imported ({error}). '
                "Install it, or correct what stands before the colon."
            ) from error
    if name in gym.registry:
        return
    found = nearest(name, gym.registry)
    raise PasselError(
        f'there is no environment "{env}". '
        + (
            f"Did you mean {found}?"
            if found
            else "Install the package that has it and write package:id, for instance ale_py:ALE/Breakout-v5."
        )
    )


def _missing_dependency(env: str, error: Exception) -> str:
    if "gymnasium.envs.box2d" in str(gym.registry[env.rpartition(":")[2]].entry_point):
        return f"{env} needs Box2D, which is not installed. Run: pip install 'passel[box2d]'"
    return f"{env} needs a package that is not installed ({_brief(error)}). Install it and start again."


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _unversioned(name: str) -> str:
    return re.sub(r"-v\d+$", "", name).lower()


def _version(name: str) -> int:
    match = re.search(r"-v(\d+)$", name)
    return int(match.group(1)) if match else -1


def _likeness(wanted: str, candidate: str) -> float:
    """Without the version: v2 is no nearer to v0 than to v3."""
    return difflib.SequenceMatcher(None, _unversioned(wanted), _unversioned(candidate)).ratio()
