"""One copy of a Gymnasium environment from an id or a factory, or the reason why not in one sentence."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import gymnasium as gym
from gymnasium.error import DependencyNotInstalled

from passel.envs.atari_protocol import reference_scores
from passel.envs.spaces import Spaces, read_spaces
from passel.types import PasselError, printable

AnyEnv = gym.Env[Any, Any]
Factory = Callable[..., AnyEnv]

TESTING = "passel.testing.envs"
#: Modules that passel itself integrates: importing them registers ids, and only ids of theirs are made.
INTEGRATED = frozenset({"ale_py", "gymnasium", TESTING})


def build(env: str | Factory, env_args: Mapping[str, Any] | None = None) -> AnyEnv:
    """Make one copy, without rendering and without Gymnasium's checker: both would sit in the hot loop."""
    arguments = dict(env_args or {})
    maker = find(env) if isinstance(env, str) else env
    if not isinstance(env, str) or not isinstance(maker, str):
        return _call(cast(Factory, maker), arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hints about newer versions, and noise from imports of the simulators
        try:
            return gym.make(env, disable_env_checker=True, **arguments)
        except (DependencyNotInstalled, ModuleNotFoundError) as error:
            raise PasselError(_missing_dependency(env, error)) from error
        except Exception as error:
            raise PasselError(f"{printable(env)} could not be made ({_brief(error)}). Check its arguments.") from error


def render_args(env: str) -> dict[str, str]:
    """What asks for pictures; a function that takes no render_mode has to choose it itself."""
    maker = find(env)
    if not isinstance(maker, str):
        taken = inspect.signature(maker).parameters.values()
        if not any(each.name == "render_mode" or each.kind is each.VAR_KEYWORD for each in taken):
            return {}
    return {"render_mode": "rgb_array"}


def spaces_of(name: str, env: AnyEnv) -> Spaces:
    """The spaces of a made copy."""
    return read_spaces(name, env.observation_space, env.action_space)


def check_makes(env: object) -> None:
    """Refuse an environment that is made already, and whatever else makes none."""
    made = isinstance(env, gym.Env | gym.vector.VectorEnv)
    if made or not (isinstance(env, str) or callable(env)):
        name = type(env).__name__
        raise PasselError(
            f"passel needs something that makes the environment, once for every worker, and this {name} is "
            f"{'an environment that is made already' if made else 'no such thing'}. "
            "Pass the id, the class or a function: lambda: gym.make(...)."
        )


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


def find(env: str) -> str | Factory:
    """What makes an environment of this name: its id, once the module before the colon is imported, or the callable of
    that module with this name.
    """
    module, _, name = env.rpartition(":")
    imported = _imported(env, module) if module else None
    if name in gym.registry:
        return env
    maker = getattr(imported, name, None) if name.isidentifier() and module not in INTEGRATED else None
    if callable(maker):
        return cast(Factory, maker)
    if imported is not None and name.isidentifier():
        raise PasselError(
            f"the module {printable(module)} has neither an environment nor a function called {printable(name)}. "
            "Write package:Id-v0, or module:function with a function that returns an environment."
        )
    found = _atari_id(name) or nearest(name, gym.registry)
    raise PasselError(
        f'there is no environment "{printable(env)}". '
        + (
            f"Did you mean {found}?"
            if found
            else "Install the package that has it and write package:id, for instance ale_py:ALE/Breakout-v5."
        )
    )


def _imported(env: str, module: str) -> ModuleType:
    try:
        if module not in INTEGRATED:  # these need no consent, so a file by their name must not stand in for them
            _look_in_the_current_folder(module.partition(".")[0])
        return importlib.import_module(module)
    except ImportError as error:
        raise PasselError(
            f'the environment "{printable(env)}" asks for the module {printable(module)}, which cannot be imported '
            f"({printable(error)}). "
            "Install it, or correct what stands before the colon."
        ) from error
    except Exception as error:
        raise PasselError(f"{printable(module)} cannot be imported ({_brief(error)}). Correct that module.") from error


def _look_in_the_current_folder(module: str) -> None:
    """Let the console script find a file of the current folder, as `python -m passel` does; what is installed counts
    first.
    """
    here = Path.cwd()
    if ((here / f"{module}.py").is_file() or (here / module).is_dir()) and importlib.util.find_spec(module) is None:
        sys.path.append(str(here))
        importlib.invalidate_caches()


def _atari_id(name: str) -> str | None:
    """Today's id of an Atari game that is called by an older one, as Breakout-v5 or BreakoutNoFrameskip-v4."""
    game = re.sub(r"(-ram)?(NoFrameskip|Deterministic)?(-v\d+)?$", "", name.removeprefix("ALE/")).lower()
    games = (rom.title().replace("_", "") for rom in reference_scores())
    return next((f"ALE/{each}-v5" for each in games if each.lower() == game), None)


def _missing_dependency(env: str, error: Exception) -> str:
    if "gymnasium.envs.box2d" in str(gym.registry[env.rpartition(":")[2]].entry_point):
        return f"{env} needs Box2D, which is not installed. Run: pip install 'passel[box2d]'"
    return f"{env} needs a package that is not installed ({_brief(error)}). Install it and start again."


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {printable(lines[0].rstrip('.'))}" if lines else type(error).__name__


def _unversioned(name: str) -> str:
    return re.sub(r"-v\d+$", "", name).lower()


def _version(name: str) -> int:
    match = re.search(r"-v(\d+)$", name)
    return int(match.group(1)) if match else -1


def _likeness(wanted: str, candidate: str) -> float:
    """Without the version: v2 is no nearer to v0 than to v3."""
    return difflib.SequenceMatcher(None, _unversioned(wanted), _unversioned(candidate)).ratio()
