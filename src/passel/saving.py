"""Checkpoints of a run on a disk that may fail, in a folder that may be moved.

Runs in: the process that the user started.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from passel.arena import Arena
from passel.journal import Journal, Retry
from passel.normalizer import PREFIX
from passel.place.plan import Plan
from passel.reading import DOCUMENT_LIMIT, read_regular
from passel.run import checkpoint
from passel.run.files import cause_of, replace_file
from passel.run.folder import CARD, CONFIG, SIGNATURE, RunFolder, check_out
from passel.types import DivergedError, PasselError

#: What a folder needs to be a run, beside a checkpoint.
BASICS = (CONFIG, CARD, SIGNATURE)
WRITTEN_PER_SECOND = 100e6  # bytes, of a checkpoint, on a slow disk


class Saver:
    """Writes checkpoints: when they are due, after a failure, and at the end in another place if it must be."""

    def __init__(self, plan: Plan, arena: Arena, journal: Journal, base: Path | None) -> None:
        self._plan, self._arena, self._journal = plan, arena, journal
        #: The checkpoint that this arena has grown from: what has not changed since need not be written again.
        self.base = base
        self._event_of: Path | None = None
        self._took: float | None = None
        self._saved_at = time.perf_counter()
        self._retry = Retry(first=5.0)
        folder = journal.folder.path
        found = {name: _read_basic(folder / name) for name in BASICS}
        self._basics = {name: content for name, content in found.items() if content is not None}
        self._home = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        #: The folder that was made in place of a removed one, until the run is at home there.
        self._remade: os.stat_result | None = None

    def close(self) -> None:
        os.close(self._home)

    def schedule(self, steps: int) -> None:
        """The next checkpoint is due at the next multiple of --checkpoint-every, or after --checkpoint-seconds."""
        every = self._plan.config.checkpoint_every
        self._due_at, self._saved_at = (steps // every + 1) * every, time.perf_counter()

    def due(self, steps: int) -> bool:
        return (steps >= self._due_at or self._is_old()) and self._retry.due

    def _is_old(self) -> bool:
        """Whether the last checkpoint is older than --checkpoint-seconds."""
        seconds = self._plan.config.checkpoint_seconds
        by_clock = seconds > 0 and not self._plan.rests_matter
        return by_clock and time.perf_counter() - self._saved_at >= seconds

    @property
    def sound(self) -> bool:
        """Whether every parameter is finite."""
        return all(bool(torch.isfinite(self._arena[f"sync/{name}/vector"]).all()) for name in self._plan.schemes)

    def seconds_needed(self) -> float:
        """About how long a checkpoint takes now."""
        if self._took is not None:
            return 2 * self._took
        nbytes = sum(tensor.nbytes for tensor in self._arena.kept().values())
        for pages in self._arena.paged().values():
            nbytes += sum(pages.page(number).nbytes for number in pages.written())
        return nbytes / WRITTEN_PER_SECOND

    def save(self, steps: int, meta: Mapping[str, Any]) -> bool:
        """Write the arena to disk; workers must be at rest. A disk that fails is a notice: it is tried again later.

        Parameters that are not finite are never written: the checkpoints before them are good.
        """
        try:
            self._save(steps, meta)
        except (PasselError, OSError) as error:
            if isinstance(error, DivergedError):
                raise
            self._retry.failed()
            self._journal.notice(
                f"The checkpoint at step {steps:,} was not written: {cause_of(error)}. Training goes on, and it is "
                f"tried again in {self._retry.seconds:.0f} s. {self.last()}"
            )
            return False
        self._retry.worked()
        return True

    def save_last(self, steps: int, meta: Mapping[str, Any]) -> None:
        """As `save`, but there is no later: if the run's folder cannot take it, another place must."""
        try:
            self._save(steps, meta)
        except (PasselError, OSError) as error:
            if isinstance(error, DivergedError) or not self._save_elsewhere(steps, meta, error):
                raise

    def _save(self, steps: int, meta: Mapping[str, Any]) -> None:
        if not self.sound:
            raise DivergedError(
                f"the parameters are no longer finite at step {steps:,}. {self.last()} Use a smaller --lr."
            )
        self.find_home()
        began = time.perf_counter()
        self._write(self._journal.folder.path, steps, meta, self.base)
        self._took = time.perf_counter() - began
        self.schedule(steps)

    def _write(self, folder: Path, steps: int, meta: Mapping[str, Any], base: Path | None) -> None:
        keep = self._plan.config.keep_checkpoints
        groups = grouped(self._arena.kept())
        path = checkpoint.save(folder, steps, groups, meta, keep, pages=self._arena.paged(), base=base)
        self.base = path
        if path != self._event_of:  # after an evaluation the same step is written again, with its result
            self._event_of = path
            self._journal.event("checkpointed", steps=steps, path=f"checkpoints/{steps}")

    def _save_elsewhere(self, steps: int, meta: Mapping[str, Any], error: Exception) -> bool:
        """A run of its own in the temporary folder or the home folder, with nothing in it but this checkpoint."""
        base = self.base
        for place in _other_places():
            made = None
            try:
                made = Path(tempfile.mkdtemp(prefix=f"passel-{self._journal.folder.path.name}-", dir=place))
                self._write_basics(made)
                self._write(made, steps, meta, base=None)
            except (PasselError, OSError):
                if made is not None:
                    shutil.rmtree(made, ignore_errors=True)
                self.base = base
                continue
            with suppress(PasselError, OSError):  # what counts is there
                self._settle(made)
            self._journal.notice(
                f"The last checkpoint was not written: {cause_of(error)}. It is in {made} instead. Go on from "
                f"there with `passel resume {made}`."
            )
            return True
        return False

    def find_home(self) -> None:
        """Follow the run's folder if it was moved, and make it again if it was removed. What somebody else has put in
        its place meanwhile, another run perhaps, stays as it is: PasselError.
        """
        folder, same = self._journal.folder.path, False
        with suppress(OSError):
            same = os.path.samestat(os.stat(folder), os.fstat(self._home))
            if same and (folder / CONFIG).is_file():
                return
        with suppress(OSError):
            moved = Path(os.readlink(f"/proc/self/fd/{self._home}"))
            if os.fstat(self._home).st_nlink and moved != folder.absolute() and (moved / CONFIG).is_file():
                self._settle(moved)
                self._journal.notice(
                    f"The run's folder was moved from {folder} to {moved}, and is followed. {self.last()}"
                )
                return
        self._check_is_free(folder, same=same)
        folder.mkdir(parents=True, exist_ok=True)
        self._remade = os.stat(folder)
        self._write_basics(folder)
        self._settle(folder)
        self._remade = None
        self._due_at = 0  # the checkpoints that it held are gone
        self._journal.notice(f"The run's folder {folder} was removed, and is made again. {self.last()}")

    def _check_is_free(self, folder: Path, *, same: bool) -> None:
        """Refuse a folder that is neither this run's own nor empty."""
        with suppress(OSError):
            if same or (self._remade is not None and os.path.samestat(os.stat(folder), self._remade)):
                return
        try:
            check_out(folder)
        except PasselError as error:
            raise PasselError(
                f"{folder} was removed, and what is there now is not this run's. Move it away to have the run there."
            ) from error

    def _settle(self, path: Path) -> None:
        self._journal.folder.close()
        self._journal.moved(RunFolder.open(path))
        os.close(self._home)
        self._home = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        if self.base is not None:  # by its new path: at the old one there may be another run's by now
            beside = path / checkpoint.FOLDER / self.base.name
            self.base = beside if beside.exists() else None

    def _write_basics(self, folder: Path) -> None:
        for name, content in self._basics.items():
            replace_file(folder / name, content)

    def last(self) -> str:
        """Where the last checkpoint is, in a sentence."""
        if self.base is None:
            return "There is no checkpoint yet."
        return f"The last checkpoint {'is' if self.base.exists() else 'was'} {self.base}."


def _other_places() -> Iterator[str]:
    """Folders for a run whose own cannot be written."""
    with suppress(OSError):  # Python looks for one that it can write in, and there may be none
        yield tempfile.gettempdir()
    yield os.path.expanduser("~")


def _read_basic(path: Path) -> bytes | None:
    """The run may be a stranger's, and its signature anything: what is no file of a sane size is not copied."""
    with suppress(OSError):
        return read_regular(path, DOCUMENT_LIMIT)
    return None


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The arena's tensors by the file of a checkpoint that they belong in."""
    groups: dict[str, dict[str, Tensor]] = {"parameters": {}, "optimiser": {}, "memory": {}, "workers": {}}
    for name, tensor in tensors.items():
        parts = name.split("/")
        if parts[0] == "memory":
            group = "memory"
        elif parts[0] == "sync":
            group = "parameters" if parts[-1] == "vector" and "local" not in parts else "optimiser"
        elif parts[0] == PREFIX:  # a policy needs them to act
            group = "parameters"
        else:
            group = "workers"
        groups[group][name] = tensor
    return groups
