"""What a learnt model of an environment is taught, and how far its members disagree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from passel.maths.shapes import Floats, check_shapes, like_torch


@dataclass(frozen=True)
class Scale:
    """The mean and the spread of an observation, of its change over a step and of a reward, as far as they are known.

    A model sees and says everything in these units, so that an angle, a speed and a reward of 100 weigh alike.
    """

    obs_mean: Floats
    obs_std: Floats
    change_mean: Floats
    change_std: Floats
    reward_mean: float
    reward_std: float

    def of_obs(self, obs: Floats) -> Floats:
        scaled: Floats = (obs - self.obs_mean) / self.obs_std
        return scaled

    def of_change(self, change: Floats) -> Floats:
        scaled: Floats = (change - self.change_mean) / self.change_std
        return scaled

    def of_reward(self, reward: Floats) -> Floats:
        scaled: Floats = (reward - np.float32(self.reward_mean)) / np.float32(self.reward_std)
        return scaled

    def change(self, scaled: Floats) -> Floats:
        """Back from the model's units."""
        change: Floats = scaled * self.change_std + self.change_mean
        return change

    def reward(self, scaled: Floats) -> Floats:
        reward: Floats = scaled * np.float32(self.reward_std) + np.float32(self.reward_mean)
        return reward


@like_torch
def model_loss_and_slope(output: Floats, goal: Floats, terminated: Floats) -> tuple[float, Floats, float]:
    """The loss of M models, its derivative by their outputs, and the root of their mean squared error.

        L = sum_m mean_b [ mean_k h(y_mkb - goal_mkb)  +  softplus(z_mb) - terminated_mb z_mb ]
        dL/dy = clip(y - goal, -1, 1) / (B K),     dL/dz = (sigmoid(z) - terminated) / B

    Shapes: output [M, K + 1, B], its last row z the logits of termination; goal [M, K, B]: change of state and reward,
    scaled; terminated [M, B], 0 or 1. h is Huber's function, for a crash must not outweigh a thousand steps of flight.
    """
    _, width, rows = output.shape
    predicted, logit = output[:, :-1], output[:, -1]
    check_shapes("M K B", predicted, goal)
    check_shapes("M B", logit, terminated)
    slope = np.empty_like(output)
    error = predicted - goal
    clipped = np.clip(error, -1, 1)
    np.multiply(clipped, np.float32(1 / (rows * (width - 1))), out=slope[:, :-1])
    huber = float(np.vdot(slope[:, :-1], error - clipped / 2))
    likelihood = 1 / (1 + np.exp(-logit))
    slope[:, -1] = (likelihood - terminated) / np.float32(rows)
    entropy = float((np.logaddexp(0, logit) - terminated * logit).sum() / rows)
    return huber + entropy, slope, float(np.sqrt(np.vdot(error, error) / error.size))


def disagreement(output: Floats) -> Floats:
    """How far the members are from each other, for each row: the root mean square, over change and reward, of their
    standard deviation. Shapes: [M, K + 1, B] -> [B]. With one member it is 0.
    """
    said = output[:, :-1]
    apart = said - said.mean(axis=0)
    spread: Floats = np.sqrt(np.einsum("mkb,mkb->b", apart, apart) / (said.shape[0] * said.shape[1]))
    return spread
