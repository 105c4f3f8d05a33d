"""Shapes are checked on the first line, with words that name the argument."""

from __future__ import annotations

import pytest
import torch

from passel.maths.shapes import check_shapes


def test_equal_shapes_with_as_many_axes_as_letters_pass() -> None:
    check_shapes("B", torch.zeros(3), torch.ones(3))
    check_shapes("T N", torch.zeros(3, 2), torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("pattern", "shapes", "argument"),
    [
        ("B", [(3, 1)], 0),
        ("B", [(3,), (4,)], 1),
        ("B", [(3,), (3,), (3, 1)], 2),
        ("B A", [(3, 2), (2, 3)], 1),
        ("B A", [(3,)], 0),
    ],
)
def test_the_error_names_the_argument_its_shape_and_the_pattern(
    pattern: str, shapes: list[tuple[int, ...]], argument: int
) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        check_shapes(pattern, *(torch.zeros(shape) for shape in shapes))
    message = str(caught.value)
    assert f"argument {argument}" in message
    assert str(shapes[argument]) in message
    assert f"[{', '.join(pattern.split())}]" in message
