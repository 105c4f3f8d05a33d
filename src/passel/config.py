"""Typed configuration: frozen dataclasses whose fields are flags, keys of a TOML file and their help, all at once."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from passel.reading import read_config
from passel.types import PasselError, printable

T = TypeVar("T")

#: How a file or a flag says that an optional setting is off: TOML has no null.
NONE = "none"

#: The value of algo that leaves the choice of the algorithm to the environment's spaces.
AUTO = "auto"

#: Lengths of schedules in steps, and the settings that give the same length as a fraction of the run where they are 0.
FRACTIONS = {"epsilon_steps": "epsilon_fraction", "lr_steps": "lr_fraction"}


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A field with its sentence of help."""
    return field(default=default, metadata={"help": help, **metadata})


@dataclass(frozen=True)
class RunConfig:
    """What every run has, whatever the algorithm."""

    env: str = option(
        "LunarLander-v3",
        "Environment: a Gymnasium id, package:Id-v0 to import the package first, module:function for a function that "
        "makes one, a set of levels (levels:NAME) or the address of a server (tcp://HOST:PORT).",
    )
    algo: str = option(
        "dqn",
        "Algorithm, or auto: ppo where actions are vectors, where observations are images and on sets of levels, dqn "
        "elsewhere. Not given: dqn, and ppo where actions are vectors.",
    )
    recipe: str = option("", "A system from the literature, with its numbers: see passel list.")
    sync: str = option(
        "hogwild",
        "How the learners share the parameters: solo, locked, hogwild, server or allreduce; or without a centre: "
        "gossip, proximal or tokenring.",
    )
    place: str = option("processes", "Where the workers run: inline (one process, deterministic) or processes.")
    workers: int = option(0, "Workers; 0 means one for each usable core (1 under solo).")
    learners: int = option(
        1, "Of several workers, how many only learn, where an algorithm has actors apart (impala, apex)."
    )
    tune_for: Literal["steps", "seconds"] = option(
        "steps", "What defaults and presets are chosen for, where they differ: few steps, or few seconds (ppo, dqn)."
    )
    steps: int = option(0, "Stop after this many agent steps in all workers together; 0 means the preset's number.")
    schedule_steps: int = option(
        0,
        "Length of the run that fractions of a schedule refer to, and over which the clip range and the correction of "
        "priorities change; 0 means --steps. A resumed run keeps it.",
    )
    exact: bool = option(
        False,
        "Choose a placement (inline) and a back-end (gymnasium) with which a run repeats and resumes to the bit; "
        "refused where there are none.",
    )
    normalize: Literal["auto", "none", "obs", "reward", "obs,reward"] = option(
        "auto",
        "Normalize observations by a running mean and standard deviation, and divide rewards by the running standard "
        "deviation of the discounted return, with one statistic for all workers (ppo, a3c, impala, dqn). auto: both "
        "for ppo, where observations are vectors of floats without finite bounds. Advantages are --normalise.",
    )
    seed: int = option(1, "Seed of all random streams.")
    out: str = option("", "Folder of the run; empty means a new one below runs/.")
    start_from: str = option(
        "",
        "Run whose weights to begin with; its algorithm, scheme and settings hold where none are given.",
        flag="from",
    )
    until_solved: bool = option(True, "Stop when the environment is solved and a greedy evaluation confirms it.")
    solved_at: float | None = option(None, "Mean return that counts as solved; none: the environment's own threshold.")
    eval_episodes: int = option(100, "Fresh greedy episodes of an evaluation; 0: no evaluation, and so no solved.")
    eval_max_steps: int = option(
        0,
        "Steps after which an episode of an evaluation is cut; 0 means the environment's own time limit, or 27000 if "
        "it has none.",
    )
    eval_every: int | None = option(
        0,
        "Steps between two evaluations during training, by which the best policy is kept; 0 means a 20th of --steps, "
        "or more where evaluations would take more than a tenth of all steps (none for sets of levels and for servers "
        "of environments); none: no evaluations during training.",
    )
    select_episodes: int = option(10, "Greedy episodes of each evaluation during training.")
    patience: int = option(
        0, "Stop after this many evaluations in a row without a better mean return; 0: train to the end."
    )
    envs: int = option(
        16,
        "Environments that each worker steps at once; with a list of levels, of each level. Not given: the preset's "
        "or the algorithm's number, divided among the workers of a run tuned for steps.",
    )
    backend: Literal["auto", "ale", "gymnasium", "envpool"] = option(
        "auto",
        "Who steps the environments: ale for Atari games (ALE/...), envpool where it is known to be equal and "
        "installed, else gymnasium.",
    )
    protocol: Literal["v5", "nature"] = option(
        "v5",
        "Rules of an Atari game: v5 (sticky actions 0.25, half an hour) or nature (none, five minutes, a lost life "
        "ends the episode for learning). Scores are always of whole games and true rewards.",
        atari=True,
    )
    life_loss: bool | None = option(
        None, "A lost life of an Atari game ends the episode for learning; none: as the protocol says.", atari=True
    )
    clip_rewards: bool | None = option(
        None, "Learn from an Atari game's rewards brought to [-1, 1]; none: as the protocol says (yes).", atari=True
    )
    fire_reset: bool = option(
        False, "The first action of an Atari game and after a lost life is FIRE, whatever was chosen.", atari=True
    )
    game_mode: int | None = option(None, "Mode of an Atari game; none: the cartridge's own.", atari=True)
    game_difficulty: int | None = option(None, "Difficulty of an Atari game; none: the cartridge's own.", atari=True)
    env_key: str = option("", "Key file for a server of environments on another machine (passel keys).")
    reconnect: bool = option(
        False, "Wait for a server of environments that is lost to come back, and go on with new episodes."
    )
    threads: int = option(0, "Threads of each worker; 0 means 1 for vectors, an equal part of the cores for images.")
    shards: int = option(1, "Shards of the parameter server.", only={"sync": "server"})
    sync_every: int = option(1, "Synchronise after this many updates, with local steps in between.")
    transport: Literal["auto", "arena", "distributed"] = option(
        "auto", "What carries an all-reduce: shared memory (arena) or torch.distributed.", only={"sync": "allreduce"}
    )
    topology: str = option(
        "bipartite",
        "Who talks to whom without a centre: ring, complete, exponential, bipartite, or a TOML file with edges.",
        only={"sync": ("gossip", "proximal")},
    )
    l1: float = option(
        0.0,
        "Weight of the L1 norm of all parameters, which the proximal step minimises too.",
        only={"sync": "proximal"},
    )
    group_size: int = option(
        1, "Workers of a group that shares one vector; a token joins the groups.", only={"sync": "tokenring"}
    )
    checkpoint_every: int = option(100_000, "Steps between two checkpoints.")
    checkpoint_seconds: float = option(
        300.0,
        "Seconds between two checkpoints, if --checkpoint-every has not asked for one before; 0: by steps alone, as "
        "in an inline run that a rest would change.",
    )
    keep_checkpoints: int = option(3, "How many checkpoints to keep.")
    tensorboard: bool = option(True, "Write TensorBoard events.")
    quiet: bool = option(False, "Print nothing but errors.")


def resolve(
    cls: type[T], *layers: Mapping[str, Any], known: Iterable[str] = (), where: str = "configuration"
) -> tuple[T, dict[str, Any]]:
    """The dataclass made from its defaults and the layers over them, last one wins; and what no field of it took.

    A key that neither `cls` nor `known` has is an error that names the nearest one that exists.
    """
    names = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    everything = [*names, *known]
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for layer in layers:
        for raw, value in layer.items():
            key = raw.replace("-", "_")
            if key in names:
                values[key] = coerce(key, value, hints[key])
            elif key in everything:
                rest[key] = value
            else:
                raise PasselError(unknown_key(raw, everything, where))
    return cls(**values), rest


def overriding(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of two layers, of which `over` wins: also where one gives the length of a schedule in steps and the
    other as a fraction.
    """
    over = {key.replace("-", "_"): value for key, value in over.items()}
    merged = {key.replace("-", "_"): value for key, value in under.items()}
    for steps, fraction in FRACTIONS.items():
        if over.get(steps):
            merged.pop(fraction, None)
        elif fraction in over:
            merged.pop(steps, None)
    return merged | over


def unknown_key(key: str, known: Iterable[str], where: str) -> str:
    nearest = difflib.get_close_matches(key.replace("-", "_"), list(known), n=1, cutoff=0.5)
    cure = f"Did you mean {nearest[0]}?" if nearest else "`passel train --help` lists them all."
    return f"there is no setting called {key} in the {where}. {cure}"


def coerce(key: str, value: Any, hint: Any) -> Any:
    """The value in the field's type, or an error that says which type was expected."""
    if isinstance(hint, types.UnionType):
        if value is None or value == NONE:
            return None
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise PasselError(f"{key} is {value!r}, and must be one of {', '.join(map(str, choices))}")
        return value
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple) or not all(type(v) is int and v > 0 for v in value):
            raise PasselError(f"{key} is {value!r}, and must be a list of positive whole numbers such as [128, 128]")
        return tuple(value)
    if hint is float and type(value) is int:
        return float(value)
    if hint is int and type(value) is float and value.is_integer():
        return int(value)  # 1e6 reads better than 1000000
    if type(value) is not hint:
        raise PasselError(f"{key} is {value!r}, and must be {_NAMES.get(hint, hint)}")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a configuration file. Tables are only for the eye: their keys count as if they stood at the top."""
    try:
        content = read_config(path, follow=True)
    except FileNotFoundError:
        raise PasselError(f"there is no file {path}. Give --config the path of a TOML file.") from None
    except ValueError as error:
        raise PasselError(f"{path} is not valid TOML: {printable(error)}") from None
    except OSError as error:
        raise PasselError(f"{path} cannot be read ({error.strerror}). Give --config the path of a TOML file.") from None
    flat: dict[str, Any] = {}
    for key, value in content.items():
        for name, setting in value.items() if isinstance(value, dict) else [(key, value)]:
            if name in flat:
                raise PasselError(f"{name} is set twice in {path}. Keep one of the two.")
            flat[name] = setting
    return flat


def as_dict(*configs: Any) -> dict[str, Any]:
    """Every field of the configs as plain values that TOML can hold. Where a schedule has a length in steps, the
    fraction that would stand in for it is left out.
    """
    merged: dict[str, Any] = {}
    for config in configs:
        merged |= dataclasses.asdict(config)
    for steps, fraction in FRACTIONS.items():
        if merged.get(steps):
            merged.pop(fraction, None)
    return {key: list(v) if isinstance(v, tuple) else NONE if v is None else v for key, v in merged.items()}
