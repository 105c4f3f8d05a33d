"""Images on their own way through a network have the outputs and gradients of plain convolutions and autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from passel.nets import images
from passel.nets.flat import Flat
from passel.nets.network import AutogradLoss, Network
from passel.nets.perceptron import RecordedLoss
from passel.nets.q_network import QNetwork
from passel.nets.torsos import ImageTorso
from passel.types import Array

#: Two ways to add up the same float32 products; gradients are sums over batch and places.
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def pictures(batch: int, shape: tuple[int, ...], dtype: str = "uint8") -> Array:
    rng = np.random.default_rng(0)
    if dtype == "uint8":
        return rng.integers(0, 256, (batch, *shape), np.uint8)
    return rng.random((batch, *shape)).astype(dtype)


def in_double(network: Network, obs: Array, slope: Array) -> tuple[Tensor, Tensor]:
    """The oracle: torch's own modules, one after the other, in float64 and with autograd."""
    assert isinstance(network.torso, ImageTorso)
    x = torch.from_numpy(obs).double()
    x = x.permute(0, 3, 1, 2) if network.torso.channels_last else x
    x = x / 255 if obs.dtype == np.uint8 else x
    weights = [weight.detach().double().requires_grad_() for weight in network.parameters()]
    pairs = list(zip(weights[::2], weights[1::2], strict=True))
    for (weight, bias), stride in zip(pairs[:3], (4, 2, 1), strict=True):
        x = nn.functional.conv2d(x, weight, bias, stride).relu()
    x = x.flatten(1)
    for number, (weight, bias) in enumerate(pairs[3:], start=4):
        x = x @ weight.T + bias
        x = x if number == len(pairs) else x.relu()
    (x * torch.from_numpy(slope)).sum().backward()
    gradients = [weight.grad.reshape(-1) for weight in weights if weight.grad is not None]
    return x.detach().float(), torch.cat(gradients).float()


def check(network: Network, obs: Array) -> None:
    flat = Flat(network)
    slope = np.random.default_rng(1).standard_normal((len(obs), network.perceptron.outputs)).astype(np.float32)
    slope /= len(obs)
    values, gradient = in_double(network, obs, slope)
    flat.grads.fill_(float("nan"))  # what was there must not matter
    output, tape = network.record(obs)
    torch.testing.assert_close(torch.from_numpy(output), values, **CLOSE)
    torch.testing.assert_close(torch.from_numpy(network.values(obs)), values, **CLOSE)
    flat.backward(network.loss(1.0, tape, slope))
    torch.testing.assert_close(flat.grads, gradient, **CLOSE)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize(
    "shape", [(4, 84, 84), (84, 84, 4), (1, 36, 36), (36, 36, 1), (3, 40, 57), (57, 40, 3), (9, 36, 50)]
)
def test_both_orders_of_channels_any_size_and_kind_of_number(shape: tuple[int, ...], dtype: str) -> None:
    check(Network(shape, 5, (16,)), pictures(3, shape, dtype))


def test_a_screen_of_tetris() -> None:
    check(Network((240, 256, 3), 6, (64,), filters=(32, 64, 32)), pictures(2, (240, 256, 3)))


@given(st.lists(st.integers(1, 9), max_size=2), st.integers(1, 7), st.lists(st.integers(1, 6), min_size=3, max_size=3))
@settings(max_examples=15, deadline=None)
def test_any_widths(hidden: list[int], batch: int, filters: list[int]) -> None:
    torch.manual_seed(batch)
    network = Network((2, 36, 41), 3, hidden, filters=filters)
    network.start_orthogonal(1.0)  # alive: a dead network has no gradient to compare
    check(network, pictures(batch, (2, 36, 41)))


@pytest.mark.parametrize("shape", [(4, 36, 36), (36, 36, 4)])
@pytest.mark.parametrize("together", [1, 2 * 4 * 36 * 36, 3 * 4 * 36 * 36])
def test_parts_of_a_batch_make_the_whole(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], together: int
) -> None:
    monkeypatch.setattr(images, "TOGETHER", together)
    check(Network(shape, 3, (8,)), pictures(7, shape))


def test_very_many_images_are_seen_twice_and_then_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network((4, 36, 36), 3, (8,))
    monkeypatch.setattr(images, "TOGETHER", 2 * 4 * 36 * 36)
    monkeypatch.setattr(images, "KEPT_BYTES", 3 * 4 * (32 * 8 * 8 + 64 * 3 * 3 + 64))
    assert isinstance(network.record(pictures(7, (4, 36, 36)))[1], np.ndarray)
    check(network, pictures(7, (4, 36, 36)))


def test_a_tape_keeps_what_the_layers_made_and_no_more() -> None:
    network = Network((4, 84, 84), 4, (512,))
    _, tape = network.record(pictures(100, (4, 84, 84)))
    assert isinstance(tape, images.ImageTape)
    assert len(tape.images) == 3
    assert tape.floats is None
    kept = sum(layer.nbytes for part in tape.maps for layer in part)
    assert kept == 100 * 4 * (32 * 20 * 20 + 64 * 9 * 9 + 64 * 7 * 7)
    assert all(image.dtype == torch.uint8 for image in tape.images)


def test_the_images_are_not_changed() -> None:
    for shape in ((4, 36, 36), (36, 36, 4)):
        for dtype in ("uint8", "float32"):
            network, obs = Network(shape, 3, (8,)), pictures(4, shape, dtype)
            flat, before = Flat(network), obs.copy()
            output, tape = network.record(obs)
            flat.backward(network.loss(0.0, tape, output.copy()))
            np.testing.assert_array_equal(obs, before)


def test_an_output_is_the_callers_to_keep() -> None:
    network = QNetwork((1, 36, 36), 3, (8,), dueling=True)
    first = network.values(pictures(4, (1, 36, 36)))
    before = first.copy()
    network.values(np.zeros((4, 1, 36, 36), np.uint8))
    np.testing.assert_array_equal(first, before)


def test_values_and_gradients_follow_the_vectors_that_they_are_bound_to() -> None:
    network = Network((1, 36, 36), 3, (8,))
    flat, obs = Flat(network), pictures(4, (1, 36, 36))
    assert network.values(obs).any()
    mail = torch.zeros(2, len(flat))
    flat.bind(values=torch.ones(len(flat)), grads=mail[1])
    output, tape = network.record(obs)
    assert (output > 1).all()
    flat.backward(network.loss(0.0, tape, np.ones_like(output)))
    assert mail[1].any()
    assert not mail[0].any()


def test_a_gradient_without_a_place_is_a_mistake_not_a_loss() -> None:
    network = Network((1, 36, 36), 3, (8,))
    output, tape = network.record(pictures(4, (1, 36, 36)))
    with pytest.raises(ValueError, match="behind a Flat"):
        network.loss(0.0, tape, output).backward()


@pytest.mark.parametrize("dueling", [False, True])
def test_weights_elsewhere_are_left_to_autograd_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch, dueling: bool
) -> None:
    network = QNetwork((4, 36, 36), 3, (8,), dueling=dueling)
    flat, obs = Flat(network), pictures(5, (4, 36, 36))
    slope = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    found = []
    for kind, on_cpu in ((RecordedLoss, True), (AutogradLoss, False)):
        monkeypatch.setattr(Network, "_on_cpu", on_cpu)
        output, tape = network.record(obs)
        np.testing.assert_allclose(network.values(obs), output, rtol=1e-5, atol=1e-6)
        loss = network.loss(2.0, tape, slope)
        assert isinstance(loss, kind)
        flat.backward(loss)
        found.append((torch.from_numpy(output), flat.grads.clone()))
    torch.testing.assert_close(found[0], found[1], **CLOSE)


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 60, 3)])
def test_in_bfloat16_it_is_the_same_network_rounded(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain, narrow = Network(shape, 4, (64,)), Network(shape, 4, (64,), precision=torch.bfloat16)
    narrow.load_state_dict(plain.state_dict())
    obs, slope = pictures(16, shape), np.random.default_rng(1).standard_normal((16, 4)).astype(np.float32)
    outputs, grads, tapes = [], [], []
    for network in (plain, narrow):
        flat = Flat(network)
        flat.grads.fill_(float("nan"))
        output, tape = network.record(obs)
        assert output.dtype == np.float32
        np.testing.assert_array_equal(network.values(obs), output)
        flat.backward(network.loss(0.0, tape, slope))
        assert isinstance(tape, images.ImageTape)
        outputs.append(torch.from_numpy(output))
        grads.append(flat.grads)
        tapes.append(tape)
    assert all(layer.dtype == torch.bfloat16 for part in tapes[1].maps for layer in part)
    assert grads[1].dtype == torch.float32
    # Rounding to 8 bits is off by 2^-9 at most. On the way to a gradient lie the weights and outputs of four layers and
    # the slopes of four; the errors are independent, so their squares add up.
    rounding = 12**0.5 * 2**-9
    # A unit on the other side of its ReLU has all of its slope wrong: a share p of the units is sqrt(p) of the length.
    flips = sum(_flipped(*pair) for pair in zip(*map(_hidden, tapes), strict=True))
    # Behind l layers a pre-activation is off by sqrt(2 l) 2^-9; if it is normal, atan of that over pi falls across 0.
    assert flips < sum(math.atan((2 * layer) ** 0.5 * 2**-9) * 2 / math.pi for layer in (1, 2, 3, 4))
    assert 1e-5 < _off(*outputs) < rounding
    assert 1e-5 < _off(*grads) < min(rounding + flips**0.5, 0.06)


def _hidden(tape: images.ImageTape) -> list[Tensor]:
    """What came out of every ReLU."""
    return [layer for part in tape.maps for layer in part] + tape.columns


def _flipped(exact: Tensor, rounded: Tensor) -> float:
    """The share of active units that rounding has brought to the other side of 0."""
    return float(((exact > 0) != (rounded > 0)).sum() / (exact > 0).sum())


def _off(exact: Tensor, rounded: Tensor) -> float:
    return float((exact - rounded).norm() / exact.norm())


def test_pixels_are_exact_in_bfloat16() -> None:
    pixels = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(pixels.to(torch.bfloat16).to(torch.uint8), pixels)
