"""A perceptron that differentiates itself has the gradients that autograd would find."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from passel.nets.flat import Flat
from passel.nets.network import Network
from passel.nets.perceptron import Perceptron
from passel.nets.q_network import QNetwork

widths = st.lists(st.integers(1, 9), min_size=1, max_size=3)

#: Two ways to add up the same float32 products.
TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}


def test_it_is_a_composition_of_linear_maps_and_relus() -> None:
    network, x = Perceptron(3, (5, 2)), torch.randn(7, 3)
    first, second = network.layers[0], network.layers[2]
    expected = (((x @ first.weight.T + first.bias).clamp(min=0)) @ second.weight.T + second.bias).clamp(min=0)
    torch.testing.assert_close(network(x), expected)


def test_a_layer_norm_stands_before_each_relu_but_the_last() -> None:
    network, x = Perceptron(3, (5, 4, 2), layer_norm=True), torch.randn(7, 3)
    y = x
    for number, layer in enumerate(module for module in network.layers if isinstance(module, torch.nn.Linear)):
        y = y @ layer.weight.T + layer.bias
        if number < 2:
            y = (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        y = y.clamp(min=0)
    torch.testing.assert_close(network(x), y)
    assert sum(weight.numel() for weight in network.parameters()) == 20 + 24 + 10


@given(widths, st.integers(1, 6), st.integers(1, 12), st.booleans())
@settings(max_examples=30)
def test_recorded_equals_autograd(widths: list[int], inputs: int, batch: int, open_end: bool) -> None:
    network = Perceptron(inputs, widths, open_end=open_end)
    flat = Flat(network)
    x, output_grad = torch.randn(batch, inputs), torch.randn(batch, widths[-1])
    flat.backward((network(x) * output_grad).sum())
    expected, before = flat.grads.clone(), x.clone()
    flat.grads.fill_(float("nan"))
    output, tape = network.record(x.numpy())
    torch.testing.assert_close(torch.from_numpy(output), network(x).detach(), **TOLERANCE)
    network.backward(tape, output_grad.numpy())
    torch.testing.assert_close(flat.grads, expected, **TOLERANCE)
    assert torch.equal(x, before)


@pytest.mark.parametrize("open_end", [False, True])
@pytest.mark.parametrize("widths", [(4,), (8, 3), (16, 8, 3)])
def test_recorded_through_layer_norms_equals_autograd_in_float64(widths: tuple[int, ...], open_end: bool) -> None:
    """A layer norm divides by the deviation of a row, and magnifies rounding where that is small. So gradients are
    compared by the largest of them, and rows that magnify by more than 20 are left out.
    """
    rng = torch.Generator().manual_seed(len(widths))
    network = Perceptron(5, widths, open_end=open_end, layer_norm=True)
    exact = copy.deepcopy(network).double()
    flat, x = Flat(network), torch.randn(64, 5, generator=rng)
    y, kept = x.double(), torch.ones(64, dtype=torch.bool)
    for module in exact.layers:
        kept &= y.var(1, unbiased=False) > 1 / 20**2 if isinstance(module, torch.nn.LayerNorm) else True
        y = module(y.clone())
    assert kept.sum() > 16
    x, y = x[kept], y[kept]
    output_grad = torch.randn(y.shape, generator=rng)
    (y * output_grad).sum().backward()
    expected = torch.cat([weight.grad.flatten() for weight in exact.parameters() if weight.grad is not None])
    output, tape = network.record(x.numpy())
    network.backward(tape, output_grad.numpy())
    for found, right in ((torch.from_numpy(output), y.detach()), (flat.grads, expected)):
        assert (found - right).abs().max() <= 1e-4 * right.abs().max()


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 4)])
def test_a_recorded_loss_of_a_q_network_equals_autograd(dueling: bool, hidden: tuple[int, ...]) -> None:
    network = QNetwork((3,), 4, hidden, dueling=dueling)
    flat = Flat(network)
    x, q_grad = torch.randn(6, 3), torch.randn(6, 4)
    loss = (network(x) * q_grad).sum()
    flat.backward(loss)
    expected = flat.grads.clone()
    q, tape = network.record(x.numpy())
    recorded = network.loss(float((q * q_grad.numpy()).sum()), tape, q_grad.numpy())
    assert recorded.item() == pytest.approx(loss.item(), rel=1e-5)
    flat.grads.fill_(float("nan"))
    flat.backward(recorded)
    torch.testing.assert_close(flat.grads, expected, **TOLERANCE)


def test_two_recorded_backward_passes_do_not_add_up() -> None:
    network = QNetwork((3,), 4, (8,), dueling=True)
    flat, x, q_grad = Flat(network), torch.randn(6, 3), torch.randn(6, 4)
    seen = []
    for _ in range(2):
        q, tape = network.record(x.numpy())
        flat.backward(network.loss(q.sum(), tape, q_grad.numpy()))
        seen.append(flat.grads.clone())
    assert torch.equal(*seen)


def test_gradients_follow_the_vector_that_they_are_bound_to() -> None:
    network = QNetwork((3,), 2, (4,), dueling=False)
    flat = Flat(network)
    mail = torch.zeros(2, len(flat))
    network.record(np.ones((6, 3), np.float32))  # as it was before
    flat.bind(grads=mail[1])
    q, tape = network.record(np.ones((6, 3), np.float32))
    flat.backward(network.loss(q.sum(), tape, np.ones((6, 2), np.float32)))
    assert mail[1].any()
    assert not mail[0].any()


def test_values_follow_the_vector_that_they_are_bound_to() -> None:
    network = QNetwork((3,), 2, (4,), dueling=False)
    flat, obs = Flat(network), np.ones((5, 3), np.float32)
    assert network.values(obs).any()
    flat.bind(values=torch.zeros(len(flat)))
    assert not network.values(obs).any()
    flat.values.fill_(1.0)  # in place: no new binding is needed to see it
    assert (network.values(obs) == 17).all()


def test_an_output_is_the_callers_to_keep() -> None:
    network = QNetwork((3,), 2, (4,), dueling=False)
    first = network.values(np.ones((5, 3), np.float32))
    before = first.copy()
    network.values(np.full((5, 3), 7, np.float32))
    assert (first == before).all()


def test_a_gradient_without_a_place_is_a_mistake_not_a_loss() -> None:
    network = Perceptron(3, (4, 2))
    output, tape = network.record(np.ones((5, 3), np.float32))
    with pytest.raises(ValueError, match="behind a Flat"):
        network.backward(tape, output)


def test_many_batch_sizes_do_not_pile_up_buffers() -> None:
    network = Perceptron(3, (4, 2))
    for size in range(1, 100):
        network.record(np.ones((size, 3), np.float32))
    assert len(network._desks) <= 4


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_observations_of_any_kind_and_shape_are_flattened(dtype: type) -> None:
    network = QNetwork((2, 3), 2, (4,), dueling=True)
    obs = np.arange(24).reshape(4, 2, 3).astype(dtype)
    expected = network(torch.from_numpy(obs)).detach()
    torch.testing.assert_close(torch.from_numpy(network.values(obs)), expected, **TOLERANCE)


@pytest.mark.parametrize("dueling", [False, True])
def test_images_have_the_gradients_of_autograd_by_the_same_door(dueling: bool) -> None:
    network = QNetwork((1, 36, 36), 3, (8,), dueling=dueling)
    flat = Flat(network)
    obs = np.random.default_rng(0).integers(0, 256, (4, 1, 36, 36), np.uint8)
    q_grad = np.random.default_rng(1).standard_normal((4, 3), np.float32)
    output = network(torch.from_numpy(obs))
    flat.backward((output * torch.from_numpy(q_grad)).sum())
    expected = flat.grads.clone()
    for _ in range(2):  # twice: what was there before must be gone
        q, tape = network.record(obs)
        torch.testing.assert_close(torch.from_numpy(q), output.detach(), **TOLERANCE)
        flat.backward(network.loss(0.5, tape, q_grad))
        torch.testing.assert_close(flat.grads, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("obs_shape", [(5,), (1, 36, 36)])
def test_orthogonal_weights(obs_shape: tuple[int, ...]) -> None:
    network = Network(obs_shape, 2, (4, 4))
    network.start_orthogonal(0.01)
    *_, hidden, last = [m for m in network.modules() if isinstance(m, torch.nn.Linear)]
    torch.testing.assert_close(hidden.weight @ hidden.weight.T, 2 * torch.eye(4), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last.weight @ last.weight.T, 1e-4 * torch.eye(2), rtol=1e-4, atol=1e-7)
    assert not hidden.bias.any()
    assert not last.bias.any()


def test_bounds_are_brought_to_one_whichever_way_the_output_is_made() -> None:
    bounds = ((-4.0, 0.0, -0.07), (4.0, 10.0, 0.07))
    scaled, plain = Network((3,), 2, (4,), bounds), Network((3,), 2, (4,))
    plain.load_state_dict(scaled.state_dict())
    obs = np.array([[-4.0, 10.0, 0.0], [2.0, 5.0, 0.035]], np.float32)
    by_hand = np.array([[-1.0, 1.0, 0.0], [0.5, 0.0, 0.5]], np.float32)
    np.testing.assert_allclose(scaled.values(obs), plain.values(by_hand), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scaled(torch.from_numpy(obs)), plain(torch.from_numpy(by_hand)))
