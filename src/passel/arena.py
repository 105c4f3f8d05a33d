"""Named tensors in one block of memory, private to this process or shared with its workers.

All that must outlive a turn lives here: parameters, optimiser state, replay, counters, random streams. So a checkpoint
is the arena written to disk, a worker that dies takes nothing with it, and no tensor is ever sent through a queue.

The shared block has no name (an anonymous file, passed to the workers by its descriptor): it disappears with the last
process that holds it, however that process ends, and it does not count against the size of /dev/shm.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import torch
from torch import Tensor

from passel.types import PasselError

ALIGNMENT = 64  # bytes: a cache line, so that two workers' tensors never share one


@dataclass(frozen=True)
class Spec:
    """Shape and type of one tensor of an arena, and whether a checkpoint must keep it."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    keep: bool = True

    @property
    def nbytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


Specs = Mapping[str, Spec]


def cells(array: Any) -> Any:
    """The same numbers, one by one as Python's own: ten times as fast as numpy for a single one."""
    return memoryview(array)


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
        self._fd = _anonymous_file(self.nbytes) if shared else None
        self._map()
        self._close_with_arena()

    @property
    def nbytes(self) -> int:
        return max(sum(_aligned(spec.nbytes) for spec in self.specs.values()), mmap.PAGESIZE)

    def _map(self) -> None:
        self._block = mmap.mmap(-1 if self._fd is None else self._fd, self.nbytes)
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
        """The tensors that a checkpoint must keep."""
        return {name: self[name] for name, spec in self.specs.items() if spec.keep}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill from a checkpoint that has exactly the names, shapes and types of what is kept."""
        for name, spec in self.specs.items():
            if not spec.keep:
                continue
            found = tensors.get(name)
            if found is None or tuple(found.shape) != spec.shape or found.dtype != spec.dtype:
                raise PasselError(f"the checkpoint has no {name} of shape {spec.shape} and type {spec.dtype}")
            self[name].copy_(found)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _anonymous_file(nbytes: int) -> int:
    """A file without a name, all its pages reserved now: later would be a bus error in the middle of a run."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("passel", os.MFD_CLOEXEC)
    else:  # macOS: an unlinked file does the same
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOSPC, errno.ENOMEM):
            raise PasselError(
                f"no space for {nbytes / 1e6:,.0f} MB of shared memory ({error.strerror}). "
                "Use a smaller --capacity or fewer --workers, or free some memory."
            ) from error
        raise
    return fd


def _refuse_if_larger_than_memory(nbytes: int, kind: str) -> None:
    import psutil

    available = psutil.virtual_memory().available
    if nbytes > 0.9 * available:
        raise PasselError(
            f"the run needs {nbytes / 1e6:,.0f} MB of {kind} and {available / 1e6:,.0f} MB are free. "
            "Use a smaller --capacity or fewer --workers, or free some memory."
        )
