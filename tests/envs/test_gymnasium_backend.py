"""The boundary contract of the Gymnasium back-end, on episodes computed by hand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TimeLimit

from passel.envs import Envs, describe, make_envs
from passel.testing.envs import Corridor, Countdown
from passel.types import Episode

COUNTDOWN = "passel.testing.envs:passel/Countdown-v0"


def zeros(envs: Envs) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.zeros(envs.n, np.int64)


def test_terminated_episode_row_by_row() -> None:
    envs = make_envs(COUNTDOWN, 1, seed=0, env_args={"terminate_after": 3})
    assert envs.reset().tolist() == [[0, 0]]
    steps = [envs.step(zeros(envs)) for _ in range(4)]
    assert [s.next_obs.tolist() for s in steps] == [[[1, 0]], [[2, 0]], [[3, 0]], [[1, 1]]]
    assert [s.obs.tolist() for s in steps] == [[[1, 0]], [[2, 0]], [[0, 1]], [[1, 1]]]
    assert [s.reward.item() for s in steps] == [1, 2, 3, 1]
    assert [s.discount.item() for s in steps] == [1, 1, 0, 1]
    assert [s.truncated.item() for s in steps] == [False, False, False, False]
    assert [s.ended.item() for s in steps] == [False, False, True, False]
    assert [s.episodes for s in steps] == [[], [], [Episode(6.0, 3)], []]
    assert all(s.real.all() for s in steps)


@pytest.mark.parametrize(
    "env_args",
    [{"terminate_after": None, "truncate_after": 2}, {"terminate_after": None, "max_episode_steps": 2}],
    ids=["by the environment", "by Gymnasium's TimeLimit"],
)
def test_truncation_keeps_the_bootstrap(env_args: dict[str, Any]) -> None:
    envs = make_envs(COUNTDOWN, 1, seed=0, env_args=env_args)
    envs.reset()
    envs.step(zeros(envs))
    last = envs.step(zeros(envs))
    assert last.truncated.item()
    assert last.discount.item() == 1
    assert last.next_obs.tolist() == [[2, 0]]
    assert last.obs.tolist() == [[0, 1]]
    assert last.episodes == [Episode(3.0, 2)]


def test_a_step_that_terminates_and_truncates_has_terminated() -> None:
    envs = make_envs(COUNTDOWN, 1, seed=0, env_args={"terminate_after": 1, "truncate_after": 1})
    envs.reset()
    step = envs.step(zeros(envs))
    assert step.discount.item() == 0
    assert not step.truncated.item()


def test_copies_end_on_their_own_and_every_row_is_a_transition() -> None:
    lengths = iter([2, 3, 4])
    envs = make_envs(lambda: Countdown(terminate_after=next(lengths)), 3, seed=0)
    envs.reset()
    real, episodes = 0, []
    for _ in range(12):
        step = envs.step(zeros(envs))
        real += int(step.real.sum())
        episodes += step.episodes
    assert real == 36
    assert sorted(e.length for e in episodes) == [2] * 6 + [3] * 4 + [4] * 3
    assert {(e.length, e.score) for e in episodes} == {(2, 3.0), (3, 6.0), (4, 10.0)}


def test_returned_arrays_are_never_reused() -> None:
    envs = make_envs(COUNTDOWN, 2, seed=0, env_args={"terminate_after": 3})
    envs.reset()
    kept = [envs.step(zeros(envs)) for _ in range(7)]
    assert [s.next_obs[0, 0] for s in kept] == [1, 2, 3, 1, 2, 3, 1]
    arrays = [a for s in kept for a in (s.next_obs, s.reward, s.discount, s.truncated, s.real)]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])


def test_types_and_shapes() -> None:
    envs = make_envs("CartPole-v1", 3, seed=0, backend="gymnasium")
    assert (envs.reset().shape, envs.reset().dtype) == ((3, 4), np.float32)
    step = envs.step(zeros(envs))
    arrays = (step.obs, step.next_obs, step.reward, step.discount, step.truncated, step.real)
    found = [(a.shape, a.dtype) for a in arrays]
    assert found == [
        ((3, 4), np.float32),
        ((3, 4), np.float32),
        ((3,), np.float32),
        ((3,), np.float32),
        ((3,), np.bool_),
        ((3,), np.bool_),
    ]


def test_equals_one_gymnasium_environment_with_the_derived_seeds() -> None:
    """The oracle: the plainest possible loop, over one copy."""
    from passel.envs.seeds import derive_seed

    envs = make_envs("CartPole-v1", 3, seed=5, backend="gymnasium")
    actions = np.random.default_rng(0).integers(2, size=(120, 3))
    obs = envs.reset()
    plain = gym.make("CartPole-v1")
    episode, score, length = 0, 0.0, 0
    expected, _ = plain.reset(seed=derive_seed(5, 1, 0))
    ended = 0
    for row in actions:
        np.testing.assert_array_equal(obs[1], expected)
        step = envs.step(row)
        expected, reward, terminated, truncated, _ = plain.step(row[1])
        np.testing.assert_array_equal(step.next_obs[1], expected)
        assert (step.reward[1], step.discount[1], step.truncated[1]) == (reward, 1 - terminated, truncated)
        score, length = score + float(reward), length + 1
        if terminated or truncated:
            assert Episode(score, length) in step.episodes
            ended, episode, score, length = ended + 1, episode + 1, 0.0, 0
            expected, _ = plain.reset(seed=derive_seed(5, 1, episode))
        obs = step.obs
    assert ended >= 3


def test_a_seed_is_a_trajectory() -> None:
    def trajectory(seed: int) -> np.ndarray[Any, Any]:
        envs = make_envs("CartPole-v1", 2, seed, backend="gymnasium")
        return np.stack([envs.reset()] + [envs.step(np.array([0, 1])).obs for _ in range(40)])

    first = trajectory(1)
    np.testing.assert_array_equal(first, trajectory(1))
    assert not np.array_equal(first, trajectory(2))
    assert len(np.unique(first[0], axis=0)) == 2, "the copies start apart"


class StartsAtThree(gym.Env[Any, Any]):
    """Rewards the action that it was given, in a space that begins at 3; observes in float64."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Discrete(2, start=3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return np.full(1, 0.1), float(action), False, False, {}


def test_actions_count_from_zero_whatever_the_space_starts_at() -> None:
    envs = make_envs(StartsAtThree, 2, seed=0)
    envs.reset()
    assert envs.step(np.array([0, 1])).reward.tolist() == [3, 4]


def test_floating_point_observations_cross_the_boundary_as_float32() -> None:
    envs = make_envs(StartsAtThree, 1, seed=0)
    envs.reset()
    assert envs.spec.obs_dtype == np.float32
    assert envs.step(np.array([0])).obs.item() == np.float32(0.1)


def test_a_factory_gets_the_arguments_and_may_wrap() -> None:
    def wrapped(cells: int) -> gym.Env[Any, Any]:
        return TimeLimit(Corridor(cells), 7)

    spec = describe(wrapped, env_args={"cells": 9})
    assert (spec.id, spec.obs_shape, spec.max_episode_steps, spec.n_actions) == ("Corridor", (9,), 7, 2)
    envs = make_envs(wrapped, 1, seed=0, env_args={"cells": 9})
    envs.reset()
    assert [envs.step(np.array([0])).truncated.item() for _ in range(7)] == [False] * 6 + [True]


def test_describe_closes_its_only_copy() -> None:
    made: list[Closing] = []

    class Closing(Corridor):
        closed = False

        def close(self) -> None:
            self.closed = True

    def factory() -> Closing:
        made.append(Closing())
        return made[-1]

    describe(factory)
    assert [copy.closed for copy in made] == [True]
    envs = make_envs(factory, 3, seed=0)
    assert len(made) == 4
    envs.close()
    envs.close()
    assert all(copy.closed for copy in made)


def test_describe_reads_gymnasium_s_registry() -> None:
    spec = describe("LunarLander-v3", "gymnasium")
    assert (spec.obs_shape, spec.n_actions, spec.reward_threshold, spec.max_episode_steps) == ((8,), 4, 200, 1000)
    assert (spec.backend, spec.exact_resume, spec.frame_skip) == ("gymnasium", True, 1)


def test_frames_count_what_wrappers_skip() -> None:
    class Skip(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: gym.Env[Any, Any]) -> None:
            super().__init__(env)
            self.frame_skip = 4

    assert describe(lambda: Skip(Corridor())).frame_skip == 4
