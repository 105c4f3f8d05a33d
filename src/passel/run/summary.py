"""The result of a run: the fields of summary.json, in its order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, Self

from passel.run.files import plain
from passel.types import PasselError

Status = Literal["solved", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class EvalResult:
    """The scores of the final greedy evaluation."""

    episodes: int
    mean: float
    std: float
    min: float
    max: float
    #: Episodes that had not ended when they were left, and count with their score so far.
    cut: int = 0


@dataclass(frozen=True)
class Evaluation(EvalResult):
    """The scores of a policy that was loaded from a checkpoint, and the step of that checkpoint."""

    step: int = field(kw_only=True)


@dataclass(frozen=True)
class Summary:
    """What a run came to; None where it does not apply (not solved, not evaluated, no episode ended)."""

    algo: str
    env: str
    sync: str
    place: str
    workers: int
    seed: int
    status: Status
    steps: int
    frames: int
    updates: int
    episodes: int
    seconds: float
    steps_per_second: float
    updates_per_second: float
    return_mean_100: float | None
    solved_at_seconds: float | None
    solved_at_steps: int | None
    solved_at_episodes: int | None
    eval: EvalResult | None
    peak_rss_mb: float
    workers_restarted: int
    checkpoint: str | None
    #: Both scores where random play is 0 and a human is 1, if theirs are known.
    return_human_normalised: float | None = None
    eval_human_normalised: float | None = None
    #: What `seconds` is made of. Speeds are those of training alone.
    startup_seconds: float = 0.0
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    #: The step of the best policy by the evaluations during training: the one that `eval` is of.
    best_step: int | None = None
    #: What the watcher found implausible: values, losses or steps of the policy out of all proportion.
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object that summary.json holds."""
        content: dict[str, Any] = plain(self)
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read `to_json` back; fields that this version does not know are passed over."""
        known = _known(cls, content, "summary.json")
        if known["eval"] is not None:
            known["eval"] = EvalResult(**_known(EvalResult, known["eval"], "the eval of summary.json"))
        known["warnings"] = tuple(known.get("warnings", ()))
        return cls(**known)


def _known(kind: type[Summary] | type[EvalResult], content: Mapping[str, Any], where: str) -> dict[str, Any]:
    names = [field.name for field in fields(kind)]
    missing = [field.name for field in fields(kind) if field.name not in content and field.default is MISSING]
    if missing:
        raise PasselError(f"{where} has no {', '.join(missing)}. Run it again with this version of passel.")
    return {name: content[name] for name in names if name in content}
