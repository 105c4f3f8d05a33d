"""Keys for servers of environments on other machines (CURVE): making a pair of files, and reading the client's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

from passel.envs import zeromq
from passel.reading import read_regular
from passel.types import PasselError


def make_keys(folder: Path) -> list[Path]:
    """Two files, for the two ends: each has its own secret, and the other's public half."""
    zmq, _ = zeromq.load()
    if not zmq.has("curve"):
        raise PasselError("this pyzmq was built without CURVE. Install its wheel: pip install --force-reinstall pyzmq")
    (server_public, server_secret), (client_public, client_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    files = {
        "server.json": {
            "server_public": server_public,
            "server_secret": server_secret,
            "client_public": client_public,
        },
        "client.json": {
            "server_public": server_public,
            "client_public": client_public,
            "client_secret": client_secret,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in files]
    for path in paths:
        if path.exists():
            raise PasselError(f"{path} exists, and somebody may use it. Choose another folder, or remove it.")
    for path, content in zip(paths, files.values(), strict=True):
        text = json.dumps({name: value.decode("ascii") for name, value in content.items()}, indent=1)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
    return paths


def read_client_key(path: str) -> dict[str, bytes]:
    """What a client needs: the server's public half, and both of its own."""
    names = ("server_public", "client_public", "client_secret")
    try:
        content = json.loads(read_regular(path).decode("ascii"))
        found = {name: cast(str, content[name]).encode("ascii") for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found = {}
    if not found or any(len(value) != 40 for value in found.values()):
        raise PasselError(f"{path} is not a client's key. `passel keys FOLDER` makes one: client.json.")
    return found
