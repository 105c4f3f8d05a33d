"""Ctrl-C, politely: the first asks a run to stop and keep everything, the second ends it at once."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

#: Seconds after the first in which another is its echo: whoever runs us (`timeout`, a shell, a scheduler) may signal
#: both us and our group. Nobody presses a key twice as fast in earnest.
ECHO = 0.3


class Interrupts:
    """While entered, SIGINT and SIGTERM (or the signals that are given) raise KeyboardInterrupt. Once `polite`, the
    first sets `requested` instead, and only a second one that is no echo raises.

    Python forgets an exception that is raised while it clears an object away or calls a weak reference's callback, of
    which there are many while modules are imported. So every interrupt is noted, and `insist` raises one that was lost;
    whoever enters within another's reach insists for it.
    """

    def __init__(self, *signals: int) -> None:
        self._signals = signals or (signal.SIGINT, signal.SIGTERM)
        self.polite = False
        self.requested: int | None = None
        self._requested_at = 0.0
        self._raised = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                around = getattr(signal.getsignal(number), "__self__", None)
                if isinstance(around, Interrupts):
                    around.insist()
            for number in self._signals:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def insist(self) -> None:
        """Raise KeyboardInterrupt if one was raised before: it cannot have been heard, for we are still here."""
        if self._raised:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.polite and self.requested is None:
            self.requested, self._requested_at = number, now
        elif self.requested is None or now - self._requested_at > ECHO:
            self._raised = True
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
