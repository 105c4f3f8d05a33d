"""A network of means with spreads beside it: held to autograd, with and without a critic in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from passel.nets.flat import Flat
from passel.nets.gaussian_network import GaussianNetwork, Spread
from passel.nets.network import Network

SHAPES: dict[str, dict[str, Any]] = {
    "vectors": {"obs_shape": (3,), "outputs": 2, "hidden": (8,)},
    "vectors, and a value": {"obs_shape": (3,), "outputs": 3, "hidden": (8,)},
    "images": {"obs_shape": (1, 36, 36), "outputs": 2, "hidden": (8,)},
}


def observations(shape: tuple[int, ...], size: int = 6) -> Any:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (size, *shape), np.uint8) if len(shape) == 3 else rng.random((size, *shape), np.float32)


@pytest.mark.parametrize("learnt", [True, False], ids=["learnt", "fixed"])
@pytest.mark.parametrize("name", SHAPES)
def test_outputs_and_gradients_are_autograd_s(name: str, learnt: bool) -> None:
    torch.manual_seed(0)
    network = GaussianNetwork(Spread(2, -0.7, learnt), **SHAPES[name])
    flat, obs = Flat(network), observations(SHAPES[name]["obs_shape"])
    flat.grads.fill_(7)  # what was there before must not be felt
    output, tape = network.record(obs)
    expected = network(torch.from_numpy(obs))
    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output[:, :2], -0.7, rtol=1e-6)
    slope = np.random.default_rng(1).standard_normal(output.shape, np.float32)
    loss = network.loss(0.5, tape, slope)
    assert loss.item() == 0.5
    flat.backward(loss)
    found = flat.grads.clone()
    flat.backward((expected * torch.from_numpy(slope)).sum())
    torch.testing.assert_close(found, flat.grads, rtol=1e-3, atol=1e-4)
    assert found.abs().sum() > 0


def test_a_spread_that_is_fixed_is_no_weight() -> None:
    shape = SHAPES["vectors"]
    plain, fixed, learnt = (
        len(Flat(network))
        for network in (
            Network(**shape),
            GaussianNetwork(Spread(2, 0.0, False), **shape),
            GaussianNetwork(Spread(2, 0.0, True), **shape),
        )
    )
    assert (fixed, learnt) == (plain, plain + 2)


def test_spreads_follow_the_vector_that_a_scheme_binds() -> None:
    network = GaussianNetwork(Spread(2, 0.0, True), **SHAPES["vectors"])
    flat = Flat(network)
    shared = torch.arange(len(flat), dtype=torch.float32)
    flat.bind(values=shared)
    assert [flat.name_at(place) for place in (0, 1)] == ["log_std"] * 2
    assert network.values(observations((3,)))[0, :2].tolist() == shared[:2].tolist()
