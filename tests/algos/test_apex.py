"""Ape-X: a ladder of epsilons over all rows, and priorities that actors find out as they act."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from passel.algos.apex import Apex, ApexConfig
from passel.algos.dqn import DQN, DQNConfig
from passel.arena import Arena, Tensors
from passel.data.nstep import NStep
from passel.data.shared_replay import Surprise
from passel.types import Array, Batch, EnvSpec, Step

SPEC = EnvSpec("test", (3,), np.dtype(np.float32), n_actions=4)
N = 3


def make(**changes: Any) -> Apex:
    torch.manual_seed(0)
    config = ApexConfig(hidden=(8,), **changes)
    blank = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in Apex.specs(config, SPEC).items()}
    return Apex(config, SPEC, Tensors(blank))


def test_the_ladder_is_the_paper_s() -> None:
    algo = make(epsilon=0.4, epsilon_alpha=7.0)
    algo.take_rows(0, 8)
    np.testing.assert_allclose(algo.ladder(8), [0.4 ** (1 + 7 * i / 7) for i in range(8)], rtol=1e-5)


def test_actors_divide_one_ladder_among_them() -> None:
    whole, parts = make(), [make(), make()]
    whole.take_rows(0, 10)
    parts[0].take_rows(0, 10)
    parts[1].take_rows(4, 10)
    np.testing.assert_array_equal(np.concatenate([parts[0].ladder(4), parts[1].ladder(6)]), whole.ladder(10))


def test_a_row_alone_is_the_boldest() -> None:
    assert make(epsilon=0.4).ladder(1) == pytest.approx([0.4])


def test_rows_explore_as_their_rung_says() -> None:
    algo, rng, rounds = make(epsilon=0.8, epsilon_alpha=2.0), np.random.default_rng(0), 4000
    algo.take_rows(0, N)
    obs = rng.standard_normal((N, 3), np.float32)
    best = algo.act_greedily(obs)
    strayed = np.mean([algo.act(obs, 0, rng) != best for _ in range(rounds)], axis=0)
    expected = np.array([0.8, 0.8**2, 0.8**3]) * 3 / 4
    assert (np.abs(strayed - expected) < 4.5 * np.sqrt(expected * (1 - expected) / rounds)).all()


def test_its_loss_is_dqn_s() -> None:
    ours = make(prioritized=True)
    torch.manual_seed(0)
    config = DQNConfig(hidden=(8,), prioritized=True)
    blank = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in DQN.specs(config, SPEC).items()}
    theirs = DQN(config, SPEC, Tensors(blank))
    rng = np.random.default_rng(1)
    obs, next_obs = rng.standard_normal((2, 6, 3), np.float32)
    batch = Batch(obs, rng.integers(0, 4, 6), np.ones(6, np.float32), np.full(6, 0.9, np.float32), next_obs)
    losses = []
    for algo in (ours, theirs):
        algo.refresh(0)
        loss = algo.loss(batch)
        algo.flats["q"].backward(loss.losses["q"])
        losses.append((loss.losses["q"].item(), loss.td_abs, algo.flats["q"].grads.numpy()))
    for found, expected in zip(*losses, strict=True):
        np.testing.assert_array_equal(found, expected)


class Walk:
    """Random observations in N environments, whose episodes end in both ways."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.obs: Array = self.rng.standard_normal((N, 3), np.float32)

    def step(self) -> Step:
        rng = self.rng
        next_obs = rng.standard_normal((N, 3), np.float32)
        terminated, truncated = rng.random((2, N)) < 0.15
        fresh = rng.standard_normal((N, 3), np.float32)
        obs = np.where((terminated | truncated)[:, None], fresh, next_obs)
        discount = np.where(terminated, 0, 1).astype(np.float32)
        return Step(obs, next_obs, rng.standard_normal(N, np.float32), discount, truncated, np.ones(N, bool))


@pytest.mark.parametrize("n", [1, 3])
def test_the_surprise_of_a_transition_is_its_error_by_the_actor_s_own_values(n: int) -> None:
    algo, walk, rng = make(), Walk(3), np.random.default_rng(0)
    arena = Arena({"x": next(iter(Apex.specs(ApexConfig(), SPEC).values()))})
    nstep = NStep(Arena(NStep.specs(n, N, (3,), SPEC.obs_dtype)) if n > 1 else arena, n=n, gamma=0.9)
    surprise = Surprise(Arena(Surprise.specs(n, N)) if n > 1 else arena, n=n, gamma=0.9)
    compared = 0
    for _ in range(60):
        actions = algo.act(walk.obs, 0, rng)
        step = walk.step()
        done = nstep.push(walk.obs, actions, step)
        found = surprise.push(actions, step, *algo.appraise(actions, step))
        walk.obs = step.obs
        assert len(found) == len(done)
        if len(done):
            q, q_next = algo._online.values(done.obs), algo._online.values(done.next_obs)
            expected = done.reward + done.discount * q_next.max(1) - q[np.arange(len(q)), done.action]
            np.testing.assert_allclose(found, np.abs(expected), rtol=1e-4, atol=1e-5)
            compared += len(done)
    assert compared > 150


def test_what_it_asked_of_the_next_state_is_not_asked_again_until_the_parameters_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    algo, walk, rng = make(), Walk(5), np.random.default_rng(0)
    asked: list[int] = []
    values = algo._online.values
    monkeypatch.setattr(algo._online, "values", lambda obs: asked.append(len(obs)) or values(obs))
    for _ in range(5):
        actions = algo.act(walk.obs, 0, rng)
        step = walk.step()
        step = Step(step.next_obs, step.next_obs, step.reward, np.ones(N, np.float32), np.zeros(N, bool), step.real)
        algo.appraise(actions, step)
        walk.obs = step.obs
    assert asked == [N] * 6
    algo.fetched(1)
    algo.act(walk.obs, 0, rng)
    assert asked == [N] * 7
