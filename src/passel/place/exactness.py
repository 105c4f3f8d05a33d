"""How exactly a run can be repeated and resumed, and what would raise it."""

from __future__ import annotations

from dataclasses import dataclass

from passel.config import RunConfig
from passel.envs.atari_protocol import is_atari
from passel.envs.levels import is_level_set
from passel.envs.make import is_served
from passel.types import EnvSpec, PasselError

RESTART = "episodes restart on resume"


@dataclass(frozen=True)
class Exactness:
    """The level in a word or two, what it means, and how to raise it (empty at the highest level)."""

    level: str
    meaning: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.meaning}"


def exactness(config: RunConfig, spec: EnvSpec, rests_matter: bool = False) -> Exactness:
    """The level of a run: exact, or seeded with or without the episodes of a resumed run. With `rests_matter` (see
    Plan) a stop between two checkpoints, which is a rest more, leaves a trace.
    """
    inexact = why_inexact(config, spec)
    if config.place == "inline":
        if not inexact and rests_matter:
            return Exactness(
                "exact", "the same seed gives the same weights; a stop between two checkpoints may change them"
            )
        if not inexact:
            return Exactness("exact", "the same seed gives the same weights, also across a resume")
        meaning = f"the same seed gives the same weights, and {RESTART}"
        cure = "--exact steps the environment by Gymnasium." if spec.backend == "envpool" else inexact
        return Exactness(f"seeded, {RESTART}", meaning, cure)
    meaning = "the random streams repeat, the order in which workers meet does not"
    if not spec.exact_resume:
        meaning += f", and {RESTART}"
    possible = not inexact or spec.backend == "envpool"
    cure = "--exact repeats and resumes to the bit, in one process." if possible else f"Use --place inline. {inexact}"
    return Exactness("seeded" if spec.exact_resume else f"seeded, {RESTART}", meaning, cure)


def why_inexact(config: RunConfig, spec: EnvSpec) -> str:
    """Why no run in this environment resumes to the bit, in a sentence; empty if it does."""
    if spec.exact_resume:
        return ""
    if is_served(config.env):
        return f"The server of {config.env} cannot restore an episode."
    if spec.backend == "ale":
        return "ale-py's vector environment cannot restore an episode."
    if is_level_set(config.env):
        return f"Levels of {config.env} cannot restore an episode."
    return f"The back-end {spec.backend} cannot restore an episode."


def choose_exact(said: dict[str, object], env: str) -> dict[str, object]:
    """The settings of --exact under what the user said, or a refusal of what contradicts it."""
    place, backend = said.get("place", "inline"), said.get("backend", "auto")
    if place != "inline":
        raise PasselError(
            f"--exact runs in one process, and --place {place} was asked for: processes meet in another order each "
            "time. Leave one of the two out."
        )
    if backend not in ("auto", "gymnasium"):
        raise PasselError(
            f"--exact needs Gymnasium, which can restore an episode, and --backend {backend} was asked for. "
            "Leave one of the two out."
        )
    other = is_served(env) or is_atari(env) or is_level_set(env)  # make_plan asks these whether they restore episodes
    return {"place": "inline"} if other else {"place": "inline", "backend": "gymnasium"}


def check_exact(config: RunConfig, spec: EnvSpec) -> None:
    """Refuse --exact where the environment cannot keep it."""
    reason = why_inexact(config, spec) if config.exact else ""
    if reason:
        raise PasselError(f"--exact cannot be kept in {config.env}. {reason} Leave it out.")
