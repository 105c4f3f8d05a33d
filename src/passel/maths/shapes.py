"""Shapes, asserted on the first line of a mathematical function."""

from __future__ import annotations

from torch import Tensor


def check_shapes(pattern: str, *tensors: Tensor) -> None:
    """Every tensor has one size for each letter of `pattern`, and a letter means the same size everywhere.

    check_shapes("B A", q_tm1, q_t) passes for two matrices of equal shape.
    """
    letters = pattern.split()
    for position, tensor in enumerate(tensors):
        if tensor.dim() != len(letters) or tensor.shape != tensors[0].shape:
            raise ValueError(
                f"argument {position} has shape {tuple(tensor.shape)}; expected [{', '.join(letters)}]"
                f" with the sizes of {tuple(tensors[0].shape)}"
            )
