"""Reading a file that may not be what its name promises: a regular file of a bounded size, or an OSError."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 1 << 20


def read_regular(path: str | Path, most: int = MOST_BYTES, *, follow: bool = True) -> bytes:
    """The bytes of a regular file. A FIFO, a device, a larger file and (without `follow`) a link raise OSError.

    A FIFO would block the reader, and /dev/zero would fill its memory.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content
