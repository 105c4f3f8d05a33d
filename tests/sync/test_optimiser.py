"""torch's optimisers on a vector: the same steps as on ordinary weights, with the state where the caller wants it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from passel.arena import Arena, Spec, prefixed
from passel.nets.flat import Flat
from passel.sync.optimiser import OptimiserSettings, make_optimiser, state_specs

KINDS = [
    OptimiserSettings("adam", lr=1e-2),
    OptimiserSettings("adam", lr=1e-2, eps=1e-4),
    OptimiserSettings("rmsprop", lr=1e-2),
    OptimiserSettings("rmsprop", lr=1e-2, momentum=0.9, decay=0.95, eps=1e-3),
    OptimiserSettings("rmsprop", lr=1e-2, decay=0.95, eps=1e-2, centred=True),
    OptimiserSettings("rmsprop", lr=1e-2, momentum=0.95, decay=0.95, eps=1e-4, centred=True),
    OptimiserSettings("sgd", lr=1e-2),
    OptimiserSettings("sgd", lr=1e-2, momentum=0.9),
]
NAMES = [f"{s.kind}-{s.eps}-{s.momentum}" for s in KINDS]
each_kind = pytest.mark.parametrize("settings", KINDS, ids=NAMES)


def ordinary(settings: OptimiserSettings, weights: list[nn.Parameter], *, fast: bool) -> torch.optim.Optimizer:
    """The optimiser as anybody would make it; `fast` takes torch's fused kernels, as we do."""
    s = settings
    if s.kind == "adam":
        return torch.optim.Adam(weights, lr=s.lr, eps=s.eps, fused=fast)
    if s.kind == "rmsprop":
        return torch.optim.RMSprop(
            weights, lr=s.lr, alpha=s.decay, eps=s.eps, momentum=s.momentum, centered=s.centred, foreach=fast
        )
    return torch.optim.SGD(weights, lr=s.lr, momentum=s.momentum, fused=fast)


def network(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 16))


def joined(module: nn.Module) -> Tensor:
    return torch.cat([weight.detach().reshape(-1) for weight in module.parameters()])


def train(settings: OptimiserSettings, width: int, *, fast: bool) -> tuple[Tensor, Tensor]:
    """20 steps on ordinary weights, and 20 on one vector with its state in an arena; the learning rate falls."""
    plain = network(width)
    flat = Flat(copy.deepcopy(plain))
    optimiser = ordinary(settings, list(plain.parameters()), fast=fast)
    arena = Arena({"vector": Spec((len(flat),)), **prefixed("state", state_specs(settings, len(flat)))})
    arena["vector"].copy_(flat.values)
    flat.bind(values=arena["vector"])
    ours = make_optimiser(settings, flat.values, arena.below("state"))
    for step in range(20):
        x, y, lr = torch.randn(8, 16), torch.randn(8, 16), settings.lr * (1 - step / 30)
        optimiser.zero_grad()
        (plain(x) - y).square().mean().backward()
        optimiser.param_groups[0]["lr"] = lr
        optimiser.step()
        flat.backward((flat.module(x) - y).square().mean())
        ours.step(lr, flat.grads)
    return joined(plain), arena["vector"]


@each_kind
def test_equals_torch_on_ordinary_weights_bit_for_bit(settings: OptimiserSettings) -> None:
    """The widths are multiples of 16: torch's fused kernels round the last few elements of a tensor in another way than
    those before, and one vector has one such end where four weights have four.
    """
    expected, found = train(settings, 32, fast=True)
    assert torch.equal(found, expected)


@each_kind
def test_equals_plain_torch_on_weights_of_any_size_to_the_last_bits(settings: OptimiserSettings) -> None:
    expected, found = train(settings, 13, fast=False)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@each_kind
@pytest.mark.parametrize("size", [1, 7, 83])
def test_equals_torch_on_one_ordinary_vector_of_any_size_bit_for_bit(settings: OptimiserSettings, size: int) -> None:
    weight = nn.Parameter(torch.randn(size))
    values = weight.detach().clone()
    optimiser = ordinary(settings, [weight], fast=True)
    state = Arena(state_specs(settings, size))
    ours = make_optimiser(settings, values, state)
    for _ in range(20):
        grads = torch.randn(size)
        weight.grad = grads.clone()
        optimiser.step()
        ours.step(settings.lr, grads)
    assert torch.equal(values, weight.detach())


@each_kind
def test_state_specs_are_what_torch_makes(settings: OptimiserSettings) -> None:
    weight = nn.Parameter(torch.randn(5))
    weight.grad = torch.randn(5)
    optimiser = ordinary(settings, [weight], fast=True)
    optimiser.step()
    made = {name: value for name, value in optimiser.state[weight].items() if isinstance(value, Tensor)}
    specs = state_specs(settings, 5)
    assert {name: (spec.shape, spec.dtype) for name, spec in specs.items()} == {
        name: (tuple(value.shape), value.dtype) for name, value in made.items()
    }
    assert all(spec.keep for spec in specs.values())


@each_kind
def test_the_state_is_in_the_tensors_that_were_given(settings: OptimiserSettings) -> None:
    """A second optimiser over the same tensors continues where the first stood, which is how Hogwild! shares state."""
    grads = [torch.randn(7) for _ in range(6)]
    alone, shared = torch.zeros(7), torch.zeros(7)
    one = make_optimiser(settings, alone, Arena(state_specs(settings, 7)))
    state = Arena(state_specs(settings, 7))
    pair = [make_optimiser(settings, shared, state) for _ in range(2)]
    for step, gradient in enumerate(grads):
        one.step(settings.lr, gradient.clone())
        pair[step % 2].step(settings.lr, gradient.clone())
    assert torch.equal(alone, shared)
    assert all(tensor.any() for tensor in state.values())


def test_each_step_uses_the_learning_rate_that_it_is_given() -> None:
    values = torch.zeros(2)
    optimiser = make_optimiser(OptimiserSettings("sgd", lr=100), values, {})
    optimiser.step(1.0, torch.ones(2))
    optimiser.step(0.25, torch.ones(2))
    assert values.tolist() == [-1.25, -1.25]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises((KeyError, ValueError), match="adamw"):
        state_specs(OptimiserSettings("adamw"), 1)


@each_kind
def test_a_step_leaves_the_gradient_as_it_was_and_asks_for_none_of_its_own(settings: OptimiserSettings) -> None:
    values, grads = torch.zeros(7), torch.randn(7)
    before = grads.clone()
    make_optimiser(settings, values, Arena(state_specs(settings, 7))).step(settings.lr, grads)
    assert torch.equal(grads, before)
    assert not values.requires_grad


def test_a_variance_that_a_race_has_made_negative_counts_as_none() -> None:
    """Two learners under Hogwild! write the two means of centred RMSProp in any order."""
    settings = OptimiserSettings("rmsprop", lr=1e-2, eps=1e-2, centred=True)
    state = {name: torch.zeros(spec.shape) for name, spec in state_specs(settings, 3).items()}
    state["grad_avg"].fill_(2.0)  # and the mean of squares is still 0
    values = torch.zeros(3)
    make_optimiser(settings, values, state).step(1e-2, torch.tensor([1.0, -1.0, 0.0]))
    assert values.tolist() == pytest.approx([-1.0, 1.0, 0.0])  # lr g / eps
