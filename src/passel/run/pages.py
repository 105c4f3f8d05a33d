"""The pages of large tensors in a checkpoint: only those that have changed are written, into one file of their own.

Every checkpoint's folder has all the files that it needs. Those with pages that have not changed since the checkpoint
before are the same files, by a second name (a hard link): they cost nothing, and go with the last checkpoint that has
them, without anybody counting.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from passel.arena import Pages
from passel.reading import as_fields
from passel.run.files import fsync_path
from passel.types import printable

SEPARATOR = "#"

#: Where a page is: its version, and the file.
Place = tuple[int, str]


@dataclass(frozen=True)
class PageIndex:
    """Where the pages of a checkpoint are, by tensor and number, and how many pages each file was written with."""

    places: dict[str, dict[int, Place]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "places": {
                name: {str(number): list(place) for number, place in places.items()}
                for name, places in self.places.items()
            },
            "sizes": self.sizes,
        }

    @classmethod
    def from_json(cls, content: Any, files: Mapping[str, Any]) -> PageIndex:
        """What a manifest says of pages. Raises ValueError, with what is wrong, unless all of it makes sense."""
        if content is None:
            return cls()
        try:
            kinds = {"sizes": dict[str, int], "places": dict[str, dict[str, list[int | str]]]}
            sizes = as_fields(kinds, content)["sizes"]
            places = {
                name: {_number(number): _place(*place) for number, place in found.items()}
                for name, found in content["places"].items()
            }
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"its pages are no pages ({error!r})") from error
        named = {file for found in places.values() for _, file in found.values()}
        if not named <= sizes.keys() or not sizes.keys() <= files.keys():
            raise ValueError("its pages are in files that it does not have")
        return cls(places, sizes)

    def usable(self, folder: Path, files: Mapping[str, Any], *, again: bool = False) -> set[str]:
        """The files that a later checkpoint may share: they are there, whole by their size, and at least half of what
        is in them is still wanted (so that a disk never holds much more than twice of what it must). A checkpoint that
        is written `again`, with another `meta`, shares them all.
        """
        living = Counter(file for places in self.places.values() for _, file in places.values())
        wanted = {name for name, size in self.sizes.items() if again or 2 * living[name] >= size}
        return {name for name in wanted if _is_whole(folder, name, files)}


@dataclass(frozen=True)
class PagePlan:
    """What a checkpoint does with its pages: which it shares with the one before, and which it writes."""

    shared: dict[str, dict[int, Place]]
    fresh: dict[str, tuple[int, Tensor]]

    @property
    def nbytes(self) -> int:
        return sum(page.numel() * page.element_size() for _, page in self.fresh.values())

    @property
    def files(self) -> set[str]:
        return {file for places in self.shared.values() for _, file in places.values()}

    def index(self, written: str, sizes: Mapping[str, int]) -> PageIndex:
        """Where everything is, when the fresh pages are in the file `written`."""
        places = {name: dict(found) for name, found in self.shared.items()}
        for key, (version, _) in self.fresh.items():
            name, _, number = key.rpartition(SEPARATOR)
            places.setdefault(name, {})[int(number)] = (version, written)
        counts = {name: sizes[name] for name in self.files} | ({written: len(self.fresh)} if self.fresh else {})
        return PageIndex(places, counts)


def plan_pages(pages: Mapping[str, Pages], before: PageIndex, usable: set[str]) -> PagePlan:
    """Share what has the version that the checkpoint before had, and write the rest."""
    shared: dict[str, dict[int, Place]] = {}
    fresh: dict[str, tuple[int, Tensor]] = {}
    for name, tensor in pages.items():
        known = before.places.get(name, {})
        for number, version in tensor.written().items():
            place = known.get(number)
            if place is not None and place[0] == version and place[1] in usable:
                shared.setdefault(name, {})[number] = place
            else:
                fresh[f"{name}{SEPARATOR}{number}"] = (version, tensor.page(number))
    return PagePlan(shared, fresh)


def share(source: Path, target: Path) -> None:
    """The same file by a second name; a copy where the disk has no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        fsync_path(target)


def read_pages(folder: Path, index: PageIndex) -> Iterator[tuple[str, int, Tensor]]:
    """Every page, one file after the other, without holding them all."""
    by_file: dict[str, list[tuple[str, int]]] = {}
    for name, places in index.places.items():
        for number, (_, file) in places.items():
            by_file.setdefault(file, []).append((name, number))
    for file, wanted in by_file.items():
        with safe_open(folder / file, framework="pt") as opened:
            for name, number in wanted:
                yield name, number, opened.get_tensor(f"{name}{SEPARATOR}{number}")


def missing_page(folder: Path, index: PageIndex) -> str | None:
    """The first page that is not where the index says, in words; None if all are there."""
    for file in index.sizes:
        wanted = {
            f"{name}{SEPARATOR}{number}"
            for name, places in index.places.items()
            for number, (_, its) in places.items()
            if its == file
        }
        try:
            with safe_open(folder / file, framework="pt") as opened:
                lost = sorted(wanted - set(opened.keys()))
        except (SafetensorError, OSError, ValueError) as error:
            return f"{folder / file} is not a .safetensors file ({printable(error)})"
        if lost:
            return f"{folder / file} has no page {lost[0]}"
    return None


def _number(text: str) -> int:
    if not re.fullmatch("0|[1-9][0-9]{0,15}", text):
        raise ValueError(f"{text[:60]!r} is no number of a page")
    return int(text)


def _place(version: object, file: object) -> Place:
    if not isinstance(version, int) or not isinstance(file, str):
        raise ValueError("a page is at a version and a file")
    return version, file


def _is_whole(folder: Path, name: str, files: Mapping[str, Any]) -> bool:
    facts, path = files.get(name), folder / name
    if not isinstance(facts, dict) or not path.is_file() or path.is_symlink():
        return False
    return path.stat().st_size == facts.get("size")
