"""What defaults and presets become when several workers share the run.

Their numbers are those of one worker. Several take the same number of steps together, so that they should have as many
environments and make as many updates for each step, all together: then what is left of the difference is how old the
parameters are that each of them acts and learns with.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from passel.config import RunConfig
from passel.envs.levels import is_level_set
from passel.sync import SCHEMES

#: Fewer rows than this make an update no cheaper.
FEWEST_ROWS = 16


def shared_out(config: RunConfig, numbers: Any, said: Container[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the run and of the algorithm that change with the number of workers, as long as the user has not
    `said` them.

    Under a scheme that averages, an update is one of everybody's gradients: each worker contributes a part of the
    batch, and takes part in the updates of all.
    """
    workers = config.workers
    if workers == 1 or is_level_set(config.env):
        return {}, {}
    run: dict[str, Any] = {"envs": max(config.envs // workers, 1)}
    own: dict[str, Any] = {}
    if SCHEMES[config.sync].averages and not getattr(numbers, "minibatches", 0):
        own["batch"] = max(numbers.batch // workers, min(numbers.batch, FEWEST_ROWS))
        if hasattr(numbers, "updates_per_step"):
            own["updates_per_step"] = numbers.updates_per_step * workers
    return _unsaid(run, said), _unsaid(own, said)


def _unsaid(changes: dict[str, Any], said: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key not in said}
