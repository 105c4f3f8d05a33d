"""Reports of a run: the counters of the board as numbers that a person reads.

Runs in: the process that the user started.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from passel.clock import DREAMING, STAGES
from passel.place.board import COLUMNS, Board, State
from passel.place.plan import Plan
from passel.stopwatch import Stopwatch
from passel.types import Report, WorkerRow

RATE_OVER = 5.0  # seconds of training over which a speed is averaged
COUNTS = ("refused_gradients",)  # numbers of a worker that count something, so that all of them have a sum


class Reporter:
    """Makes reports, and remembers the counters of the last seconds to tell a speed."""

    def __init__(self, plan: Plan, board: Board, stopwatch: Stopwatch) -> None:
        self._plan, self._board, self._stopwatch = plan, board, stopwatch
        self._marks: deque[tuple[float, Any]] = deque(maxlen=64)

    def report(
        self,
        phase: str,
        *,
        training: bool,
        seconds: float,
        episodes: int,
        mean_return: float | None,
        mean_length: float | None,
        solved_at: float | None,
        eval_steps: int | None = None,
        eval_mean: float | None = None,
    ) -> Report:
        counters, moved, gone = self._speed(phase, training)
        spent = moved[:, [COLUMNS[stage] for stage in STAGES]]
        rows = tuple(
            WorkerRow(
                name=self._plan.cast.name(rank),
                state="done" if phase == "finished" else State(self._board.states[rank]).name.lower(),
                steps=int(counters[rank, COLUMNS["steps"]]),
                updates=int(counters[rank, COLUMNS["updates"]]),
                steps_per_second=float(moved[rank, COLUMNS["steps"]] / gone),
                shares=_shares(spent[rank]),
                staleness=float(counters[rank, COLUMNS["staleness"]]),
            )
            for rank in range(self._plan.workers)
        )
        steps, total = int(counters[:, COLUMNS["steps"]].sum()), self._plan.config.steps
        learners = counters[list(self._plan.cast.learners)]
        # Updates are those of the first network: a second one may be shared by other rules.
        collective = len(learners) if next(iter(self._plan.schemes.values())).collective else 1
        return Report(
            steps=steps,
            frames=steps * self._plan.spec.frame_skip,
            seconds=seconds,
            episodes=episodes,
            updates=int(counters[:, COLUMNS["updates"]].sum()) // collective,
            return_mean_100=mean_return,
            steps_per_second=float(moved[:, COLUMNS["steps"]].sum() / gone),
            updates_per_second=float(moved[:, COLUMNS["updates"]].sum() / gone) / collective,
            staleness=float(counters[list(self._plan.measures_staleness), COLUMNS["staleness"]].mean()),
            shares=_shares(spent.sum(axis=0)),
            scalars=self.scalars(),
            workers=rows,
            total_steps=total,
            solved_at=solved_at,
            phase=phase,
            human_normalised=self._plan.spec.human_normalised(mean_return),
            eval_steps=eval_steps,
            eval_mean=eval_mean,
            length_mean_100=mean_length,
        )

    def _speed(self, phase: str, training: bool) -> tuple[Any, Any, float]:
        """The counters, by how much they grew lately, and in how many seconds of training.

        While nothing trains, these are the last seconds of training; when the run has ended, all of it.
        """
        counters, now = self._board.counters.copy(), self._stopwatch.spent("train")
        if phase == "finished":
            return counters, counters, max(now, 1e-9)
        if training:
            self._marks.append((now, counters))
        while len(self._marks) > 2 and now - self._marks[0][0] > RATE_OVER:
            self._marks.popleft()
        if not self._marks:
            return counters, np.zeros_like(counters), 1e-9
        (then, before), (until, after) = self._marks[0], self._marks[-1]
        with np.errstate(invalid="ignore"):  # a loss may be infinite; by how much it grew is never read
            return counters, after - before, max(until - then, 1e-9)

    def scalars(self) -> dict[str, float]:
        """The loss, and the algorithm's own numbers: means over the workers that have them yet, and sums of counts."""
        loss = float(self._board.column("loss")[list(self._plan.cast.learners)].mean())
        columns = ((name, self._board.scalar(i)) for i, name in enumerate(self._plan.scalar_names))
        known = ((name, column[np.isfinite(column)]) for name, column in columns)
        found = {name: column.sum() if name in COUNTS else column.mean() for name, column in known if len(column)}
        return {"loss": loss, **{name: float(value) for name, value in found.items()}}

    def shares(self) -> dict[str, float]:
        """Where the time of all workers went, over the whole run."""
        return _shares(self._board.counters[:, [COLUMNS[stage] for stage in STAGES]].sum(axis=0))


def _shares(seconds: Any) -> dict[str, float]:
    total, by_stage = float(seconds.sum()), zip(STAGES, seconds, strict=True)
    spent = {stage: float(s) for stage, s in by_stage if s > 0 or stage not in DREAMING}
    return {stage: s / total for stage, s in spent.items()} if total > 0 else {}
