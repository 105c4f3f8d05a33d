"""One writer a run folder: a lock that the operating system drops when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from passel.reading import open_regular
from passel.run.files import write_all
from passel.types import PasselError, printable

NAME = ".lock"


class FolderLock:
    """Held from construction to `release`. The file says who holds it; the file alone, without the lock, says nothing.

    A worker that is started afresh does not inherit it, so an orphan cannot keep a dead run's folder locked.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        #: Whether the file was not there before, so that `abandon` may remove it.
        self.made = not os.path.lexists(self.path)
        self._fd = self._take(folder)
        with suppress(OSError):  # only a courtesy to whoever is refused: a full disk must not stop us here
            os.ftruncate(self._fd, 0)
            write_all(self._fd, f"{os.getpid()} {socket.gethostname()}\n".encode())

    def _take(self, folder: Path) -> int:
        while True:
            fd = open_regular(self.path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_still_there(fd):
                    return fd
            except BlockingIOError:
                refusal = _refusal(folder, fd)
                os.close(fd)
                raise refusal from None
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _is_still_there(self, fd: int) -> bool:
        """False if the file was removed between our opening and our locking: then we hold a lock on nothing."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(fd), os.lstat(self.path))
        return False

    def release(self) -> None:
        """Let others in. The file stays: to remove it would let two processes lock two files of one name."""
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # said aloud, because a forked child would keep the open file
        os.close(self._fd)

    def abandon(self) -> None:
        """Release, and leave no trace in a folder that did not become a run."""
        if self.made:
            with suppress(OSError):
                self.path.unlink()
        self.release()


def refuse_if_held(folder: Path) -> None:
    """PasselError, with the holder's name, if a process is writing in `folder`. The file is only looked at."""
    with suppress(OSError):
        fd = open_regular(folder / NAME)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refusal(folder, fd) from None
        finally:
            os.close(fd)


def _refusal(folder: Path, fd: int) -> PasselError:
    """Who wrote the file; it is empty for the instant between their locking and their writing."""
    pid, _, host = os.read(fd, 1000).decode(errors="replace").strip().partition(" ")
    holder = f"process {printable(pid)} on {printable(host)}" if pid else "another process"
    return PasselError(f"{folder} is in use by {holder}. Stop it or wait until it ends.")
