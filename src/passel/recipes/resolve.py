"""From what the user said to a complete configuration: defaults, then the preset, then the file, then the flags.

Nothing is silently ignored: a setting that has no effect in this combination is an error with the reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from passel.algos import ALGORITHMS
from passel.config import AUTO, FRACTIONS, NONE, RunConfig, overriding, resolve
from passel.envs.level_sets import from_anywhere
from passel.envs.levels import is_level_set
from passel.envs.make import is_served
from passel.envs.remote_place import is_address
from passel.place.budget import usable_cores
from passel.place.cast import cast
from passel.place.env_args import plays_atari
from passel.place.exactness import choose_exact
from passel.place.refusals import check, check_models, topology_of
from passel.place.sharing import shared_out
from passel.recipes.named import Recipe, recipe
from passel.recipes.presets import DEFAULT_STEPS, TUNED_FOR, has_both, preset, preset_name
from passel.types import PasselError

#: What settings were before there was a choice.
BEFORE = {"normalize": NONE, "layer_norm": "no", "dream_stop": "never"}


def flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def resolve_config(*layers: Mapping[str, Any]) -> tuple[RunConfig, Any]:
    """The run's configuration and the algorithm's numbers. `layers`: what the user said, the last one wins."""
    said: dict[str, Any] = {}
    for layer in layers:
        said = overriding(said, layer)
    named = _recipe(said)
    if named:
        said["algo"] = named.algo
    algo = said.get("algo", RunConfig.algo)
    if algo not in ALGORITHMS:
        raise PasselError(f"there is no --algo {algo}. Choose from {', '.join(ALGORITHMS)}.")
    numbers_class = ALGORITHMS[algo].Config
    tuned = _tuned(algo, said)
    known = _usual_scheme(algo, said) | {"envs": ALGORITHMS[algo].usual_envs} | tuned
    if said.get("exact"):
        said |= choose_exact(said, str(said.get("env", RunConfig.env)))
    _refuse_two_lengths(said)
    every = [f.name for f in dataclasses.fields(numbers_class)]
    config, rest = resolve(RunConfig, overriding(known, said), known=every)
    numbers, _ = resolve(numbers_class, rest)
    if getattr(numbers, "minibatches", 0) and "batch" not in said:
        numbers = dataclasses.replace(numbers, batch=numbers_class.batch)  # a preset's, which nothing reads
    if numbers.lr_end is not None and numbers.lr_end > numbers.lr and "lr_end" not in said:
        numbers = dataclasses.replace(numbers, lr_end=None)  # a rate of the user's own does not rise to a default
    config = dataclasses.replace(
        config,
        env=from_anywhere(config.env) if is_level_set(config.env) else config.env,
        topology=topology_of(config),
        workers=config.workers or _default_workers(config),
        steps=config.steps or DEFAULT_STEPS,
        until_solved=_until_solved(said, config),
        normalize=_normalize(config),
    )
    numbers = dataclasses.replace(numbers, **dict.fromkeys(_too_long(said, tuned, config, numbers), 0))
    if config.schedule_steps and not schedules(numbers):
        total = dataclasses.replace(config, schedule_steps=0)
        # It may have kept the lengths in steps of a preset, which are all that is left of it then.
        config = total if _too_long(said, tuned, total, numbers) else config
    check(config)
    if config.tune_for == "steps" and algo in TUNED_FOR and not named:
        shared, own = shared_out(config, numbers, said)
        config, numbers = dataclasses.replace(config, **shared), dataclasses.replace(numbers, **own)
    _refuse_without_effect(said, config, numbers)
    if not plays_atari(config):
        _refuse_rules_of_atari(said, config)
    _check_ranges(config, numbers)
    return config, numbers


def start_lines(given: Mapping[str, Any], config: RunConfig, numbers: Any) -> list[str]:
    """Where the settings of a new run come from (`given` are the user's), and what of a preset had to be changed."""
    said = overriding({}, given)
    algo, tuned = config.algo, _tuned(config.algo, said)
    if config.start_from:
        return [f"Settings of {algo}: those of {config.start_from}."]
    if {field.name for field in dataclasses.fields(numbers)} <= {*said, *FRACTIONS.values()}:
        return []  # a run's own config.toml: nothing is left to a preset or a default
    name = preset_name(algo, config.env, config.tune_for)
    kind = f" (tuned for {config.tune_for})" if has_both(algo, config.env) else ""
    if config.recipe:
        origin = f"Recipe: {config.recipe}."
    elif name:
        origin = f"Preset: {algo} on {name}{kind}."
    else:
        origin = f"No preset for ({algo}, {config.env}): the defaults of {algo}{kind} are used."
    total = config.schedule_steps or config.steps
    changed = (
        f"The {'recipe' if config.recipe else 'preset'}'s {flag(steps)} {tuned[steps]} does not end within a run of "
        f"{total:,} steps: {flag(FRACTIONS[steps])} {getattr(numbers, FRACTIONS[steps]):g} is used instead."
        for steps in _too_long(said, tuned, config, numbers)
    )
    return [origin, *changed]


def _tuned(algo: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the recipe that was asked for, or else of the preset, if there is one."""
    named = _recipe(said)
    if named:
        return {**named.settings, "algo": algo}
    tune_for = said.get("tune_for", RunConfig.tune_for)
    return preset(algo, said.get("env", RunConfig.env), said.get("sync"), tune_for)


def _too_long(said: Mapping[str, Any], tuned: Mapping[str, Any], config: RunConfig, numbers: Any) -> list[str]:
    """The lengths in steps of a preset's or a recipe's schedules that do not end within this run, which takes the
    default fractions instead.
    """
    total = config.schedule_steps or config.steps
    ends = {"epsilon_steps": tuned.get("epsilon_steps", 0) + getattr(numbers, "warmup", 0)}
    if numbers.lr_end is not None:
        ends["lr_steps"] = tuned.get("lr_steps", 0)
    return [
        steps
        for steps, end in ends.items()
        if tuned.get(steps) and steps not in said and FRACTIONS[steps] not in said and end > total
    ]


def _refuse_two_lengths(said: Mapping[str, Any]) -> None:
    for steps, fraction in FRACTIONS.items():
        if said.get(steps) and fraction in said:
            raise PasselError(
                f"{flag(steps)} and {flag(fraction)} both give the length of the same schedule. "
                "Leave one of the two out."
            )


def resolve_saved(content: Mapping[str, Any], *layers: Mapping[str, Any]) -> tuple[RunConfig, Any]:
    """The same of a run's own config.toml. A setting that an earlier version did not know is off there."""
    numbers = getattr(ALGORITHMS.get(str(content.get("algo", RunConfig.algo))), "Config", None)
    before = {key: value for key, value in BEFORE.items() if hasattr(RunConfig, key) or hasattr(numbers, key)}
    return resolve_config(before, content, *layers)


def _normalize(config: RunConfig) -> Any:
    """`auto` is for the environment to decide, where the algorithm leaves it a choice."""
    decided = config.normalize == AUTO and not ALGORITHMS[config.algo].normalizes
    return NONE if decided else config.normalize


def _until_solved(said: Mapping[str, Any], config: RunConfig) -> bool:
    """Without evaluations nothing confirms that an environment is solved."""
    if config.eval_episodes == 0 and said.get("until_solved"):
        raise PasselError(
            "--until-solved needs an evaluation to confirm it, and --eval-episodes 0 turns evaluations off. "
            "Leave one of the two out."
        )
    return config.until_solved and config.eval_episodes != 0


def _recipe(said: Mapping[str, Any]) -> Recipe | None:
    if not said.get("recipe"):
        return None
    found = recipe(said["recipe"], said.get("env", RunConfig.env))
    if said.get("algo", AUTO) not in (found.algo, AUTO):
        raise PasselError(
            f"--recipe {said['recipe']} is one of --algo {found.algo}, and --algo {said['algo']} was asked for. "
            "Leave one of the two out."
        )
    return found


def _usual_scheme(algo: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Where actors are apart there is often one learner, who shares with nobody; several take every step together."""
    if not ALGORITHMS[algo].apart:
        return {}
    return {"sync": "solo" if said.get("learners", 1) == 1 else "allreduce"}


def _default_workers(config: RunConfig) -> int:
    if ALGORITHMS[config.algo].apart:
        return max(usable_cores(), 2 * config.learners if config.learners > 1 else 1)
    return 1 if config.sync == "solo" else usable_cores()


def _refuse_without_effect(said: Mapping[str, Any], config: RunConfig, numbers: Any) -> None:
    """A setting that the user gave and that nothing reads here is a misunderstanding: better to ask."""
    merged = dataclasses.asdict(config) | dataclasses.asdict(numbers)
    for field in (*dataclasses.fields(config), *dataclasses.fields(numbers)):
        if field.name not in said or said[field.name] == field.default:
            continue
        for other, needed in field.metadata.get("only", {}).items():
            enough = needed if isinstance(needed, tuple) else (needed,)
            if merged[other] not in enough:
                needs = flag(other) if needed is True else f"{flag(other)} {' or '.join(map(str, enough))}"
                raise PasselError(f"{flag(field.name)} has no effect without {needs}. Add {needs}, or leave it out.")
    for name, used in (("env_key", is_address(config.env)), ("reconnect", is_served(config.env))):
        if said.get(name) and not used:
            raise PasselError(
                f"{flag(name)} has no effect on {config.env}, which is at no server's address. "
                "Use --env tcp://HOST:PORT, or leave it out."
            )
    if config.sync == "solo" and config.sync_every > 1:
        raise PasselError("--sync-every has no effect under --sync solo, which shares nothing. Leave it out.")
    if config.place == "inline" and config.transport == "distributed":
        raise PasselError(
            "--transport distributed has no effect under --place inline, which is one process. "
            "Use --place processes, or leave it out."
        )
    if config.schedule_steps > 0 and not schedules(numbers):
        raise PasselError(
            "--schedule-steps has no effect: no schedule of this run depends on its length. Leave it out, or add "
            "--lr-end."
        )
    if config.patience and (config.eval_every is None or not (config.eval_every or config.eval_episodes)):
        raise PasselError(
            "--patience has no effect without evaluations during training. Use --eval-every, or leave it out."
        )
    _refuse_numbers_without_effect(said, numbers)


def schedules(numbers: Any) -> list[str]:
    """The settings that change over --schedule-steps (--steps without it), or over a fraction of it."""
    found = {
        "epsilon": getattr(numbers, "epsilon_steps", None) == 0,
        "lr": numbers.lr_end is not None and not numbers.lr_steps,
        "clip": getattr(numbers, "clip_end", None) is not None,
        "priority_beta": bool(getattr(numbers, "prioritized", False)),
        "dreaming": getattr(numbers, "dream_fraction", 1.0) < 1,
    }
    return [name for name, changes in found.items() if changes]


def _refuse_numbers_without_effect(said: Mapping[str, Any], numbers: Any) -> None:
    default_eps = type(numbers).optimizer_eps
    if numbers.optimizer == "sgd" and numbers.optimizer_eps != default_eps:
        raise PasselError("--optimizer-eps has no effect on sgd, which has none. Leave it out.")
    for name in ("lr_steps", "lr_fraction"):
        given = said.get(name, getattr(type(numbers), name)) != getattr(type(numbers), name)
        if given and said.get("lr_end") is None and numbers.lr_end is None:
            raise PasselError(f"{flag(name)} has no effect without --lr-end. Add --lr-end, or leave it out.")
    if getattr(numbers, "distributional", False) and numbers.huber != type(numbers).huber:
        raise PasselError("--huber has no effect on --distributional, whose loss is another. Leave one of the two out.")
    if getattr(numbers, "split", False) and numbers.shared == "yes":
        raise PasselError("--split needs a policy and a critic apart, and --shared yes joins them. Leave one out.")
    if numbers.optimizer == "adam" and numbers.momentum:
        raise PasselError("--momentum has no effect on adam, which has its own. Use --optimizer sgd or rmsprop.")


def _refuse_rules_of_atari(said: Mapping[str, Any], config: RunConfig) -> None:
    for field in dataclasses.fields(config):
        if field.metadata.get("atari") and said.get(field.name, NONE) not in (field.default, NONE):
            raise PasselError(
                f"{flag(field.name)} has no effect on {config.env}, which is no Atari game that ale-py plays. "
                "Use --env ALE/Breakout-v5 or another of them, or leave it out."
            )


def _check_ranges(config: RunConfig, numbers: Any) -> None:
    positive = ("envs", "shards", "sync_every", "steps", "checkpoint_every", "keep_checkpoints", "select_episodes")
    at_least_0 = (
        "entropy",
        "lr_end",
        "lr_steps",
        "warmup",
        "epsilon_steps",
        "priority_alpha",
        "momentum",
        "frame_bytes",
        "slots",
        "fetch_every",
        "epsilon_alpha",
        "dream_ratio",
        "dream_age",
        "minibatches",
    )
    shares = (
        "gamma",
        "gae_lambda",
        "td_lambda",
        "epsilon_start",
        "epsilon_end",
        "target_tau",
        "epsilon_fraction",
        "lr_fraction",
        "priority_beta",
        "rms_decay",
        "epsilon",
        "dream_fraction",
    )
    rules: list[tuple[Any, tuple[str, ...], Callable[[Any], bool], str]] = [
        (config, ("workers", "learners", *positive), lambda v: v >= 1, "at least 1"),
        (
            config,
            (
                "seed",
                "threads",
                "l1",
                "eval_episodes",
                "eval_max_steps",
                "eval_every",
                "patience",
                "checkpoint_seconds",
                "schedule_steps",
            ),
            lambda v: v >= 0,
            "0 or more",
        ),
        (
            numbers,
            (
                "batch",
                "capacity",
                "n_step",
                "target_every",
                "horizon",
                "epochs",
                "critic_updates",
                "policy_updates",
                "dream_depth",
                "dream_capacity",
                "ensemble",
                "model_batch",
            ),
            lambda v: v >= 1,
            "at least 1",
        ),
        (
            numbers,
            (
                "lr",
                "updates_per_step",
                "huber",
                "optimizer_eps",
                "max_grad_norm",
                "clip",
                "clip_end",
                "value_clip",
                "target_kl",
                "critic_weight",
                "reward_scale",
                "samples_per_insert",
                "rho_clip",
                "c_clip",
                "awr_beta",
                "dream_reuse",
                "max_disagreement",
                "model_lr",
                "model_updates_per_step",
            ),
            lambda v: v > 0,
            "more than 0",
        ),
        (numbers, ("atoms",), lambda v: v >= 2, "at least 2"),
        (numbers, ("v_min", "v_max"), lambda v: True, "a finite number"),
        (numbers, ("awr_weight_clip",), lambda v: v >= 1, "at least 1"),
        (numbers, at_least_0, lambda v: v >= 0, "0 or more"),
        (
            numbers,
            shares,
            lambda v: 0 <= v <= 1,
            "from 0 to 1",
        ),
    ]
    for source, names, good, words in rules:
        for name in names:
            value = getattr(source, name, None)
            if value is not None and not (math.isfinite(value) and good(value)):
                raise PasselError(f"{flag(name)} is {value}, and must be {words}.")
    further = DIET_CHECKS.get(ALGORITHMS[config.algo].diet)
    if further:
        further(config, numbers)


def _check_replay(config: RunConfig, numbers: Any) -> None:
    if numbers.v_min >= numbers.v_max:
        raise PasselError(f"--v-min is {numbers.v_min:g}, and must be less than --v-max, which is {numbers.v_max:g}.")
    algorithm = ALGORITHMS[config.algo]
    writers = cast(config.workers, config.learners, apart=algorithm.apart, dreams=algorithm.dreams).actors
    share = numbers.capacity // len(writers)
    if numbers.batch > share:
        raise PasselError(
            f"--batch {numbers.batch} is more than the {share} transitions that --capacity {numbers.capacity} leaves "
            f"each of {len(writers)} workers. Use a larger --capacity or a smaller --batch."
        )


def _check_dreams(config: RunConfig, numbers: Any) -> None:
    _check_replay(config, numbers)
    dreamers = max(config.workers - 1, 1)
    check_models(config.sync if numbers.model_sync == "same" else numbers.model_sync, dreamers)
    if not numbers.dream_ratio and config.workers > 1:
        raise PasselError(
            f"--dream-ratio 0 leaves nothing to do for {dreamers} of {config.workers} workers. "
            "Use --workers 1, or more than 0."
        )
    if numbers.dream == "explore" and (numbers.ensemble < 2 or numbers.grounded):
        raise PasselError(
            "--dream explore goes where models disagree, and here there are no two. "
            "Use --ensemble 2 or more, without --grounded."
        )
    if numbers.dream_capacity // dreamers < 2 * numbers.batch:
        raise PasselError(
            f"--dream-capacity {numbers.dream_capacity} leaves {numbers.dream_capacity // dreamers} transitions to "
            f"each of {dreamers} dreamers, who dream of --batch {numbers.batch} at a time. Use a larger one."
        )


def _check_slots(config: RunConfig, numbers: Any) -> None:
    players = cast(config.workers, config.learners, apart=True)
    fewest = min(len(players.actors_of(learner)) for learner in players.learners)
    if numbers.slots and numbers.slots * fewest < numbers.batch:
        raise PasselError(
            f"--slots {numbers.slots} for each actor of a learner hold {numbers.slots * fewest} rollouts, and --batch "
            f"{numbers.batch} needs more of them at once. Use more --slots or a smaller --batch."
        )


def _check_rollout(config: RunConfig, numbers: Any) -> None:
    rows, parts = numbers.horizon * config.envs, getattr(numbers, "minibatches", 0) or 1
    if is_level_set(config.env):
        if numbers.horizon % parts:
            raise PasselError(
                f"--minibatches {parts} does not divide --horizon {numbers.horizon}, and every part of a rollout has "
                "as many steps of one level as of another. Choose numbers that do."
            )
        return
    if rows % parts:
        raise PasselError(
            f"--minibatches {parts} does not divide the {rows} steps of a rollout (--horizon {numbers.horizon} times "
            f"--envs {config.envs}). Choose numbers that do."
        )


#: What else must hold, by how experience reaches the algorithm.
DIET_CHECKS: dict[str, Callable[[RunConfig, Any], None]] = {
    "replay": _check_replay,
    "shared": _check_replay,
    "slots": _check_slots,
    "dreams": _check_dreams,
    "rollout": _check_rollout,
}
