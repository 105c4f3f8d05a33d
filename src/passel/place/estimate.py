"""What a run will take at least, by arithmetic: a run that cannot fit is refused before anything of it is built."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from passel.arena import USABLE, free_memory
from passel.nets.torsos import is_image
from passel.place.limits import check_files
from passel.types import PasselError

if TYPE_CHECKING:
    from passel.place.plan import Plan

FLOAT = 4  # bytes
#: Vectors as long as the weights that every run holds: the shared one and its optimizer's two. Each learner adds its
#: own weights and gradients.
SHARED_VECTORS, OWN_VECTORS = 3, 2
#: Bytes of one environment, without its observation (measured: CartPole takes 5,600 in Gymnasium, 7,500 in EnvPool).
ENVIRONMENT = 4_000
#: Bytes of one worker that are not shared with the others (measured: 45 MB and more, most of it torch's).
PROCESS = 40_000_000


def check(plan: Plan) -> None:
    """Refuse, with what would fit, what this machine or the limits of this process have no room for."""
    usable = int(USABLE * free_memory())
    _check_weights(plan, usable)
    _check_environments(plan, usable)
    if plan.config.place == "processes":
        _check_workers(plan.workers, usable)
        check_files(plan.workers + len(plan.server_names))


def _check_weights(plan: Plan, usable: int) -> None:
    shape = plan.spec.net_shape
    copies = SHARED_VECTORS + OWN_VECTORS * len(plan.cast.learners)
    for flag, hidden, inputs in (
        ("--hidden", plan.numbers.hidden, 1 if is_image(shape) else math.prod(shape)),
        ("--model-hidden", getattr(plan.numbers, "model_hidden", ()), 1),
    ):
        weights = sum(before * after for before, after in zip((inputs, *hidden), hidden, strict=False))
        needed = FLOAT * weights * copies
        if needed > usable:
            most = usable // (FLOAT * copies)
            layers = len(hidden)
            # inputs * w + (layers - 1) * w^2 = most, for layers of one width w
            square = 4 * (layers - 1) * most + inputs**2
            width = most // inputs if layers == 1 else (math.isqrt(square) - inputs) // (2 * (layers - 1))
            raise PasselError(
                f"the {weights:,} weights of {flag} {' '.join(map(str, hidden))} take at least {needed / 1e6:,.0f} MB "
                f"of memory, and {usable / 1e6:,.0f} MB can be used here. Layers of up to {_round(width)} fit."
            )


def _check_environments(plan: Plan, usable: int) -> None:
    if plan.spec.backend == "remote":
        return
    rows = sum(plan.rows(rank) for rank in plan.cast.actors)
    each = ENVIRONMENT + math.prod(plan.spec.obs_shape) * plan.spec.obs_dtype.itemsize
    if rows * each > usable:
        raise PasselError(
            f"{rows:,} environments take at least {rows * each / 1e6:,.0f} MB of memory, and {usable / 1e6:,.0f} MB "
            f"can be used here. The largest --envs that fits is about "
            f"{_round(plan.config.envs * usable // (rows * each))}."
        )


def _check_workers(workers: int, usable: int) -> None:
    if workers * PROCESS > usable:
        raise PasselError(
            f"{workers:,} workers take at least {workers * PROCESS / 1e6:,.0f} MB of memory, and "
            f"{usable / 1e6:,.0f} MB can be used here. Use at most --workers {max(1, usable // PROCESS)}."
        )


def _round(number: int) -> int:
    """Down, to two digits: it is an estimate."""
    unit = int(10 ** max(0, len(str(number)) - 2))
    return max(1, number // unit * unit)
