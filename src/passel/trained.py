"""What a run leaves behind and what can be done with it: load its policy, let it play, film it. Nothing is learnt."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from passel.algos import ALGORITHMS
from passel.arena import Tensors
from passel.config import RunConfig
from passel.envs.build import check_makes
from passel.envs.level_sets import level_set
from passel.envs.levels import is_level_set
from passel.envs.make import choose, describe, is_served, make_filmed
from passel.evaluation import level_table, play, play_levels, summarise
from passel.maths.moments import Moments
from passel.normalizer import PREFIX, Normalized, Statistics
from passel.normalizer import why_not as why_no_statistics
from passel.place.budget import usable_cores
from passel.place.env_args import env_args
from passel.place.normalization import choose as choose_normalization
from passel.policy import Policy, why_not
from passel.recipes.resolve import resolve_saved
from passel.run import checkpoint
from passel.run.card import env_of
from passel.run.folder import CARD, CONFIG, RunFolder
from passel.run.summary import Evaluation
from passel.streams import derive
from passel.trust import check as check_trust
from passel.types import EnvSpec, Episode, PasselError, printable
from passel.view.video import VideoFile, record_episodes


class SkippedCheckpointWarning(UserWarning):
    """An older checkpoint is used, because a newer one is damaged."""


Env = str | Callable[[], gym.Env[Any, Any]]

#: How the function that a run was trained on is given again, by what is to be done with it.
CALLS = {
    "train": "Use passel.train(that_function, ...)",
    "resume": "Use passel.resume(path, env=that_function)",
    "evaluate": "Use passel.evaluate(path, env=that_function)",
    "film": "Use passel.film(path, env=that_function)",
}


def load(path: str | Path, *, last: bool = False) -> Policy:
    """The best policy of a run by the evaluations during its training; its last one if there were none, or if asked for
    (`last`). `policy.step` is the step that it was learnt at. A warning says so if newer ones are damaged. Starts
    nothing, needs no environment.
    """
    folder, config, numbers = _opened(path)
    saved = (None if last else _best(folder.path)) or _newest(folder.path)
    spec = check_weights(saved, folder, config, numbers)
    normalized = _normalized(config, numbers, spec)
    scaling = None if normalized is None else normalized.scaling(_merged(saved))
    policy = Policy(ALGORITHMS[config.algo], numbers, spec, vectors_of(saved), scaling)
    policy.step = saved.step
    return policy


def check_weights(saved: checkpoint.Checkpoint, folder: RunFolder, config: RunConfig, numbers: Any) -> EnvSpec:
    """Refuse a configuration and a card that ask for networks of another size than the weights of a checkpoint, before
    any of them is built; the environment that the card describes.
    """
    spec = env_of(folder.read_card(), folder.path / CARD)
    normalized = _normalized(config, numbers, spec)
    reason = why_not(ALGORITHMS[config.algo], numbers, spec, vectors_of(saved))
    if normalized is not None:
        reason = reason or why_no_statistics(_statistics(saved), normalized)
    if reason:
        raise PasselError(
            f"the weights of {saved.path} are not those that {CONFIG} and {CARD} of {folder.path} describe: {reason}. "
            "Restore these two files, or train again."
        )
    return spec


def spec_of(path: str | Path) -> EnvSpec:
    """What a run's environment is, as its card says."""
    folder = RunFolder.open(Path(path), lock=False)
    return env_of(folder.read_card(), folder.path / CARD)


def weights_of(path: str | Path) -> dict[str, Tensor]:
    """The weights of a run's last good checkpoint, by network. A warning says so if newer ones are damaged."""
    folder, config, numbers = _opened(path)
    saved = _newest(folder.path)
    check_weights(saved, folder, config, numbers)
    return vectors_of(saved)


def _best(path: Path) -> checkpoint.Checkpoint | None:
    """The parameters of the best policy, if they were kept."""
    skipped: list[str] = []
    saved = checkpoint.latest(path, skipped.append, wanted=("parameters",), usable=vectors_of, into=checkpoint.BEST)
    if saved is None and skipped:
        sentence = f"the best policy of {path} is damaged, and its last one is used. {skipped[0]}"
        warnings.warn(sentence, SkippedCheckpointWarning, stacklevel=3)
    return saved


def moments_of(path: str | Path) -> Moments | None:
    """What a run has seen, by which it normalizes observations and rewards; None if it does not."""
    folder, config, numbers = _opened(path)
    saved = _newest(folder.path)
    spec = check_weights(saved, folder, config, numbers)
    return None if _normalized(config, numbers, spec) is None else _merged(saved)


def _normalized(config: RunConfig, numbers: Any, spec: EnvSpec) -> Normalized | None:
    return Normalized.by(choose_normalization(config, numbers, spec), spec)


def _merged(saved: checkpoint.Checkpoint) -> Moments:
    """The statistics of all actors as one."""
    return Statistics(_statistics(saved)).merged()


def _statistics(saved: checkpoint.Checkpoint) -> Tensors:
    return Tensors(saved.groups.get("parameters", {})).below(PREFIX)


def _newest(path: Path) -> checkpoint.Checkpoint:
    """The parameters of the newest checkpoint that has them whole."""
    skipped: list[str] = []
    saved = checkpoint.latest(path, skipped.append, wanted=("parameters",), usable=vectors_of)
    if saved is None:
        raise PasselError(
            f"{path} has {len(skipped)} checkpoint{'s' * (len(skipped) > 1)}, and all are damaged. "
            f"{' '.join(skipped)} Restore one from a copy, or train again."
            if skipped
            else f"{path} has no checkpoint yet. Wait for the first, or train longer."
        )
    for sentence in skipped:
        warnings.warn(sentence, SkippedCheckpointWarning, stacklevel=3)
    return saved


def vectors_of(saved: checkpoint.Checkpoint) -> dict[str, Tensor]:
    """The vector of each network. Raises ValueError if there is none."""
    found = {
        name.split("/")[1]: tensor
        for name, tensor in saved.groups.get("parameters", {}).items()
        if re.fullmatch("sync/[^/]+/vector", name)
    }
    if not found:
        raise ValueError("it has no parameters")
    return found


def evaluate(
    path: str | Path,
    *,
    episodes: int = 100,
    seed: int | None = None,
    env: Env | None = None,
    sample: bool = False,
    last: bool = False,
    trust: bool = False,
    progress: Callable[[int], bool] = lambda _: True,
) -> Evaluation:
    """Play fresh episodes with the best or (`last`) the last policy of a run, greedily or (`sample`) drawing actions as
    in training; in its own environment, or in another (`env`) that looks the same and is played with as many actions.

    A run of another user does not choose what is imported: name its environment with `env`, or `trust` it.
    """
    folder, config, _ = _opened(path)
    target = environment(folder, config, env, call="evaluate", trust=trust)
    policy = load(path, last=last)
    fresh = derive(config.seed if seed is None else seed, "evaluation", -1 % 2**31)
    if is_level_set(target):
        levels = level_set(str(target))
        if env is not None:
            policy = policy.moved_to(levels.describe())
        each = max(1, episodes // len(levels.train))
        found = play_levels(policy, levels, levels.train, each, fresh, sample=sample, progress=progress)
        return _evaluation(policy, [episode for level in found.values() for episode in level])
    there = config if env is None else dataclasses.replace(config, env=name_of(env), backend="auto")
    rules = env_args(there, learning=False)
    backend: Any = "auto" if env is not None else policy.spec.backend
    moved = policy.moved_to(describe(target, backend, rules))
    played = play(
        policy if env is None else moved,
        target,
        episodes,
        fresh,
        threads=usable_cores(),
        env_args=rules,
        sample=sample,
        progress=progress,
    )
    return _evaluation(policy, played)


def _evaluation(policy: Policy, played: list[Episode]) -> Evaluation:
    assert policy.step is not None, "it was loaded"
    return Evaluation(**vars(summarise(played)), step=policy.step)


def evaluate_levels(
    path: str | Path,
    *,
    episodes: int = 1,
    seed: int | None = None,
    sample: bool = False,
    last: bool = False,
    trust: bool = False,
    progress: Callable[[int], bool] = lambda _: True,
) -> dict[str, Any]:
    """Play `episodes` fresh episodes of every level of a run's set, greedily or drawing actions as in training; the
    table, which levels.json then holds.
    """
    folder, config, _ = _opened(path)
    if not is_level_set(config.env):
        raise PasselError(f"{path} was trained on {config.env}, which is no set of levels. Use `passel eval {path}`.")
    check_trust(folder.path, config.env, trust=trust)
    policy, levels = load(path, last=last), level_set(config.env)
    parts = []
    for before, role, names in (
        (0, "evaluation", levels.train),
        (len(levels.train) * episodes, "held-out", levels.held_out),
    ):
        fresh = derive(config.seed if seed is None else seed, role, -1 % 2**31)

        def tell(ended: int, before: int = before) -> bool:
            return progress(before + ended)

        parts.append(play_levels(policy, levels, names, episodes, fresh, sample=sample, progress=tell))
    table = level_table(levels, *parts) | {"actions": "drawn" if sample else "greedy"}
    folder.write_levels(table)
    return table


def film(
    path: str | Path,
    *,
    episodes: int = 10,
    seed: int = 0,
    env: Env | None = None,
    last: bool = False,
    trust: bool = False,
) -> list[VideoFile]:
    """Film the best, the median and the worst of `episodes` greedy episodes, into the run's folder, with the best or
    (`last`) the last policy of a run.

    A function as `env` must make an environment with render_mode="rgb_array". For `trust` see `evaluate`.
    """
    if episodes < 1:
        raise PasselError(f"--episodes is {episodes}, and must be at least 1.")
    folder, config, _ = _opened(path)
    target = environment(folder, config, env, call="film", trust=trust)
    policy = load(path, last=last)
    if is_served(target):
        raise PasselError(f"{target} is served, and a server sends no pictures to film. Film where it runs.")
    if is_level_set(target):
        raise PasselError(
            f"{target} is a set of levels, which cannot be filmed as one. Look at `passel levels {path}`."
        )

    def make() -> gym.Env[Any, Any]:
        if not isinstance(target, str):
            return target()
        there = dataclasses.replace(config, env=target)
        backend = policy.spec.backend if env is None else choose(target, "auto")
        return make_filmed(target, backend, env_args(there, learning=False))

    seeds = range(seed, seed + episodes)
    return record_episodes(
        make, lambda obs: np.asarray(policy.act(obs)), seeds, folder.videos, episodes, step=policy.step
    )


def environment(folder: RunFolder, config: RunConfig, env: Env | None, *, call: str, trust: bool) -> Env:
    """The environment to use with a run: the one that the caller names, or else the run's own, if it may be used."""
    if env is None:
        check_env(folder, config.env, call=call, trust=trust)
        return config.env
    check_makes(env)
    return env


def check_env(folder: RunFolder, env: str, *, call: str, trust: bool) -> None:
    """Refuse the environment of a run if nothing can make it again, or if the user has not consented to it."""
    if made_by_a_function(folder, env):
        raise PasselError(
            f"{folder.path} was trained on a Python function ({printable(env)}), which a run folder does not hold. "
            f"{CALLS[call]}, or --env module:function on the command line."
        )
    check_trust(folder.path, env, trust=trust)


def made_by_a_function(folder: RunFolder, env: str) -> bool:
    """Whether a run's environment has no name that makes it again. Older cards do not say so: an id has a version."""
    facts = folder.read_card().get("env")
    marked = facts.get("factory") if isinstance(facts, Mapping) else None
    if env != "<lambda>" and not env.isidentifier():  # an id, or module:function by a later resume
        return False
    return marked if isinstance(marked, bool) else not is_served(env) and env not in gym.registry


def name_of(env: Env) -> str:
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)


def _opened(path: str | Path) -> tuple[RunFolder, RunConfig, Any]:
    """A run's folder, what the run was told, and its algorithm's numbers."""
    folder = RunFolder.open(Path(path), lock=False)
    return folder, *resolve_saved(folder.read_config())
