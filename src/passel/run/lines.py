"""Files of lines that are appended to for days and survive being cut off in the middle of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from passel.reading import from_json, open_regular, read_lines
from passel.run.files import json_text, replace_file, write_all
from passel.types import PasselError, printable

Row = dict[str, Any]


class Lines:
    """A line is there once its newline is: what follows the last newline was cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def _append(self, lines: bytes, header: bytes = b"") -> None:
        """Add whole lines by one write, so that a reader beside us never sees half of one. A new file begins with
        `header`.
        """
        try:
            if self._fd is None:
                self._fd = open_regular(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            size = os.fstat(self._fd).st_size
            try:
                write_all(self._fd, lines if size else header + lines)
            except BaseException:
                os.ftruncate(self._fd, size)
                raise
        except OSError as error:
            raise PasselError(f"{self.path} cannot be written ({error.strerror}). Mend that and resume.") from error

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class JsonLines(Lines):
    """One object a line."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one line."""
        self._append(f"{json_text(row)}\n".encode())

    def read(self) -> list[Row]:
        """All whole lines; a torn last one is passed over, a bad one before it is an error."""
        return [row for row, _ in self.rows()]

    def keep(self, wanted: Callable[[Row], bool]) -> None:
        """Keep only the lines that are wanted, by an atomic replacement."""
        kept = [line for row, line in self.rows() if wanted(row)]
        self.close()
        try:
            replace_file(self.path, b"".join(line + b"\n" for line in kept))
        except OSError as error:
            raise PasselError(f"{self.path} cannot be written ({error.strerror}). Mend that and resume.") from error

    def repair(self) -> None:
        """Drop a torn last line, so that the next append does not continue it."""
        whole = sum(len(line) + 1 for _, line in self.rows())
        if os.path.lexists(self.path) and whole != self.path.lstat().st_size:
            self.keep(lambda row: True)

    def rows(self) -> Iterator[tuple[Row, bytes]]:
        """Every whole line as an object and as bytes, one at a time: a file may be much larger than what is kept of it.
        Nothing if there is no file.
        """
        bad: tuple[int, ValueError] | None = None
        for number, line in enumerate(self._lines(), start=1):
            if bad:
                reason = printable(bad[1])
                raise PasselError(f"line {bad[0]} of {self.path} is not JSON ({reason}). Remove that line.") from bad[1]
            try:
                row = from_json(line)
                if not isinstance(row, dict):
                    raise ValueError("not a JSON object")
            except ValueError as error:
                bad = number, error
                continue
            yield row, line

    def _lines(self) -> Iterator[bytes]:
        if not os.path.lexists(self.path):
            return
        try:
            yield from read_lines(self.path)
        except OSError as error:
            raise PasselError(f"{self.path} cannot be read ({error.strerror}). Mend that or move it away.") from error
