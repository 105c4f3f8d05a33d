"""How a run writes: whole files or none, and JSON that every reader accepts."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import secrets
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from passel.types import PasselError, printable

#: A name aside: of which file, and 16 random digits.
ASIDE = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.writing(?P<ending>\.[A-Za-z0-9]+)?")


def plain(value: Any) -> Any:
    """`value` as strict JSON types: mappings to dicts, numpy to numbers, NaN and infinities to None.

    Python would write a bare NaN, which is not JSON: one diverged loss would make the file unreadable elsewhere.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def json_text(value: Any, indent: int | None = None) -> str:
    """`plain(value)` as JSON text without a final newline."""
    return json.dumps(plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def cause_of(error: Exception) -> str:
    """Why a file cannot be written, without the cure for a run that this would have ended, and without a full stop."""
    cause = error.__cause__ if isinstance(error, PasselError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(error).rstrip(".") if isinstance(error, PasselError) else f"{type(error).__name__}: {error}"


def write_all(fd: int, data: bytes) -> None:
    """Write every byte; a short write is what a nearly full disk does first."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def fsync_path(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable: a rename is only on disk once its folder is."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, content: str | bytes) -> None:
    """Put `content` at `path` so that a reader, or a crash, sees the old file or the new one and nothing between."""
    with written_aside(path) as aside:
        fd = os.open(aside, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            write_all(fd, content.encode() if isinstance(content, str) else content)
            os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def written_aside(path: Path, ending: str = "") -> Iterator[Path]:
    """A new, empty file beside `path`, to be filled; it takes the name `path` when the block ends, and is removed if
    the block fails. `ending` is for writers that look at a file's name.

    The name aside is random and the file must not exist yet, so nothing that is there is ever written through. A link
    at `path` itself is replaced, not followed.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.writing{ending}")
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
    try:
        yield aside
        os.rename(aside, path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    fsync_path(path.parent.resolve())


def sweep(folder: Path, names: Container[str]) -> None:
    """Remove what a killed writer of these files left aside. Only for the one process that may write them."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            found = ASIDE.fullmatch(entry.name)
            if found and found["name"] in names and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    os.unlink(entry.path)


def refuse_links(folder: Path) -> None:
    """PasselError if there is a symbolic link anywhere inside `folder`: what is written through it, or removed, would
    be elsewhere. The folder itself may be reached through one.
    """
    waiting = [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError as error:
            raise PasselError(
                f"{printable(error.filename)} cannot be read ({error.strerror}). Make it readable, or use another run."
            ) from error
        for entry in entries:
            if entry.is_symlink():
                raise PasselError(
                    f"{printable(entry.path)} is a symbolic link, and a run with a link inside is not opened: it could "
                    "read or write outside of its folder. Remove the link, or put what it points to in its place."
                )
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
