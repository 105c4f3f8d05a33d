"""Files that may come from anywhere are read within limits, or refused with the reason."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from passel import reading
from passel.run.files import replace_file


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device"])
def test_only_a_regular_file_is_opened(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "file", tmp_path / "target"
    target.write_text("mine")
    make: dict[str, Callable[[], Any]] = {
        "link": lambda: path.symlink_to(target),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"),
    }
    make[kind]()
    with pytest.raises(OSError, match=r"not a regular file|a symbolic link, which is not followed"):
        reading.read_regular(path)
    if kind == "link":
        assert reading.read_regular(path, follow=True) == b"mine"
    else:
        with pytest.raises(OSError, match="not a regular file"):
            reading.read_regular(path, follow=True)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    assert reading.read_regular(path, 1000) == b"x" * 1000
    with pytest.raises(OSError, match="larger than"):
        reading.read_regular(path, 999)


def test_lines_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lines = tmp_path / "lines", [b"a" * size for size in range(50)]
    path.write_bytes(b"\n".join(lines) + b"\ntorn")
    for chunk in (1, 7, 10_000):
        monkeypatch.setattr(reading, "_CHUNK", chunk)
        assert list(reading.read_lines(path)) == lines
    monkeypatch.setattr(reading, "LINE_LIMIT", 48)
    with pytest.raises(OSError, match="a line longer than"):
        list(reading.read_lines(path))
    monkeypatch.setattr(reading, "LINE_LIMIT", 49)
    monkeypatch.setattr(reading, "MOST_LINES", 49)
    with pytest.raises(OSError, match="more than 49 lines"):
        list(reading.read_lines(path))


DOCUMENTS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "deep JSON": (reading.from_json, b"[" * 10**5),
    "deep TOML": (reading.from_toml, b"x = " + b"[" * 10**4),
    "a long dotted key": (reading.from_toml, b"a" + b".a" * 10**5 + b" = 1"),
    "digits": (reading.from_json, b"9" * 5000),
    "digits of TOML": (reading.from_toml, b"x = " + b"9" * 5000),
    "a key twice": (reading.from_json, b'{"a": 1, "a": 2}'),
    "NaN": (reading.from_json, b"NaN"),
    "no text": (reading.from_json, b"\xff"),
    "escapes": (lambda data: reading.check_plain(reading.from_json(data)), rb'{"a": [{"b": "\u001b[2J"}]}'),
    "an escape in a key": (lambda data: reading.check_plain(reading.from_json(data)), rb'{"\u009b2J": 1}'),
    "a large number": (lambda data: reading.check_plain(reading.from_json(data)), b'[{"a": 9223372036854775808}]'),
    "an environment that is no text": (lambda data: reading.check_values(reading.from_toml(data)), b"env = 3"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_documents_that_no_run_writes_are_refused(kind: str) -> None:
    read, data = DOCUMENTS[kind]
    with pytest.raises(ValueError, match=r".") as caught:
        read(data)
    assert len(str(caught.value)) < 300


def test_fields_have_their_types() -> None:
    hints = {"n": int, "x": float, "t": str, "l": list[float | None], "d": dict[str, int] | None, "a": Any}
    good = {"n": 3, "x": 2, "t": "x", "l": [1.5, None], "d": {"a": 1}, "a": object()}
    assert reading.as_fields(hints, good) == good
    assert reading.as_fields(hints, {"d": None}) == {"d": None}
    bad = [("n", True), ("n", 1.0), ("n", 2**63), ("x", "1"), ("x", float("nan")), ("x", float("inf")), ("x", 10**400)]
    bad += [("t", 1), ("l", [1, "x"]), ("l", {}), ("d", []), ("d", {"a": "b"}), ("more", 1)]  # type: ignore[list-item]
    for key, value in bad:
        with pytest.raises(ValueError, match=key):
            reading.as_fields(hints, {**good, key: value})


def test_a_name_aside_is_never_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the random name is known beforehand."""
    (tmp_path / "victim").write_text("mine")
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    (tmp_path / f".file.{'0' * 16}.writing").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "file", "theirs")
    assert (tmp_path / "victim").read_text() == "mine"
    monkeypatch.undo()
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    replace_file(tmp_path / "file", "ours")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "ours"
    assert not (tmp_path / "file").is_symlink()
