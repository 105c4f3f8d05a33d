"""What the machine allows this process: files, semaphores, memory; and what to say when that is not enough."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from passel.types import PasselError

#: Descriptors that the watcher has open beside its workers: files of the run, pipes of the forkserver, libraries.
OWN_FILES = 32
#: Descriptors for each process that it has started: the ends of three pipes, and one of the process itself.
FILES_EACH = 4


def check_files(processes: int) -> None:
    """Refuse a run that would need more descriptors than this process may open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OWN_FILES + FILES_EACH * processes
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise PasselError(
            f"{processes} processes need about {needed} open files, and {limit} are allowed here. Raise the limit with "
            f"`ulimit -n {max(1024, needed)}`, or use fewer --workers."
        )


@contextmanager
def explained() -> Iterator[None]:
    """Turn the system's refusal of a file, a semaphore or memory into a sentence with the cure."""
    try:
        yield
    except OSError as error:
        words = explanation(error)
        if error.errno == errno.ENOSPC:
            words = (
                f"there is no space for a semaphore in /dev/shm ({error.strerror}). "
                "Free some (`df /dev/shm` shows how much there is), or use --place inline."
                if error.filename is None  # a semaphore is no file that has a name
                else f"there is no space for {error.filename} ({error.strerror}). Free some, or set TMPDIR to another "
                "folder."
            )
        if words is None:
            raise
        raise PasselError(words) from error


def explanation(error: OSError) -> str | None:
    """What an error of the system means, in words; None if it is none of these."""
    match error.errno:
        case errno.EMFILE | errno.ENFILE:
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return (
                f"the system refuses to open more files, of which {limit} are allowed here ({error.strerror}). "
                "Raise the limit with `ulimit -n 1024`, or use fewer --workers."
            )
        case errno.ENOMEM | errno.EAGAIN:
            return (
                f"the system refuses memory or a process ({error.strerror}). "
                "Use fewer --workers, a smaller --capacity, or raise the limits that `ulimit -a` shows."
            )
    return None


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """How often the kernel has killed a process of our control group, or of the machine, for want of memory."""
    counts = [_count(path) for path in _events(root)]
    known = [count for count in counts if count is not None]
    return max(known) if known else _count(root / "proc/vmstat") or 0


def _events(root: Path) -> list[Path]:
    """The files in which our control groups count that."""
    found: list[Path] = []
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", "memory"):
                folder = root / "sys/fs/cgroup" / controllers / path.lstrip("/")
                found += [folder / "memory.events", folder / "memory.oom_control"]
    return found


def _count(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        facts = dict(line.split() for line in path.read_text().splitlines())
        return int(facts["oom_kill"]) if "oom_kill" in facts else None
    return None
