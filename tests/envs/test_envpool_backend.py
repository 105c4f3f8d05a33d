"""The boundary contract of the EnvPool back-end, against the raw pool and against Gymnasium."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from passel.envs import describe, make_envs, specs
from passel.envs.envpool_backend import SAME_AS_GYMNASIUM
from passel.envs.make import choose
from passel.envs.seeds import derive_seed
from passel.envs.spaces import read_spaces

envpool = pytest.importorskip("envpool")
SAME = sorted(SAME_AS_GYMNASIUM)


def raw_pool(env: str, n: int, seed: int, **arguments: Any) -> tuple[Any, Any]:
    """The pool as EnvPool gives it, and its first observations."""
    seeds = [derive_seed(seed, i, 0) for i in range(n)]
    with warnings.catch_warnings(action="ignore"):
        pool = envpool.make(env, env_type="gymnasium", num_envs=n, num_threads=1, seed=seeds, **arguments)
        return pool, pool.reset()[0]


@pytest.mark.parametrize(
    ("env", "env_args"),
    [
        ("CartPole-v1", {}),
        ("MountainCar-v0", {}),
        ("LunarLander-v3", {}),
        ("LunarLander-v3", {"max_episode_steps": 60}),
    ],
)
def test_against_the_raw_pool(env: str, env_args: dict[str, Any]) -> None:
    n, steps = 4, 450
    envs = make_envs(env, n, seed=9, backend="envpool", env_args=env_args)
    pool, raw_obs = raw_pool(env, n, 9, **env_args)
    np.testing.assert_array_equal(envs.reset(), raw_obs)
    actions = np.random.default_rng(0).integers(envs.spec.n_actions, size=(steps, n))
    after_end = np.zeros(n, bool)
    sums, lengths, ends, real = np.zeros(n), np.zeros(n, int), 0, 0
    for row in actions:
        step = envs.step(row)
        raw_obs, reward, terminated, truncated, info = pool.step(row.astype(np.int32))
        np.testing.assert_array_equal(step.next_obs, raw_obs)
        np.testing.assert_array_equal(step.obs, raw_obs)
        np.testing.assert_array_equal(step.real, ~after_end)
        np.testing.assert_array_equal(step.real, info["elapsed_step"] > 0)
        np.testing.assert_array_equal(step.reward, np.where(after_end, 0, reward))
        np.testing.assert_array_equal(step.discount, 1.0 - terminated)
        np.testing.assert_array_equal(step.truncated, truncated)
        real += int(step.real.sum())
        sums += np.where(after_end, 0, reward)
        lengths += ~after_end
        after_end = terminated | truncated
        assert [(e.score, e.length) for e in step.episodes] == list(
            zip(sums[after_end], lengths[after_end], strict=True)
        )
        assert (lengths[truncated] == envs.spec.max_episode_steps).all()
        ends += int(after_end.sum())
        sums[after_end], lengths[after_end] = 0, 0
    assert ends >= n
    assert real == steps * n - (ends - int(after_end.sum())), "each end but the last step's costs one row"


def test_truncated_at_the_limit_and_not_terminated() -> None:
    envs = make_envs("MountainCar-v0", 2, seed=0, backend="envpool")
    envs.reset()
    steps = [envs.step(np.ones(2, np.int64)) for _ in range(202)]
    assert [t for t, step in enumerate(steps, 1) if step.truncated.any()] == [200]
    assert steps[199].truncated.all()
    assert (steps[199].discount == 1).all()
    assert [(e.score, e.length) for e in steps[199].episodes] == [(-200, 200)] * 2
    assert not steps[200].real.any()
    assert (steps[200].reward == 0).all()
    assert steps[201].real.all()


def test_a_seed_is_a_trajectory() -> None:
    def trajectory(seed: int) -> np.ndarray[Any, Any]:
        envs = make_envs("CartPole-v1", 2, seed, backend="envpool")
        return np.stack([envs.reset()] + [envs.step(np.array([0, 1])).obs for _ in range(40)])

    first = trajectory(1)
    np.testing.assert_array_equal(first, trajectory(1))
    assert not np.array_equal(first, trajectory(2))
    assert len(np.unique(first[0], axis=0)) == 2, "the copies start apart"


def test_a_resumed_run_begins_new_episodes() -> None:
    spec = describe("CartPole-v1", "envpool")
    assert not spec.exact_resume
    tensors = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in specs(spec, 2).items()}
    first = make_envs("CartPole-v1", 2, 0, backend="envpool", tensors=tensors).reset()
    resumed = make_envs("CartPole-v1", 2, 0, backend="envpool", tensors=tensors).restore()
    assert not (first == resumed).all(axis=1).any()


@pytest.mark.parametrize("env", SAME)
def test_the_allow_list_says_what_both_makers_say(env: str) -> None:
    made = gym.make(env)
    with warnings.catch_warnings(action="ignore"):
        pool = envpool.make_spec(env)
        from_pool = read_spaces(env, pool.observation_space, pool.action_space)
    assert read_spaces(env, made.observation_space, made.action_space) == SAME_AS_GYMNASIUM[env] == from_pool
    assert gym.spec(env).max_episode_steps == pool.config.max_episode_steps
    fast, plain = describe(env, "envpool"), describe(env, "gymnasium")
    assert (fast.reward_threshold, fast.max_episode_steps) == (plain.reward_threshold, plain.max_episode_steps)
    assert fast.backend == choose(env, "auto") == "envpool"
    if plain.bounds is None:
        assert fast.bounds is None
    else:
        np.testing.assert_allclose(np.array(fast.bounds), np.array(plain.bounds), rtol=1e-6)


def set_state(env: gym.Env[Any, Any], obs: Any) -> None:
    """Put Gymnasium's environment where the pool's stands."""
    unwrapped: Any = env.unwrapped
    if "Acrobot" in type(unwrapped).__name__:
        cos1, sin1, cos2, sin2, speed1, speed2 = obs.tolist()
        unwrapped.state = np.array([np.arctan2(sin1, cos1), np.arctan2(sin2, cos2), speed1, speed2])
    else:
        unwrapped.state = np.array(obs, np.float64)


@pytest.mark.parametrize("env", ["CartPole-v1", "MountainCar-v0", "Acrobot-v1"])
def test_the_same_dynamics_from_the_same_state(env: str) -> None:
    """From EnvPool's own start, Gymnasium's equations give EnvPool's episode: states, rewards and end."""
    envs = make_envs(env, 4, seed=1, backend="envpool")
    starts = envs.reset()
    copies = [gym.make(env) for _ in range(4)]
    for copy, start in zip(copies, starts, strict=True):
        copy.reset(seed=0)
        set_state(copy, start)
    rng, alive, compared = np.random.default_rng(2), np.ones(4, bool), 0
    for _ in range(200):
        actions = rng.integers(envs.spec.n_actions, size=4)
        step = envs.step(actions)
        for i in np.flatnonzero(alive):
            obs, reward, terminated, truncated, _ = copies[i].step(actions[i])
            np.testing.assert_allclose(step.next_obs[i], obs, atol=2e-3)
            assert (step.reward[i], step.discount[i], step.truncated[i]) == (reward, 1 - terminated, truncated)
            alive[i] = not (terminated or truncated)
            compared += 1
    assert compared >= 4 * 12


def land(obs: Any) -> Any:
    """Gymnasium's own heuristic lander, for a batch."""
    x, y, _, vy, angle, spin, left, right = obs.T
    tilt = (np.clip(0.5 * x + obs[:, 2], -0.4, 0.4) - angle) * 0.5 - spin
    thrust = (0.55 * np.abs(x) - y) * 0.5 - vy * 0.5
    touching = (left + right) > 0
    tilt, thrust = np.where(touching, 0, tilt), np.where(touching, -vy * 0.5, thrust)
    side = np.where(tilt < -0.05, 3, np.where(tilt > 0.05, 1, 0))
    return np.where((thrust > np.abs(tilt)) & (thrust > 0.05), 2, side)


def test_a_fixed_lander_scores_the_same_in_both() -> None:
    """One episode a copy, so that short ones are not counted more often; cut at 400 steps to be quick."""
    n = 32

    def scores(backend: Any) -> np.ndarray[Any, Any]:
        envs = make_envs("LunarLander-v3", n, seed=1, backend=backend, env_args={"max_episode_steps": 400})
        obs, first = envs.reset(), {}
        while len(first) < n:
            step = envs.step(land(obs))
            for row, episode in zip(np.flatnonzero(step.ended), step.episodes, strict=True):
                first.setdefault(int(row), episode.score)
            obs = step.obs
        return np.array(list(first.values()))

    plain, fast = scores("gymnasium"), scores("envpool")
    error = np.sqrt((plain.var() + fast.var()) / n)
    assert abs(plain.mean() - fast.mean()) < 4 * error
    assert 170 < plain.mean() < 290
    assert 170 < fast.mean() < 290


def test_an_end_on_the_limit_itself_is_reported_as_truncated() -> None:
    """A known limit of EnvPool, pinned so that we notice if it changes: from Gymnasium it would be a termination."""
    free = make_envs("CartPole-v1", 8, seed=0, backend="envpool")
    free.reset()
    fallen = {t: step for t in range(1, 12) if (step := free.step(np.zeros(8, np.int64))).discount.min() == 0}
    limit = min(fallen)
    bound = make_envs("CartPole-v1", 8, seed=0, backend="envpool", env_args={"max_episode_steps": limit})
    bound.reset()
    last = [bound.step(np.zeros(8, np.int64)) for _ in range(limit)][-1]
    assert last.truncated.all()
    assert (last.discount == 1).all()


def test_other_ids_by_name_only() -> None:
    assert choose("Catch-v0", "auto") == "gymnasium"
    assert choose("CartPole-v1", "auto", {"max_episode_steps": 9}) == "envpool"
    assert choose("LunarLander-v3", "auto", {"gravity": -5.0}) == "gymnasium"
    spec = describe("Breakout-v5", "envpool")
    assert (spec.obs_shape, spec.obs_dtype, spec.n_actions, spec.frame_skip) == ((4, 84, 84), np.uint8, 4, 4)


def test_describing_does_not_import_it_and_making_is_silent() -> None:
    program = (
        "import sys, numpy as np; from passel.envs import describe, make_envs\n"
        "assert describe('LunarLander-v3').backend == 'envpool' and 'envpool' not in sys.modules\n"
        "envs = make_envs('LunarLander-v3', 2, 0); envs.reset(); envs.step(np.zeros(2, np.int64)); envs.close()\n"
        "assert 'envpool' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
