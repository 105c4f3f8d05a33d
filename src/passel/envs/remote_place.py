"""Where a server of environments is, and whose it is: at an address, or one of our own (packaged.py)."""

from __future__ import annotations

from typing import Protocol

SCHEMES = ("tcp://", "ipc://")
QUIET = 4.0  # seconds without an answer after which a server is given up; 5 are promised


class Place(Protocol):
    """Where a server is, and whose it is."""

    name: str
    #: Seconds that it may take to answer at all.
    patience: float

    def start(self) -> str:
        """Its address; a server of our own is started first, unless it runs."""

    def why_gone(self) -> str | None:
        """What it ended of, if that is known."""

    def close(self) -> None: ...


class Address:
    """A server that somebody else started."""

    patience = QUIET

    def __init__(self, address: str) -> None:
        self.name = address

    def start(self) -> str:
        return self.name

    def why_gone(self) -> str | None:
        return None

    def close(self) -> None:
        """It is not ours to end."""


def is_address(env: object) -> bool:
    return isinstance(env, str) and env.startswith(SCHEMES)


def is_local(address: str) -> bool:
    """Whether only this machine can be at the other end."""
    if address.startswith("ipc://"):
        return True
    host = address.removeprefix("tcp://").rpartition(":")[0]
    parts = host.split(".")
    loopback = len(parts) == 4 and parts[0] == "127" and all(part.isdigit() for part in parts)
    return loopback or host in ("localhost", "[::1]")
