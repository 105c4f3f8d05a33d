"""Bytes never reach a network unscaled: images go through convolutions, everything else is divided by its largest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from passel.envs import describe
from passel.nets.flat import Flat
from passel.nets.q_network import QNetwork
from passel.nets.torsos import ImageTorso, VectorTorso, is_channels_last, is_image
from passel.types import EnvSpec


def spec_of(space: Box) -> EnvSpec:
    class Shows(gym.Env[Any, Any]):
        observation_space, action_space = space, Discrete(2)

    return describe(Shows)


def bytes_of(*shape: int, high: int = 255) -> EnvSpec:
    return spec_of(Box(0, high, shape, np.uint8))


def network(spec: EnvSpec) -> QNetwork:
    torch.manual_seed(0)
    made = QNetwork(spec.net_shape, 2, (8,), dueling=False, bounds=spec.net_bounds(scale_obs=False))
    Flat(made)
    return made


@pytest.mark.parametrize(
    ("shape", "last"),
    [((84, 84, 12), True), ((40, 60, 3), True), ((84, 84, 1), True), ((4, 84, 84), False), ((12, 84, 84), False)],
)
def test_the_axis_of_channels_is_the_shortest(shape: tuple[int, ...], last: bool) -> None:
    assert is_image(shape)
    assert is_channels_last(shape) == last
    channels = shape[2] if last else shape[0]
    assert next(ImageTorso(shape).parameters()).shape[1] == channels


def test_twelve_channels_last_and_first_are_the_same_image() -> None:
    last, first = network(bytes_of(44, 40, 12)), network(bytes_of(12, 44, 40))
    obs = np.random.default_rng(0).integers(0, 256, (3, 44, 40, 12)).astype(np.uint8)
    np.testing.assert_allclose(last.values(obs), first.values(obs.transpose(0, 3, 1, 2).copy()), rtol=1e-4, atol=1e-5)


def test_a_gray_plane_is_an_image_with_one_channel() -> None:
    gray, channel = network(bytes_of(40, 44)), network(bytes_of(1, 40, 44))
    assert isinstance(gray.torso, ImageTorso)
    obs = np.random.default_rng(0).integers(0, 256, (3, 40, 44)).astype(np.uint8)
    np.testing.assert_array_equal(gray.values(obs), channel.values(obs[:, None]))
    np.testing.assert_allclose(gray(torch.from_numpy(obs)).detach(), gray.values(obs), rtol=1e-4, atol=1e-5)
    slope = np.ones((3, 2), np.float32)
    grads = []
    for made, seen in ((gray, obs), (channel, obs[:, None])):
        made.loss(0.0, made.record(seen)[1], slope).backward()
        grads.append([weight.grad.clone() for weight in made.parameters() if weight.grad is not None])
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)


def test_a_plane_of_floats_is_no_image() -> None:
    spec = spec_of(Box(-1, 1, (40, 44), np.float32))
    assert isinstance(network(spec).torso, VectorTorso)


@pytest.mark.parametrize(
    ("spec", "largest"),
    [(bytes_of(32, 32, 3), 255), (bytes_of(20, 20), 255), (bytes_of(128), 255), (bytes_of(9, high=3), 3)],
    ids=["a small image", "a small plane", "the memory of a console", "a board"],
)
def test_bytes_that_are_no_image_are_divided_by_their_largest(spec: EnvSpec, largest: int) -> None:
    made = network(spec)
    plain = network(replace(spec, obs_dtype=np.dtype(np.float32), obs_scale=1.0))
    obs = np.random.default_rng(0).integers(0, largest + 1, (5, *spec.obs_shape)).astype(np.uint8)
    scaled = (obs / np.float32(largest)).astype(np.float32)
    np.testing.assert_allclose(made.values(obs), plain.values(scaled), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(made(torch.from_numpy(obs)).detach(), made.values(obs), rtol=1e-5, atol=1e-6)
    assert made.torso.of_arrays(np.full_like(obs, largest)).max() == pytest.approx(1.0)  # type: ignore[union-attr]


def test_other_numbers_are_left_as_they_are() -> None:
    for dtype in (np.int64, np.float32, np.int8):
        spec = spec_of(Box(0, 100, (4,), dtype))
        assert (spec.obs_scale, spec.net_bounds(scale_obs=False)) == (1.0, None)
