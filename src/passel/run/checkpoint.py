"""A checkpoint: a folder of .safetensors files and a manifest with the SHA-256 of each.

At every moment, also between two system calls of `save`, the newest complete checkpoint is on disk: a new one is
written aside, made durable, and only then given its name. So a run may be killed at any time, and nothing that is read
back was ever half written. Nothing is unpickled: a checkpoint from a stranger can be wrong, but it cannot run code.

Large tensors come in pages, and of these a checkpoint writes what is new since the one before (`passel.run.pages`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from passel.arena import Pages
from passel.run.files import fsync_path, json_text, replace_file
from passel.run.pages import PageIndex, PagePlan, missing_page, plan_pages, read_pages, share
from passel.run.tensors import write_tensors
from passel.types import PasselError

FORMAT = 1
FOLDER = "checkpoints"
MANIFEST = "manifest.json"

_STEP = re.compile(r"0|[1-9][0-9]*")
_GROUP_FILE = re.compile(r"[A-Za-z0-9_-]+\.safetensors")
_WRITING, _REMOVING, _REPLACED = ".writing-", ".removing-", ".replaced-"
_SLACK = 64 << 10  # bytes for headers, the manifest's own lines and the folder


class BrokenCheckpoint(PasselError):  # noqa: N818 - it is a state of the disk, named as the user meets it
    """A checkpoint that must not be used, and why. `reason` names the file."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}. Use an earlier checkpoint.")
        self.reason = reason


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. `groups` is what `save` was given: tensors by group and name."""

    path: Path
    step: int
    meta: dict[str, Any]
    groups: dict[str, dict[str, Tensor]]
    index: PageIndex = field(default_factory=PageIndex)

    def pages(self) -> Iterator[tuple[str, int, Tensor]]:
        """Every page of its large tensors, as name, number and content; read from disk as they are asked for."""
        return read_pages(self.path, self.index)


@dataclass(frozen=True)
class _Base:
    """What a new checkpoint may share with an earlier one."""

    path: Path
    files: Mapping[str, Any]
    index: PageIndex


def save(
    folder: Path,
    step: int,
    groups: Mapping[str, Mapping[str, Tensor]],
    meta: Mapping[str, Any],
    keep: int = 3,
    *,
    pages: Mapping[str, Pages] | None = None,
    base: Path | None = None,
) -> Path:
    """Write `<folder>/checkpoints/<step>/`, then remove all but the `keep` newest; the new folder is returned.

    `folder` is the run's own. `meta` is anything that JSON holds (a NaN in it becomes null). A checkpoint of a later
    step is removed too: a run that went back to an earlier one has given up that future, and must not resume from it.

    `pages` are large tensors, of which only what has changed since the checkpoint `base` is written. That must be the
    one that this very memory was saved to or loaded from last: in another one the same version may mean other bytes.
    """
    if keep < 1:
        raise PasselError(f"a run cannot keep {keep} checkpoints. Keep at least 1.")
    checkpoints = folder / FOLDER
    is_first = not checkpoints.exists()
    final = checkpoints / str(step)
    needed = _bytes_needed(groups, meta)
    try:
        checkpoints.mkdir(exist_ok=True)
        _tidy(checkpoints)
        shared = _read_base(base)
        plan = plan_pages(pages or {}, shared.index, shared.index.usable(shared.path, shared.files))
        needed += plan.nbytes
        _check_space(checkpoints, needed)
        aside = checkpoints / f"{_WRITING}{secrets.token_hex(8)}"
        aside.mkdir()
        _write(aside, step, groups, meta, plan, shared)
        _put_in_place(aside, final)
    except BaseException as error:
        with suppress(OSError):
            _tidy(checkpoints)
        if is_first:
            with suppress(OSError):
                checkpoints.rmdir()
        if isinstance(error, OSError):
            raise _explained(error, folder, needed) from error
        raise
    _prune(checkpoints, step, keep)
    return final


def load(path: Path) -> Checkpoint:
    """Read one checkpoint after verifying every file of it against the manifest, or raise BrokenCheckpoint."""
    manifest = _read_manifest(path / MANIFEST)
    index = _page_index(path, manifest)
    groups = {}
    for name, facts in manifest["files"].items():
        _verify(path / name, facts)
        if name in index.sizes:
            continue
        try:
            groups[name.removesuffix(".safetensors")] = load_file(path / name)
        except (SafetensorError, OSError, ValueError) as error:
            raise BrokenCheckpoint(f"{path / name} is not a .safetensors file ({error})") from error
    lost = missing_page(path, index)
    if lost is not None:
        raise BrokenCheckpoint(lost)
    return Checkpoint(path, manifest["step"], manifest["meta"], groups, index)


def latest(folder: Path, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest valid checkpoint of a run, or None. One sentence goes to `report` for each broken one passed over.

    Nothing on disk is changed, so it may be called while the run itself is saving.
    """
    reasons: list[str] = []
    found = None
    for step, path in _candidates(folder / FOLDER):
        try:
            found = _load_step(path, step)
            break
        except BrokenCheckpoint as broken:
            reasons.append(broken.reason)
    outcome = f"the one before it, of step {found.step}, is used" if found else "there is no valid one before it"
    for reason in reasons:
        report(f"{reason}: this checkpoint is skipped and {outcome}.")
    return found


def _load_step(path: Path, step: int) -> Checkpoint:
    found = load(path)
    if found.step != step:
        raise BrokenCheckpoint(f"{path / MANIFEST} is of step {found.step}, not {step}")
    return found


def _page_index(path: Path, manifest: Mapping[str, Any]) -> PageIndex:
    try:
        return PageIndex.from_json(manifest.get("pages"), manifest["files"])
    except ValueError as error:
        raise BrokenCheckpoint(f"{path / MANIFEST} is damaged: {error}") from error


def _read_base(path: Path | None) -> _Base:
    """What there is to share; nothing, if the earlier checkpoint can no longer be trusted."""
    if path is not None:
        with suppress(BrokenCheckpoint):
            manifest = _read_manifest(path / MANIFEST)
            return _Base(path, manifest["files"], _page_index(path, manifest))
    return _Base(Path(), {}, PageIndex())


def _bytes_needed(groups: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]) -> int:
    tensors = sum(t.numel() * t.element_size() for group in groups.values() for t in group.values())
    return tensors + len(json_text(meta).encode()) + _SLACK


def _check_space(checkpoints: Path, needed: int) -> None:
    """Before writing, so that a full disk costs no minutes of writing first."""
    if shutil.disk_usage(checkpoints).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _explained(error: OSError, folder: Path, needed: int) -> PasselError:
    if error.errno != errno.ENOSPC:
        return PasselError(
            f"the checkpoint cannot be written in {folder} ({error.strerror}). Mend that or choose another --out."
        )
    free = shutil.disk_usage(folder).free
    return PasselError(
        f"no space left on disk for the checkpoint: needs {needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB free "
        f"in {folder}. Free some space or choose another --out."
    )


def _write(
    aside: Path,
    step: int,
    groups: Mapping[str, Mapping[str, Tensor]],
    meta: Mapping[str, Any],
    plan: PagePlan,
    base: _Base,
) -> None:
    """All files of a checkpoint into `aside`, durable when this returns."""
    files: dict[str, Any] = {}
    for group, tensors in groups.items():
        name = f"{group}.safetensors"
        if not _GROUP_FILE.fullmatch(name):
            raise ValueError(f"a group of tensors cannot be called {group!r}: letters, digits, _ and - only")
        files[name] = asdict(write_tensors(aside / name, tensors))
    for name in sorted(plan.files):
        share(base.path / name, aside / name)
        files[name] = base.files[name]
    fresh = f"pages-{secrets.token_hex(8)}.safetensors"
    if plan.fresh:
        files[fresh] = asdict(write_tensors(aside / fresh, {key: page for key, (_, page) in plan.fresh.items()}))
    index = plan.index(fresh, base.index.sizes)
    manifest = {"format": FORMAT, "step": step, "passel": version("passel"), "meta": meta, "files": files}
    if index.places:
        manifest["pages"] = index.as_json()
    replace_file(aside / MANIFEST, json_text(manifest, indent=2) + "\n")  # this also fsyncs the folder


def _put_in_place(aside: Path, final: Path) -> None:
    """Give the new checkpoint its name.

    A folder cannot be renamed over another. So an existing one steps aside first, under a name that `latest` reads too.
    """
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    if final.exists():
        os.rename(final, replaced)
    os.rename(aside, final)
    fsync_path(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _tidy(checkpoints: Path) -> None:
    """Clear up after a save that did not end: the run folder's lock says that nobody else is writing here."""
    for entry in list(checkpoints.iterdir()):
        home = checkpoints / entry.name.removeprefix(_REPLACED)
        if entry.name.startswith(_REPLACED) and not home.exists():
            os.rename(entry, home)
        elif entry.name.startswith((_WRITING, _REMOVING, _REPLACED)):
            shutil.rmtree(entry, ignore_errors=True)


def _prune(checkpoints: Path, step: int, keep: int) -> None:
    """Remove the old and the abandoned. What cannot be removed now is tried again at the next save."""
    steps = sorted((int(entry.name) for entry in checkpoints.iterdir() if _STEP.fullmatch(entry.name)), reverse=True)
    kept = [other for other in steps if other <= step][:keep]
    for other in set(steps) - set(kept):
        # Out of sight first: a folder half removed by a killed run must not look like a broken checkpoint.
        doomed = checkpoints / f"{_REMOVING}{secrets.token_hex(8)}"
        with suppress(OSError):
            os.rename(checkpoints / str(other), doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def _candidates(checkpoints: Path) -> list[tuple[int, Path]]:
    """Whatever may be a checkpoint, newest first; of one step, the named one before the replaced one."""
    if not checkpoints.is_dir():
        return []
    found = []
    for entry in checkpoints.iterdir():
        name = entry.name.removeprefix(_REPLACED)
        if _STEP.fullmatch(name) and entry.is_dir():
            found.append((int(name), entry))
    return sorted(found, key=lambda item: (-item[0], item[1].name.startswith(_REPLACED)))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise BrokenCheckpoint(f"{path} is missing") from error
    except OSError as error:
        raise BrokenCheckpoint(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise BrokenCheckpoint(f"{path} is not JSON ({error})") from error
    if not isinstance(manifest, dict):
        raise BrokenCheckpoint(f"{path} is not a manifest")
    if manifest.get("format") != FORMAT:
        raise BrokenCheckpoint(f"{path} has format {manifest.get('format')!r} and this passel reads format {FORMAT}")
    for key, kind in (("step", int), ("meta", dict), ("files", dict)):
        if not isinstance(manifest.get(key), kind):
            raise BrokenCheckpoint(f"{path} has no {key}")
    for name in manifest["files"]:
        if not _GROUP_FILE.fullmatch(name):
            raise BrokenCheckpoint(f"{path} names {name!r}, which is no file of a checkpoint")
    return manifest


def _verify(path: Path, facts: Any) -> None:
    if not isinstance(facts, dict):
        raise BrokenCheckpoint(f"{path.parent / MANIFEST} says nothing of {path.name}")
    if not path.is_file():
        raise BrokenCheckpoint(f"{path} is missing")
    try:
        size = path.stat().st_size
        if size != facts.get("size"):
            raise BrokenCheckpoint(f"{path} has {size} bytes and its manifest says {facts.get('size')}")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BrokenCheckpoint(f"{path} cannot be read ({error.strerror})") from error
    if found != facts.get("sha256"):
        raise BrokenCheckpoint(f"{path} does not match its SHA-256 in the manifest")
