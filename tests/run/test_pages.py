"""Large tensors in pages: what is new is written, what is old is shared, and every checkpoint stands alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import seal
from passel.arena import Arena, Pages, Spec
from passel.run.checkpoint import BrokenCheckpoint, latest, load, save
from passel.types import PasselError

PARTS, PAGES, LENGTH = 2, 5, 13  # pages of 3, 3, 3, 3 and 1
SPECS = {
    "log/rows": Spec((PARTS, LENGTH, 4), torch.int32, pages="versions"),
    "log/versions": Spec((PARTS, PAGES), torch.int64),
    "weights": Spec((10,)),
}


def new_arena() -> Arena:
    return Arena(SPECS)


def change(arena: Arena, number: int, value: int) -> None:
    pages = arena.paged()["log/rows"]
    pages.page(number).fill_(value)
    arena["log/versions"].view(-1)[number] = value


def store(folder: Path, step: int, arena: Arena, base: Path | None, **options: Any) -> Path:
    return save(folder, step, {"rest": arena.kept()}, {}, pages=arena.paged(), base=base, **options)


def restored(path: Path) -> Arena:
    arena, found = new_arena(), load(path)
    arena.load(found.groups["rest"])
    for page in found.pages():
        arena.load_page(*page)
    return arena


def assert_equal(one: Arena, other: Arena) -> None:
    assert all(torch.equal(one[name], other[name]) for name in SPECS)


def fresh_pages(path: Path) -> set[str]:
    """The keys of the pages that this checkpoint wrote itself."""
    manifest = json.loads((path / "manifest.json").read_text())
    return {
        f"{name}#{number}"
        for name, places in manifest.get("pages", {"places": {}})["places"].items()
        for number, (_, file) in places.items()
        if (path / file).stat().st_nlink == 1
    }


def test_a_page_is_a_part_of_one_row_of_the_tensor() -> None:
    pages = new_arena().paged()["log/rows"]
    assert [len(pages.page(number)) for number in range(PARTS * PAGES)] == [3, 3, 3, 3, 1] * 2
    for number in range(PARTS * PAGES):
        pages.page(number).fill_(number)
    assert pages.tensor[1, :, 0].tolist() == [5] * 3 + [6] * 3 + [7] * 3 + [8] * 3 + [9]


def test_only_what_has_changed_is_written_and_all_of_it_comes_back(tmp_path: Path) -> None:
    arena = new_arena()
    for number in (0, 3, 9):
        change(arena, number, 7 + number)
    first = store(tmp_path, 1, arena, None)
    assert fresh_pages(first) == {"log/rows#0", "log/rows#3", "log/rows#9"}
    before = restored(first)
    assert_equal(arena, before)
    change(arena, 3, 50)
    change(arena, 4, 51)
    second = store(tmp_path, 2, arena, first)
    assert fresh_pages(second) == {"log/rows#3", "log/rows#4"}
    assert_equal(arena, restored(second))
    assert_equal(before, restored(first))
    third = store(tmp_path, 3, arena, second)
    assert fresh_pages(third) == set()
    assert_equal(arena, restored(third))


@settings(deadline=None, max_examples=25)
@given(
    rounds=st.lists(st.lists(st.integers(0, PARTS * PAGES - 1), max_size=6), min_size=1, max_size=8),
    keep=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_checkpoint_that_is_left_is_as_it_was_saved(tmp_path_factory: Any, rounds, keep, seed) -> None:
    folder = tmp_path_factory.mktemp("run")
    arena, base, value = new_arena(), None, 0
    kept: dict[int, Arena] = {}
    for step, numbers in enumerate(rounds):
        for number in numbers:
            value += 1
            change(arena, number, value)
        arena["weights"].fill_(step)
        base = store(folder, step, arena, base, keep=keep)
        kept[step] = new_arena()
        for name in SPECS:
            kept[step][name].copy_(arena[name])
    found = sorted(int(path.name) for path in (folder / "checkpoints").iterdir())
    assert found == list(range(len(rounds)))[-keep:]
    for step in found:
        assert_equal(kept[step], restored(folder / "checkpoints" / str(step)))
    # No file is left that no checkpoint names, and a disk holds at most about twice of what is alive.
    files = {os.stat(path).st_ino for path in (folder / "checkpoints").rglob("pages-*")}
    named = {
        os.stat(path / file).st_ino
        for path in (folder / "checkpoints").iterdir()
        for file in json.loads((path / "manifest.json").read_text())["files"]
        if file.startswith("pages-")
    }
    assert files == named


def test_a_file_of_which_little_is_alive_is_written_anew(tmp_path: Path) -> None:
    arena, base = new_arena(), None
    for number in range(10):
        change(arena, number, 1 + number)
    base = store(tmp_path, 0, arena, None, keep=1)
    for step in range(1, 9):
        change(arena, step, 100 + step)
        base = store(tmp_path, step, arena, base, keep=1)
        manifest = json.loads((base / "manifest.json").read_text())
        assert sum(manifest["pages"]["sizes"].values()) <= 2 * 10 + 2
        assert_equal(arena, restored(base))


def test_a_page_that_was_never_written_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    page = Pages.page
    monkeypatch.setattr(Pages, "page", lambda self, number: (read.append(number), page(self, number))[1])
    arena = new_arena()
    change(arena, 2, 1)
    read.clear()
    store(tmp_path, 1, arena, None)
    assert read == [2]


@pytest.mark.parametrize("kind", ["a flipped byte", "missing", "truncated"])
def test_damage_to_a_shared_file_is_found_in_every_checkpoint_that_has_it(tmp_path: Path, kind: str) -> None:
    arena = new_arena()
    change(arena, 0, 5)
    alone = store(tmp_path, 1, arena, None)
    change(arena, 0, 6)
    base = store(tmp_path, 2, arena, alone)
    change(arena, 7, 7)
    sharing = store(tmp_path, 3, arena, base)
    (pack,) = {path.name for path in base.glob("pages-*")} & {path.name for path in sharing.glob("pages-*")}
    if kind == "missing":
        (sharing / pack).unlink()
        with pytest.raises(BrokenCheckpoint, match=f"{pack} is missing"):
            load(sharing)
        load(base)
        return
    content = bytearray((base / pack).read_bytes())
    content[-1] ^= 1
    (base / pack).write_bytes(content[: -1 if kind == "truncated" else None])
    for path in (base, sharing):
        with pytest.raises(BrokenCheckpoint, match=pack):
            load(path)
    messages: list[str] = []
    found = latest(tmp_path, messages.append)
    assert found is not None
    assert found.step == 1
    assert len(messages) == 2


@pytest.mark.parametrize("kind", ["missing", "truncated", "no manifest"])
def test_what_is_no_longer_whole_on_disk_is_not_shared_but_written(tmp_path: Path, kind: str) -> None:
    arena = new_arena()
    change(arena, 0, 5)
    base = store(tmp_path, 1, arena, None)
    (pack,) = base.glob("pages-*")
    if kind == "no manifest":
        (base / "manifest.json").unlink()
    elif kind == "missing":
        pack.unlink()
    else:
        os.truncate(pack, 10)
    path = store(tmp_path, 2, arena, base)
    assert fresh_pages(path) == {"log/rows#0"}
    assert_equal(arena, restored(path))


@pytest.mark.parametrize(
    "pages",
    [
        3,
        {"places": {}},
        {"places": {"log/rows": {"0": [1, "other.safetensors"]}}, "sizes": {}},
        {"places": {"log/rows": {"x": [1, "pages"]}}, "sizes": {}},
        {"places": {"log/rows": [1]}, "sizes": {}},
        {"places": {}, "sizes": {"../x": 1}},
        {"places": {"log/rows": {"4": [1, "PACK"]}}, "sizes": {"PACK": 1}},
    ],
    ids=str,
)
def test_a_manifest_that_makes_no_sense_is_a_broken_checkpoint(tmp_path: Path, pages: Any) -> None:
    arena = new_arena()
    change(arena, 0, 5)
    path = store(tmp_path, 1, arena, None)
    (pack,) = path.glob("pages-*")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["pages"] = json.loads(json.dumps(pages).replace("PACK", pack.name))
    seal(path, json.dumps(manifest))
    with pytest.raises(BrokenCheckpoint, match=r"pages|page"):
        load(path)


def test_a_page_of_another_shape_is_refused() -> None:
    arena = new_arena()
    for name, number, page in (
        ("log/rows", 0, torch.zeros(2, 4, dtype=torch.int32)),
        ("log/rows", 0, torch.zeros(3, 4)),
        ("log/rows", 10, torch.zeros(3, 4, dtype=torch.int32)),
        ("log/rows", -1, torch.zeros(1, 4, dtype=torch.int32)),
        ("weights", 0, torch.zeros(10)),
        ("nothing", 0, torch.zeros(10)),
    ):
        with pytest.raises(PasselError, match="does not fit"):
            arena.load_page(name, number, page)


def test_a_disk_without_hard_links_has_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    arena = new_arena()
    change(arena, 0, 5)
    base = store(tmp_path, 1, arena, None)
    path = store(tmp_path, 2, arena, base)
    shutil.rmtree(base)
    assert_equal(arena, restored(path))
