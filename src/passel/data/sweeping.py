"""Prioritized sweeping: which step to look at again first, and what that is worth to the step before it."""

from __future__ import annotations

import numpy as np

from passel.types import Array, Floats, Ints


def passed_back(surprise: Floats, gamma: float, priority: Floats, threshold: float) -> Floats:
    """What the steps that led to some states are worth another look, when these states' values are about to move.

        P(s-, a-) = max(P(s-, a-), gamma |delta(s)|)     where that is more than the threshold

    The state's value moves by at most |delta|, and its predecessor's target by gamma times that (Moore and Atkeson
    1993). Shapes: all [B]; `priority` is what the predecessors have now.
    """
    passed = np.float32(gamma) * surprise
    raised: Floats = np.where(passed > threshold, np.maximum(priority, passed), priority)
    return raised


def most_urgent(priority: Array, n: int) -> Ints:
    """Where the `n` largest priorities above 0 are, the largest first; fewer, if there are not so many. Equals come in
    the order in which they stand.
    """
    waiting = np.flatnonzero(priority > 0)
    if len(waiting) > n:
        border = np.partition(priority[waiting], len(waiting) - n)[len(waiting) - n]
        waiting = waiting[priority[waiting] >= border]
    return waiting[np.argsort(-priority[waiting], kind="stable")][:n]
