"""IMPALA: A3C where nothing has changed since it acted, and gradients that autograd would find where something has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from passel.algos.a3c import A3C
from passel.algos.actor_critic import ActorCritic, ActorCriticConfig
from passel.algos.impala import Impala, ImpalaConfig
from passel.arena import Tensors
from passel.maths.policies import log_softmax
from passel.maths.vtrace import vtrace
from passel.place.board import Board
from passel.types import EnvSpec, Minibatch, Rollouts
from small import new_arena, run_over, small_plan

SPEC = EnvSpec("test", (3,), np.dtype(np.float32), n_actions=4)
B, T, N = 2, 5, 3


def make(kind: type[ActorCritic], config: Any) -> ActorCritic:
    """With weights that have left their start, where the policy is nearly even."""
    torch.manual_seed(0)
    algo = kind(config, SPEC, Tensors({}))
    for flat in algo.flats.values():
        flat.values.add_(0.3 * torch.randn(len(flat)))
    return algo


def trajectories(algo: ActorCritic, moved: float, seed: int = 2) -> Rollouts:
    """Rollouts whose actions were as likely as they are now, or e^`moved` times as likely at most."""
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal((B * T * N, 3), np.float32)
    action = rng.integers(0, 4, (B, T, N))
    logp = log_softmax(algo._nets.logits(obs))[np.arange(B * T * N), action.ravel()].reshape(B, T, N)
    return Rollouts(
        obs,
        rng.standard_normal((B * N, 3), np.float32),
        action,
        (logp + moved * rng.uniform(-1, 1, logp.shape)).astype(np.float32),
        rng.standard_normal((B, T, N), np.float32),
        np.where(rng.random((B, T, N)) < 0.2, 0, 0.9).astype(np.float32),
        (rng.random((B, T, N)) < 0.8).astype(np.float32),
    )


def by_time(grid: Any) -> Any:
    return np.concatenate(list(grid.reshape(B, T, N)), axis=1)


def by_rollout(grid: Any) -> Any:
    return np.concatenate([part.ravel() for part in np.split(grid, B, axis=1)])


def gradients(algo: ActorCritic, batch: Any) -> dict[str, Tensor]:
    loss = algo.loss(batch)
    for name, flat in algo.flats.items():
        flat.backward(loss.losses[name])
    return {name: flat.grads.clone() for name, flat in algo.flats.items()}


@pytest.mark.parametrize("shared", ["no", "yes"])
def test_on_policy_its_gradient_is_that_of_a3c(shared: Any) -> None:
    ours = make(Impala, ImpalaConfig(hidden=(8,), shared=shared))
    theirs = make(A3C, ActorCriticConfig(hidden=(8,), shared=shared))
    batch = trajectories(ours, moved=0)
    last = ours.values(batch.last_obs)
    said = theirs.judge(
        np.concatenate([part.reshape(T, N, 3) for part in np.split(batch.obs, B)], axis=1),
        by_time(batch.action),
        by_time(batch.reward),
        by_time(batch.discount),
        batch.last_obs,
    )
    assert len(last) == B * N
    rows = Minibatch(
        batch.obs,
        batch.action.ravel(),
        by_rollout(said.advantage),
        by_rollout(said.advantage + said.value),
        batch.logp.ravel(),
        by_rollout(said.value),
        batch.weight.ravel(),
    )
    expected = gradients(theirs, rows)
    for name, found in gradients(ours, batch).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-4, atol=1e-6)
    told = dict(zip(Impala.scalar_names, ours.scalars(0), strict=True))
    assert (told["rho"], told["approx_kl"]) == pytest.approx((1.0, 0.0), abs=1e-5)


@pytest.mark.parametrize("shared", ["no", "yes"])
@pytest.mark.parametrize("clips", [(1.0, 1.0), (1.5, 0.5)])
def test_off_policy_its_gradient_is_autograd_s(shared: Any, clips: tuple[float, float]) -> None:
    config = ImpalaConfig(hidden=(8,), shared=shared, rho_clip=clips[0], c_clip=clips[1], entropy=0.02)
    algo = make(Impala, config)
    batch = trajectories(algo, moved=0.7)
    found = gradients(algo, batch)
    obs, action = torch.from_numpy(batch.obs), torch.from_numpy(batch.action.ravel())
    weight = torch.from_numpy(batch.weight.ravel())
    networks = [flat.module for flat in algo.flats.values()]
    for flat in algo.flats.values():
        flat.grads.zero_()
    if shared == "yes":
        output = networks[0](obs)
        logits, values = output[:, :-1], output[:, -1]
    else:
        logits, values = networks[0](obs), networks[1](obs)[:, 0]
    logp = torch.log_softmax(logits, 1)
    chosen = logp.gather(1, action[:, None])[:, 0]
    said = vtrace(
        by_time(chosen.detach().numpy() - batch.logp.ravel()),
        by_time(batch.reward),
        by_time(batch.discount),
        by_time(values.detach().numpy()),
        algo.values(batch.last_obs),
        rho_clip=clips[0],
        c_clip=clips[1],
    )
    advantage, target = torch.from_numpy(by_rollout(said.advantage)), torch.from_numpy(by_rollout(said.target))
    share = weight / weight.sum()
    entropy = -(logp.exp() * logp).sum(1)
    policy = -(share * (advantage * chosen + config.entropy * entropy)).sum()
    critic = (share * (values - target) ** 2).sum() / 2
    (policy + (config.critic_weight if shared == "yes" else 1.0) * critic).backward()
    for name, flat in algo.flats.items():
        torch.testing.assert_close(found[name], flat.grads, rtol=1e-4, atol=1e-6)
    likelier = np.exp(chosen.detach().numpy() - batch.logp.ravel())
    assert (likelier > clips[0]).any(), "nothing is clipped: this proves nothing"
    told = dict(zip(Impala.scalar_names, algo.scalars(0), strict=True))
    assert told["rho"] == pytest.approx(np.minimum(likelier, clips[0]).mean(), rel=1e-5)
    assert told["approx_kl"] > 0.01
    assert told["policy_loss"] == pytest.approx(-(share * advantage * chosen).sum().item(), rel=1e-4, abs=1e-6)
    assert told["value_loss"] == pytest.approx(critic.item(), rel=1e-4)
    assert told["entropy_loss"] == pytest.approx(-(share * entropy).sum().item(), rel=1e-4)
    counted = batch.weight.ravel() > 0
    wanted, said_of = target.numpy()[counted].astype(float), values.detach().numpy()[counted]
    explained = 1 - np.var(wanted - said_of) / np.var(wanted)
    assert told["explained_variance"] == pytest.approx(explained, rel=1e-3)


def test_it_knows_how_likely_its_actions_were() -> None:
    algo = make(Impala, ImpalaConfig(hidden=(8,)))
    obs = np.random.default_rng(0).standard_normal((6, 3), np.float32)
    actions = algo.act(obs, 0, np.random.default_rng(1))
    expected = log_softmax(algo._nets.logits(obs))[np.arange(6), actions]
    np.testing.assert_allclose(algo.acted_logp, expected, rtol=1e-6)  # type: ignore[attr-defined]


def test_one_worker_alone_is_a2c() -> None:
    """It acts with what it learns, so there is nothing to correct: a run is a run of A3C with one worker."""
    asked = {"sync": "solo", "workers": 1, "envs": 4, "horizon": 8, "lr": 1e-3, "optimizer": "adam"}
    vectors = []
    for algo in ("impala", "a3c"):
        plan = small_plan(algo=algo, steps=8 * 4 * 6 + 1, max_grad_norm=0.5, **asked)
        arena = new_arena(plan)
        run_over(plan, arena)
        assert Board(arena.below("board")).column("updates").tolist() == [6]
        vectors.append(torch.cat([arena[f"sync/{name}/vector"] for name in plan.schemes]))
    torch.testing.assert_close(*vectors, rtol=1e-4, atol=1e-5)
