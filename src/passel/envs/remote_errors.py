"""What can go wrong with a server of environments: what the client catches, and what the user reads."""

from __future__ import annotations

from passel.envs.remote_place import Address, Place
from passel.types import PasselError

CURES = {
    "version": "Use the same version of passel on both sides.",
    "limit": "Use a smaller --envs here, or start it with a larger one.",
    "full": "Start it with more --sessions.",
    "environment": "Look at what the server printed, and correct the environment.",
}


class LostError(Exception):
    """The server is gone, hangs or has forgotten us; the message says which."""


class RefusedError(Exception):
    """The server answered, and said no."""

    def __init__(self, code: str, say: str) -> None:
        super().__init__(say)
        self.code = code


def sentence(place: Place, error: Exception) -> PasselError:
    """The error as the user reads it: who, what, and what to do."""
    if isinstance(error, RefusedError):
        if error.code == "key":
            return PasselError(f"the server {place.name} refuses: {error}. Give --env-key the client.json of its keys.")
        cure = CURES.get(error.code, "This is a fault in passel: please report it.")
        return PasselError(f"the environment server {place.name} refuses: {error}. {cure}")
    if not isinstance(place, Address):
        return PasselError(f"the environment server of {place.name} {error}.")
    if str(error).startswith("does not answer"):
        return PasselError(
            f"the environment server {place.name} {error}. Start one: passel serve-env ID --bind {place.name}"
        )
    return PasselError(
        f"the environment server {place.name} {error}. "
        "Start it again and use `passel resume`, or train with --reconnect."
    )
