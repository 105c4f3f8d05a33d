"""Greedy evaluation: the right number of episodes, each counted whatever its length, by the environment's own score."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from passel import evaluation
from passel.envs.make import describe
from passel.envs.seeds import derive_seed
from passel.evaluation import EvaluationStoppedError, play, summarise
from passel.types import Array, EnvSpec, Episode, Ints, PasselError


class Geometric(gym.Env[Any, Any]):
    """Ends at each step with probability 0.1, or 0.9 from action 1 on: the score is the length, and the mean is 10."""

    closed = 0

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(0.0, np.inf, (1,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        ended = bool(self.np_random.random() < (0.9 if action else 0.1))
        return np.full(1, self._steps, np.float32), 1.0, ended, False, {}

    def close(self) -> None:
        Geometric.closed += 1


class Constant:
    """A policy that always does the same."""

    def __init__(self, action: int = 0, env: Any = Geometric) -> None:
        self.spec: EnvSpec = describe(env)
        self.action, self.asked = action, 0

    def act(self, obs: Array) -> Ints:
        self.asked += 1
        return np.full(len(obs), self.action, np.int64)


def played(policy: Constant, episodes: int, seed: int = 1, **options: Any) -> list[Episode]:
    return play(policy, Geometric, episodes, seed, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("episodes", [1, 7, 128, 300])
def test_exactly_as_many_as_asked_for(episodes: int) -> None:
    assert len(played(Constant(), episodes)) == episodes


def test_the_short_ones_are_not_favoured() -> None:
    """Against an oracle that plays each copy's episodes one after the other: the same scores, however long they take.

    To take the first 300 that end instead would give a mean near 7, for half of the copies are on a long one.
    """
    expected = []
    for copy in range(128):
        env = Geometric()
        for number in range(3 if copy < 300 % 128 else 2):
            env.reset(seed=derive_seed(1, copy, number))
            length = 1
            while not env.step(0)[2]:
                length += 1
            expected.append(length)
    found = played(Constant(), 300)
    assert sorted(episode.length for episode in found) == sorted(expected)
    assert all(episode.score == episode.length for episode in found)
    assert 8.5 < np.mean(expected) < 11.5


def test_the_policy_decides() -> None:
    assert np.mean([episode.length for episode in played(Constant(action=1), 300)]) < 1.3


def test_a_seed_is_a_set_of_episodes() -> None:
    one, same, other = (played(Constant(), 20, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_progress_is_told_and_may_stop_it() -> None:
    told: list[int] = []

    def progress(ended: int) -> bool:
        told.append(ended)
        return ended < 10

    Geometric.closed = 0
    policy = Constant()
    Geometric.closed = 0
    with pytest.raises(EvaluationStoppedError):
        played(policy, 50, progress=progress)
    assert told == sorted(told)
    assert told[-1] >= 10
    assert all(ended < 10 for ended in told[:-1])
    assert policy.asked == len(told), "it is asked after every step"
    assert Geometric.closed == 50, "every copy is closed"


def test_copies_are_closed() -> None:
    policy = Constant()
    Geometric.closed = 0
    played(policy, 5)
    assert Geometric.closed == 5


def test_no_more_copies_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "AT_ONCE", 4)
    policy = Constant()
    Geometric.closed = 0
    assert len(played(policy, 11)) == 11
    assert Geometric.closed == 4


@pytest.mark.parametrize("episodes", [0, -3])
def test_at_least_one(episodes: int) -> None:
    with pytest.raises(PasselError, match=f"--episodes is {episodes}, and must be at least 1"):
        played(Constant(), episodes)


def test_the_true_score_of_a_whole_episode() -> None:
    """Rewards 1 + 2 + 3 + 4 + 5 = 15, episode after episode, also for an environment with a time limit."""
    for env in ("passel.testing.envs:passel/Countdown-v0", lambda: gym.make("passel/Countdown-v0", truncate_after=5)):
        found = play(Constant(env=env), env, 6, 1)  # type: ignore[arg-type]
        assert found == [Episode(15.0, 5)] * 6


def test_summary() -> None:
    scores = [3.0, -1.0, 8.5, 2.0]
    found = summarise([Episode(score, 1) for score in scores])
    assert (found.episodes, found.min, found.max) == (4, -1.0, 8.5)
    assert found.mean == pytest.approx(np.mean(scores))
    assert found.std == pytest.approx(np.std(scores))
    assert all(type(value) is float for value in (found.mean, found.std, found.min, found.max))


class Endless(Geometric):
    """No episode ends, and every step is worth 2."""

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.full(1, self._steps, np.float32), 2.0, False, False, {}


@pytest.mark.parametrize("episodes", [3, 200])
def test_an_environment_without_a_time_limit_is_cut(episodes: int) -> None:
    """An episode that goes on counts with its score so far; a copy that was cut plays no other."""
    found = play(Constant(env=Endless), Endless, episodes, 1, max_steps=25)  # type: ignore[arg-type]
    assert found == [Episode(50.0, 25, cut=True)] * min(episodes, evaluation.AT_ONCE)
    assert summarise(found).cut == len(found)


def test_the_cut_has_a_default_where_there_is_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_STEPS", 10)
    found = play(Constant(env=Endless), Endless, 2, 1)  # type: ignore[arg-type]
    assert [episode.length for episode in found] == [10, 10]

    def limited() -> Any:
        return gym.wrappers.TimeLimit(Endless(), 30)

    found = play(Constant(env=limited), limited, 2, 1)  # type: ignore[arg-type]
    assert found == [Episode(60.0, 30)] * 2, "its own limit is the one that counts"


def test_episodes_that_end_are_not_cut() -> None:
    found = played(Constant(), 50, max_steps=1000)
    assert len(found) == 50
    assert not any(episode.cut for episode in found)
