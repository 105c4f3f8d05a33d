"""Greedy evaluation on fresh episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from passel.envs.base import Envs
from passel.envs.levels import Copies, LevelSet
from passel.envs.make import make_envs
from passel.envs.seeds import derive_seed
from passel.policy import Policy
from passel.run.summary import EvalResult
from passel.types import Array, Episode, PasselError

AT_ONCE = 128
#: Steps after which an episode is cut, of an environment that has no time limit: half an hour of an Atari game, which
#: is where evaluations of those are cut (Machado et al. 2018).
MOST_STEPS = 27_000


class EvaluationStoppedError(Exception):
    """Somebody asked to stop before the last episode ended."""


def play(
    policy: Policy,
    env: str | Callable[[], gym.Env[Any, Any]],
    episodes: int,
    seed: int,
    *,
    threads: int = 1,
    env_args: Mapping[str, Any] | None = None,
    sample: bool = False,
    max_steps: int = 0,
    progress: Callable[[int], bool] = lambda _: True,
) -> list[Episode]:
    """`episodes` episodes from new starts, greedily or (`sample`) drawing actions as in training.

    Each copy of the environment plays a number of them that is fixed beforehand: to count whichever end first would
    favour the short ones. `progress` is told how many have ended, and stops the evaluation by returning False.

    An episode that goes on after `max_steps` is cut there with its score so far; 0 means never where the environment
    has a time limit, else MOST_STEPS. Copies cannot be reset one by one, so one that was cut plays no other episode.
    """
    if episodes < 1:
        raise PasselError(f"--episodes is {episodes}, and must be at least 1.")
    copies = min(episodes, AT_ONCE, policy.spec.max_copies or AT_ONCE)
    quota = np.full(copies, episodes // copies)
    quota[: episodes % copies] += 1
    backend: Any = policy.spec.backend
    envs = make_envs(env, copies, seed, backend=backend, threads=threads, env_args=env_args)
    rng = np.random.default_rng(seed) if sample else None
    return [episode for _, episode in _play_out(policy, envs, quota, progress, rng, _cap(policy, max_steps))]


def _cap(policy: Policy, max_steps: int) -> int | None:
    return max_steps or (MOST_STEPS if policy.spec.max_episode_steps is None else None)


def play_levels(
    policy: Policy,
    levels: LevelSet,
    names: Sequence[str],
    episodes: int,
    seed: int,
    *,
    sample: bool = False,
    max_steps: int = 0,
    progress: Callable[[int], bool] = lambda _: True,
) -> dict[str, list[Episode]]:
    """`episodes` episodes of each of these levels, by its name; some levels at a time.

    With `sample` actions are drawn, as in training: where nothing in a level is random, greedy play would be the same
    episode again and again. Where the set says that it is so, greedy play is one episode of each.
    """
    if episodes < 1:
        raise PasselError(f"--episodes is {episodes}, and must be at least 1.")
    if not (sample or levels.chance):
        episodes = 1
    copies = min(episodes, levels.at_once)
    together = max(1, levels.at_once // copies)
    quota = np.full(copies, episodes // copies)
    quota[: episodes % copies] += 1
    played: dict[str, list[Episode]] = {name: [] for name in names}
    rng = np.random.default_rng(seed) if sample else None
    for start in range(0, len(names), together):
        chosen, before = names[start : start + together], start * episodes
        envs = levels.each(chosen, Copies(copies, derive_seed(seed, start, 0)))

        def tell(ended: int, before: int = before) -> bool:
            return progress(before + ended)

        rows = np.tile(quota, len(chosen))
        for row, episode in _play_out(policy, envs, rows, tell, rng, _cap(policy, max_steps)):
            played[chosen[row // copies]].append(episode)
    return played


def _play_out(
    policy: Policy,
    envs: Envs,
    quota: Array,
    progress: Callable[[int], bool],
    rng: np.random.Generator | None,
    cap: int | None,
) -> list[tuple[int, Episode]]:
    """Play until every row has played its quota of episodes: each with its row. Closes the environments."""
    played: list[tuple[int, Episode]] = []
    score, length = np.zeros(len(quota)), np.zeros(len(quota), np.int64)
    try:
        obs = envs.reset()
        while quota.any():
            step = envs.step(np.asarray(policy.act(obs) if rng is None else policy.act(obs, rng)))
            for row, episode in zip(np.flatnonzero(step.ended), step.episodes, strict=True):
                if quota[row]:
                    quota[row] -= 1
                    played.append((int(row), episode))
            if cap is not None:
                score, length = score + step.reward, length + step.real
                score[step.ended], length[step.ended] = 0.0, 0
                for row in np.flatnonzero((length >= cap) & (quota > 0)):
                    quota[row] = 0
                    played.append((int(row), Episode(float(score[row]), int(length[row]), cut=True)))
            obs = step.obs
            if not progress(len(played)):
                raise EvaluationStoppedError
    finally:
        envs.close()
    return played


def level_table(
    levels: LevelSet, trained: Mapping[str, list[Episode]], held_out: Mapping[str, list[Episode]]
) -> dict[str, Any]:
    """The content of levels.json: every level's scores, the mean over the levels of each part, and the gap."""
    parts: dict[str, dict[str, Any]] = {}
    for part, played in (("train", trained), ("held_out", held_out)):
        rows = [{"name": name, **vars(summarise(episodes))} for name, episodes in played.items()]
        parts[part] = {"mean": float(np.mean([row["mean"] for row in rows])) if rows else None, "levels": rows}
    means = [parts[part]["mean"] for part in ("train", "held_out")]
    return {"set": levels.name, **parts, "gap": None if None in means else means[0] - means[1]}


def summarise(episodes: list[Episode]) -> EvalResult:
    scores = np.array([episode.score for episode in episodes])
    mean, std, low, high = (float(f(scores)) for f in (np.mean, np.std, np.min, np.max))
    return EvalResult(len(scores), mean, std, low, high, sum(episode.cut for episode in episodes))
