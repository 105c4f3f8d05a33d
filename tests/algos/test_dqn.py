"""DQN: its loss and gradient against the papers in plain loops, its acting rule, and when its target moves."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from passel.algos.dqn import DQN, DQNConfig
from passel.arena import Tensors
from passel.maths.q_learning import dueling
from passel.nets.images import ImageTape
from passel.testing import oracles
from passel.types import Array, Batch, EnvSpec, PasselError
from rounding import Gradient, assert_rounded, gradient_of

SPEC = EnvSpec("test", (3,), np.dtype(np.float32), n_actions=4)
IMAGES = EnvSpec("images", (1, 36, 36), np.dtype(np.uint8), n_actions=4)
CONFIG = DQNConfig(hidden=(8,), layer_norm="no", target_every=10, huber=0.5)


def make(config: DQNConfig = CONFIG, spec: EnvSpec = SPEC, seed: int = 0) -> DQN:
    """A DQN whose target network differs from its online one."""
    torch.manual_seed(seed)
    tensors = Tensors({name: torch.zeros(s.shape, dtype=s.dtype) for name, s in DQN.specs(config, spec).items()})
    algo = DQN(config, spec, tensors)
    algo.refresh(0)
    algo.flats["q"].values.add_(0.3 * torch.randn(len(algo.flats["q"])))
    return algo


def batch(size: int = 12, spec: EnvSpec = SPEC, *, weighted: bool = False) -> Batch:
    rng = np.random.default_rng(5)
    shape = (2, size, *spec.obs_shape)
    if spec.obs_dtype == np.uint8:
        obs, next_obs = rng.integers(0, 256, shape, np.uint8)
    else:
        obs, next_obs = rng.standard_normal(shape, np.float32)
    return Batch(
        obs=obs,
        action=rng.integers(0, spec.n_actions, size),
        reward=rng.standard_normal(size, np.float32),
        discount=np.where(rng.random(size) < 0.3, 0.0, 0.9).astype(np.float32),
        next_obs=next_obs,
        index=np.arange(size) if weighted else None,
        weight=rng.random(size, np.float32) if weighted else None,
    )


def in_double(module: Any, obs: Array) -> Tensor:
    """Values by a network in float64."""
    x = torch.from_numpy(obs).double()
    x = module.torso(x / 255) if obs.dtype == np.uint8 else x
    output: Tensor = module.perceptron(x)
    return dueling(output[:, :1], output[:, 1:]) if module.dueling else output


def by_the_papers(algo: DQN, config: DQNConfig, rows: Batch) -> tuple[list[float], list[float]]:
    """Targets and values of a batch, from the networks' outputs in float64 and the oracles."""
    online, target = (copy.deepcopy(network).double() for network in (algo._online, algo._target))
    with torch.no_grad():
        q_target = in_double(target, rows.next_obs).tolist()
        q_online = in_double(online, rows.next_obs).tolist()
        q = in_double(online, rows.obs).tolist()
    r, discount = rows.reward.tolist(), rows.discount.tolist()
    if config.double:
        y = oracles.double_q_learning_target(r, discount, q_target, q_online)
    else:
        y = oracles.q_learning_target(r, discount, q_target)
    return y, oracles.q_of_action(q, rows.action.tolist())


def by_autograd(algo: DQN, y: list[float], rows: Batch, delta: float) -> Gradient:
    """The gradient of the Huber loss for given targets, by autograd in float64."""
    size = len(rows.action)

    def loss(module: Any, row: int) -> Tensor:
        error = (y[row] - in_double(module, rows.obs[row : row + 1])[0, rows.action[row]]).abs()
        huber = torch.where(error <= delta, error.square() / 2, delta * (error - delta / 2))
        return huber * (1 if rows.weight is None else float(rows.weight[row])) / size

    return gradient_of(algo._online, size, loss)


@pytest.mark.parametrize("spec", [SPEC, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_loss_and_gradient_are_the_papers(double: bool, dueling: bool, weighted: bool, spec: EnvSpec) -> None:
    config = replace(CONFIG, double=double, dueling=dueling, prioritized=weighted)
    algo, rows = make(config, spec), batch(spec=spec, weighted=weighted)
    y, values = by_the_papers(algo, config, rows)
    weight = None if rows.weight is None else rows.weight.tolist()
    expected = by_autograd(algo, y, rows, config.huber)

    loss = algo.loss(rows)
    assert loss.losses["q"].item() == pytest.approx(oracles.weighted_huber(values, y, weight, config.huber), rel=1e-4)
    algo.flats["q"].backward(loss.losses["q"])
    expected.check(algo.flats["q"].grads)
    if weighted:
        assert loss.td_abs is not None
        errors = [abs(target - value) for target, value in zip(y, values, strict=True)]
        assert_rounded(loss.td_abs, errors, expected.terms, np.abs([*y, *values]).max())
    else:
        assert loss.td_abs is None


def test_double_and_plain_differ_where_the_networks_disagree() -> None:
    rows = batch(64)
    losses = [make(replace(CONFIG, double=double)).loss(rows).losses["q"].item() for double in (False, True)]
    assert abs(losses[0] - losses[1]) > 1e-3


def test_the_target_network_is_never_differentiated() -> None:
    algo, rows = make(), batch()
    before = algo._target_flat.values.clone()
    algo.flats["q"].backward(algo.loss(rows).losses["q"])
    assert not algo._target_flat.grads.any()
    assert torch.equal(algo._target_flat.values, before)


def test_the_target_is_the_online_network_at_first_and_follows_every_so_many_versions() -> None:
    config = replace(CONFIG, target_every=10)
    tensors = Tensors({name: torch.zeros(s.shape, dtype=s.dtype) for name, s in DQN.specs(config, SPEC).items()})
    algo = DQN(config, SPEC, tensors)
    online = algo.flats["q"].values
    refreshed = []
    for version in (0, 1, 9, 10, 11, 19, 35, 36, 40):
        online.fill_(float(version + 1))
        algo.refresh(version)
        if (tensors["target"] == version + 1).all():
            refreshed.append(version)
    assert refreshed == [0, 10, 35, 40], "a version may be jumped over, where others update as well"


def test_tau_moves_the_target_part_of_the_way_but_copies_at_first() -> None:
    config = replace(CONFIG, target_every=10, target_tau=0.25)
    tensors = Tensors({name: torch.zeros(s.shape, dtype=s.dtype) for name, s in DQN.specs(config, SPEC).items()})
    algo = DQN(config, SPEC, tensors)
    algo.flats["q"].values.fill_(8.0)
    algo.refresh(0)
    assert (tensors["target"] == 8).all()
    algo.flats["q"].values.zero_()
    algo.refresh(10)
    assert (tensors["target"] == 6).all()


@pytest.mark.parametrize(("every", "tau"), [(1, 0.005), (2, 1.0), (500, 1.0)])
def test_without_a_tau_the_target_follows_every_update_smoothly_or_is_a_copy(every: int, tau: float) -> None:
    config = replace(CONFIG, target_every=every, target_tau=0.0)
    tensors = Tensors({name: torch.zeros(s.shape, dtype=s.dtype) for name, s in DQN.specs(config, SPEC).items()})
    algo = DQN(config, SPEC, tensors)
    algo.flats["q"].values.fill_(1.0)
    algo.refresh(0)
    algo.flats["q"].values.fill_(2.0)
    algo.refresh(every)
    torch.testing.assert_close(tensors["target"], torch.full_like(tensors["target"], 1 + tau))


def test_the_target_s_pace_does_not_depend_on_how_many_versions_are_jumped_over() -> None:
    """One worker sees every version; of four, each sees every fourth."""
    config, found = replace(CONFIG, target_every=2, target_tau=0.1), []
    for stride in (1, 4, 12):
        tensors = Tensors({name: torch.zeros(s.shape, dtype=s.dtype) for name, s in DQN.specs(config, SPEC).items()})
        algo = DQN(config, SPEC, tensors)
        algo.flats["q"].values.fill_(1.0)
        algo.refresh(0)
        algo.flats["q"].values.fill_(2.0)
        for version in range(stride, 25, stride):
            algo.refresh(version)
        found.append(float(tensors["target"][0]))
    assert found == pytest.approx([2 - 0.9**12] * 3)


def test_when_the_target_moved_is_remembered_across_a_restart() -> None:
    config = replace(CONFIG, target_every=10)
    tensors = Tensors({name: torch.zeros(s.shape, dtype=s.dtype) for name, s in DQN.specs(config, SPEC).items()})
    DQN(config, SPEC, tensors).refresh(17)
    target = tensors["target"].clone()
    again = DQN(config, SPEC, tensors)
    again.refresh(19)
    assert torch.equal(tensors["target"], target)
    again.refresh(20)
    assert torch.equal(tensors["target"], again.flats["q"].values)


@pytest.mark.parametrize(("step", "epsilon"), [(0, 1.0), (99, 1.0), (100, 0.8), (150, 0.5), (200, 0.2), (10**6, 0.2)])
def test_epsilon_is_one_while_it_warms_up_and_then_falls_in_a_straight_line(step: int, epsilon: float) -> None:
    config = replace(CONFIG, warmup=100, epsilon_start=0.8, epsilon_end=0.2, epsilon_steps=100)
    assert make(config).epsilon(step) == pytest.approx(epsilon)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_random_actions(epsilon: float) -> None:
    config = replace(CONFIG, warmup=0, epsilon_start=epsilon, epsilon_end=epsilon)
    algo, rng = make(config), np.random.default_rng(0)
    obs = rng.standard_normal((4000, 3)).astype(np.float32)
    actions = algo.act(obs, 10, rng)
    greedy = algo.act_greedily(obs)
    # A random action is the greedy one by chance in a quarter of the cases.
    assert np.mean(actions != greedy) == pytest.approx(epsilon * 3 / 4, abs=0.03)
    assert actions.dtype.kind == "i"
    assert set(actions) <= {0, 1, 2, 3}


def test_random_actions_are_even() -> None:
    rng = np.random.default_rng(0)
    actions = make(replace(CONFIG, warmup=100)).act(np.zeros((8000, 3), np.float32), 0, rng)
    assert np.bincount(actions, minlength=4) == pytest.approx([2000] * 4, abs=200)


def test_the_same_stream_gives_the_same_actions() -> None:
    algo, obs = make(replace(CONFIG, warmup=0, epsilon_start=0.5)), np.ones((50, 3), np.float32)
    once, twice = (algo.act(obs, 0, np.random.default_rng(3)) for _ in range(2))
    assert (once == twice).all()


@pytest.mark.parametrize("dueling", [False, True])
def test_greedy_means_the_largest_value(dueling: bool) -> None:
    algo, obs = make(replace(CONFIG, dueling=dueling)), np.random.default_rng(0).standard_normal((20, 3), np.float32)
    values = algo._online(torch.from_numpy(obs)).detach().numpy()
    assert (algo.act_greedily(obs) == values.argmax(axis=1)).all()


def test_scalars_are_those_of_the_last_batch() -> None:
    algo, rows = make(), batch()
    assert np.isnan(algo.scalars(0)[1])
    algo.loss(rows)
    _, values = by_the_papers(algo, CONFIG, rows)
    scalars: dict[str, Any] = dict(zip(DQN.scalar_names, algo.scalars(0), strict=True))
    assert scalars["q_mean"] == pytest.approx(sum(values) / len(values), rel=1e-4)
    assert scalars["epsilon"] == 1.0


@pytest.mark.parametrize("dueling", [False, True])
def test_specs_are_the_size_of_the_network(dueling: bool) -> None:
    config = replace(CONFIG, dueling=dueling)
    assert DQN.specs(config, SPEC)["target"].shape == (len(make(config).flats["q"]),)


C51 = replace(CONFIG, distributional=True, atoms=7, v_min=-2.0, v_max=3.0, huber=1.0)


def log_distributions(config: DQNConfig, module: Any, obs: Any) -> Tensor:
    """[B, A, N], from the outputs of the torso and the perceptron, each atom with its own duel."""
    output = module.perceptron(module.torso(torch.from_numpy(obs)))
    by_action = output.reshape(len(obs), -1, config.atoms)
    if config.dueling:
        rows = []
        for atom in range(config.atoms):
            state, actions = by_action[:, 0, atom], by_action[:, 1:, atom]
            rows.append(state[:, None] + actions - actions.mean(1, keepdim=True))
        by_action = torch.stack(rows, 2)
    return by_action.log_softmax(2)


@pytest.mark.parametrize("spec", [SPEC, IMAGES], ids=["vectors", "images"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_distributions_have_the_loss_and_gradient_of_the_paper(
    double: bool, dueling: bool, weighted: bool, spec: EnvSpec
) -> None:
    config = replace(C51, double=double, dueling=dueling, prioritized=weighted)
    algo, rows = make(config, spec), batch(spec=spec, weighted=weighted)
    z = torch.linspace(config.v_min, config.v_max, config.atoms)
    every = range(len(rows.action))
    with torch.no_grad():
        p_t = log_distributions(config, algo._target, rows.next_obs).exp()
        judge = log_distributions(config, algo._online, rows.next_obs).exp() if double else p_t
        chosen = p_t[every, (judge * z).sum(2).argmax(1)]
    goal = torch.tensor(
        oracles.categorical_projection(chosen.tolist(), rows.reward.tolist(), rows.discount.tolist(), z.tolist())
    )
    log_p = log_distributions(config, algo._online, rows.obs)[every, rows.action]
    surprise = torch.nn.functional.kl_div(log_p, goal, reduction="none").sum(1)
    expected_loss = (surprise * (1 if rows.weight is None else torch.from_numpy(rows.weight))).mean()
    flat = algo.flats["q"]
    flat.backward(expected_loss)
    expected_grads = flat.grads.clone()

    loss = algo.loss(rows)
    assert loss.losses["q"].item() == pytest.approx(expected_loss.item(), rel=1e-3)
    flat.backward(loss.losses["q"])
    size = float(expected_grads.abs().max())
    assert size > 1e-3
    torch.testing.assert_close(flat.grads, expected_grads, rtol=1e-3, atol=1e-5 * size)
    if weighted:
        assert loss.td_abs is not None
        np.testing.assert_allclose(loss.td_abs, surprise.detach(), rtol=1e-3, atol=1e-5)
    else:
        assert loss.td_abs is None
    assert algo.scalars(0)[1] == pytest.approx((log_p.exp() * z).sum(1).mean().item(), rel=1e-3)


@pytest.mark.parametrize("dueling", [False, True])
def test_greedy_means_the_largest_expectation_and_the_module_says_the_same(dueling: bool) -> None:
    algo, obs = make(replace(C51, dueling=dueling)), np.random.default_rng(0).standard_normal((20, 3), np.float32)
    values = algo._online(torch.from_numpy(obs)).detach().numpy()
    assert values.shape == (20, 4)
    np.testing.assert_allclose(algo._online.values(obs), values, rtol=1e-4, atol=1e-5)
    assert (algo.act_greedily(obs) == values.argmax(axis=1)).all()
    assert (values > C51.v_min).all()
    assert (values < C51.v_max).all()


@pytest.mark.parametrize("dueling", [False, True])
def test_specs_of_distributions_are_the_size_of_the_network(dueling: bool) -> None:
    config = replace(C51, dueling=dueling)
    assert DQN.specs(config, SPEC)["target"].shape == (len(make(config).flats["q"]),)


def test_hidden_layers_of_vectors_are_normalized_and_those_of_images_are_not() -> None:
    def norms(config: DQNConfig, *spec: EnvSpec) -> int:
        network = make(config, *spec)._online
        return sum(isinstance(module, torch.nn.LayerNorm) for module in network.modules())

    hidden = len(CONFIG.hidden)
    assert [norms(replace(CONFIG, layer_norm=choice)) for choice in ("auto", "yes", "no")] == [hidden, hidden, 0]  # type: ignore[arg-type]
    assert norms(replace(CONFIG, layer_norm="auto"), IMAGES) == 0
    with pytest.raises(PasselError, match="--layer-norm yes is for observations that are vectors, and those of"):
        make(replace(CONFIG, layer_norm="yes"), IMAGES)


def test_a_precision_that_nothing_is_multiplied_in_is_refused() -> None:
    with pytest.raises(PasselError, match="--precision bfloat16 has no effect on test"):
        make(replace(CONFIG, precision="bfloat16"))
    make(replace(CONFIG, precision="bfloat16"), IMAGES)


def test_what_an_image_shows_does_not_fade_on_its_way_through_new_layers() -> None:
    spec, config = replace(IMAGES, obs_shape=(4, 84, 84)), replace(CONFIG, hidden=(512,))
    torch.manual_seed(0)
    tensors = Tensors({name: torch.zeros(s.shape, dtype=s.dtype) for name, s in DQN.specs(config, spec).items()})
    algo = DQN(config, spec, tensors)
    rows = batch(16, spec).obs
    values, tape = algo._online.record(rows)
    assert isinstance(tape, ImageTape)
    seen = [torch.from_numpy(rows) / 255.0, *(layer.float() for layer in tape.maps[0]), tape.columns[0].T]
    spread = [float(layer.flatten(1).std(dim=0).mean()) for layer in seen]  # from image to image
    assert all(0.4 < after / before < 2.5 for before, after in pairwise(spread)), spread
    assert 0 < np.abs(values).max() < 0.5, "what nothing is known of is worth next to nothing"
