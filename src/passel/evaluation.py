"""Greedy evaluation on fresh episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from passel.envs.make import make_envs
from passel.policy import Policy
from passel.run.summary import EvalResult
from passel.types import Episode, PasselError

AT_ONCE = 128


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
    progress: Callable[[int], bool] = lambda _: True,
) -> list[Episode]:
    """`episodes` episodes from new starts. Each copy of the environment plays a number of them that is fixed
    beforehand: to count whichever end first would favour the short ones. `progress` is told how many have ended, and
    stops the evaluation by returning False.
    """
    if episodes < 1:
        raise PasselError(f"--episodes is {episodes}, and must be at least 1.")
    copies = min(episodes, AT_ONCE, policy.spec.max_copies or AT_ONCE)
    quota = np.full(copies, episodes // copies)
    quota[: episodes % copies] += 1
    backend: Any = policy.spec.backend
    envs = make_envs(env, copies, seed, backend=backend, threads=threads, env_args=env_args)
    played: list[Episode] = []
    try:
        obs = envs.reset()
        while quota.any():
            step = envs.step(np.asarray(policy.act(obs)))
            for copy, episode in zip(np.flatnonzero(step.ended), step.episodes, strict=True):
                if quota[copy]:
                    quota[copy] -= 1
                    played.append(episode)
            obs = step.obs
            if not progress(len(played)):
                raise EvaluationStoppedError
    finally:
        envs.close()
    return played


def summarise(episodes: list[Episode]) -> EvalResult:
    scores = np.array([episode.score for episode in episodes])
    return EvalResult(len(scores), float(scores.mean()), float(scores.std()), float(scores.min()), float(scores.max()))
