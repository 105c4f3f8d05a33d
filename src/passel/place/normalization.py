"""What --normalize means for an algorithm and an environment, and what it cannot have."""

from __future__ import annotations

from typing import Any

from passel.algos import ALGORITHMS
from passel.config import AUTO, NONE, RunConfig
from passel.data.experience import Experience
from passel.nets.torsos import is_image
from passel.normalizer import Normalizer
from passel.types import Batch, EnvSpec, PasselError

BOTH = "obs,reward"

#: Diets whose rollouts are normalized when they are collected, and those whose batches are when they are drawn.
COLLECTED, DRAWN = ("rollout", "slots"), ("replay",)
#: Steps of a worker after which its statistic is renewed, where there are no rollouts.
WINDOW = 16


class Drawn:
    """A worker's experience that holds what is true, and is normalized when it is drawn. Runs in: each worker."""

    def __init__(self, experience: Experience, normalizer: Normalizer) -> None:
        self._experience, self._normalizer = experience, normalizer
        self.push, self.due, self.unlearnt = experience.push, experience.due, experience.unlearnt
        self.feedback, self.abandon, self.park = experience.feedback, experience.abandon, experience.park

    def batch(self, steps_so_far: int) -> Batch:
        return self._normalizer.batch(self._experience.batch(steps_so_far))


def window(algo: str, numbers: Any) -> int:
    """Steps between two changes of a worker's statistic."""
    return int(numbers.horizon) if ALGORITHMS[algo].diet in COLLECTED else WINDOW


def check_algorithm(config: RunConfig) -> None:
    """Refuse what an algorithm cannot do, before the environment is known."""
    able = [name for name, algorithm in ALGORITHMS.items() if algorithm.diet in (*COLLECTED, *DRAWN)]
    if config.normalize in (AUTO, NONE) or config.algo in able:
        return
    raise PasselError(
        f"--normalize {config.normalize} is for rollouts and for a replay memory of each worker's own, and "
        f"{config.algo} has neither. Use one of --algo {', '.join(able)}, or leave it out."
    )


def choose(config: RunConfig, numbers: Any, spec: EnvSpec) -> Any:
    """What is normalized in this environment: what was asked for, or a refusal, or what `auto` stands for."""
    floats = spec.obs_dtype.kind == "f"
    if config.normalize == AUTO:
        unbounded = floats and len(spec.obs_shape) == 1 and spec.bounds is None
        return BOTH if ALGORITHMS[config.algo].normalizes and unbounded else NONE
    if "obs" in config.normalize.split(","):
        if not floats or is_image(spec.net_shape):
            kind = "images" if is_image(spec.net_shape) else f"of type {spec.obs_dtype}"
            raise PasselError(
                f"--normalize {config.normalize} needs observations that are vectors of floats, and those of {spec.id} "
                f"are {kind}. Use --normalize reward, or leave it out."
            )
        if numbers.scale_obs:
            raise PasselError(
                f"--scale-obs and --normalize {config.normalize} both scale observations. Leave one of the two out."
            )
    return config.normalize
