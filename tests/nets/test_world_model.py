"""Several perceptrons in one vector: their outputs and gradients are autograd's, and a known world is learnt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from passel.maths.dynamics import model_loss_and_slope
from passel.nets.flat import Flat
from passel.nets.world_model import WorldModel
from passel.sync.optimiser import OptimiserSettings, make_optimiser, state_specs


def inputs(model: WorldModel, rows: int, members: int | None = None, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = (rows,) if members is None else (members, rows)
    obs = rng.standard_normal((*shape, model.obs_size)).astype(np.float32)
    return model.inputs(obs, rng.integers(0, model.n_actions, shape))


def test_inputs_are_the_state_and_one_of_the_actions() -> None:
    model = WorldModel(2, 3, [4], 1)
    made = model.inputs(np.array([[1, 2], [3, 4]], np.float32), np.array([2, 0]))
    np.testing.assert_array_equal(made.T, [[1, 2, 0, 0, 1], [3, 4, 1, 0, 0]])


@pytest.mark.parametrize("members", [1, 3])
def test_the_outputs_and_the_gradient_are_autograds(members: int) -> None:
    torch.manual_seed(0)
    model = WorldModel(4, 2, [16, 8], members)
    flat = Flat(model)
    x = inputs(model, 32, members)
    output, tape = model.record(x.copy())
    expected = model(torch.from_numpy(x))
    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    slope = np.random.default_rng(1).standard_normal(output.shape).astype(np.float32)
    model.backward(tape, slope)
    ours = flat.grads.clone()
    flat.grads.zero_()
    expected.backward(torch.from_numpy(slope))
    torch.testing.assert_close(ours, flat.grads, rtol=1e-4, atol=1e-5)


def test_a_member_is_a_network_of_its_own() -> None:
    """What one is shown changes nothing for another, and the same input is not the same output."""
    model = WorldModel(4, 2, [8], 2)
    flat = Flat(model)
    x = inputs(model, 16, 2)
    output, tape = model.record(x)
    slope = np.zeros_like(output)
    slope[0] = 1
    model.backward(tape, slope)
    for weight in model.parameters():
        assert weight.grad is not None
        assert (weight.grad[1] == 0).all()
        assert (weight.grad[0] != 0).any()
    shared, _ = model.record(inputs(model, 16))
    assert shared.shape == output.shape
    assert not np.allclose(shared[0], shared[1])
    assert len(flat) == 2 * (6 * 8 + 8 + 8 * 6 + 6)


def test_a_known_linear_world_is_learnt_to_a_small_error() -> None:
    """change = A s + b_a, reward = c s, and it ends where the first number is above 1.5."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = WorldModel(3, 2, [64, 64], 2)
    flat = Flat(model)
    settings = OptimiserSettings(lr=3e-3)
    state = {name: torch.zeros(spec.shape) for name, spec in state_specs(settings, len(flat)).items()}
    optimiser = make_optimiser(settings, flat.values, state)
    dynamics, push, pay = rng.standard_normal((3, 3)) / 2, rng.standard_normal((2, 3)), rng.standard_normal(3)

    def steps(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        obs = rng.standard_normal((2, rows, 3)).astype(np.float32)
        action = rng.integers(0, 2, (2, rows))
        goal = np.concatenate([obs @ dynamics + push[action], (obs @ pay)[..., None]], axis=2).swapaxes(1, 2)
        return model.inputs(obs, action), goal.astype(np.float32), (obs[..., 0] > 1.5).astype(np.float32)

    for number in range(1500):
        x, goal, terminated = steps(128)
        output, tape = model.record(x)
        _, slope, _ = model_loss_and_slope(output, goal, terminated)
        model.backward(tape, slope)
        optimiser.step(3e-3 * (1 - number / 1500), flat.grads)
    x, goal, terminated = steps(2000)
    output, _ = model.record(x)
    assert np.sqrt(((output[:, :-1] - goal) ** 2).mean()) < 0.05 * np.sqrt((goal**2).mean())
    assert ((output[:, -1] > 0) == terminated).mean() > 0.98
