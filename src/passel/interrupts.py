"""Ctrl-C, politely: the first asks a run to stop and keep everything, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """While entered, SIGINT and SIGTERM raise KeyboardInterrupt. Once `polite`, the first sets `requested` instead,
    and only a second one raises.
    """

    def __init__(self) -> None:
        self.polite = False
        self.requested: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.polite or self.requested is not None:
            raise KeyboardInterrupt
        self.requested = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
