"""A file of JSON lines that is appended to for days and survives being cut off in the middle of one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from passel.run.files import json_text, replace_file, write_all
from passel.types import PasselError

Row = dict[str, Any]


class JsonLines:
    """One object a line. A line is there once its newline is: what follows the last newline was cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one line by one write, so that a reader beside us never sees half of it."""
        try:
            self._append(f"{json_text(row)}\n".encode())
        except OSError as error:
            raise PasselError(f"{self.path} cannot be written ({error.strerror}). Mend that and resume.") from error

    def _append(self, line: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        size = os.fstat(self._fd).st_size
        try:
            write_all(self._fd, line)
        except BaseException:
            os.ftruncate(self._fd, size)
            raise

    def read(self) -> list[Row]:
        """All whole lines; a torn last one is passed over, a bad one before it is an error."""
        return [row for row, _ in self._rows()]

    def keep(self, wanted: Callable[[Row], bool]) -> None:
        """Keep only the lines that are wanted, by an atomic replacement."""
        kept = [line for row, line in self._rows() if wanted(row)]
        self.close()
        replace_file(self.path, "".join(f"{line}\n" for line in kept))

    def repair(self) -> None:
        """Drop a torn last line, so that the next append does not continue it."""
        if self.path.exists():
            whole = "".join(f"{line}\n" for _, line in self._rows())
            if len(whole.encode()) != self.path.stat().st_size:
                self.keep(lambda row: True)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _rows(self) -> list[tuple[Row, str]]:
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                text = line.decode()
                row = json.loads(text)
                if not isinstance(row, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                if number == len(lines):
                    break
                raise PasselError(f"line {number} of {self.path} is not JSON ({error}). Remove that line.") from error
            rows.append((row, text))
        return rows
