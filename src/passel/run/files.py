"""How a run writes: whole files or none, and JSON that every reader accepts."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np


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


def write_all(fd: int, data: bytes) -> None:
    """Write every byte; a short write is what a nearly full disk does first."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def fsync_path(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable: a rename is only on disk once its folder is."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, text: str) -> None:
    """Put `text` at `path` so that a reader, or a crash, sees the old file or the new one and nothing between.

    The name aside is fixed, because a run folder has one writer: what a killed run left there is overwritten.
    """
    aside = path.with_name(f".{path.name}.writing")
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write_all(fd, text.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(aside, path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
    fsync_path(path.parent)
