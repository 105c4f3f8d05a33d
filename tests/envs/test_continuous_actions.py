"""Actions that are vectors: what the boundary says of them, that it keeps them within their bounds, and that a run that
is resumed repeats them to the bit.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import passel
from passel.api import make_plan
from passel.envs import describe, make_envs, specs
from passel.envs.spaces import discrete_sibling, random_actions
from passel.policy import Policy
from passel.recipes.resolve import resolve_config
from passel.testing.envs import Aim
from passel.types import Array, EnvSpec
from small import AIM, settings_for, small_plan

N = 3


def test_the_spec_has_the_bounds_and_no_number_of_actions() -> None:
    spec = describe(AIM)
    assert (spec.n_actions, spec.action_shape) == (0, (2,))
    assert spec.action_bounds == ((-3.0, 0.0), (-1.0, 10.0))
    discrete = describe("CartPole-v1")
    assert (discrete.n_actions, discrete.action_shape, discrete.action_bounds) == (2, (), None)


def test_the_environment_gets_the_nearest_action_within_the_bounds() -> None:
    """Aim raises on anything else."""
    envs = make_envs(AIM, N, seed=0)
    wanted = envs.reset()
    outside = np.array([[-9, -9], [9, 99], [-2, 5]], np.float32)
    kept = outside.copy()
    step = envs.step(outside)
    nearest = np.array([[0, 0], [1, 1], [0.5, 0.5]])
    np.testing.assert_allclose(step.reward, 1 - 2 * np.abs(nearest - wanted).mean(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(outside, kept)  # what is learnt from is what the policy said
    envs.close()


def test_a_restored_episode_repeats_the_actions_to_the_bit() -> None:
    spec = describe("Pendulum-v1", "gymnasium")
    tensors = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in specs(spec, N).items()}
    assert tensors["actions"].shape == (N, 200, 1)
    assert tensors["actions"].dtype == torch.float32

    def make() -> Any:
        return make_envs("Pendulum-v1", N, 5, backend="gymnasium", tensors=tensors)

    envs, rng = make(), np.random.default_rng(0)
    envs.reset()
    for _ in range(230):  # into the second episode
        last = envs.step(rng.normal(0, 3, (N, 1)).astype(np.float32))
    np.testing.assert_array_equal(make().restore(), last.obs)


def test_envpool_against_the_raw_pool() -> None:
    envpool = pytest.importorskip("envpool")
    envs = make_envs("LunarLanderContinuous-v3", N, seed=9, backend="envpool")
    assert envs.spec.action_bounds == ((-1.0, -1.0), (1.0, 1.0))
    first = envs.reset()
    from passel.envs.seeds import derive_seed

    with warnings.catch_warnings(action="ignore"):
        seeds = [derive_seed(9, i, 0) for i in range(N)]
        pool = envpool.make("LunarLanderContinuous-v3", env_type="gymnasium", num_envs=N, num_threads=1, seed=seeds)
        np.testing.assert_array_equal(first, pool.reset()[0])
    rng = np.random.default_rng(0)
    for _ in range(150):
        actions = rng.normal(0, 1, (N, 2)).astype(np.float32)
        obs, reward, terminated, _, _ = pool.step(np.clip(actions, -1, 1))
        step = envs.step(actions)
        np.testing.assert_array_equal(step.next_obs, obs)
        np.testing.assert_array_equal(step.reward[step.real], reward[step.real])
        np.testing.assert_array_equal(step.discount == 0, terminated)
    envs.close()


def test_random_actions_fill_the_space() -> None:
    rng = np.random.default_rng(0)
    drawn = random_actions(describe(AIM), 2000, rng)
    assert drawn.dtype == np.float32
    assert (drawn >= Aim.LOW).all()
    assert (drawn <= Aim.HIGH).all()
    np.testing.assert_allclose(drawn.mean(axis=0), [-2, 5], atol=0.3)
    assert set(random_actions(describe("CartPole-v1"), 50, rng).tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("name", "sibling"),
    [
        ("LunarLanderContinuous-v3", "LunarLander-v3"),
        ("MountainCarContinuous-v0", "MountainCar-v0"),
        ("Pendulum-v1", None),
    ],
)
def test_the_sibling_with_discrete_actions(name: str, sibling: str | None) -> None:
    assert discrete_sibling(name) == sibling


def policy_for(spec: EnvSpec) -> tuple[Policy, Array]:
    plan = small_plan(env=AIM, algo="ppo")
    algo = plan.make_algorithm(passel.arena.Tensors({}))
    for flat in algo.flats.values():
        flat.values.mul_(40)  # far out
    vectors = {name: flat.values for name, flat in algo.flats.items()}
    obs = np.random.default_rng(0).random((50, 2), np.float32)
    return Policy(plan.algorithm, plan.numbers, spec, vectors), algo.act_greedily(obs)


def test_a_policy_acts_within_the_bounds_for_one_observation_and_for_a_batch() -> None:
    spec = describe(AIM)
    policy, means = policy_for(spec)
    obs = np.random.default_rng(0).random((50, 2), np.float32)
    actions = policy.act(obs)
    assert isinstance(actions, np.ndarray)
    assert (means < Aim.LOW).any() or (means > Aim.HIGH).any()
    np.testing.assert_array_equal(actions, np.clip(means, Aim.LOW, Aim.HIGH))
    one = policy.act(obs[7])
    assert isinstance(one, np.ndarray)
    np.testing.assert_allclose(one, actions[7], rtol=1e-4)
    assert gym.make(AIM).action_space.contains(one)


def test_what_is_said_of_a_gaussian_needs_one() -> None:
    for settings in ({"log_std": -1.0}, {"learn_std": False}):
        config, numbers = resolve_config(settings_for(algo="ppo", **settings))
        with pytest.raises(passel.PasselError, match=r"has no effect on .*Corridor-v0, whose actions are Discrete"):
            make_plan(config, numbers, config.env)
        small_plan(env=AIM, algo="ppo", **settings)


def test_weights_are_for_one_kind_of_actions(tmp_path: Any) -> None:
    run = passel.train(**settings_for(env=AIM, algo="awr", sync="solo", workers=1, steps=100, out=str(tmp_path / "a")))
    assert passel.load(run.path).spec.action_bounds == ((-3.0, 0.0), (-1.0, 10.0))
    with pytest.raises(passel.PasselError, match=r"do not fit: they are for"):
        passel.train(**{**settings_for(algo="awr"), "start_from": str(run.path), "out": str(tmp_path / "b")})
