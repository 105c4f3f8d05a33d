"""Where the time goes: seconds by stage, cheap enough to stay switched on."""

from __future__ import annotations

import time
from collections.abc import Mapping

#: What only dreamers spend time on: not worth a word where nobody dreams.
DREAMING = ("model", "dream")
STAGES = ("env", "act", "store", "sample", "learn", "apply", "copy", "wait", "idle", *DREAMING)


class Clock:
    """Gives the seconds since the last mark to a stage: every moment belongs to exactly one."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self.seconds = {stage: seconds[stage] if seconds else 0.0 for stage in STAGES}
        self._last = time.perf_counter()

    def mark(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now

    def move(self, seconds: float, source: str, stage: str) -> None:
        """Some of what was counted as `source` was really spent on `stage`."""
        self.seconds[source] -= seconds
        self.seconds[stage] += seconds
