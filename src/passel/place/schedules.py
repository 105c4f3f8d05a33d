"""How long epsilon and the learning rate take to change: a number of steps, or a fraction of the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from passel.config import FRACTIONS
from passel.maths.schedules import linear


def in_steps(numbers: Any, total: int) -> Any:
    """The same settings, with every schedule's length in steps of a run of `total`.

    Epsilon is annealed from the end of warm-up on; a fraction of the run ends with the run at the latest.
    """
    lengths = {
        steps: getattr(numbers, steps) or round(getattr(numbers, fraction) * total)
        for steps, fraction in FRACTIONS.items()
        if hasattr(numbers, steps)
    }
    if "epsilon_steps" in lengths and not numbers.epsilon_steps:
        lengths["epsilon_steps"] = min(lengths["epsilon_steps"], max(total - numbers.warmup, 0))
    return replace(numbers, **lengths)


def unfinished(numbers: Any, total: int, *, epsilon: bool) -> list[str]:
    """A sentence, with the cure, for each schedule in steps that a run of `total` ends before. `epsilon`: whether the
    algorithm anneals it. Of a run that ends within warm-up nothing is said: it learns nothing, which is another notice.
    """
    told = []
    if epsilon and 0 < (left := total - numbers.warmup) < numbers.epsilon_steps:
        reached = linear(numbers.epsilon_start, numbers.epsilon_end, left, numbers.epsilon_steps)
        told.append(_told(numbers, "epsilon_steps", f"epsilon {reached:.2g}", total, left))
    if numbers.lr_end is not None and total < numbers.lr_steps:
        reached = linear(numbers.lr, numbers.lr_end, total, numbers.lr_steps)
        told.append(_told(numbers, "lr_steps", f"a learning rate of {reached:.2g}", total, total))
    return told


def _told(numbers: Any, steps: str, reached: str, total: int, longest: int) -> str:
    flag, instead = ("--" + name.replace("_", "-") for name in (steps, FRACTIONS[steps]))
    usual = getattr(type(numbers), FRACTIONS[steps])
    return (
        f"{flag} {getattr(numbers, steps)} ends at {reached} in a run of {total:,} steps. Use {instead} {usual:g}, or "
        f"{flag} {longest} or fewer."
    )
