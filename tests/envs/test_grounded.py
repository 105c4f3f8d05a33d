"""A copy of the environment that is put into a state takes the step that the environment itself takes from there."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from passel.envs.grounded import GroundedWorld, why_not


@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
def test_a_grounded_dream_is_what_happens(env: str) -> None:
    made, rng, rows = gym.make(env), np.random.default_rng(0), []
    obs, _ = made.reset(seed=0)
    for _ in range(300):
        action = int(rng.integers(made.action_space.n))  # type: ignore[attr-defined]
        following, reward, terminated, truncated, _ = made.step(action)
        rows.append((obs, action, following, reward, terminated))
        obs = made.reset()[0] if terminated or truncated else following
    made.close()
    before, actions, after, rewards, ends = (np.array(column) for column in zip(*rows, strict=True))
    seen = GroundedWorld(env).imagine(before, actions)
    np.testing.assert_allclose(seen.next_obs, after, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(seen.reward, rewards)
    assert (seen.over == ends).all()
    assert (seen.doubt == 0).all()


def test_what_cannot_be_put_into_a_state_is_refused_with_the_reason() -> None:
    assert why_not("CartPole-v1") is None
    reason = why_not("Pendulum-v1")
    assert reason is not None
    assert "PendulumEnv cannot be put into one" in reason
    assert "Use CartPole" in reason
