"""How old experience is, in versions of the parameters."""

from __future__ import annotations


class Lag:
    """A mean that is added to."""

    def __init__(self) -> None:
        self._total, self._count = 0.0, 0

    def add(self, versions: float) -> None:
        self._total += versions
        self._count += 1

    @property
    def mean(self) -> float:
        return self._total / max(self._count, 1)
