"""One vector behind a module: views, and gradients that land in the other vector."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from passel.nets.flat import Flat


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def joined(module: nn.Module) -> Tensor:
    return torch.cat([weight.detach().reshape(-1) for weight in module.parameters()])


def test_the_module_computes_the_same_as_before() -> None:
    plain, flat, x = network(), Flat(network()), torch.randn(4, 3)
    assert torch.equal(plain(x), flat.module(x))
    assert torch.equal(flat.values, joined(plain))
    assert len(flat) == 3 * 5 + 5 + 5 * 2 + 2


def test_weights_are_views_both_ways() -> None:
    flat = Flat(network())
    flat.values.fill_(7)
    assert all((weight == 7).all() for weight in flat.module.parameters())
    with torch.no_grad():
        for weight in flat.module.parameters():
            weight.zero_()
    assert not flat.values.any()


def test_values_and_grads_are_contiguous_float32() -> None:
    flat = Flat(network())
    for vector in (flat.values, flat.grads):
        assert vector.is_contiguous()
        assert vector.dtype == torch.float32
        assert vector.shape == (len(flat),)


def test_gradients_land_in_the_vector() -> None:
    plain, flat, x = network(), Flat(network()), torch.randn(4, 3)
    plain(x).square().sum().backward()
    flat.backward(flat.module(x).square().sum())
    expected = torch.cat([weight.grad.reshape(-1) for weight in plain.parameters() if weight.grad is not None])
    assert torch.equal(flat.grads, expected)


def test_two_backward_passes_do_not_add_up() -> None:
    flat, x = Flat(network()), torch.randn(4, 3)
    flat.backward(flat.module(x).sum())
    once = flat.grads.clone()
    flat.backward(flat.module(x).sum())
    assert torch.equal(flat.grads, once)
    assert once.any()


def test_a_weight_that_the_loss_does_not_use_has_a_gradient_of_zero_not_the_last_one() -> None:
    flat = Flat(network())
    first, second = flat.module[0], flat.module[2]
    flat.backward(first.weight.sum() + second.bias.sum())
    flat.backward(second.bias.sum())
    assert not first.weight.grad.any()
    assert second.bias.grad.tolist() == [1, 1]


def test_bind_takes_the_values_that_it_finds_and_leaves_the_old_vector_alone() -> None:
    flat, x = Flat(network()), torch.randn(4, 3)
    old, before = flat.values, flat.values.clone()
    elsewhere = torch.full((len(flat),), 0.5)
    flat.bind(values=elsewhere)
    assert flat.values is elsewhere
    assert all((weight == 0.5).all() for weight in flat.module.parameters())
    elsewhere.zero_()
    assert not flat.module(x).any()
    assert torch.equal(old, before)


def test_bind_moves_gradients_too() -> None:
    flat, x = Flat(network()), torch.randn(4, 3)
    flat.backward(flat.module(x).sum())
    expected, old = flat.grads.clone(), flat.grads
    mail = torch.zeros(2, len(flat))
    flat.bind(grads=mail[1])
    old.zero_()
    flat.backward(flat.module(x).sum())
    assert torch.equal(mail[1], expected)
    assert not mail[0].any()
    assert not old.any()


@pytest.mark.parametrize(
    "wrong", [torch.zeros(31), torch.zeros(33), torch.zeros(32, dtype=torch.float64), torch.zeros(4, 8)]
)
@pytest.mark.parametrize("which", ["values", "grads"])
def test_bind_refuses_a_vector_that_does_not_fit(which: str, wrong: Tensor) -> None:
    flat = Flat(network())
    before = flat.values
    with pytest.raises(ValueError, match="float32 vector of 32"):
        flat.bind(**{which: wrong})
    assert flat.values is before


def test_weights_that_are_not_float32_are_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match=r"1\.weight is torch\.float64"):
        Flat(module)


@given(st.integers(0, 31))
def test_name_at_finds_the_weight_of_every_element(position: int) -> None:
    flat = Flat(network())
    flat.values.zero_()
    flat.values[position] = 1
    (name,) = (name for name, weight in flat.module.named_parameters() if weight.any())
    assert flat.name_at(position) == name


def test_an_optimiser_may_step_the_vector_and_the_module_follows() -> None:
    flat, x = Flat(network()), torch.randn(4, 3)
    before = flat.module(x).sum().item()
    for _ in range(5):
        flat.backward(flat.module(x).sum())
        flat.values.sub_(flat.grads, alpha=0.01)
    assert flat.module(x).sum().item() < before - 0.1
