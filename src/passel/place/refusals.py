"""Which cells of algorithm × scheme × placement × environment run, and why the others do not, with the cure."""

from __future__ import annotations

from passel.algos import ALGORITHMS
from passel.algos.base import Algorithm
from passel.config import RunConfig
from passel.envs.levels import is_level_set
from passel.sync import SCHEMES
from passel.types import PasselError

PLACEMENTS = {
    "inline": "all workers take turns in one process: deterministic, the oracle for the others",
    "processes": "each worker, and each shard of a server, is a process of its own",
}


def why_not(sync: str, place: str, workers: int = 2, *, algo: str = "dqn", learners: int = 1) -> str | None:
    """Why this cell of the product cannot run, in one sentence with the cure; None if it runs."""
    if ALGORITHMS[algo].apart:
        return _why_not_apart(ALGORITHMS[algo], sync, workers, learners)
    if learners > 1:
        return (
            f"--learners {learners} has no effect on {algo}, of which every worker is a learner. "
            f"Use --workers {learners}, or an algorithm with actors apart: {', '.join(_apart())}."
        )
    if SCHEMES[sync].one_learner and workers > 1:
        return (
            f"--sync {sync} is one learner that shares nothing, and --workers {workers} asks for more. "
            "Use --workers 1, or a scheme that shares: locked, hogwild, server or allreduce."
        )
    if ALGORITHMS[algo].dreams and SCHEMES[sync].collective and workers > 1:
        return (
            f"--sync {sync} needs a gradient of every worker at every update, and of {algo} the one who acts and those "
            "who dream learn each at its own time. Use --sync hogwild, locked or server; "
            f"--model-sync {sync} shares the models."
        )
    return None


def _why_not_apart(algorithm: type[Algorithm], sync: str, workers: int, learners: int) -> str | None:
    most = algorithm.most_learners
    if most is not None and learners > most:
        return f"{algorithm.name} has {most} learner, and --learners {learners} asks for more. Use --learners {most}."
    if SCHEMES[sync].one_learner and learners > 1:
        return (
            f"--sync {sync} is one learner that shares nothing, and --learners {learners} asks for more. "
            "Use --learners 1, or --sync allreduce."
        )
    if 1 < workers < 2 * learners or workers < learners:
        return (
            f"--workers {workers} leaves no actor for each of {learners} learners. "
            f"Use --workers {2 * learners} or more, or fewer --learners."
        )
    return None


def _apart() -> list[str]:
    return [name for name, algorithm in ALGORITHMS.items() if algorithm.apart]


def check(config: RunConfig) -> None:
    """Refuse what cannot run, before anything is started."""
    for axis, value, known in (
        ("--algo", config.algo, ALGORITHMS),
        ("--sync", config.sync, SCHEMES),
        ("--place", config.place, PLACEMENTS),
    ):
        if value not in known:
            raise PasselError(f"there is no {axis} {value}. Choose from {', '.join(known)}.")
    reason = why_not(config.sync, config.place, config.workers, algo=config.algo, learners=config.learners)
    if reason:
        raise PasselError(reason)
    if is_level_set(config.env) and (ALGORITHMS[config.algo].apart or ALGORITHMS[config.algo].dreams):
        raise PasselError(
            f"a set of levels needs rollouts in which every level counts the same, and {config.algo} takes what its "
            "actors bring. Use --algo ppo or a3c."
        )
    if is_level_set(config.env):
        _check_levels(config)


def check_models(sync: str, dreamers: int) -> None:
    """Refuse a scheme that the models of so many dreamers cannot be shared by."""
    if SCHEMES[sync].one_learner and dreamers > 1:
        raise PasselError(
            f"--model-sync {sync} is one learner that shares nothing, and there are {dreamers} dreamers to teach the "
            "models. Use --workers 2, or --model-sync hogwild."
        )


def _check_levels(config: RunConfig) -> None:
    """What a set of levels needs: one step along the mean over all levels, at every update."""
    if config.workers > 1 and not SCHEMES[config.sync].collective:
        raise PasselError(
            "a set of levels is learnt by the mean over all its levels at every update, and under "
            f"--sync {config.sync} each worker steps for its own. Use --sync allreduce, or --workers 1."
        )
    if config.sync_every > 1:
        raise PasselError(
            f"a set of levels is learnt by the mean over all its levels at every update, and --sync-every "
            f"{config.sync_every} takes steps in between. Leave it out."
        )
    if config.backend != "auto":
        raise PasselError(
            f"--backend {config.backend} has no effect on a set of levels, which has its own. Leave it out."
        )
