"""Random streams that can be written down: every role draws from its own, and a checkpoint keeps where it stood.

Seeds derive, they are never reused: seed -> (role, index). So workers start from the same weights and see different
experience, and a run with one more worker does not change what the others draw.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from passel.arena import Spec

WORD = 1 << 64


def derive(seed: int, role: str, index: int = 0) -> int:
    """A seed for one role, far from every other role's. 63 bits."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(role.encode()), index])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


class Stream:
    """A numpy generator whose state is kept in a tensor of six words. All zeros mean: not started yet."""

    SPEC = Spec((6,), torch.int64)

    def __init__(self, tensor: Tensor, seed: int) -> None:
        self._words = tensor.numpy().view(np.uint64)
        self._bits = np.random.PCG64(seed)
        self.rng = np.random.Generator(self._bits)
        if self._words.any():
            self._load()

    def _load(self) -> None:
        high, low, inc_high, inc_low, has_half, half = (int(word) for word in self._words)
        self._bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": high * WORD + low, "inc": inc_high * WORD + inc_low},
            "has_uint32": has_half,
            "uinteger": half,
        }

    def save(self) -> None:
        self._words[:] = words_of(self._bits.state)


def words_of(state: Mapping[str, Any]) -> NDArray[np.uint64]:
    """The state of a PCG64 as the six words of a stream."""
    inner = state["state"]
    words = [*divmod(inner["state"], WORD), *divmod(inner["inc"], WORD), state["has_uint32"], state["uinteger"]]
    return np.array(words, dtype=np.uint64)
