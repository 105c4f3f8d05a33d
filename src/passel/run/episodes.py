"""Every finished training episode of a run, a row each: a CSV file that any tool reads, and that may hold millions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from passel.reading import LARGEST, MB, open_regular
from passel.run.lines import Lines
from passel.types import Episode, PasselError, printable

HEADER = b"step,second,worker,return,length\n"
#: A row as `EpisodeFile.read` returns it.
ROW = np.dtype(
    [("step", np.int64), ("second", np.float64), ("worker", np.int64), ("return", np.float64), ("length", np.int64)]
)
#: Bytes that a row may have, and that a file may have to be read at once.
LONGEST, READ_LIMIT = 200, 1000 * MB
_CHUNK = MB


def csv_rows(step: int, seconds: float, ended: Mapping[int, Sequence[Episode]]) -> bytes:
    """Rows for the episodes that workers, by their ranks, have ended when all together had taken `step` steps."""
    moment = f"{step},{seconds:.3f}"
    return "".join(
        f"{moment},{rank},{float(episode.score)!r},{episode.length}\n"
        for rank, episodes in ended.items()
        for episode in episodes
    ).encode()


class EpisodeFile(Lines):
    """Rows in the order of their steps, below a header."""

    def append(self, rows: bytes) -> None:
        """Add rows, as `csv_rows` makes them, by one write."""
        self._append(rows, HEADER)

    def read(self) -> NDArray[Any]:
        """All whole rows, a structured array with the columns of `ROW`; none if there is no file. A torn last row is
        passed over, a bad one before it is an error.
        """
        if not os.path.lexists(self.path):
            return np.empty(0, ROW)
        with self._opened(os.O_RDONLY) as fd:
            if os.fstat(fd).st_size > READ_LIMIT:
                raise ValueError(f"larger than {READ_LIMIT / MB:g} MB: read it in parts, with pandas")
            parts, number = [np.empty(0, ROW)], 1
            for lines in _chunks(fd):
                parts.append(np.array([_row(line, number + i) for i, line in enumerate(lines, start=1)], ROW))
                number += len(lines)
        return np.concatenate(parts)

    def repair(self) -> None:
        """Drop a torn last row, so that the next append does not continue it. PasselError if it is another file."""
        self.close()
        if not os.path.lexists(self.path):
            return
        with self._opened(os.O_RDWR) as fd:
            size = os.fstat(fd).st_size
            if size < len(HEADER):  # torn in its header
                os.ftruncate(fd, 0)
                return
            start = max(size - _CHUNK, 0)
            newline = os.pread(fd, size - start, start).rfind(b"\n")
            if newline < 0:
                raise ValueError("its last line is no row")
            end = start + newline + 1
            if end > len(HEADER):
                _row(_line_at(fd, end - 1)[1])
            if end < size:
                os.ftruncate(fd, end)

    def truncate(self, after_step: int) -> None:
        """Drop the rows later than `after_step`. They are at the end, and found by halving: the file may be large."""
        self.close()
        if not os.path.lexists(self.path):
            return
        with self._opened(os.O_RDWR) as fd:
            low, high = len(HEADER), os.fstat(fd).st_size
            while low < high:
                start, line = _line_at(fd, (low + high) // 2)
                if _row(line)[0] <= after_step:
                    low = start + len(line) + 1
                else:
                    high = start
            if low < os.fstat(fd).st_size:
                os.ftruncate(fd, low)

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        """The file, if it is one of episodes; what goes wrong with it is a sentence."""
        try:
            fd = open_regular(self.path, flags)
            try:
                head = os.pread(fd, len(HEADER), 0)
                if not HEADER.startswith(head):
                    raise ValueError(f"its first line is not {HEADER.decode().strip()}")
                yield fd
            finally:
                os.close(fd)
        except OSError as error:
            raise PasselError(f"{self.path} cannot be read ({error.strerror}). Mend that or move it away.") from error
        except ValueError as error:
            raise PasselError(
                f"{self.path} is no file of episodes ({printable(error)}). Mend it or move it away."
            ) from error


def _chunks(fd: int) -> Iterator[list[bytes]]:
    """The whole lines below the header, some at a time."""
    rest, position = b"", len(HEADER)
    while chunk := os.pread(fd, _CHUNK, position):
        position += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LONGEST:
            raise ValueError(f"a line has more than {LONGEST} bytes")
        yield lines


def _line_at(fd: int, position: int) -> tuple[int, bytes]:
    """The line that a byte below the header is of, without its newline, and where it begins."""
    before = max(position - LONGEST, 0)
    text = os.pread(fd, 2 * LONGEST, before)
    begin = text.rfind(b"\n", 0, position - before) + 1
    end = text.find(b"\n", position - before)
    if not begin or end < 0:
        raise ValueError(f"byte {position} is in a line of more than {LONGEST} bytes")
    return before + begin, text[begin:end]


def _row(line: bytes, number: int | None = None) -> tuple[int, float, int, float, int]:
    try:
        if len(line) > LONGEST:
            raise ValueError("too long")
        step, second, worker, score, length = line.split(b",")
        whole = int(step), int(worker), int(length)
        if max(map(abs, whole)) > LARGEST:
            raise ValueError("too large")
        return whole[0], float(second), whole[1], float(score), whole[2]
    except ValueError:
        place = "" if number is None else f"line {number}, "
        raise ValueError(f"{place}{line[:60]!r} is no row") from None
