"""ZeroMQ and msgpack, if they are installed: what environments behind a socket need on our side."""

from __future__ import annotations

from typing import Any

from passel.types import PasselError


def load() -> tuple[Any, Any]:
    """The two modules, or the sentence that says what to install."""
    try:
        import msgpack
        import zmq
    except ImportError as error:
        raise PasselError(
            f"environments over a socket need pyzmq and msgpack ({error}). Run: pip install 'passel[remote]'"
        ) from error
    return zmq, msgpack
