"""Shapes, asserted on the first line of a mathematical function."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

#: numpy warns of an overflow where torch is silent. Whether a loss is finite is for the scheme to see, as with torch.
like_torch = np.errstate(over="ignore", invalid="ignore")

Array = NDArray[Any]
Floats = NDArray[np.float32]


def check_shapes(pattern: str, *tensors: Tensor | Array) -> None:
    """Every tensor has one size for each letter of `pattern`, and a letter means the same size everywhere.

    check_shapes("B A", q_tm1, q_t) passes for two matrices of equal shape.
    """
    letters = pattern.split()
    for position, tensor in enumerate(tensors):
        if tensor.ndim != len(letters) or tensor.shape != tensors[0].shape:
            raise ValueError(
                f"argument {position} has shape {tuple(tensor.shape)}; expected [{', '.join(letters)}]"
                f" with the sizes of {tuple(tensors[0].shape)}"
            )
