"""Sums over sums of weights, in named tensors: draws a leaf in proportion to its weight, many at a time.

Each node is the sum of 32 below it. A tree so wide is two or three levels high, and a level is a few numpy operations
for a whole batch: a binary tree would have twenty. Changed nodes are summed anew from their children, never corrected
by a difference, so that rounding does not add up over a long run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from passel.arena import Spec
from passel.types import Ints

Doubles = NDArray[np.float64]

FAN_OUT = 32
#: The highest level may be this wide: one running sum over it costs less than a further level.
WIDEST_ROOT = 4096


class SumTree:
    """`trees` trees of equally many leaves, drawn from as one.

    They lie side by side on every level, so that each has nodes of its own (whoever changes one tree writes nowhere
    else) and a draw need not know that there are several. The leaf `i` of tree `t` is number `t * stride + i`.
    """

    @staticmethod
    def specs(leaves: int, trees: int = 1) -> dict[str, Spec]:
        """One tensor a level, `level0` being the leaves, padded with zeros so that every node is full."""
        root, highest = leaves, 0
        while trees * root > WIDEST_ROOT and root > FAN_OUT:
            root, highest = -(-root // FAN_OUT), highest + 1
        return {
            f"level{height}": Spec((trees, root * FAN_OUT ** (highest - height)), torch.float64)
            for height in range(highest + 1)
        }

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        heights = sum(name.startswith("level") for name in tensors)
        self._levels: list[Doubles] = [tensors[f"level{height}"].view(-1).numpy() for height in range(heights)]
        self._families = [level.reshape(-1, FAN_OUT) for level in self._levels[:-1]]
        self.stride: int = tensors["level0"].shape[1]

    @property
    def leaves(self) -> Doubles:
        """The weights themselves, to read. `set` changes them."""
        return self._levels[0]

    @property
    def total(self) -> float:
        return float(self._levels[-1].sum())

    def set(self, leaf: Ints, weight: Doubles | float) -> None:
        """Give these leaves new weights; of a leaf named twice the last counts."""
        self._levels[0][leaf] = weight
        node = leaf
        for family, parents in zip(self._families, self._levels[1:], strict=True):
            node = node // FAN_OUT
            parents[node] = family.take(node, axis=0).sum(axis=1)

    def rebuild(self) -> None:
        """Sum everything again from the leaves, after a writer died half-way."""
        for family, parents in zip(self._families, self._levels[1:], strict=True):
            parents[:] = family.sum(axis=1)

    def find(self, fraction: Doubles) -> Ints:
        """The leaves at these fractions (0 to 1) of the way along the sum of all weights; never one of weight 0."""
        weights = self._levels[-1]
        sums = weights.cumsum()
        wanted = np.minimum(fraction * sums[-1], np.nextafter(sums[-1], 0))
        node = child = sums.searchsorted(wanted, side="right")
        row: Ints | EllipsisType = ...
        for family in reversed(self._families):
            wanted = wanted - (sums[row, child] - weights[row, child])
            weights = family.take(node, axis=0)
            sums = weights.cumsum(axis=1)
            # Rounding may have put us just outside of this family's sum. Inside, the first running sum above is that
            # of a child with a weight.
            wanted = np.maximum(np.minimum(wanted, np.nextafter(sums[:, -1], 0)), 0)
            child = (sums > wanted[:, None]).argmax(axis=1)
            row = np.arange(len(child))
            node = node * FAN_OUT + child
        leaf: Ints = node
        return leaf

    def check_valid(self) -> None:
        """Raise AssertionError, with the reason, where a parent is not the sum of its children."""
        if not (np.isfinite(self.leaves) & (self.leaves >= 0)).all():
            raise AssertionError("a leaf of the sum tree is negative or not finite")
        for height, (family, parents) in enumerate(zip(self._families, self._levels[1:], strict=True)):
            wrong = np.flatnonzero(~np.isclose(parents, family.sum(axis=1), rtol=1e-9, atol=0))
            if len(wrong):
                raise AssertionError(f"node {wrong[0]} of level {height + 1} is not the sum of its children")
