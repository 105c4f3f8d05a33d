"""Files that may come from anywhere: opened only if they are regular, read up to a limit, parsed without surprises.

A run folder is data, and may be damaged or made by a stranger. A pipe in place of a file would block for ever, a device
would never end, a symbolic link leads out of the folder, and a deep or a huge document exhausts the stack or memory.

Every refusal is an OSError (with the reason in `strerror`) or a ValueError, so that a caller needs no third case. Only
the standard library is imported here: the command line reads a configuration before it imports anything else.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

MB = 1_000_000

#: Bytes that a file of each kind may have. A configuration has 3 kB; a card names every level of a set.
CONFIG_LIMIT, DOCUMENT_LIMIT, MANIFEST_LIMIT, LINES_LIMIT = MB // 8, 16 * MB, 32 * MB, 512 * MB
#: Of one line of a file of lines, and how many lines there may be.
LINE_LIMIT, MOST_LINES = MB, 200_000

#: Whole numbers that a file may hold where a number is expected: 64 bits, as TOML has it. A seed may be larger.
LARGEST = 2**63 - 1
LARGEST_SEED = 2**128

_TEXTS = ("env", "algo", "sync", "place", "recipe", "out", "start_from", "backend", "topology", "env_key")
_DOTS = 200  # in a line of TOML: the time to parse a dotted key grows with the square of its length
_CHUNK = MB


def open_regular(path: str | Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """A descriptor of the regular file `path`, or an OSError. A link is not followed unless `follow`, and the call
    never waits, as opening a pipe would. To write, the file must have no second name: the other may be anywhere.
    """
    extra = os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags | extra, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(path)) from None
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if flags & (os.O_WRONLY | os.O_RDWR) and found.st_nlink > 1:
            raise OSError(errno.EMLINK, "a file with a second name (a hard link), which is not written to", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_regular(path: str | Path, most: int = MB, *, follow: bool = False) -> bytes:
    """All bytes of a regular file that has at most `most` of them, or an OSError. `follow` links only where the user
    named the file: inside a run folder they lead out of it.
    """
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most / MB:g} MB", str(path))
    return data


def read_lines(path: Path) -> Iterator[bytes]:
    """The whole lines of a regular file, without their newlines; what follows the last newline is left out."""
    fd = open_regular(path)
    try:
        if os.fstat(fd).st_size > LINES_LIMIT:
            raise OSError(errno.EFBIG, f"larger than {LINES_LIMIT / MB:g} MB", str(path))
        rest, count = b"", 0
        while chunk := os.read(fd, _CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            count += len(lines)
            if count > MOST_LINES:
                raise OSError(errno.EFBIG, f"a file of more than {MOST_LINES:,} lines", str(path))
            if any(len(line) > LINE_LIMIT for line in (*lines, rest)):
                raise OSError(errno.EFBIG, f"a file with a line longer than {LINE_LIMIT / MB:g} MB", str(path))
            yield from lines
    finally:
        os.close(fd)


def from_json(data: bytes) -> Any:
    """JSON as the standard has it, without a key twice, or a ValueError."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_without_twins, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def from_toml(data: bytes) -> dict[str, Any]:
    """A TOML document, or a ValueError."""
    if any(line.count(b".") > _DOTS for line in data.splitlines()):
        raise ValueError(f"a line has more than {_DOTS} dots")
    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_config(path: Path, *, follow: bool = False) -> dict[str, Any]:
    """A configuration of which every value has a size and, where code depends on it at once, a type; a ValueError or an
    OSError otherwise.
    """
    content = from_toml(read_regular(path, CONFIG_LIMIT, follow=follow))
    check_values(content)
    return content


def check_values(content: Mapping[str, Any]) -> None:
    """ValueError if a setting is a number that no machine has room for, text that commands a terminal, or no text where
    there must be one. Settings may be grouped in tables.
    """
    for key, value in content.items():
        if isinstance(value, Mapping):
            check_values(value)
            continue
        check_plain(key)
        check_plain(value, LARGEST_SEED if key == "seed" else LARGEST)
        if key.replace("-", "_") in _TEXTS and not isinstance(value, str):
            raise ValueError(f"{key} is {str(value)[:60]!r}, and must be text")


def check_plain(value: object, largest: int = LARGEST) -> None:
    """ValueError if anything in a document is text with control characters, which command a terminal, or a number
    beyond `largest`. The document must not be deeper than a parser allows.
    """
    waiting: list[Iterator[object]] = [iter([value])]
    while waiting:
        for item in waiting[-1]:
            if isinstance(item, str):
                if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in item):
                    raise ValueError(f"{item[:60]!r} holds control characters")
            elif isinstance(item, int):
                if abs(item) > largest:
                    raise ValueError(f"a number has {item.bit_length()} bits")
            elif isinstance(item, Mapping):
                waiting.append(_keys_and_values(item))
                break
            elif isinstance(item, list | tuple):
                waiting.append(iter(item))
                break
        else:
            waiting.pop()


def as_fields(hints: Mapping[str, Any], content: object) -> dict[str, Any]:
    """`content` if it is a mapping whose keys are all among `hints` and whose values have those types; a ValueError
    that names the first that does not. Whole numbers count as floats; no float may be infinite or NaN.
    """
    if not isinstance(content, Mapping):
        raise ValueError("no table of fields")
    for key, value in content.items():
        if key not in hints:
            raise ValueError(f"an unknown field {str(key)[:60]!r}")
        if not _is_of(value, hints[key]):
            raise ValueError(f"{key} is {str(value)[:60]!r}, which is no {_name(hints[key])}")
    return dict(content)


def _is_of(value: object, hint: Any) -> bool:
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if kind in (typing.Union, types.UnionType):
        return any(_is_of(value, part) for part in parts)
    if kind in (list, dict):
        items = list(value.values()) if isinstance(value, dict) else value  # keys of JSON are always text
        return type(value) is kind and all(_is_of(item, parts[-1]) for item in typing.cast(list[object], items))
    if hint is float and type(value) in (int, float):
        return abs(typing.cast(float, value)) <= sys.float_info.max  # NaN is not
    return type(value) is hint and not (hint is int and abs(typing.cast(int, value)) > LARGEST)


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and typing.get_origin(hint) is None else str(hint)


def _keys_and_values(content: Mapping[Any, Any]) -> Iterator[object]:
    for key, value in content.items():
        yield key
        yield value


def _without_twins(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:60]!r} is there twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
