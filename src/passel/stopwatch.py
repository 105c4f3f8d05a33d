"""Where the time of a run goes: start-up, training, evaluation and checkpoints apart."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

ACTIVITIES = ("startup", "train", "evaluation", "checkpoint")


class Stopwatch:
    """Seconds by activity, one activity at a time. Begins with start-up at `began`, on top of what was `spent` before.

    Training lasts from the moment at which workers are released until they are at rest again.
    """

    def __init__(self, began: float, spent: Mapping[str, float]) -> None:
        self._spent = {activity: spent.get(activity, 0.0) for activity in ACTIVITIES}
        self._activity, self._since = "startup", began

    def switch(self, activity: str) -> str:
        """What follows counts as this activity; the one before is returned."""
        now, before = time.perf_counter(), self._activity
        self._spent[before] += now - self._since
        self._activity, self._since = activity, now
        return before

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """The block counts as this activity, and what follows as the one before."""
        before = self.switch(activity)
        try:
            yield
        finally:
            self.switch(before)

    def spent(self, activity: str) -> float:
        running = time.perf_counter() - self._since if activity == self._activity else 0.0
        return self._spent[activity] + running
