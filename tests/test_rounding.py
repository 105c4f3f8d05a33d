"""The bound of tests/rounding.py holds for every order of summation, and a fault of 1 in 1,000 breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from passel.nets.flat import Flat
from passel.types import Array
from rounding import UNIT, Gradient, assert_rounded, assert_sum, gamma, gradient_of


def one_by_one(terms: Array) -> Any:
    total = np.float32(0)
    for term in terms:
        total += term
    return total


def in_blocks(terms: Array) -> Any:
    return one_by_one(np.array([one_by_one(block) for block in np.array_split(terms, 16)]))


ORDERS: dict[str, Callable[[Array], Any]] = {
    "one by one": one_by_one,
    "backwards": lambda terms: one_by_one(terms[::-1]),
    "largest last": lambda terms: one_by_one(np.sort(terms)),
    "in blocks": in_blocks,
    "in pairs": lambda terms: terms.sum(dtype=np.float32),
    "by torch": lambda terms: torch.from_numpy(terms).sum().item(),
    "by BLAS": lambda terms: terms @ np.ones(len(terms), np.float32),
}


@pytest.mark.parametrize("shift", [0.0, 1.0], ids=["with cancellation", "without"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_of_a_sum_is_within_the_bound(order: str, shift: float) -> None:
    rng = np.random.default_rng(0)
    for size in (2, 100, 3000):
        terms = (rng.standard_normal(size) + shift).astype(np.float32)
        assert_sum(ORDERS[order](terms), terms)


def test_the_bound_is_that_of_the_textbook() -> None:
    assert gamma(1) == pytest.approx(UNIT, rel=1e-6)
    assert gamma(1000) == pytest.approx(1000 * UNIT, rel=1e-4)
    with pytest.raises(AssertionError, match="no digit"):
        gamma(2**23)


@pytest.mark.parametrize("fault", [1e-3, -1e-3, float("nan")])
def test_a_fault_of_one_in_a_thousand_is_more_than_rounding(fault: float) -> None:
    terms = np.random.default_rng(0).random(1000).astype(np.float32)
    with pytest.raises(AssertionError, match="1 of 1 elements differ by more than rounding"):
        assert_sum(terms.sum() * (1 + fault), terms)


def test_twice_the_bound_is_too_much_and_half_of_it_is_not() -> None:
    exact, size = np.array([1.0, -2.0]), np.array([5.0, 3.0])
    assert_rounded(exact + 0.5 * gamma(100) * size, exact, 100, size)
    with pytest.raises(AssertionError, match="1 of 2 elements"):
        assert_rounded(exact + np.array([0, 2 * gamma(100) * 3.0]), exact, 100, size)
    with pytest.raises(AssertionError, match="shapes"):
        assert_rounded(exact, exact[:1], 100, size)


class Convolved(nn.Module):
    """Convolutions and a perceptron as large as DQN's in the tests of algorithms."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        convolutions = [nn.Conv2d(1, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
        self.layers = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(576, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


ROWS = 12
IMAGES = torch.rand(ROWS, 1, 36, 36, generator=torch.Generator().manual_seed(1))


def exact() -> tuple[Flat, Gradient]:
    flat = Flat(Convolved())
    images = IMAGES.double()
    return flat, gradient_of(flat.module, ROWS, lambda module, row: module(images[row : row + 1]).square().sum())


@pytest.mark.parametrize("blocks", [1, 3, ROWS], ids=lambda blocks: f"{blocks} blocks")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_every_order_of_a_gradient_is_within_the_bound(blocks: int, layout: torch.memory_format) -> None:
    flat, gradient = exact()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(blocks))
    found = torch.zeros_like(flat.grads)
    for rows in order.chunk(blocks):
        flat.backward(flat.module(IMAGES[rows].contiguous(memory_format=layout)).square().sum())
        found += flat.grads
    gradient.check(found)
    error = (found - gradient.exact).abs() / (gamma(gradient.terms) * gradient.size)
    assert error.max() < 0.2, "the reserve that the derivation counts on"


def test_a_fault_of_one_in_a_thousand_in_any_layer_is_more_than_rounding() -> None:
    flat, gradient = exact()
    start = 0
    for weight in flat.module.parameters():
        span = slice(start, start + weight.numel())
        largest = start + int(gradient.exact[span].abs().argmax())
        found = gradient.exact.clone()
        found[largest] *= 1 + 1e-3
        with pytest.raises(AssertionError, match="1 of "):
            gradient.check(found)
        start = span.stop


def test_the_reference_refuses_float32() -> None:
    with pytest.raises(AssertionError, match="float64"):
        gradient_of(nn.Linear(2, 1), 1, lambda module, _: module.float()(torch.ones(1, 2)).sum())
