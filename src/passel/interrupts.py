"""Ctrl-C, politely: the first asks a run to stop and keep everything, the second shortens that, the third ends it."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

#: Seconds after a signal in which another is its echo: `timeout`, a shell or a scheduler may signal both this process
#: and its group. A key is not pressed twice as fast on purpose.
ECHO = 0.3

#: SIGHUP is what a terminal that closes sends.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

EXIT_INTERRUPTED = 130


class Interrupts:
    """While entered, SIGINT, SIGTERM and SIGHUP (or the signals that are given) raise KeyboardInterrupt. Once `polite`,
    the first sets `requested` instead, and only one that follows, and is no echo, raises.

    A signal that is ignored stays ignored: `nohup` ignores SIGHUP, and a shell ignores SIGINT in background jobs.

    With `held`, nothing is raised at all: a signal is noted, and `insist` raises it. This is for the time of imports,
    because an exception inside of arbitrary import code may be forgotten (Python forgets one that is raised while it
    clears an object away), be taken for another, or abort a C++ library. A second signal then ends the process at once.
    An instance that is entered within the reach of another insists for it.
    """

    def __init__(self, *signals: int, held: bool = False) -> None:
        self._signals = signals or SIGNALS
        self.polite = False
        self.held = held
        self.requested: int | None = None
        self._heard_at: float | None = None
        self._raised = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                around = getattr(signal.getsignal(number), "__self__", None)
                if isinstance(around, Interrupts):
                    around.insist()
            for number in self._signals:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def insist(self) -> None:
        """Raise KeyboardInterrupt if one was noted, or raised before: it cannot have been heard, for this code runs."""
        if self._raised:
            raise KeyboardInterrupt

    def release(self) -> None:
        """Hold nothing back any longer; raise what was noted."""
        self.held = False
        self.insist()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        echo = self._heard_at is not None and now - self._heard_at <= ECHO
        if self.held:
            if self._raised and not echo:
                os.write(2, b"passel: interrupted.\n")
                os._exit(EXIT_INTERRUPTED)
            self._raised, self._heard_at = True, now
        elif self.polite and self.requested is None:
            self.requested, self._heard_at = number, now
        elif not (self.polite and echo):
            self._raised, self._heard_at = True, now
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
