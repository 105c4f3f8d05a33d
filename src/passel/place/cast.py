"""Who plays which role: every worker acts and learns in turn, some only act and the others only learn, or one acts and
the others dream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

BOTH, ACTOR, LEARNER = "both", "actor", "learner"
#: Of an algorithm that dreams: the one who acts, those who dream, and one who does both.
PLAYER, DREAMER, WHOLE = "player", "dreamer", "whole"


@dataclass(frozen=True)
class Cast:
    """The role of each worker, by rank. Learners come first, so that a learner's rank is its rank in the scheme too.

    A role is a name here, and a class in `place/roles.py` or beside it: a new one needs both, and somebody to give it
    to.
    """

    roles: tuple[str, ...]

    @cached_property
    def learners(self) -> tuple[int, ...]:
        """The ranks that push gradients to what acts."""
        return tuple(rank for rank, role in enumerate(self.roles) if role != ACTOR)

    @cached_property
    def dreamers(self) -> tuple[int, ...]:
        """The ranks that learn a model of the environment, and dream in it."""
        return tuple(rank for rank, role in enumerate(self.roles) if role in (DREAMER, WHOLE))

    @cached_property
    def actors(self) -> tuple[int, ...]:
        """The ranks that step environments."""
        return tuple(rank for rank, role in enumerate(self.roles) if role in (BOTH, ACTOR, PLAYER, WHOLE))

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
        return f"worker {rank}" if role in (BOTH, WHOLE) else f"{role} {self.roles[:rank].count(role)}"


def cast(workers: int, learners: int, *, apart: bool, dreams: bool = False) -> Cast:
    """One worker alone has to be everything; where an algorithm keeps actors apart, `learners` of several only learn;
    where it dreams, one of several acts and the others dream.
    """
    if dreams:
        return Cast((WHOLE,) if workers == 1 else (PLAYER,) + (DREAMER,) * (workers - 1))
    if not apart or workers == 1:
        return Cast((BOTH,) * workers)
    return Cast((LEARNER,) * learners + (ACTOR,) * (workers - learners))
