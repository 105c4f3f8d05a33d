"""What one worker is told by the board: whether to work, and whether somebody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from passel.place.board import STEPS, UPDATES, Board
from passel.types import Ints


class Orders:
    """The board as one worker sees it. `joint` are the counters of updates that need every learner, one a network that
    this worker has to do with, and the place there of the learner whose part depends on it: its own, or, of one who
    only acts (`learns` is False), the learner's to whom it was dealt.
    """

    def __init__(
        self,
        board: Board,
        rank: int,
        *,
        learns: bool,
        limit: int,
        schedule: int,
        lr: Callable[[int], float],
        joint: Sequence[tuple[Ints, int]],
    ) -> None:
        self.board, self.rank, self.limit, self.lr = board, rank, limit, lr
        self._schedule, self._learns, self._joint = schedule, learns, joint
        self._counters = board.counters[rank]

    @property
    def resting(self) -> bool:
        """Whether to stand still: told to, or all workers together have taken the steps that were asked for.

        Where every learner takes part in every update, nobody may rest while another waits for its gradient.
        """
        return (not self.board.running or self.board.steps >= self.limit) and not self.behind

    @property
    def finished(self) -> bool:
        """Whether all workers together have taken the steps that were asked for."""
        return self.board.steps >= self.limit

    @property
    def behind(self) -> bool:
        """Whether another learner waits for this one's part in an update that needs them all."""
        return any(pushes.max() > pushes[place] for pushes, place in self._joint)

    @property
    def ahead(self) -> bool:
        """Whether this learner would have to wait for another's part."""
        return self._learns and any(pushes[place] > pushes.min() for pushes, place in self._joint)

    def progress(self, steps: int) -> float:
        """How much of the schedules is over after `steps` steps of all workers, from 0 to 1."""
        return min(steps / self._schedule, 1.0)

    def stepped(self, count: int) -> None:
        self._counters[STEPS] += count

    def updated(self) -> None:
        self._counters[UPDATES] += 1
