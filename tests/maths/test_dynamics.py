"""The model's loss and slope against autograd's, and disagreement against a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from passel.maths.dynamics import Scale, disagreement, model_loss_and_slope


def random(*shape: int, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    return (spread * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize(("members", "outputs", "rows"), [(1, 2, 5), (3, 9, 16)])
def test_the_loss_and_its_slope_are_autograds(members: int, outputs: int, rows: int) -> None:
    output, goal = random(members, outputs + 1, rows, spread=2), random(members, outputs, rows, seed=1, spread=2)
    terminated = (random(members, rows, seed=2) > 0.5).astype(np.float32)
    loss, slope, error = model_loss_and_slope(output, goal, terminated)
    tensor = torch.from_numpy(output).requires_grad_()
    predicted, logit = tensor[:, :-1], tensor[:, -1]
    huber = torch.nn.functional.smooth_l1_loss(predicted, torch.from_numpy(goal), reduction="none")
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(
        logit, torch.from_numpy(terminated), reduction="none"
    )
    expected = (huber.mean(dim=(1, 2)) + entropy.mean(dim=1)).sum()
    expected.backward()  # type: ignore[no-untyped-call]
    assert tensor.grad is not None
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-5, atol=1e-7)
    assert error == pytest.approx(float(np.sqrt(((output[:, :-1] - goal) ** 2).mean())), rel=1e-5)


def test_a_certain_logit_that_is_wrong_has_a_finite_loss() -> None:
    output = np.array([[[0.0], [90.0]]], np.float32)
    loss, slope, _ = model_loss_and_slope(output, np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.float32))
    assert loss == pytest.approx(90)
    assert slope[0, 1, 0] == pytest.approx(1)


def test_disagreement_is_the_root_mean_square_of_the_spread_and_ignores_the_logit() -> None:
    output = random(4, 6, 7)
    expected = [np.sqrt(np.mean([output[:, k, b].std() ** 2 for k in range(5)])) for b in range(7)]
    np.testing.assert_allclose(disagreement(output), expected, rtol=1e-5)
    other = output.copy()
    other[:, -1] = 1e6
    np.testing.assert_array_equal(disagreement(other), disagreement(output))
    assert (disagreement(output[:1]) == 0).all()


def test_a_scale_goes_there_and_back() -> None:
    scale = Scale(random(3), abs(random(3, seed=1)) + 0.1, random(3, seed=2), abs(random(3, seed=3)) + 0.1, 2.0, 7.0)
    change, reward = random(5, 3, seed=4), random(5, seed=5)
    np.testing.assert_allclose(scale.change(scale.of_change(change)), change, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scale.reward(scale.of_reward(reward)), reward, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scale.of_obs(scale.obs_mean + 2 * scale.obs_std), 2, rtol=1e-5)
