"""What --normalize means for an algorithm and an environment, and what it cannot have."""

from __future__ import annotations

from typing import Any

from passel.algos import ALGORITHMS
from passel.config import RunConfig
from passel.nets.torsos import is_image
from passel.types import EnvSpec, PasselError

AUTO, NONE, BOTH = "auto", "none", "obs,reward"

#: How experience must reach an algorithm: in rollouts, each of which is normalized as it is collected.
DIETS = ("rollout", "slots")


def check_algorithm(config: RunConfig) -> None:
    """Refuse what an algorithm cannot do, before the environment is known."""
    if config.normalize in (AUTO, NONE) or ALGORITHMS[config.algo].diet in DIETS:
        return
    able = ", ".join(name for name, algorithm in ALGORITHMS.items() if algorithm.diet in DIETS)
    raise PasselError(
        f"--normalize {config.normalize} normalizes rollouts while they are collected, and {config.algo} learns from a "
        f"memory in which older statistics would be mixed with newer ones. Use one of --algo {able}, or leave it out."
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
