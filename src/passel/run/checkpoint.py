"""A checkpoint: a folder of .safetensors files and a manifest with the SHA-256 of each.

At every moment, also between two system calls of `save`, the newest complete checkpoint is on disk: a new one is
written aside, made durable, and only then given its name. So a run may be killed at any time, and nothing that is read
back was ever half written. Nothing is unpickled: a checkpoint from a stranger can be wrong, but it cannot run code.

The manifest has the SHA-256 of every other file, and `manifest.sha256` has the manifest's, in the format of sha256sum.
Only files that a checkpoint consists of are ever removed, by name; whatever else lies beside them stays.

Large tensors come in pages, and of these a checkpoint writes what is new since the one before (`passel.run.pages`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from passel.arena import USABLE, Pages, free_memory
from passel.reading import MANIFEST_LIMIT, as_fields, from_json, open_regular, read_regular
from passel.run.files import fsync_path, json_text, write_all
from passel.run.pages import PageIndex, PagePlan, missing_page, plan_pages, read_pages, share
from passel.run.tensors import write_tensors
from passel.types import PasselError, printable

#: What `save` writes, and what `load` reads. Format 1 has no digest of the manifest.
FORMAT, FORMATS = 2, (1, 2)
FOLDER = "checkpoints"
#: The best policy by the evaluations during training: a checkpoint that has parameters alone.
BEST = "best"
MANIFEST, DIGEST = "manifest.json", "manifest.sha256"

_STEP = re.compile(r"0|[1-9][0-9]*")
_ENDING = ".safetensors"
_GROUP_FILE = re.compile(r"[A-Za-z0-9_-]+\.safetensors")
_FIELDS = {"format": int, "step": int, "passel": str, "meta": dict[str, Any], "files": dict[str, Any], "pages": Any}
_FACTS = {"size": int, "sha256": str}
_TRIES = 100  # listings of a folder whose checkpoints are removed while they are read
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
    into: str = FOLDER,
) -> Path:
    """Write `<folder>/<into>/<step>/`, then remove all but the `keep` newest; the new folder is returned.

    `folder` is the run's own. `meta` is anything that JSON holds (a NaN in it becomes null). A checkpoint of a later
    step is removed too: a run that went back to an earlier one has given up that future, and must not resume from it.

    `pages` are large tensors, of which only what has changed since the checkpoint `base` is written. That must be the
    one that this very memory was saved to or loaded from last: in another one the same version may mean other bytes.
    """
    if keep < 1:
        raise PasselError(f"a run cannot keep {keep} checkpoints. Keep at least 1.")
    checkpoints = folder / into
    is_first = not os.path.lexists(checkpoints)
    final = checkpoints / str(step)
    needed = _bytes_needed(groups, meta)
    try:
        checkpoints.mkdir(exist_ok=True)
        if not _is_folder(checkpoints):
            raise OSError(errno.ENOTDIR, f"{into} is a symbolic link, which is not followed", str(checkpoints))
        _tidy(checkpoints)
        shared = _read_base(base)
        usable = shared.index.usable(shared.path, shared.files, again=shared.path == final)
        plan = plan_pages(pages or {}, shared.index, usable)
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


def load(path: Path, wanted: Collection[str] | None = None) -> Checkpoint:
    """Read one checkpoint after verifying every file of it against the manifest, or raise BrokenCheckpoint.

    With `wanted`, only these groups are verified and read, and no pages: a policy needs nothing but its parameters.
    """
    manifest = _read_manifest(path)
    index = _page_index(path, manifest) if wanted is None else PageIndex()
    names = [name for name in manifest["files"] if wanted is None or name.removesuffix(_ENDING) in wanted]
    groups = {}
    _check_memory(path, [manifest["files"][name]["size"] for name in names if name not in index.sizes])
    for name in names:
        _verify(path / name, manifest["files"][name])
        if name in index.sizes:
            continue
        try:
            groups[name.removesuffix(_ENDING)] = load_file(path / name)
        except (SafetensorError, OSError, ValueError) as error:
            raise BrokenCheckpoint(f"{path / name} is not a .safetensors file ({printable(error)})") from error
    lost = missing_page(path, index)
    if lost is not None:
        raise BrokenCheckpoint(lost)
    return Checkpoint(path, manifest["step"], manifest["meta"], groups, index)


def latest(
    folder: Path,
    report: Callable[[str], None],
    *,
    wanted: Collection[str] | None = None,
    usable: Callable[[Checkpoint], object] = lambda _: None,
    before: int | None = None,
    into: str = FOLDER,
) -> Checkpoint | None:
    """The newest valid checkpoint of a run in `<folder>/<into>`, or None. One sentence goes to `report` for each broken
    one passed over.

    `wanted` is as in `load`. `usable` raises ValueError, with the reason, for a checkpoint that its caller cannot use:
    the one before it is tried then. `before` leaves out this step and all later ones.

    Nothing on disk is changed, so it may be called while the run itself is saving.
    """
    for _ in range(_TRIES):
        reasons: list[str] = []
        found, listed = None, _listing(folder / into)
        for step, path in _candidates(folder / into):
            if before is not None and step >= before:
                continue
            try:
                found = _load_step(path, step, wanted)
                usable(found)
                break
            except BrokenCheckpoint as broken:
                found = None
                reasons.append(broken.reason)
            except ValueError as error:
                found = None
                reasons.append(f"{path} cannot be used ({printable(error)})")
        # What could not be read may be what the run was about to remove, or to write again: then there is another now.
        if (found is not None and not reasons) or _listing(folder / into) == listed:
            break
    outcome = f"the one before it, of step {found.step}, is used" if found else "there is no valid one before it"
    for reason in reasons:
        report(f"{reason}: this checkpoint is skipped and {outcome}.")
    return found


def _load_step(path: Path, step: int, wanted: Collection[str] | None) -> Checkpoint:
    found = load(path, wanted)
    if found.step != step:
        raise BrokenCheckpoint(f"{path / MANIFEST} is of step {found.step}, not {step}")
    return found


def _check_memory(path: Path, sizes: list[int]) -> None:
    """Before a byte is read: a file may be much larger than what it takes on disk."""
    needed, usable = sum(sizes), int(USABLE * free_memory())
    if needed > usable:
        raise BrokenCheckpoint(f"{path} has {needed / 1e6:,.0f} MB of tensors and {usable / 1e6:,.0f} MB can be used")


def _page_index(path: Path, manifest: Mapping[str, Any]) -> PageIndex:
    try:
        return PageIndex.from_json(manifest.get("pages"), manifest["files"])
    except ValueError as error:
        raise BrokenCheckpoint(f"{path / MANIFEST} is damaged: {error}") from error


def _read_base(path: Path | None) -> _Base:
    """What there is to share; nothing, if the earlier checkpoint can no longer be trusted."""
    if path is not None:
        with suppress(BrokenCheckpoint):
            manifest = _read_manifest(path)
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
    manifest["pages"] = index.as_json() if index.places else None
    text = (json_text(manifest, indent=2) + "\n").encode()
    _write_new(aside / MANIFEST, text)
    _write_new(aside / DIGEST, _digest_line(text))
    fsync_path(aside)


def _write_new(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)


def _digest_line(manifest: bytes) -> bytes:
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()


def _put_in_place(aside: Path, final: Path) -> None:
    """Give the new checkpoint its name.

    A folder cannot be renamed over another. So an existing one steps aside first, under a name that `latest` reads too.
    What lay in it and is no file of a checkpoint comes back.
    """
    replaced = final.with_name(f"{_REPLACED}{final.name}")
    if os.path.lexists(final):
        if not _is_folder(final):
            raise OSError(errno.ENOTDIR, f"{final.name} is no folder", str(final))
        os.rename(final, replaced)
    os.rename(aside, final)
    fsync_path(final.parent)
    if _is_folder(replaced):
        _remove(replaced)
        _bring_back(replaced, final)


def _tidy(checkpoints: Path) -> None:
    """Clear up after a save that did not end: the run folder's lock says that nobody else is writing here."""
    for entry in list(checkpoints.iterdir()):
        if not entry.name.startswith((_WRITING, _REMOVING, _REPLACED)) or not _is_folder(entry):
            continue
        home = checkpoints / entry.name.removeprefix(_REPLACED)
        if not entry.name.startswith(_REPLACED):
            _remove(entry)
        elif not os.path.lexists(home):
            os.rename(entry, home)
        else:
            _remove(entry)
            _bring_back(entry, home)


def _prune(checkpoints: Path, step: int, keep: int) -> None:
    """Remove the old and the abandoned. What cannot be removed now is tried again at the next save."""
    steps = sorted((number for number, path in _candidates(checkpoints) if path.name == str(number)), reverse=True)
    kept = [other for other in steps if other <= step][:keep]
    for other in set(steps) - set(kept):
        old = checkpoints / str(other)
        with suppress(OSError):
            names = set(os.listdir(old))
            if names <= _files_of(old) and (MANIFEST in names or not names):
                # Out of sight first: a folder half removed by a killed run must not look like a broken checkpoint.
                doomed = checkpoints / f"{_REMOVING}{secrets.token_hex(8)}"
                os.rename(old, doomed)
                _remove(doomed)
            elif MANIFEST in names:
                _remove(old)


def _remove(folder: Path) -> None:
    """Remove the files of a checkpoint, the manifest first, and the folder if nothing else is in it."""
    with suppress(OSError):
        for name in sorted(_files_of(folder), key=lambda name: name != MANIFEST):
            (folder / name).unlink()
        folder.rmdir()


def _bring_back(replaced: Path, final: Path) -> None:
    with suppress(OSError):
        for entry in list(replaced.iterdir()):
            if not os.path.lexists(final / entry.name):
                os.rename(entry, final / entry.name)
        replaced.rmdir()


def _files_of(folder: Path) -> set[str]:
    """What a checkpoint consists of: regular files, by name; only those that its manifest has, if that can be read."""
    found = {
        entry.name
        for entry in os.scandir(folder)
        if entry.is_file(follow_symlinks=False)
        and (entry.name in (MANIFEST, DIGEST) or _GROUP_FILE.fullmatch(entry.name))
    }
    with suppress(BrokenCheckpoint):
        found &= {MANIFEST, DIGEST, *_read_manifest(folder)["files"]}
    return found


def _is_folder(path: Path) -> bool:
    """A folder, and no link to one."""
    with suppress(OSError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def _candidates(checkpoints: Path) -> list[tuple[int, Path]]:
    """Whatever may be a checkpoint, newest first; of one step, the named one before the replaced one. A folder that has
    only other files in it is none.
    """
    if not _is_folder(checkpoints):
        return []
    found = []
    for entry in checkpoints.iterdir():
        name = entry.name.removeprefix(_REPLACED)
        if _STEP.fullmatch(name) and _is_folder(entry):
            with suppress(OSError):
                if _files_of(entry) or not os.listdir(entry):
                    found.append((int(name), entry))
    return sorted(found, key=lambda item: (-item[0], item[1].name.startswith(_REPLACED)))


def _listing(checkpoints: Path) -> dict[str, int]:
    """Which folders may be checkpoints now, and which inode each has."""
    with suppress(OSError):
        entries = [(entry.name, entry.inode()) for entry in os.scandir(checkpoints)]
        return {name: inode for name, inode in entries if _STEP.fullmatch(name.removeprefix(_REPLACED))}
    return {}


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, after its digest and the type of every field were checked."""
    path = folder / MANIFEST
    try:
        text = read_regular(path, MANIFEST_LIMIT)
        sealed = os.path.lexists(folder / DIGEST)
        digest = read_regular(folder / DIGEST, 1000) if sealed else None
        manifest = from_json(text)
    except FileNotFoundError as error:
        raise BrokenCheckpoint(f"{path} is missing") from error
    except OSError as error:
        raise BrokenCheckpoint(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise BrokenCheckpoint(f"{path} is not JSON ({printable(error)})") from error
    if not isinstance(manifest, dict):
        raise BrokenCheckpoint(f"{path} is not a manifest")
    number = manifest.get("format")
    if type(number) is not int or number not in FORMATS:
        known = " and ".join(map(str, FORMATS))
        raise BrokenCheckpoint(f"{path} has format {printable(repr(number), 30)} and this passel reads format {known}")
    missing = [key for key in _FIELDS if key not in manifest and not (key == "pages" and number == 1)]
    if missing:
        raise BrokenCheckpoint(f"{path} has no {missing[0]}")
    try:
        as_fields(_FIELDS, manifest)
        for name, facts in manifest["files"].items():
            _check_facts(name, facts)
    except ValueError as error:
        raise BrokenCheckpoint(f"{path} is damaged: {printable(error)}") from error
    if digest is None and number > 1:
        raise BrokenCheckpoint(f"{folder / DIGEST} is missing")
    if digest is not None and digest != _digest_line(text):
        raise BrokenCheckpoint(f"{path} does not match its SHA-256 in {DIGEST}")
    return manifest


def _check_facts(name: str, facts: object) -> None:
    if not _GROUP_FILE.fullmatch(name):
        raise ValueError(f"it names {name[:60]!r}, which is no file of a checkpoint")
    try:
        found = as_fields(_FACTS, facts)
    except ValueError as error:
        raise ValueError(f"it says nothing of {name} ({error})") from error
    if found.keys() != _FACTS.keys() or found["size"] < 0:
        raise ValueError(f"it says nothing of {name}")


def _verify(path: Path, facts: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise BrokenCheckpoint(f"{path} is missing")
    try:
        fd = open_regular(path)
        with os.fdopen(fd, "rb") as file:
            size = os.fstat(fd).st_size
            if size != facts["size"]:
                raise BrokenCheckpoint(f"{path} has {size} bytes and its manifest says {facts['size']}")
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BrokenCheckpoint(f"{path} cannot be read ({error.strerror})") from error
    if found != facts["sha256"]:
        raise BrokenCheckpoint(f"{path} does not match its SHA-256 in the manifest")
