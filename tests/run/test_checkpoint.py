"""A checkpoint comes back as it was, or is refused with the reason; and a failed save leaves nothing behind."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hostile import edit_manifest, replaced_by, seal
from passel.arena import Arena, Spec
from passel.run.checkpoint import BrokenCheckpoint, Checkpoint, latest, load, save
from passel.run.tensors import DTYPES
from passel.types import PasselError


def groups_of(number: int) -> dict[str, dict[str, Tensor]]:
    return {
        "parameters": {"vector": torch.full((50,), float(number))},
        "memory": {"obs": torch.full((7, 3), number, dtype=torch.uint8), "cursor": torch.tensor(number)},
    }


def names_in(folder: Path) -> set[str]:
    return {str(entry.relative_to(folder)) for entry in folder.rglob("*")}


def silent(message: str) -> None:
    raise AssertionError(f"nothing should be reported, but: {message}")


def newest(folder: Path) -> Checkpoint:
    found = latest(folder, silent)
    assert found is not None
    return found


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_every_dtype_and_shape_round_trips_bit_for_bit(tmp_path: Path, shape: tuple[int, ...]) -> None:
    bits = torch.Generator().manual_seed(1)
    tensors = {}
    for dtype in DTYPES:
        count = torch.empty(shape).numel() * dtype.itemsize
        raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8, generator=bits)
        tensors[str(dtype)] = raw.view(dtype).view(shape)
    found = load(save(tmp_path, 12, {"all": tensors}, {"answer": 42})).groups["all"]
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        # The bytes, not the values: NaN payloads and the sign of zero must survive too.
        assert found[name].contiguous().view(-1).view(torch.uint8).tolist() == (
            tensor.contiguous().view(-1).view(torch.uint8).tolist()
        )


def test_views_of_one_vector_and_transposed_tensors_are_written_as_what_they_show(tmp_path: Path) -> None:
    vector = torch.arange(12.0, requires_grad=True)
    views = {"all": vector, "head": vector[:5], "matrix": vector.view(3, 4).t(), "stride": vector[::3]}
    found = load(save(tmp_path, 1, {"views": views}, {})).groups["views"]
    for name, view in views.items():
        torch.testing.assert_close(found[name], view.detach(), rtol=0, atol=0)


def test_a_shared_arena_is_written_and_loaded_back(tmp_path: Path) -> None:
    specs = {
        "flags": Spec((3,), torch.bool),
        "weights": Spec((100,)),
        "none": Spec((0, 4)),
        "count": Spec((), torch.int64),
    }
    arena, other = Arena(specs, shared=True), Arena(specs, shared=True)
    arena["weights"].copy_(torch.arange(100.0))
    arena["flags"][1] = True
    arena["count"].fill_(2**40)
    other.load(load(save(tmp_path, 1, {"arena": arena}, {})).groups["arena"])
    assert all(torch.equal(arena[name], other[name]) for name in specs)


def test_a_tensor_larger_than_one_chunk_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("passel.run.tensors.CHUNK", 1000)
    tensor = torch.arange(999, dtype=torch.int32)
    assert torch.equal(load(save(tmp_path, 1, {"memory": {"t": tensor}}, {})).groups["memory"]["t"], tensor)


def test_the_manifest_says_size_and_hash_and_the_library_reads_the_files(tmp_path: Path) -> None:
    path = save(tmp_path, 30, groups_of(4), {"seed": 2**100, "list": [1, 2.5, "x"]})
    manifest = json.loads((path / "manifest.json").read_text())
    assert path == tmp_path / "checkpoints" / "30"
    assert (manifest["format"], manifest["step"], manifest["meta"]["seed"]) == (2, 30, 2**100)
    assert manifest["files"].keys() == {"parameters.safetensors", "memory.safetensors"}
    for name, facts in manifest["files"].items():
        content = (path / name).read_bytes()
        assert facts == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert torch.equal(load_file(path / "memory.safetensors")["cursor"], torch.tensor(4))


def test_every_tensor_is_aligned_in_the_file_so_that_any_reader_may_map_it(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.ones(3).to(dtype) for dtype in DTYPES}
    content = (save(tmp_path, 1, {"all": tensors}, {}) / "all.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    assert start % 8 == 0
    for name, tensor in tensors.items():
        assert header[name]["data_offsets"][0] % tensor.element_size() == 0


def test_empty_groups_and_meta_round_trip(tmp_path: Path) -> None:
    found = load(save(tmp_path, 0, {"streams": {}}, {}))
    assert (found.step, found.groups, found.meta) == (0, {"streams": {}}, {})


def test_the_hash_is_of_the_file_even_while_the_memory_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, write = torch.zeros(1000), os.write

    def write_while_a_worker_writes(fd: int, data: Any) -> int:
        tensor.add_(1)
        return write(fd, data)

    monkeypatch.setattr(os, "write", write_while_a_worker_writes)
    assert load(save(tmp_path, 1, {"parameters": {"vector": tensor}}, {})).step == 1


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def renamed_file(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        edit_manifest(path, lambda m: m["files"].update({name: m["files"].pop("memory.safetensors")}))

    return damage


def not_tensors(path: Path) -> None:
    content = b"\xff" * 100
    (path / "memory.safetensors").write_bytes(content)
    facts = {"size": 100, "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(path, lambda m: m["files"].update({"memory.safetensors": facts}))


def a_pipe_instead_of_a_file(path: Path) -> None:
    (path / "memory.safetensors").unlink()
    os.mkfifo(path / "memory.safetensors")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped byte": (
        lambda p: flip_a_byte(p / "memory.safetensors"),
        "memory.safetensors does not match its SHA-256",
    ),
    "truncated": (
        lambda p: os.truncate(p / "memory.safetensors", 20),
        "memory.safetensors has 20 bytes and its manifest",
    ),
    "emptied": (lambda p: os.truncate(p / "memory.safetensors", 0), "memory.safetensors has 0 bytes"),
    "a missing file": (lambda p: (p / "memory.safetensors").unlink(), "memory.safetensors is missing"),
    "a pipe": (a_pipe_instead_of_a_file, "memory.safetensors is missing"),
    "a missing manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
    "bad json": (lambda p: (p / "manifest.json").write_text('{"format": 1,'), "manifest.json is not JSON"),
    "deep json": (lambda p: (p / "manifest.json").write_text("[" * 100_000), "manifest.json is not JSON"),
    "binary manifest": (lambda p: (p / "manifest.json").write_bytes(b"\xff\x00\xfe"), "manifest.json is not JSON"),
    "a list": (lambda p: (p / "manifest.json").write_text("[]"), "manifest.json is not a manifest"),
    "a later format": (lambda p: edit_manifest(p, lambda m: m.update(format=3)), "has format 3 and this passel reads"),
    "no digest": (lambda p: (p / "manifest.sha256").unlink(), "manifest.sha256 is missing"),
    "an earlier format": (lambda p: edit_manifest(p, lambda m: m.update(format=1.0)), "has format 1.0 and this passel"),
    "an unknown field": (lambda p: edit_manifest(p, lambda m: m.update(more=1)), "an unknown field 'more'"),
    "no pages": (lambda p: edit_manifest(p, lambda m: m.pop("pages")), "manifest.json has no pages"),
    "a pipe for a manifest": (lambda p: replaced_by(p / "manifest.json", os.mkfifo), "not a regular file"),
    "a folder for a manifest": (lambda p: replaced_by(p / "manifest.json", os.mkdir), "not a regular file"),
    "a device for a manifest": (
        lambda p: replaced_by(p / "manifest.json", lambda at: os.symlink("/dev/zero", at)),
        "a symbolic link",
    ),
    "a huge manifest": (lambda p: os.truncate(p / "manifest.json", 10**12), "larger than 32 MB"),
    "a huge file": (
        lambda p: edit_manifest(p, lambda m: m["files"]["memory.safetensors"].update(size=10**15)),
        "has 1,000,000,000 MB of tensors",
    ),
    "a name twice": (
        lambda p: seal(p, '{"step": 1, ' + (p / "manifest.json").read_text().lstrip()[1:]),
        "the key 'step' is there twice",
    ),
    "5,000 digits": (lambda p: seal(p, '{"step": ' + "9" * 5000 + "}"), "manifest.json is not JSON"),
    "a huge step": (lambda p: edit_manifest(p, lambda m: m.update(step=10**300)), "step is"),
    "pages of text": (lambda p: edit_manifest(p, lambda m: m.update(pages={"sizes": "x", "places": {}})), "no pages"),
    "no files": (lambda p: edit_manifest(p, lambda m: m.pop("files")), "manifest.json has no files"),
    "no facts": (lambda p: edit_manifest(p, lambda m: m["files"].update({"memory.safetensors": 3})), "says nothing of"),
    "another step": (lambda p: edit_manifest(p, lambda m: m.update(step=9)), "is of step 9, not 300"),
    "a path upwards": (renamed_file("../x.safetensors"), "names '../x.safetensors', which is no file of a checkpoint"),
    "a root path": (renamed_file("/etc/passwd"), "names '/etc/passwd'"),
    "a path down": (renamed_file("a/b.safetensors"), "names 'a/b.safetensors'"),
    "a nul": (renamed_file("a\0.safetensors"), "names 'a\\x00.safetensors'"),
    "a newline": (renamed_file("memory.safetensors\n"), "names 'memory.safetensors\\n'"),
    "dots": (renamed_file(".."), "names '..'"),
    "not tensors": (not_tensors, "memory.safetensors is not a .safetensors file"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named_and_the_checkpoint_before_is_used(tmp_path: Path, kind: str) -> None:
    damage, reason = DAMAGES[kind]
    for step in (100, 200, 300):
        save(tmp_path, step, groups_of(step // 10), {})
    damage(tmp_path / "checkpoints" / "300")
    if kind != "another step":  # the one thing that only the folder's name can tell
        with pytest.raises(BrokenCheckpoint) as caught:
            load(tmp_path / "checkpoints" / "300")
        assert reason in str(caught.value)
    messages: list[str] = []
    found = latest(tmp_path, messages.append)
    assert found is not None
    assert found.step == 200
    assert int(found.groups["memory"]["cursor"]) == 20
    assert len(messages) == 1
    assert reason in messages[0]
    assert str(tmp_path / "checkpoints" / "300") in messages[0]
    assert "the one before it, of step 200, is used" in messages[0]


def test_two_broken_ones_are_both_reported_and_all_broken_is_none(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, groups_of(step), {})
    messages: list[str] = []
    flip_a_byte(tmp_path / "checkpoints/3/memory.safetensors")
    flip_a_byte(tmp_path / "checkpoints/2/parameters.safetensors")
    found = latest(tmp_path, messages.append)
    assert found is not None
    assert found.step == 1
    assert ["3/memory" in messages[0], "2/parameters" in messages[1], len(messages)] == [True, True, 2]
    flip_a_byte(tmp_path / "checkpoints/1/memory.safetensors")
    messages.clear()
    assert latest(tmp_path, messages.append) is None
    assert all("there is no valid one before it" in message for message in messages)
    assert len(messages) == 3


def test_a_run_without_checkpoints_has_no_latest(tmp_path: Path) -> None:
    assert latest(tmp_path, silent) is None
    (tmp_path / "checkpoints").mkdir()
    assert latest(tmp_path, silent) is None


def test_the_newest_is_by_number_and_strangers_are_ignored(tmp_path: Path) -> None:
    for step in (9, 10):
        save(tmp_path, step, groups_of(step), {})
    (tmp_path / "checkpoints" / "best").mkdir()
    (tmp_path / "checkpoints" / "notes.txt").write_text("mine")
    (tmp_path / "checkpoints" / "099").mkdir()
    assert newest(tmp_path).step == 10
    save(tmp_path, 11, groups_of(11), {}, keep=1)
    assert {entry.name for entry in (tmp_path / "checkpoints").iterdir()} == {"11", "best", "notes.txt", "099"}


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    for step in (1, 5, 10, 20):
        save(tmp_path, step, groups_of(step), {}, keep=keep)
    assert {entry.name for entry in (tmp_path / "checkpoints").iterdir()} == {"1", "5", "10", "20"} - (
        {"1", "5", "10"} if keep == 1 else {"1", "5"} if keep == 2 else {"1"}
    )


def test_keeping_none_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(PasselError, match="at least 1"):
        save(tmp_path, 1, groups_of(1), {}, keep=0)
    assert names_in(tmp_path) == set()


def test_a_run_that_went_back_gives_up_the_later_checkpoints(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        save(tmp_path, step, groups_of(step // 10), {})
    flip_a_byte(tmp_path / "checkpoints/300/memory.safetensors")
    save(tmp_path, 250, groups_of(25), {}, keep=1)
    assert newest(tmp_path).step == 250
    assert {entry.name for entry in (tmp_path / "checkpoints").iterdir()} == {"250"}


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, 5, groups_of(1), {"try": 1})
    save(tmp_path, 5, groups_of(2), {"try": 2})
    assert newest(tmp_path).meta == {"try": 2}
    assert {entry.name for entry in (tmp_path / "checkpoints").iterdir()} == {"5"}


def test_a_replacement_cut_off_between_its_two_renames_is_still_found_and_then_mended(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    save(tmp_path, 5, groups_of(1), {})
    (checkpoints / "5").rename(checkpoints / ".replaced-5")
    assert newest(tmp_path).step == 5
    save(tmp_path, 6, groups_of(2), {})
    assert {entry.name for entry in checkpoints.iterdir()} == {"5", "6"}


def test_leftovers_of_a_killed_run_are_cleaned_by_the_next_save(tmp_path: Path) -> None:
    for name in (".writing-12ab", ".removing-34cd"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "memory.safetensors").write_text("half")
    save(tmp_path, 1, groups_of(1), {})
    assert {entry.name for entry in (tmp_path / "checkpoints").iterdir()} == {"1"}


def fail_at(monkeypatch: pytest.MonkeyPatch, call: int, code: int) -> Callable[[], int]:
    """Let the n-th of all writes, fsyncs and renames fail; returns how many there have been."""
    count = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            nonlocal count
            count += 1
            if count == call:
                raise OSError(code, os.strerror(code))
            return real(*arguments, **keywords)

        return wrapper

    for name in ("write", "fsync", "rename"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    return lambda: count


@pytest.mark.parametrize("step", [1, 2], ids=["the same step", "a new step"])
def test_a_full_disk_at_any_system_call_leaves_the_old_checkpoint_or_the_new_one(tmp_path: Path, step: int) -> None:
    save(tmp_path, 1, groups_of(1), {})
    before = names_in(tmp_path)
    refusals: list[str] = []
    for call in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            calls = fail_at(patch, call, errno.ENOSPC)
            try:
                save(tmp_path, step, groups_of(2), {})
            except PasselError as error:
                refusals.append(str(error))
        found = newest(tmp_path)
        number = int(found.groups["memory"]["cursor"])
        assert number in (1, 2)
        assert not [name for name in names_in(tmp_path) if "/." in name]
        if calls() < call:
            break
        if number == 1:
            assert names_in(tmp_path) == before
        shutil.rmtree(tmp_path / "checkpoints")
        save(tmp_path, 1, groups_of(1), {})
    assert number == 2, "without a fault the new one is there"
    assert len(refusals) >= 10
    for message in refusals:
        assert message.startswith("no space left on disk for the checkpoint: needs 0.1 MB, ")
        assert message.endswith(f" MB free in {tmp_path}. Free some space or choose another --out.")


def test_a_first_save_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, 3, errno.ENOSPC)
    with pytest.raises(PasselError, match="no space left"):
        save(tmp_path, 1, groups_of(1), {})
    assert names_in(tmp_path) == set()


def test_too_little_space_is_noticed_before_a_byte_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=3_000_000))
    calls = fail_at(monkeypatch, 0, 0)
    with pytest.raises(PasselError, match=r"needs 8\.1 MB, 3\.0 MB free in"):
        save(tmp_path, 1, {"memory": {"t": torch.zeros(2_000_000)}}, {})
    assert calls() == 0
    assert names_in(tmp_path) == set()


def test_a_limit_set_by_the_kernel_in_the_middle_of_a_file_leaves_nothing(tmp_path: Path) -> None:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
    try:
        with pytest.raises(PasselError, match=r"cannot be written .*File too large.* another --out"):
            save(tmp_path, 1, {"parameters": {"t": torch.zeros(10)}, "memory": {"t": torch.zeros(100_000)}}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert names_in(tmp_path) == set()


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 1, groups_of(1), {})
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize("group", ["../x", "a/b", "", "a.b"])
def test_a_group_is_a_file_name_and_nothing_else(tmp_path: Path, group: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        save(tmp_path, 1, {group: {}}, {})
    assert names_in(tmp_path) == set()


def test_a_type_that_the_format_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"cannot hold z of type torch\.complex128"):
        save(tmp_path, 1, {"g": {"z": torch.zeros(2, dtype=torch.complex128)}}, {})
    assert names_in(tmp_path) == set()
