"""What a learner asks of a memory, whichever it is."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from passel.types import Array, Batch, Ints, Transitions


class Memory(Protocol):
    """Experience that can be drawn more than once. The loop around it:

        memory.add(nstep.push(obs, action, step))
        if len(memory) >= warm_up:
            batch = memory.sample(128, rng, beta)
            ...
            memory.update_priorities(batch.index, td_abs)

    A memory without priorities leaves `batch.index` and `batch.weight` out, and its `update_priorities` does nothing.
    Whoever knows how surprising new transitions are says so when it adds them, as `td_abs`.
    """

    @property
    def capacity(self) -> int: ...

    def __len__(self) -> int: ...

    def add(self, transitions: Transitions, td_abs: Array | None = None) -> None: ...

    def sample(self, n: int, rng: np.random.Generator, beta: float = 1.0) -> Batch: ...

    def sample_many(self, k: int, n: int, rng: np.random.Generator, beta: float = 1.0) -> list[Batch]: ...

    def update_priorities(self, index: Ints | None, td_abs: Array) -> None: ...

    def check_valid(self) -> None: ...
