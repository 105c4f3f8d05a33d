"""Who plays which role: every worker acts and learns in turn, or some only act and the others only learn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

BOTH, ACTOR, LEARNER = "both", "actor", "learner"


@dataclass(frozen=True)
class Cast:
    """The role of each worker, by rank. Learners come first, so that a learner's rank is its rank in the scheme too.

    A role is a name here, and a class in `place/roles.py`: a new one needs both, and somebody to give it to.
    """

    roles: tuple[str, ...]

    @cached_property
    def learners(self) -> tuple[int, ...]:
        """The ranks that push gradients."""
        return tuple(rank for rank, role in enumerate(self.roles) if role in (BOTH, LEARNER))

    @cached_property
    def actors(self) -> tuple[int, ...]:
        """The ranks that step environments."""
        return tuple(rank for rank, role in enumerate(self.roles) if role in (BOTH, ACTOR))

    @property
    def apart(self) -> bool:
        return ACTOR in self.roles

    def learner_of(self, rank: int) -> int:
        """Whose experience this worker's becomes: its own, or that of the learner to whom it was dealt."""
        return self.actors.index(rank) % len(self.learners) if self.roles[rank] == ACTOR else rank

    def actors_of(self, learner: int) -> tuple[int, ...]:
        """Whose experience this learner learns from, where each actor has one learner."""
        return tuple(rank for rank in self.actors if self.learner_of(rank) == learner)

    def name(self, rank: int) -> str:
        """What to call this worker: by its role, and counted among those who have the same."""
        role = self.roles[rank]
        return f"worker {rank}" if role == BOTH else f"{role} {self.roles[:rank].count(role)}"


def cast(workers: int, learners: int, *, apart: bool) -> Cast:
    """One worker alone has to be both; where an algorithm keeps actors apart, `learners` of several only learn."""
    if not apart or workers == 1:
        return Cast((BOTH,) * workers)
    return Cast((LEARNER,) * learners + (ACTOR,) * (workers - learners))
