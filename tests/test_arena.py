"""One block of memory for everything: aligned, shared by descriptor, and gone with the last process that holds it."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from passel import arena as arenas
from passel.arena import ALIGNMENT, Arena, Spec, Tensors, cells, prefixed
from passel.place.forkserver import context, main_hidden, warm_up
from passel.types import PasselError
from teams import add_one

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]
SPECS = {
    "a": Spec((3,)),
    "room/b": Spec((2, 5), torch.uint8),
    "room/c": Spec((), torch.int64),
    "room/d/e": Spec((0, 4)),
}

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
layouts = st.dictionaries(
    st.text("abc/", min_size=1, max_size=6), st.builds(Spec, shapes, st.sampled_from(DTYPES)), max_size=8
)


@given(layouts, st.booleans())
def test_every_tensor_has_its_shape_its_type_and_its_own_cache_lines(specs: dict[str, Spec], shared: bool) -> None:
    arena = Arena(specs, shared=shared)
    taken: set[int] = set()
    for name, spec in specs.items():
        tensor = arena[name]
        assert tuple(tensor.shape) == spec.shape
        assert tensor.dtype == spec.dtype
        assert not tensor.any()
        if tensor.numel():
            assert tensor.data_ptr() % ALIGNMENT == 0
            lines = set(range(tensor.data_ptr() // ALIGNMENT, (tensor.data_ptr() + spec.nbytes - 1) // ALIGNMENT + 1))
            assert not lines & taken
            taken |= lines
    assert list(arena) == list(specs)
    assert len(taken) * ALIGNMENT <= arena.nbytes


@given(layouts)
def test_writing_one_tensor_changes_no_other(specs: dict[str, Spec]) -> None:
    arena = Arena(specs)
    for name in specs:
        arena[name].fill_(1)
        assert all(bool(arena[other].all()) == (other == name) for other in specs if arena[other].numel())
        arena[name].zero_()


def test_nbytes_of_a_spec_is_that_of_its_tensor() -> None:
    for dtype in DTYPES:
        for shape in [(), (0,), (3, 5), (2, 0, 4)]:
            tensor = torch.zeros(shape, dtype=dtype)
            assert Spec(shape, dtype).nbytes == tensor.numel() * tensor.element_size()


def test_below_and_prefixed_are_inverse() -> None:
    arena = Arena(SPECS)
    room = arena.below("room")
    assert set(room) == {"b", "c", "d/e"}
    assert room["b"].data_ptr() == arena["room/b"].data_ptr()
    assert set(arena.below("ro")) == set(), "a prefix is a whole word"
    assert len(arena.below("nothing")) == 0
    assert prefixed("room", {"b": SPECS["room/b"]}) == {"room/b": SPECS["room/b"]}
    assert isinstance(arena.below("room").below("d"), Tensors)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_cells_are_the_same_memory_one_number_at_a_time(dtype: torch.dtype) -> None:
    arena = Arena({"table": Spec((3, 4), dtype)})
    column = cells(arena["table"].numpy()[:, 1])
    column[2] += 5
    assert arena["table"][2, 1] == 5
    arena["table"][0, 1] = 7
    assert sum(column) == 12
    assert type(column[0]) is (int if dtype == torch.int64 else float)


class TestLoad:
    def full(self) -> Arena:
        arena = Arena({**SPECS, "scratch": Spec((2,), keep=False)})
        for number, tensor in enumerate(arena.values(), start=1):
            tensor.fill_(number)
        return arena

    def test_what_is_kept_is_what_is_loaded(self) -> None:
        saved = self.full()
        arena = Arena(saved.specs)
        assert set(saved.kept()) == set(SPECS)
        arena.load(saved.kept())
        assert all(torch.equal(arena[name], saved[name]) for name in SPECS)
        assert not arena["scratch"].any()

    @pytest.mark.parametrize(
        "wrong",
        [None, torch.zeros(4), torch.zeros(1, 3), torch.zeros(3, dtype=torch.float64)],
        ids=["missing", "longer", "another shape", "another type"],
    )
    def test_what_does_not_fit_is_refused_by_name(self, wrong: Any) -> None:
        content = {**self.full().kept(), "a": wrong}
        if wrong is None:
            del content["a"]
        with pytest.raises(PasselError, match=r"no a of shape \(3,\) and type torch.float32"):
            Arena(SPECS).load(content)

    def test_loading_copies(self) -> None:
        saved = self.full()
        arena = Arena(saved.specs)
        arena.load(saved.kept())
        saved["a"].zero_()
        assert arena["a"].tolist() == [1, 1, 1]


class TestShared:
    def test_what_a_child_writes_the_parent_sees_and_the_other_way_round(self) -> None:
        warm_up()
        arena = Arena({"numbers": Spec((4,)), "room/count": Spec((), torch.int64)}, shared=True)
        arena["numbers"].copy_(torch.arange(4))
        process = context().Process(target=add_one, args=(arena,))
        with main_hidden():
            process.start()
        process.join(30)
        assert process.exitcode == 0
        assert arena["numbers"].tolist() == [1, 2, 3, 4]
        assert int(arena["room/count"]) == os.getpid(), "the child wrote down whose child it is"

    @pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of what is mapped")
    def test_nothing_is_left_in_dev_shm(self) -> None:
        """Of what this process maps: other processes of the tests come and go there."""

        def named() -> set[str]:
            lines = Path("/proc/self/maps").read_text().splitlines()
            return {line.split()[-1] for line in lines if "/dev/shm/" in line and not line.endswith("(deleted)")}

        before = named()
        arena = Arena({"block": Spec((1000, 1000))}, shared=True)
        arena["block"].fill_(1)
        assert named() <= before

    def test_memory_and_descriptor_go_with_the_arena(self) -> None:
        """A notebook trains many times in one process."""
        process = psutil.Process()
        Arena({"block": Spec((1000,))}, shared=True)
        gc.collect()
        before = process.num_fds()
        for _ in range(5):
            Arena({"block": Spec((1000, 1000))}, shared=True)["block"].fill_(1)
        gc.collect()
        assert process.num_fds() <= before

    def test_tensors_outlive_the_arena_s_name(self) -> None:
        block = Arena({"block": Spec((1000,))}, shared=True)["block"]
        gc.collect()
        block.fill_(2)
        assert block.sum() == 2000

    @pytest.mark.parametrize("nbytes", [1 << 50, 1 << 45])
    def test_more_than_there_is_is_refused_with_the_cure(self, nbytes: int) -> None:
        before = psutil.Process().num_fds()
        with pytest.raises(PasselError, match=r"MB of shared memory.*--capacity"):
            Arena({"block": Spec((nbytes,), torch.uint8)}, shared=True)
        assert psutil.Process().num_fds() == before

    def test_a_private_arena_cannot_be_sent(self) -> None:
        with pytest.raises(TypeError, match="private"):
            Arena(SPECS).__getstate__()


class TestInPages:
    SPECS: ClassVar = {
        "small": Spec((100,)),
        "log/rows": Spec((2, 50_000_000), torch.uint8, pages="versions"),
        "log/versions": Spec((2, 5), torch.int64),
    }

    def test_their_memory_is_taken_when_they_are_written_and_that_of_others_at_once(self) -> None:
        arena = Arena(self.SPECS, shared=True)
        taken = os.fstat(arena._fd).st_blocks * 512
        assert 400 <= taken < 1_000_000
        arena["log/rows"][0, :10_000_000].fill_(1)
        assert 9_900_000 <= os.fstat(arena._fd).st_blocks * 512 - taken < 11_000_000

    def test_they_are_kept_apart_from_the_others(self) -> None:
        arena = Arena(self.SPECS)
        assert arena.kept().keys() == {"small", "log/versions"}
        assert arena.paged().keys() == {"log/rows"}
        assert arena.paged()["log/rows"].versions.data_ptr() == arena["log/versions"].data_ptr()


class TestFreeMemory:
    @pytest.mark.parametrize(
        ("groups", "files", "expected"),
        [
            ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "5000", "a/memory.current": "1000"}, [4300]),
            ("0::/a", {"a/memory.max": "5000", "a/memory.current": "1000", "memory.max": "max"}, [4300]),
            ("0::/elsewhere", {"memory.max": "9000", "memory.current": "1000"}, [8300]),
            (
                "4:memory:/x\n3:cpu:/x",
                {"memory/x/memory.limit_in_bytes": "700", "memory/x/memory.usage_in_bytes": "600"},
                [400],
            ),
            ("nonsense", {}, []),
            (None, {}, []),
        ],
    )
    def test_every_limit_above_us_counts(
        self, tmp_path: Path, groups: str | None, files: dict[str, str], expected: list[int]
    ) -> None:
        (tmp_path / "proc/self").mkdir(parents=True)
        if groups is not None:
            (tmp_path / "proc/self/cgroup").write_text(groups)
        for name, text in files.items():
            file = tmp_path / "sys/fs/cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            (file.parent / "memory.stat").write_text("anon 5\ninactive_file 300\n")
        assert arenas._left_in_groups(tmp_path) == expected

    def test_it_is_no_more_than_the_system_has(self) -> None:
        assert 0 < arenas.free_memory() <= psutil.virtual_memory().total
