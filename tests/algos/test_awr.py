"""AWR: each network learns in its turn, from the loss that the paper names, by autograd's gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch import distributions as dist

from passel.algos.awr import AWR, AWRConfig
from passel.arena import Tensors
from passel.testing import oracles
from passel.types import EnvSpec, Floats, Recollection

CHOICE = EnvSpec("choice", (3,), np.dtype(np.float32), n_actions=4)
VECTORS = EnvSpec("vectors", (3,), np.dtype(np.float32), n_actions=0, action_bounds=((-3.0, 0.0), (-1.0, 10.0)))
IMAGES = EnvSpec("images", (1, 36, 36), np.dtype(np.uint8), n_actions=4)
SPECS = [CHOICE, VECTORS, IMAGES]
CONFIG = AWRConfig(hidden=(8,), awr_beta=0.5, awr_weight_clip=3.0, entropy=0.01)


def make(spec: EnvSpec, config: AWRConfig = CONFIG) -> AWR:
    """With weights that have left their start, where the policy is nearly even."""
    torch.manual_seed(0)
    algo = AWR(config, spec, Tensors({}))
    for flat in algo.flats.values():
        flat.values.add_((0.05 if spec is IMAGES else 0.3) * torch.randn(len(flat)))
    return algo


def batch(spec: EnvSpec, network: str, size: int = 12) -> Recollection:
    rng = np.random.default_rng(1)
    obs = (
        rng.integers(0, 256, (size, *spec.obs_shape), np.uint8)
        if spec is IMAGES
        else rng.standard_normal((size, *spec.obs_shape), np.float32)
    )
    action = (
        rng.uniform((-4, -2), (0, 12), (size, 2)).astype(np.float32)
        if spec is VECTORS
        else rng.integers(0, spec.n_actions, size)
    )
    target, advantage = rng.standard_normal((2, size), np.float32)
    return Recollection(network, obs, action, target, advantage)


def policy_of(algo: AWR, spec: EnvSpec, obs: Tensor) -> dist.Distribution:
    output = algo.flats["policy"].module(obs)
    if spec is not VECTORS:
        return dist.Categorical(logits=output)
    middle, reach = torch.tensor([-2.0, 5.0]), torch.tensor([1.0, 5.0])
    return dist.Independent(dist.Normal(middle + reach * output[:, 2:], reach * output[:, :2].exp()), 1)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_the_policy_has_the_gradient_of_the_weighted_likelihood(spec: EnvSpec) -> None:
    algo, rows = make(spec), batch(spec, "policy")
    loss = algo.loss(rows)
    assert set(loss.losses) == {"policy"}, "the critic has had its turn"
    flat = algo.flats["policy"]
    flat.backward(loss.losses["policy"])
    found = flat.grads.clone()
    policy = policy_of(algo, spec, torch.from_numpy(rows.obs))
    weight = (torch.from_numpy(rows.advantage) / 0.5).exp().clamp(max=3.0)
    expected = -(weight * policy.log_prob(torch.from_numpy(rows.action)) + 0.01 * policy.entropy()).mean()
    assert loss.losses["policy"].item() == pytest.approx(expected.item(), rel=1e-4)
    flat.backward(expected)
    torch.testing.assert_close(found, flat.grads, rtol=1e-3, atol=1e-5)
    told = dict(zip(AWR.scalar_names, algo.scalars(0), strict=True))
    assert told["weight_mean"] == pytest.approx(weight.mean().item(), rel=1e-4)
    assert told["clip_fraction"] == pytest.approx((weight == 3).float().mean().item())
    assert 0 < told["clip_fraction"] < 1, "the clip had work to do"
    assert told["entropy"] == pytest.approx(policy.entropy().mean().item(), rel=1e-3)
    assert told["entropy_loss"] == -told["entropy"]
    likelihood = policy.log_prob(torch.from_numpy(rows.action))
    assert told["policy_loss"] == pytest.approx(-(weight * likelihood).mean().item(), rel=1e-4)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_the_critic_has_the_gradient_of_half_the_squared_error(spec: EnvSpec) -> None:
    algo, rows = make(spec), batch(spec, "value")
    loss = algo.loss(rows)
    assert set(loss.losses) == {"value"}
    flat = algo.flats["value"]
    flat.backward(loss.losses["value"])
    found = flat.grads.clone()
    error = flat.module(torch.from_numpy(rows.obs))[:, 0] - torch.from_numpy(rows.target)
    told = dict(zip(AWR.scalar_names, algo.scalars(0), strict=True))
    assert told["value_loss"] == pytest.approx(error.square().mean().item() / 2, rel=1e-4)
    flat.backward(error.square().mean() / 2)
    torch.testing.assert_close(found, flat.grads, rtol=1e-3, atol=1e-5)


def account(normalise: bool) -> tuple[AWR, dict[str, Floats]]:
    rng = np.random.default_rng(3)
    reward, value = rng.standard_normal((2, 9, 2), np.float32)
    weight = (rng.random((9, 2)) < 0.8).astype(np.float32)
    discount = np.where(rng.random((9, 2)) < 0.2, 0, 0.9).astype(np.float32)
    grids = {"reward": reward, "discount": discount, "value": value, "weight": weight}
    algo = make(CHOICE, replace(CONFIG, normalise=normalise, td_lambda=0.7))
    return algo, grids | {"last_value": rng.standard_normal(2, np.float32)}


def test_an_account_is_td_lambda_and_how_it_surpasses_the_critic() -> None:
    algo, grids = account(normalise=False)
    said = algo.recount(**grids)
    after = np.concatenate([grids["value"][1:], grids["last_value"][None]])
    expected = oracles.lambda_returns(grids["reward"].tolist(), grids["discount"].tolist(), after.tolist(), 0.7)
    np.testing.assert_allclose(said.target, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(said.advantage, said.target - grids["value"], rtol=1e-5)
    counts = grids["weight"] > 0
    explained = 1 - np.var(said.advantage[counts]) / np.var(said.target[counts])
    told = dict(zip(AWR.scalar_names, algo.scalars(0), strict=True))
    assert told["explained_variance"] == pytest.approx(explained, rel=1e-4)


def test_advantages_are_normalised_over_all_steps_that_are_kept() -> None:
    algo, grids = account(normalise=True)
    said = algo.recount(**grids)
    steps = said.advantage[grids["weight"] > 0]
    assert steps.mean() == pytest.approx(0, abs=1e-5)
    assert steps.std() == pytest.approx(1, rel=1e-4)
    raw = (said.target - grids["value"])[grids["weight"] > 0]
    np.testing.assert_allclose(np.corrcoef(raw, steps)[0, 1], 1, rtol=1e-5)


def test_greedy_is_the_mean_and_to_act_is_to_draw() -> None:
    algo = make(VECTORS)
    obs = np.repeat(batch(VECTORS, "policy").obs[:1], 20_000, axis=0)
    policy = policy_of(algo, VECTORS, torch.from_numpy(obs[:1]))
    np.testing.assert_allclose(algo.act_greedily(obs[:1]), policy.mean.detach().numpy(), rtol=1e-4)
    drawn = algo.act(obs, 0, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.mean(axis=0), policy.mean[0].detach().numpy(), atol=0.15)
    np.testing.assert_allclose(drawn.std(axis=0), policy.stddev[0].detach().numpy(), rtol=0.05)


def test_the_first_policy_aims_at_the_middle_with_the_spread_that_was_asked_for() -> None:
    algo = AWR(AWRConfig(hidden=(8,), log_std=-1.0), VECTORS, Tensors({}))
    policy = policy_of(algo, VECTORS, torch.from_numpy(batch(VECTORS, "policy").obs))
    assert (policy.mean - torch.tensor([-2.0, 5.0])).abs().max() < 0.3
    torch.testing.assert_close(policy.stddev[0], torch.tensor([1.0, 5.0]) * np.exp(-1), rtol=1e-4, atol=1e-5)
