"""From an observation to the input of a perceptron: as it is for vectors, through convolutions for images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from passel.maths.shapes import Array, Floats

Bounds = tuple[tuple[float, ...], tuple[float, ...]]

#: How many filters each of the three convolutions has (Mnih et al. 2015).
FILTERS = (32, 64, 64)

#: Pixels of the shortest side that three convolutions leave anything of.
LEAST_SIDE = 36


class VectorTorso(nn.Module):
    """Flattens an observation of any shape; with `bounds`, brings each number from between its bounds to [-1, 1]. A
    single pair of bounds stands for all numbers.
    """

    def __init__(self, obs_shape: Sequence[int], bounds: Bounds | None = None) -> None:
        super().__init__()
        self.features = math.prod(obs_shape)
        self._middle: Floats | None = None
        if bounds is not None:
            low, high = (np.asarray(side, np.float32) for side in bounds)
            self._middle, self._reach = np.float32(0.5) * (low + high), np.float32(0.5) * (high - low)

    def forward(self, obs: Tensor) -> Tensor:
        flat = obs.flatten(1) if obs.dim() > 2 else obs
        if self._middle is not None:
            flat = (flat - torch.from_numpy(self._middle)) / torch.from_numpy(self._reach)
        return flat if flat.dtype == torch.float32 else flat.float()

    def of_arrays(self, obs: Array) -> Floats:
        """As forward."""
        flat = obs.reshape(len(obs), -1) if obs.ndim > 2 else obs
        if self._middle is not None:
            flat = (flat - self._middle) / self._reach
        return flat if flat.dtype == np.float32 else flat.astype(np.float32)


class ImageTorso(nn.Module):
    """The three convolutions of DQN (Mnih et al. 2015). Bytes are scaled to [0, 1] here."""

    def __init__(self, obs_shape: Sequence[int], filters: Sequence[int] = FILTERS) -> None:
        super().__init__()
        self.channels_last = is_channels_last(obs_shape)
        channels, height, width = (obs_shape[2], *obs_shape[:2]) if self.channels_last else obs_shape
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, filters[0], 8, 4),
            nn.ReLU(inplace=True),
            nn.Conv2d(filters[0], filters[1], 4, 2),
            nn.ReLU(inplace=True),
            nn.Conv2d(filters[1], filters[2], 3, 1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        #: Numbers that the last layer makes of an image, and all of them together.
        self.features = self.outputs = 0
        for layer in (layer for layer in self.convolutions if isinstance(layer, nn.Conv2d)):
            size, stride = int(layer.kernel_size[0]), int(layer.stride[0])
            height, width = (height - size) // stride + 1, (width - size) // stride + 1
            self.features = layer.out_channels * height * width
            self.outputs += self.features

    def forward(self, obs: Tensor) -> Tensor:
        image = obs.permute(0, 3, 1, 2) if self.channels_last else obs.unsqueeze(1) if obs.dim() == 3 else obs
        features: Tensor = self.convolutions(image.float() / 255 if image.dtype == torch.uint8 else image)
        return features


def is_image(obs_shape: Sequence[int]) -> bool:
    """Three axes, and large enough for the convolutions."""
    if len(obs_shape) != 3:
        return False
    height, width = obs_shape[:2] if is_channels_last(obs_shape) else obs_shape[1:]
    return min(height, width) >= LEAST_SIDE


def is_channels_last(obs_shape: Sequence[int]) -> bool:
    """Whether the last axis is too short for a side of an image, and the shortest of the three."""
    return obs_shape[-1] < min(LEAST_SIDE, *obs_shape[:-1])


def torso_for(
    obs_shape: Sequence[int], bounds: Bounds | None = None, filters: Sequence[int] = FILTERS
) -> VectorTorso | ImageTorso:
    """Convolutions for an image, nothing but a new shape and scale for everything else."""
    return ImageTorso(obs_shape, filters) if is_image(obs_shape) else VectorTorso(obs_shape, bounds)
