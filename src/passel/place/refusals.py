"""Which cells of algorithm × scheme × placement × environment run, and why the others do not, with the cure."""

from __future__ import annotations

from passel.algos import ALGORITHMS
from passel.algos.base import Algorithm
from passel.config import RunConfig
from passel.envs.levels import is_level_set
from passel.place.cast import cast
from passel.place.normalization import check_algorithm
from passel.sync import SCHEMES
from passel.sync.peers import Decentralised
from passel.sync.tokenring import TokenRing
from passel.sync.topology import from_anywhere, make_graph
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
            f"Use --workers 1, or a scheme that shares: {_sharing()}."
        )
    if ALGORITHMS[algo].dreams and workers > 1:
        return _why_not_dreams(algo, sync)
    return None


def _why_not_dreams(algo: str, sync: str) -> str | None:
    cure = "Use --sync hogwild, locked or server."
    if SCHEMES[sync].collective:
        return (
            f"--sync {sync} needs a gradient of every worker at every update, and of {algo} the one who acts and those "
            f"who dream learn each at its own time. {cure}"
        )
    if issubclass(SCHEMES[sync], Decentralised):
        return (
            f"--sync {sync} leaves every worker values of its own, and of {algo} only one acts: what the others learn "
            f"in dreams must reach it at once. {cure}"
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


def _sharing() -> str:
    *names, last = (name for name, scheme in SCHEMES.items() if not scheme.one_learner)
    return f"{', '.join(names)} or {last}"


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
    check_algorithm(config)
    if issubclass(SCHEMES[config.sync], Decentralised):
        _check_peers(config)
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


def topology_of(config: RunConfig) -> str:
    """Who talks to whom, by a name that means the same in every folder."""
    return from_anywhere(config.topology)


def _check_peers(config: RunConfig) -> None:
    """What learners without a centre need: a graph that joins them all, or groups that are not larger than all."""
    learners = len(cast(config.workers, config.learners, apart=ALGORITHMS[config.algo].apart).learners)
    if config.sync != TokenRing.name:
        make_graph(config.topology, learners)
    elif not 1 <= config.group_size <= learners:
        raise PasselError(
            f"--group-size is {config.group_size}, and must be from 1 to the number of learners, which is {learners}."
        )


def _check_levels(config: RunConfig) -> None:
    """What a set of levels needs: one step along the mean over all levels, at every update."""
    if config.workers > 1 and not SCHEMES[config.sync].joint:
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
