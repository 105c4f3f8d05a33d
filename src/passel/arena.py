"""Named tensors in one block of memory, private to this process or shared with its workers.

All that must outlive a turn lives here: parameters, optimiser state, replay, counters, random streams. So a checkpoint
is the arena written to disk, a worker that dies takes nothing with it, and no tensor is ever sent through a queue.

The shared block has no name (an anonymous file, passed to the workers by its descriptor): it disappears with the last
process that holds it, however that process ends, and it does not count against the size of /dev/shm.

Most tensors have their memory reserved at once. One in pages takes it as it fills, and a checkpoint writes only the
pages that have changed since the one before.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from passel.types import PasselError

ALIGNMENT = 64  # bytes: a cache line, so that two workers' tensors never share one
USABLE = 0.9  # of the memory that is free now: the processes themselves need the rest


@dataclass(frozen=True)
class Spec:
    """Shape and type of one tensor of an arena, and whether a checkpoint must keep it.

    `pages` makes it a tensor in pages: the name of the tensor beside it that numbers their versions (see `Pages`).
    `optional`: a checkpoint of an older version may lack it, and then it stays zero.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    keep: bool = True
    pages: str = ""
    optional: bool = False

    @property
    def nbytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


Specs = Mapping[str, Spec]


@dataclass(frozen=True)
class Pages:
    """A tensor [W, L, ...] of which little changes between two checkpoints: each of the W parts is cut, along L, into
    as many pages as `versions` [W, P] has columns. Whoever changes a page gives it a version that it never had before;
    a page of version 0 was never written, and is not read either, so that its memory is never taken.
    """

    tensor: Tensor
    versions: Tensor

    def written(self) -> dict[int, int]:
        """The versions of all pages that hold something, by number."""
        versions = self.versions.flatten()
        return {int(number): int(versions[number]) for number in versions.nonzero().flatten()}

    def page(self, number: int) -> Tensor:
        """The page itself, a view; numbers count through the parts."""
        part, place = divmod(number, self.versions.shape[1])
        length = page_length(self.tensor.shape[1], self.versions.shape[1])
        return self.tensor[part, place * length : (place + 1) * length]


def page_length(length: int, pages: int) -> int:
    """How much of a dimension each of its pages has; the last may have less."""
    return -(-length // pages)


def cells(array: Any) -> Any:
    """The same numbers, one by one as Python's own: ten times as fast as numpy for a single one."""
    return memoryview(array)


_FENCE = threading.Lock()


def fence() -> None:
    """What this process stored before is seen by the others before what it stores after; the same for loads.

    An x86 keeps this order by itself, an ARM does not. Two locks in a row are a full barrier: the release of the first
    may not pass the acquisition of the second.
    """
    with _FENCE:
        pass
    with _FENCE:
        pass


def prefixed(prefix: str, specs: Specs) -> dict[str, Spec]:
    """The same specs, each name under `prefix/`."""
    return {f"{prefix}/{name}": spec for name, spec in specs.items()}


class Tensors(Mapping[str, Tensor]):
    """The tensors of an arena below one prefix."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def below(self, prefix: str) -> Tensors:
        """The tensors whose name starts with `prefix/`, without it."""
        start = f"{prefix}/"
        return Tensors({name[len(start) :]: t for name, t in self._tensors.items() if name.startswith(start)})


class Arena(Tensors):
    """One zero-filled block that holds all tensors of `specs`."""

    def __init__(self, specs: Specs, *, shared: bool = False) -> None:
        self.specs = dict(specs)
        self.shared = shared
        _refuse_if_larger_than_memory(self.nbytes, "shared memory" if shared else "memory")
        self._fd = _anonymous_file(self.nbytes, self._reserved()) if shared else None
        self._map()
        self._close_with_arena()

    @property
    def nbytes(self) -> int:
        return total_bytes(self.specs)

    def _reserved(self) -> list[tuple[int, int]]:
        """From where to where the block must have its memory now: everything that does not come in pages."""
        ranges: list[tuple[int, int]] = []
        offset = 0
        for spec in self.specs.values():
            end = offset + _aligned(spec.nbytes)
            if not spec.pages and end > offset:
                joined = bool(ranges) and ranges[-1][1] == offset
                ranges[-1:] = [(ranges[-1][0], end)] if joined else [*ranges[-1:], (offset, end)]
            offset = end
        return ranges

    def _map(self) -> None:
        try:
            self._block = mmap.mmap(-1 if self._fd is None else self._fd, self.nbytes)
        except OSError as error:
            raise _no_space(self.nbytes, error) from error
        tensors, offset = {}, 0
        for name, spec in self.specs.items():
            count = spec.nbytes // spec.dtype.itemsize
            flat = (
                torch.frombuffer(self._block, dtype=spec.dtype, count=count, offset=offset) if count else torch.empty(0)
            )
            tensors[name] = flat.to(spec.dtype).view(spec.shape)
            offset += _aligned(spec.nbytes)
        super().__init__(tensors)

    def __getstate__(self) -> dict[str, Any]:
        """Sent to a worker while it is being started: the descriptor travels, the bytes do not."""
        if self._fd is None:
            raise TypeError("a private arena cannot be sent to another process")
        return {"specs": self.specs, "fd": reduction.DupFd(self._fd)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.specs, self.shared, self._fd = state["specs"], True, state["fd"].detach()
        self._map()
        self._close_with_arena()

    def _close_with_arena(self) -> None:
        """The descriptor goes with the arena; tensors that outlive it keep the memory itself alive."""
        if self._fd is not None:
            weakref.finalize(self, os.close, self._fd)

    def kept(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint must keep whole."""
        return {name: self[name] for name, spec in self.specs.items() if spec.keep and not spec.pages}

    def paged(self) -> dict[str, Pages]:
        """The tensors of which it keeps the pages that hold something."""
        return {name: self.pages_of(name) for name, spec in self.specs.items() if spec.keep and spec.pages}

    def pages_of(self, name: str) -> Pages:
        folder, slash, _ = name.rpartition("/")
        return Pages(self[name], self[f"{folder}{slash}{self.specs[name].pages}"])

    def load_page(self, name: str, number: int, page: Tensor) -> None:
        """Put back one page of a checkpoint."""
        pages = self.pages_of(name) if name in self.specs and self.specs[name].pages else None
        here = pages.page(number) if pages is not None and 0 <= number < pages.versions.numel() else None
        if here is None or here.shape != page.shape or here.dtype != page.dtype:
            raise PasselError(f"the checkpoint's page {number} of {name} does not fit into this run's memory")
        here.copy_(page)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill from a checkpoint that has the names, shapes and types of what is kept whole."""
        kept = {name: spec for name, spec in self.specs.items() if spec.keep and not spec.pages}
        for name, spec in kept.items():
            found = tensors.get(name)
            if found is None and spec.optional:
                continue
            if found is None or tuple(found.shape) != spec.shape or found.dtype != spec.dtype:
                raise PasselError(f"the checkpoint has no {name} of shape {spec.shape} and type {spec.dtype}")
        for name in kept:
            if name in tensors:
                self[name].copy_(tensors[name])
            else:
                self[name].zero_()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def total_bytes(specs: Specs) -> int:
    """What an arena of these takes, once all of it is used."""
    return max(sum(_aligned(spec.nbytes) for spec in specs.values()), mmap.PAGESIZE)


def _anonymous_file(nbytes: int, reserved: list[tuple[int, int]]) -> int:
    """A file without a name. What is `reserved` has its memory now: later would be a bus error in mid-run."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("passel", os.MFD_CLOEXEC)
    else:  # macOS: an unlinked file does the same
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, nbytes)
        if hasattr(os, "posix_fallocate"):
            for start, end in reserved:
                os.posix_fallocate(fd, start, end - start)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise _no_space(nbytes, error) from error
        raise
    return fd


def _no_space(nbytes: int, error: OSError) -> PasselError:
    return PasselError(
        f"no space for {nbytes / 1e6:,.0f} MB of shared memory ({error.strerror}). "
        "Use a smaller --capacity or fewer --workers, or free some memory."
    )


def free_memory() -> int:
    """Bytes that can still be taken: what the system has, cut by what the limits of this process and of its control
    groups leave.
    """
    import psutil

    return max(0, min([int(psutil.virtual_memory().available), *_left_in_groups(Path("/")), *_left_by_limits()]))


def _left_by_limits() -> list[int]:
    """What the limits of this process (`ulimit -v`, `ulimit -d`) leave of its address space and of its data."""
    left: list[int] = []
    with suppress(OSError, ValueError):
        import resource

        pages = Path("/proc/self/statm").read_text().split()
        for limit, used in ((resource.RLIMIT_AS, int(pages[0])), (resource.RLIMIT_DATA, int(pages[5]))):
            soft, _ = resource.getrlimit(limit)
            left += [] if soft == resource.RLIM_INFINITY else [soft - used * mmap.PAGESIZE]
    return left


def _left_in_groups(root: Path) -> list[int]:
    """What each memory limit on the way from our control group up to the root leaves; files that can be dropped from
    memory do not count as taken.
    """
    left: list[int] = []
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            mount = root / "sys/fs/cgroup" / controllers
            inside = mount / path.lstrip("/")
            for folder in (inside, *inside.parents):
                found = _left_in_group(folder)
                left += [] if found is None else [found]
                if folder == mount:
                    break
    return left


def _left_in_group(folder: Path) -> int | None:
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with suppress(OSError, ValueError):
            largest = int((folder / limit).read_text())  # "max" is no limit, and no number
            facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return largest - int((folder / used).read_text()) + int(facts.get("inactive_file", 0))
    return None


def _refuse_if_larger_than_memory(nbytes: int, kind: str) -> None:
    available = free_memory()
    if nbytes > USABLE * available:
        raise PasselError(
            f"the run needs {nbytes / 1e6:,.0f} MB of {kind} and {available / 1e6:,.0f} MB are free. "
            "Use a smaller --capacity or fewer --workers, or free some memory."
        )
