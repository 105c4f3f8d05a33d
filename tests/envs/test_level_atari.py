"""Breakout's variants as levels, and that a rollout gives back the stacks of frames that it was given."""

from __future__ import annotations

import numpy as np
import pytest

from passel.arena import Arena
from passel.data.rollout import RolloutExperience, RolloutShape
from passel.envs import level_atari
from passel.envs.level_sets import level_set
from passel.envs.levels import Copies
from passel.types import Array, Floats, Grid, Ints, Judgement, PasselError

T = 24


def test_24_variants_of_which_6_are_held_out() -> None:
    levels = level_set("levels:breakout-modes")
    assert (len(levels.train), len(levels.held_out)) == (18, 6)
    assert "mode24-difficulty1" in levels.held_out
    assert len({level_atari.LEVELS[name] for name in (*levels.train, *levels.held_out)}) == 24
    spec = levels.describe()
    assert (spec.obs_shape, spec.n_actions, spec.frames, spec.frame_skip) == ((4, 84, 84), 4, 4, 4)


def test_modes_are_different_games() -> None:
    """In mode 32 the ball breaks through the wall, so that the same random play scores more."""
    levels = level_set("levels:breakout-modes")
    envs = levels.make(("mode0-difficulty0", "mode32-difficulty0"), Copies(1, seed=0))
    envs.reset()
    rng, scored = np.random.default_rng(0), np.zeros(2)
    for _ in range(150):
        step = envs.step(rng.integers(0, 4, 2))
        scored += step.reward
    envs.close()
    assert scored[1] > scored[0]


class Witness:
    """Remembers the observations that it was to judge."""

    judges_by_acting = False
    obs: Array

    def values(self, obs: Array) -> Floats:
        return np.zeros(len(obs), np.float32)

    def judge(self, obs: Grid, action: Ints, reward: Floats, discount: Floats, last_obs: Array) -> Judgement:
        self.obs = np.concatenate([obs[slice(t, t + 5)] for t in range(0, T, 5)])
        return Judgement(reward, reward, reward)


def test_real_stacks_come_out_of_a_rollout_as_they_went_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes are cut short, so that pools reset in the middle of rollouts."""
    monkeypatch.setattr(level_atari, "MAX_STEPS", 7)
    levels = level_set("levels:breakout-modes")
    envs = levels.make(levels.train[:2], Copies(1, seed=0))
    specs = RolloutExperience.specs(RolloutShape(T, 2, (4, 84, 84), np.dtype(np.uint8), frames=4))
    assert specs["obs"].nbytes == (T + 3) * 2 * 84 * 84
    critic = Witness()
    experience = RolloutExperience(Arena(specs), critic, np.random.default_rng(0), gamma=0.9)
    obs, rng, ends = envs.reset(), np.random.default_rng(0), 0
    for _ in range(2):
        stacks = []
        for _ in range(T):
            actions = rng.integers(0, 4, 2)
            step = envs.step(actions)
            stacks.append(obs)
            experience.push(obs, actions, step, 0)
            obs, ends = step.obs, ends + len(step.episodes)
        experience.batch(0)
        assert np.array_equal(critic.obs, np.stack(stacks))
    envs.close()
    assert ends >= 8


def test_there_is_nothing_to_choose() -> None:
    with pytest.raises(PasselError, match="breakout-modes has nothing to choose"):
        level_set("levels:breakout-modes:hard")
