"""Running means and spreads of what the environment shows, pays and does, for a model to be taught in even units."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec
from passel.types import Array, Floats, Step

#: A number that has never been seen to move by more than this share of the others' typical size counts as still.
STILL = 1e-6


class RunningScale:
    """Sums over every real step: [obs, change of obs, reward].

    One worker adds, everybody reads; a reader may see sums that are a step apart, which is nothing among thousands.
    """

    @staticmethod
    def specs(obs_size: int) -> dict[str, Spec]:
        width = 2 * obs_size + 1
        return {
            "count": Spec((1,), torch.int64),
            "total": Spec((width,), torch.float64),
            "square": Spec((width,), torch.float64),
        }

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._count, self._total, self._square = (tensors[name].numpy() for name in ("count", "total", "square"))

    def add(self, obs: Array, step: Step) -> None:
        """Count one step of every environment."""
        real = step.real
        rows = np.concatenate([obs[real], step.next_obs[real] - obs[real], step.reward[real, None]], axis=1)
        rows = rows.astype(np.float64)
        self._total += rows.sum(axis=0)
        self._square += np.einsum("ij,ij->j", rows, rows)
        self._count += len(rows)

    def read(self) -> tuple[Floats, Floats]:
        """Mean and spread of each number; the spread of one that stands still is 1."""
        count = max(int(self._count[0]), 1)
        mean = self._total / count
        std = np.sqrt(np.maximum(self._square / count - mean * mean, 0))
        std[std <= STILL * (1 + np.abs(mean))] = 1
        return mean.astype(np.float32), std.astype(np.float32)
