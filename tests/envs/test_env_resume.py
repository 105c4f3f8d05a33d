"""A run that stops in the middle of its episodes continues them, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from passel.arena import Arena
from passel.envs import Envs, describe, make_envs, specs
from passel.envs.gymnasium_backend import UNLIMITED_RECORD
from passel.testing.envs import Countdown
from passel.types import Episode, Step

N = 3


def record(env: Any, n: int = N, **env_args: Any) -> Arena:
    return Arena(specs(describe(env, "gymnasium", env_args), n))


def make(env: Any, tensors: Mapping[str, Tensor], n: int = N, **env_args: Any) -> Envs:
    return make_envs(env, n, seed=3, backend="gymnasium", env_args=env_args, tensors=tensors)


def play(envs: Envs, actions: np.ndarray[Any, Any]) -> list[Step]:
    return [envs.step(row) for row in actions]


def assert_same(first: list[Step], second: list[Step]) -> None:
    for a, b in zip(first, second, strict=True):
        for name in ("obs", "next_obs", "reward", "discount", "truncated", "real"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        assert a.episodes == b.episodes


@pytest.mark.parametrize("env", ["LunarLander-v3", "CartPole-v1"])
def test_a_restored_run_continues_bit_for_bit(env: str) -> None:
    tensors = record(env)
    actions = np.random.default_rng(0).integers(2, size=(800, N))
    envs = make(env, tensors)
    envs.reset()
    stopped = play(envs, actions[:500])[-1]
    kept = {name: tensor.clone() for name, tensor in tensors.items()}

    continued = play(envs, actions[500:])
    resumed = make(env, kept)
    np.testing.assert_array_equal(resumed.restore(), stopped.obs)
    assert_same(continued, play(resumed, actions[500:]))
    assert sum(len(step.episodes) for step in continued) >= N
    for name, tensor in tensors.items():
        if name != "actions":
            assert torch.equal(tensor, kept[name]), name


def test_a_score_is_continued_and_not_begun_again() -> None:
    tensors = record("passel.testing.envs:passel/Countdown-v0", 1, terminate_after=4)
    envs = make("passel/Countdown-v0", tensors, 1, terminate_after=4)
    envs.reset()
    play(envs, np.zeros((2, 1), np.int64))
    resumed = make("passel/Countdown-v0", tensors, 1, terminate_after=4)
    assert resumed.restore().tolist() == [[2, 0]]
    assert play(resumed, np.zeros((2, 1), np.int64))[-1].episodes == [Episode(10.0, 4)]


class Forgets(Countdown):
    """Shows a number that its seed does not decide: how many copies were ever made."""

    made = 0

    def __init__(self) -> None:
        super().__init__(terminate_after=None)
        Forgets.made += 1
        self._number = Forgets.made

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        obs[1] = self._number
        return obs, *rest


def test_an_environment_that_is_no_function_of_its_seed_begins_anew() -> None:
    tensors = record(Forgets, 2)
    envs = make(Forgets, tensors, 2)
    envs.reset()
    play(envs, np.zeros((3, 2), np.int64))
    resumed = make(Forgets, tensors, 2)
    assert resumed.restore()[:, 0].tolist() == [0, 0]
    assert not resumed.continued
    assert (tensors["episode"].tolist(), tensors["length"].tolist()) == ([1, 1], [0, 0])
    assert tensors["anew"].tolist() == [2]


def test_only_what_differs_begins_anew() -> None:
    tensors = record(Countdown, 2, terminate_after=9)
    envs = make(Countdown, tensors, 2, terminate_after=9)
    envs.reset()
    last = play(envs, np.zeros((3, 2), np.int64))[-1]
    same = make(Countdown, tensors, 2, terminate_after=9)
    np.testing.assert_array_equal(same.restore(), last.obs)
    assert same.continued
    assert tensors["anew"].tolist() == [0]
    tensors["shown"][1, 0] += 1
    other = make(Countdown, tensors, 2, terminate_after=9)
    assert other.restore()[:, 0].tolist() == [3, 0]
    assert not other.continued
    assert tensors["anew"].tolist() == [1]


def test_a_record_of_an_older_version_has_kept_no_observation() -> None:
    tensors = record(Countdown, 1)
    envs = make(Countdown, tensors, 1)
    envs.reset()
    play(envs, np.zeros((2, 1), np.int64))
    old = {name: tensor for name, tensor in tensors.items() if name != "shown"}
    fresh = record(Countdown, 1)
    fresh.load(old)
    resumed = make(Countdown, fresh, 1)
    assert resumed.restore()[0, 0] == 2
    assert resumed.continued


class PaysTheAction(Countdown):
    """Rewards the action as it was given, in a space that begins at 3."""

    def __init__(self) -> None:
        super().__init__(terminate_after=4)
        self.action_space = Discrete(2, start=3)

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(action), terminated, truncated, info


def test_a_replay_gives_the_actions_that_the_space_starts_at() -> None:
    tensors = record(PaysTheAction, 1)
    envs = make(PaysTheAction, tensors, 1)
    envs.reset()
    play(envs, np.array([[0], [1]]))
    assert tensors["actions"][0, :2].tolist() == [0, 1]
    resumed = make(PaysTheAction, tensors, 1)
    resumed.restore()
    assert play(resumed, np.array([[0], [1]]))[-1].episodes == [Episode(3.0 + 4 + 3 + 4, 4)]


def test_restore_without_a_past_is_reset() -> None:
    fresh = make("CartPole-v1", record("CartPole-v1"))
    restored = make("CartPole-v1", record("CartPole-v1"))
    np.testing.assert_array_equal(fresh.reset(), restored.restore())


def test_reset_never_begins_an_abandoned_episode_again() -> None:
    tensors = record("CartPole-v1")
    envs = make("CartPole-v1", tensors)
    first = envs.reset()
    envs.step(np.zeros(N, np.int64))
    again = make("CartPole-v1", tensors).reset()
    assert not (first == again).all(axis=1).any()
    assert tensors["episode"].tolist() == [1, 1, 1]
    assert tensors["length"].tolist() == [0, 0, 0]


def test_an_episode_longer_than_its_record_is_begun_anew() -> None:
    tensors = record("passel.testing.envs:passel/Countdown-v0", 1, terminate_after=None)
    assert tensors["actions"].shape == (1, UNLIMITED_RECORD)
    short = {**tensors, "actions": torch.zeros(1, 3, dtype=torch.int32)}
    envs = make("passel/Countdown-v0", short, 1, terminate_after=None)
    envs.reset()
    play(envs, np.zeros((3, 1), np.int64))
    assert make("passel/Countdown-v0", short, 1, terminate_after=None).restore()[0, 0] == 3
    play(envs, np.zeros((1, 1), np.int64))
    assert make("passel/Countdown-v0", short, 1, terminate_after=None).restore()[0, 0] == 0
    assert tensors["episode"].tolist() == [1]


def test_an_episode_that_ends_on_the_way_is_begun_anew() -> None:
    """As when a worker is killed between an episode's last step and the next reset, or the environment has changed."""
    tensors = record(Countdown, 1)
    tensors["length"][0] = 5
    envs = make(Countdown, tensors, 1)
    assert envs.restore()[0, 0] == 0
    assert (tensors["episode"].item(), tensors["length"].item()) == (1, 0)
    assert play(envs, np.zeros((5, 1), np.int64))[-1].episodes == [Episode(15.0, 5)]
