"""Numbers that change while a run goes on, as pure functions of its progress."""

from __future__ import annotations


def linear(start: float, end: float, step: float, over: float) -> float:
    """From `start` to `end` in a straight line over the first `over` steps, then `end`."""
    if step >= over:
        return end
    return start + (end - start) * (step / over)
