"""Torsos and the Q-network: shapes, types and what each head does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from passel.algos.ppo import PPO, PPOConfig
from passel.arena import Tensors
from passel.nets import images
from passel.nets.flat import Flat
from passel.nets.network import Network
from passel.nets.q_network import QNetwork
from passel.nets.torsos import ImageTorso, VectorTorso, is_channels_last, is_image, torso_for
from passel.recipes.presets import PRESETS
from passel.types import EnvSpec


def weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def test_the_input_is_not_changed_by_the_layers_that_work_in_place() -> None:
    x = torch.randn(4, 3)
    before = x.clone()
    QNetwork((3,), 2, (8, 8), dueling=True)(x)
    QNetwork((3,), 2, (), dueling=False)(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_a_vector_torso_takes_any_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torso = VectorTorso(shape)
    obs = torch.arange(5 * 8, dtype=dtype)[: 5 * torso.features].view(5, *shape)
    features = torso(obs)
    assert features.dtype == torch.float32
    assert features.tolist() == obs.float().view(5, -1).tolist()


@pytest.mark.parametrize(
    ("shape", "image", "last"),
    [
        ((84, 84, 3), True, True),
        ((84, 84, 1), True, True),
        ((4, 84, 84), True, False),
        ((1, 36, 36), True, False),
        ((36, 36, 4), True, True),
        ((4, 35, 84), False, False),
        ((84, 35, 3), False, True),
        ((5, 5, 3), False, True),
        ((84, 84), False, False),
        ((8,), False, False),
    ],
)
def test_what_counts_as_an_image(shape: tuple[int, ...], image: bool, last: bool) -> None:
    assert is_image(shape) == image
    assert isinstance(torso_for(shape), ImageTorso if image else VectorTorso)
    if image:
        assert is_channels_last(shape) == last


def test_the_image_network_has_as_many_weights_as_the_nature_paper_s() -> None:
    """Mnih et al. 2015, 84x84x4: 8,224 + 32,832 + 36,928 + 1,606,144, and 513 for each action."""
    network = QNetwork((4, 84, 84), 6, (512,), dueling=False)
    assert weights(network) == 1_684_128 + 513 * 6


def test_the_network_for_tetris_has_as_many_weights_as_the_one_it_comes_from() -> None:
    """6,144 + 32,768 + 18,432 + 1,490,944, and 64 for the critic's head: convolutions of 59x63, 28x30 and 26x28."""
    shape, numbers = (3, 240, 256), PRESETS["ppo", "tetris"]

    def without_biases(network: nn.Module) -> int:
        return sum(weight.numel() for name, weight in network.named_parameters() if not name.endswith("bias"))

    numbers = PPOConfig(**{key: tuple(numbers[key]) for key in ("hidden", "filters")})
    algo = PPO(numbers, EnvSpec("tetris", shape, np.dtype(np.uint8), n_actions=6), Tensors({}))
    (only,) = (flat.module for flat in algo.flats.values())
    assert isinstance(only, Network)
    assert without_biases(only) - 6 * 64 == 1_548_352, "not counting the policy's head"
    picture = torch.zeros(2, *shape, dtype=torch.uint8)
    assert [tuple(layer.shape[1:]) for layer in _outputs(only, picture)] == [(32, 59, 63), (64, 28, 30), (32, 26, 28)]


def _outputs(network: Network, picture: torch.Tensor) -> list[torch.Tensor]:
    assert isinstance(network.torso, ImageTorso)
    found, out = [], picture.float() / 255
    for layer in network.torso.convolutions:
        out = layer(out)
        if isinstance(layer, nn.Conv2d):
            found.append(out)
    return found


def test_bytes_are_scaled_to_one() -> None:
    torso = ImageTorso((1, 36, 36))
    picture = torch.randint(0, 256, (2, 1, 36, 36), dtype=torch.uint8)
    torch.testing.assert_close(torso(picture), torso(picture.float() / 255))


def test_channels_last_is_channels_first_seen_from_the_side() -> None:
    torch.manual_seed(0)
    last = ImageTorso((40, 36, 3))
    torch.manual_seed(0)
    first = ImageTorso((3, 40, 36))
    picture = torch.rand(2, 40, 36, 3)
    torch.testing.assert_close(last(picture), first(picture.permute(0, 3, 1, 2).contiguous()))


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 4)])
def test_q_network_has_one_value_an_action(dueling: bool, hidden: tuple[int, ...]) -> None:
    network = QNetwork((3,), 5, hidden, dueling=dueling)
    assert network(torch.zeros(7, 3)).shape == (7, 5)
    widths = [3, *hidden, 6 if dueling else 5]
    assert weights(network) == sum(before * after + after for before, after in pairwise(widths))


def test_dueling_heads_move_the_mean_and_the_differences_apart() -> None:
    """What the head of the value adds moves every action; what all advantages share moves none."""
    network, x = QNetwork((3,), 4, (8,), dueling=True), torch.randn(5, 3)
    before = network(x)
    last = network.perceptron.layers[-1]
    with torch.no_grad():
        last.bias[0] += 2
        last.bias[1:] += 3
    torch.testing.assert_close(network(x), before + 2)


@pytest.mark.parametrize("dueling", [False, True])
def test_a_batch_that_is_too_large_to_keep_has_the_same_gradient_part_by_part(
    monkeypatch: pytest.MonkeyPatch, dueling: bool
) -> None:
    torch.manual_seed(0)
    net = QNetwork((4, 36, 36), 3, [8], dueling=dueling)
    flat = Flat(net)
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 256, (10, 4, 36, 36), dtype=np.uint8)
    slope = rng.standard_normal((10, 3)).astype(np.float32)
    found = []
    kept_of_each = 4 * (32 * 8 * 8 + 64 * 3 * 3 + 64 * 1 * 1)
    for kept in (images.KEPT_BYTES, 4 * kept_of_each + 1):
        monkeypatch.setattr(images, "KEPT_BYTES", kept)
        output, tape = net.record(obs)
        loss = net.loss(1.5, tape, slope)
        assert loss.item() == 1.5
        flat.backward(loss)
        found.append((torch.from_numpy(output), flat.grads.clone()))
    assert net._images
    assert isinstance(tape, np.ndarray), "the second was kept as images"
    assert [part.stop - part.start for part in net._images.spans(obs)] == [4, 4, 4]
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert found[0][1].abs().max() > 0.1
