"""A3C and PPO: acting by the policy, judging a rollout, and gradients that autograd would find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from passel.algos.a3c import A3C
from passel.algos.actor_critic import ActorCritic, ActorCriticConfig
from passel.algos.ppo import PPO, PPOConfig
from passel.arena import Tensors
from passel.testing import oracles
from passel.types import EnvSpec, Judgement, Minibatch

SPEC = EnvSpec("test", (3,), np.dtype(np.float32), n_actions=4)
IMAGES = EnvSpec("images", (1, 36, 36), np.dtype(np.uint8), n_actions=4)
#: How far weights leave their start. Thousands of inputs add up: more, and logits of an image have no digits left.
NOISE = {SPEC.id: 0.3, IMAGES.id: 0.05}
KINDS = [(A3C, ActorCriticConfig(hidden=(8,))), (PPO, PPOConfig(hidden=(8,)))]


def make(kind: type[ActorCritic], config: Any, spec: EnvSpec = SPEC) -> ActorCritic:
    """With weights that have left their start, where the policy is nearly even."""
    torch.manual_seed(0)
    algo = kind(config, spec, Tensors({}))
    for flat in algo.flats.values():
        flat.values.add_(NOISE[spec.id] * torch.randn(len(flat)))
    return algo


def observations(size: int, spec: EnvSpec = SPEC) -> Any:
    rng = np.random.default_rng(1)
    if spec.obs_dtype == np.uint8:
        return rng.integers(0, 256, (size, *spec.obs_shape), np.uint8)
    return rng.standard_normal((size, *spec.obs_shape), np.float32)


def judged(algo: ActorCritic, spec: EnvSpec, steps: int = 5, envs: int = 3) -> tuple[Minibatch, Judgement, Any]:
    """A rollout of random actions, judged by the algorithm, in one part."""
    rng = np.random.default_rng(2)
    obs = observations(steps * envs, spec).reshape(steps, envs, *spec.obs_shape)
    action, reward = rng.integers(0, 4, (steps, envs)), rng.standard_normal((steps, envs), np.float32)
    discount = np.where(rng.random((steps, envs)) < 0.2, 0, 0.9).astype(np.float32)
    last = observations(envs, spec)
    said = algo.judge(obs, action, reward, discount, last)
    batch = Minibatch(
        obs.reshape(-1, *spec.obs_shape),
        action.ravel(),
        said.advantage.ravel(),
        (said.advantage + said.value).ravel(),
        said.logp.ravel(),
        said.value.ravel(),
        np.ones(action.size, np.float32),
    )
    return batch, said, (reward, discount, last)


@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_actions_are_drawn_from_the_policy(kind: type[ActorCritic], config: Any) -> None:
    algo = make(kind, config)
    one = observations(1)
    policy = torch.softmax(algo.flats["policy"].module(torch.from_numpy(one))[0], dim=0).detach().numpy()
    actions = algo.act(np.repeat(one, 20_000, axis=0), 0, np.random.default_rng(0))
    assert np.bincount(actions, minlength=4) / 20_000 == pytest.approx(policy, abs=0.015)
    assert algo.act_greedily(one)[0] == policy.argmax()


@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_a_judgement_is_what_the_networks_say(kind: type[ActorCritic], config: Any) -> None:
    algo = make(kind, replace(config, gae_lambda=0.9))
    batch, said, (reward, discount, last) = judged(algo, SPEC)
    values = algo.flats["value"].module(torch.from_numpy(batch.obs))[:, 0].detach().numpy()
    np.testing.assert_allclose(batch.value, values, rtol=1e-4, atol=1e-5)
    logp = torch.log_softmax(algo.flats["policy"].module(torch.from_numpy(batch.obs)), dim=1).detach()
    np.testing.assert_allclose(batch.logp, logp.numpy()[np.arange(len(logp)), batch.action], rtol=1e-4, atol=1e-5)
    last_value = algo.values(last).tolist()
    expected = oracles.gae(reward.tolist(), discount.tolist(), said.value.tolist(), last_value, 0.9)
    np.testing.assert_allclose(said.advantage, expected, rtol=1e-4, atol=1e-4)


def gradients(algo: ActorCritic, batch: Minibatch) -> dict[str, Tensor]:
    loss = algo.loss(batch)
    assert set(loss.losses) == set(algo.flats)
    for name, flat in algo.flats.items():
        flat.backward(loss.losses[name])
    return {name: flat.grads.clone() for name, flat in algo.flats.items()}


def by_autograd(algo: ActorCritic, batch: Minibatch, policy_loss: Any) -> dict[str, Tensor]:
    """Both gradients of losses written as anybody would write them."""
    obs = torch.from_numpy(batch.obs)
    joined = "value" not in algo.flats
    output = algo.flats["policy"].module(obs)
    logp = torch.log_softmax(output[:, :4], dim=1)
    entropy = -(logp.exp() * logp).sum(dim=1).mean()
    taken = logp[range(len(logp)), batch.action]
    of_policy = policy_loss(taken) - algo._config.entropy * entropy
    value = output[:, 4] if joined else algo.flats["value"].module(obs)[:, 0]
    of_critic = (value - torch.from_numpy(batch.target)).square().mean() / 2
    if joined:
        algo.flats["policy"].backward(of_policy + algo._config.critic_weight * of_critic)
    else:
        algo.flats["policy"].backward(of_policy)
        algo.flats["value"].backward(of_critic)
    return {name: flat.grads.clone() for name, flat in algo.flats.items()}


#: Whether policy and critic are one network, and what they look at.
SHAPES = [(spec, shared) for spec in (SPEC, IMAGES) for shared in ("no", "yes")]
SHAPE_IDS = [f"{spec.id}, {'joined' if shared == 'yes' else 'apart'}" for spec, shared in SHAPES]


@pytest.mark.parametrize(("spec", "shared"), SHAPES, ids=SHAPE_IDS)
def test_a3c_has_the_policy_gradient(spec: EnvSpec, shared: str) -> None:
    algo = make(A3C, ActorCriticConfig(hidden=(8,), shared=shared, critic_weight=0.3), spec)
    batch, _, _ = judged(algo, spec)
    expected = by_autograd(algo, batch, lambda taken: -(torch.from_numpy(batch.advantage) * taken).mean())
    for name, found in gradients(algo, batch).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("spec", "shared"), SHAPES, ids=SHAPE_IDS)
def test_ppo_has_the_gradient_of_the_clipped_surrogate(spec: EnvSpec, shared: str) -> None:
    algo = make(PPO, PPOConfig(hidden=(8,), clip=0.1, normalise=False, shared=shared), spec)
    batch, _, _ = judged(algo, spec)
    policy = algo.flats["policy"]
    policy.values.add_(NOISE[spec.id] * torch.randn(len(policy)))  # so that the clip has work to do

    def surrogate(taken: Tensor) -> Tensor:
        ratio, advantage = (taken - torch.from_numpy(batch.logp)).exp(), torch.from_numpy(batch.advantage)
        return -torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage).mean()

    expected = by_autograd(algo, batch, surrogate)
    for name, found in gradients(algo, batch).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-3, atol=1e-5)
    told = dict(zip(PPO.scalar_names, algo.scalars(0), strict=True))
    assert told["clip_fraction"] > 0
    assert told["approx_kl"] > 0


@pytest.mark.parametrize("spec", [SPEC, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("kind", [A3C, PPO])
def test_one_network_has_said_when_it_acts_what_it_would_say_of_the_rollout(
    kind: type[ActorCritic], spec: EnvSpec
) -> None:
    algo, rng = make(kind, kind.Config(hidden=(8,), shared="yes"), spec), np.random.default_rng(0)
    obs = observations(15, spec).reshape(5, 3, *spec.obs_shape)
    action, opinions = [], []
    for each in obs:
        action.append(algo.act(each, 0, rng))
        opinions.append(algo.opinion)
    reward, discount = np.ones((5, 3), np.float32), np.full((5, 3), 0.9, np.float32)
    said = algo.judge(obs, np.stack(action), reward, discount, obs[0])
    value = np.stack([opinion.value for opinion in opinions])
    assert value.std() > 1e-3, "states differ"
    np.testing.assert_allclose(value, said.value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose([opinion.logp for opinion in opinions], said.logp, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(algo.advantage(reward, discount, value, obs[0]), said.advantage, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [A3C, PPO])
def test_two_networks_judge_when_the_rollout_is_whole(kind: type[ActorCritic]) -> None:
    """Once for all steps: asking the critic at every step would cost small networks more."""
    assert not make(kind, kind.Config(shared="no")).judges_by_acting
    assert make(kind, kind.Config(shared="yes")).judges_by_acting


@pytest.mark.parametrize("shared", ["no", "yes"])
@pytest.mark.parametrize("kind", [A3C, PPO])
def test_where_actions_are_vectors_the_gradient_is_that_of_a_gaussian(kind: type[ActorCritic], shared: str) -> None:
    spec = EnvSpec(SPEC.id, (3,), np.dtype(np.float32), n_actions=0, action_bounds=((-3.0, 0.0), (-1.0, 10.0)))
    more = {"normalise": False, "clip": 0.1} if kind is PPO else {}
    algo = make(kind, kind.Config(hidden=(8,), shared=shared, entropy=0.02, critic_weight=0.3, **more), spec)
    rng = np.random.default_rng(2)
    obs, reward = observations(15).reshape(5, 3, 3), rng.standard_normal((5, 3), np.float32)
    action = np.stack([algo.act(each, 0, rng) for each in obs])
    assert action.shape == (5, 3, 2)
    said = algo.judge(obs, action, reward, np.full((5, 3), 0.9, np.float32), observations(3))
    algo.flats["policy"].values.add_(0.1 * torch.randn(len(algo.flats["policy"])))
    rows = [grid.reshape(15, *grid.shape[2:]) for grid in (obs, action, said.advantage, said.advantage + said.value)]
    batch = Minibatch(*rows, said.logp.ravel(), said.value.ravel(), np.ones(15, np.float32))
    found = gradients(algo, batch)

    output = algo.flats["policy"].module(torch.from_numpy(batch.obs))
    middle, reach = torch.tensor([-2.0, 5.0]), torch.tensor([1.0, 5.0])
    policy = Independent(Normal(middle + reach * output[:, 2:4], reach * output[:, :2].exp()), 1)
    taken, advantage = policy.log_prob(torch.from_numpy(batch.action)), torch.from_numpy(batch.advantage)
    ratio = (taken - torch.from_numpy(batch.logp)).exp()
    surrogate = (
        torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage) if kind is PPO else advantage * taken
    )
    of_policy = -(surrogate + 0.02 * policy.entropy()).mean()
    value = output[:, 4] if shared == "yes" else algo.flats["value"].module(torch.from_numpy(batch.obs))[:, 0]
    of_critic = (value - torch.from_numpy(batch.target)).square().mean() / 2
    if shared == "yes":
        algo.flats["policy"].backward(of_policy + 0.3 * of_critic)
    else:
        algo.flats["policy"].backward(of_policy)
        algo.flats["value"].backward(of_critic)
    for name, flat in algo.flats.items():
        torch.testing.assert_close(found[name], flat.grads, rtol=1e-3, atol=1e-4)


def test_on_the_first_minibatch_the_ratio_is_one() -> None:
    algo = make(PPO, PPOConfig(hidden=(8,)))
    batch, _, _ = judged(algo, SPEC)
    algo.loss(batch)
    told = dict(zip(PPO.scalar_names, algo.scalars(0), strict=True))
    assert told["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert told["clip_fraction"] == 0


@pytest.mark.parametrize(("progress", "clip"), [(0.0, 0.3), (0.5, 0.2), (1.0, 0.1)])
def test_the_clip_falls_in_a_straight_line(progress: float, clip: float) -> None:
    falling, fixed = (
        make(PPO, PPOConfig(hidden=(8,), **numbers)) for numbers in ({"clip": 0.3, "clip_end": 0.1}, {"clip": clip})
    )
    batch, _, _ = judged(falling, SPEC)
    shift = 0.3 * torch.randn(len(falling.flats["policy"]))
    for algo in (falling, fixed):
        algo.flats["policy"].values.add_(shift)
    found, expected = falling.loss(batch, progress), fixed.loss(batch)
    assert found.losses["policy"].item() == pytest.approx(expected.losses["policy"].item(), rel=1e-6)
    told = dict(zip(PPO.scalar_names, falling.scalars(0), strict=True))
    assert told["clip_fraction"] > 0, "the clip had work to do"


def test_enough_is_when_the_agreed_divergence_passes_its_target() -> None:
    algo = make(PPO, PPOConfig(hidden=(8,), target_kl=0.02))
    batch, _, _ = judged(algo, SPEC)
    assert algo.loss(batch).told == pytest.approx(0, abs=1e-6)
    algo.flats["policy"].values.add_(0.3 * torch.randn(len(algo.flats["policy"])))
    assert algo.loss(batch).told == dict(zip(PPO.scalar_names, algo.scalars(0), strict=True))["approx_kl"] > 0.03
    assert [algo.enough(agreed) for agreed in (0.0, 0.029, 0.031)] == [False, False, True]
    assert not make(PPO, PPOConfig(hidden=(8,))).enough(1e9), "nobody asked"


def test_advantages_are_normalised_over_the_minibatch_of_one_worker() -> None:
    """Local: a batch whose advantages are scaled and shifted gives the same gradient of the policy."""
    algo = make(PPO, PPOConfig(hidden=(8,)))
    batch, _, _ = judged(algo, SPEC)
    first = gradients(algo, batch)["policy"]
    second = gradients(algo, replace(batch, advantage=5 * batch.advantage + 3))["policy"]
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("kind", "config"), KINDS)
def test_the_first_policy_is_nearly_even(kind: type[ActorCritic], config: Any) -> None:
    torch.manual_seed(0)
    algo = kind(config, SPEC, Tensors({}))
    policy = torch.softmax(algo.flats["policy"].module(torch.from_numpy(observations(50))), dim=1)
    assert (policy - 0.25).abs().max() < 0.02
    assert all(np.isnan(number) for number in algo.scalars(0))


@pytest.mark.parametrize(
    ("kind", "spec", "numbers", "names"),
    [
        (PPO, IMAGES, {}, {"policy"}),
        (PPO, IMAGES, {"shared": "no"}, {"policy", "value"}),
        (PPO, IMAGES, {"split": True}, {"policy", "value"}),
        (PPO, SPEC, {}, {"policy", "value"}),
        (PPO, SPEC, {"shared": "yes"}, {"policy"}),
        (A3C, IMAGES, {}, {"policy", "value"}),
        (A3C, IMAGES, {"shared": "yes"}, {"policy"}),
    ],
)
def test_ppo_shares_a_network_for_images_and_a3c_where_it_is_told_to(
    kind: type[ActorCritic], spec: EnvSpec, numbers: dict[str, Any], names: set[str]
) -> None:
    assert set(make(kind, kind.Config(hidden=(8,), **numbers), spec).flats) == names


def test_a_joined_network_starts_with_an_even_policy_and_a_critic_that_speaks() -> None:
    torch.manual_seed(0)
    algo = PPO(PPOConfig(hidden=(8,)), IMAGES, Tensors({}))
    head = list(algo.flats["policy"].module.parameters())[-2]
    assert head[:-1].norm(dim=1).tolist() == pytest.approx([0.01] * 4, rel=1e-3)
    assert head[-1].norm().item() == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("shared", ["no", "yes"])
@pytest.mark.parametrize("kind", [A3C, PPO])
def test_the_parts_of_the_loss_add_up(kind: type[ActorCritic], shared: str) -> None:
    algo = make(kind, kind.Config(hidden=(8,), shared=shared, entropy=0.05, critic_weight=0.3))
    batch, said, _ = judged(algo, SPEC)
    algo.flats["policy"].values.add_(0.3 * torch.randn(len(algo.flats["policy"])))
    loss = algo.loss(batch)
    told = dict(zip(kind.scalar_names, algo.scalars(0), strict=True))
    parts = told["policy_loss"] + 0.05 * told["entropy_loss"] + (0.3 if shared == "yes" else 1) * told["value_loss"]
    assert sum(part.item() for part in loss.losses.values()) == pytest.approx(parts, rel=1e-5)
    values = algo.values(batch.obs)
    assert told["value_loss"] == pytest.approx(float(((values - batch.target) ** 2).mean() / 2), rel=1e-4)
    assert told["entropy_loss"] == -told["entropy"] < 0
    assert told["value_mean"] == pytest.approx(float(said.value.mean()), rel=1e-5)
