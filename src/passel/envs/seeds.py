"""Seeds derive, so that no two episodes of a run share one and any episode can be begun again."""

from __future__ import annotations

import numpy as np


def derive_seed(seed: int, index: int, episode: int) -> int:
    """The seed of one episode in one copy: 31 bits, because some simulators keep theirs in a signed 32-bit integer."""
    state = np.random.SeedSequence((seed, index, episode)).generate_state(1, np.uint32)
    return int(state[0] >> 1)
