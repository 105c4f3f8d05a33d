"""episodes.csv: a row an episode, read back as written, cut at a checkpoint, whatever happened to the file."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import replaced_by
from passel.run.episodes import HEADER, EpisodeFile, csv_rows
from passel.run.folder import RunFolder
from passel.types import Episode, PasselError


def rows_of(*steps: int) -> bytes:
    return b"".join(csv_rows(step, step / 10, {step % 3: [Episode(step / 7, step + 1)]}) for step in steps)


def created(path: Path) -> RunFolder:
    return RunFolder.create(path, {"env": "x", "algo": "dqn"}, {})


def test_episodes_are_read_back_as_they_were(tmp_path: Path) -> None:
    with created(tmp_path / "x") as run:
        assert len(run.read_episodes()) == 0
        run.add_episodes(csv_rows(10, 0.12345, {0: [Episode(1 / 3, 4), Episode(-2.0, 5)], 2: [Episode(1e300, 6)]}))
        run.add_episodes(csv_rows(20, 1.0, {1: [Episode(math.inf, 7)]}))
        found = run.read_episodes()
    assert (tmp_path / "x" / "episodes.csv").read_text() == (
        "step,second,worker,return,length\n"
        "10,0.123,0,0.3333333333333333,4\n10,0.123,0,-2.0,5\n10,0.123,2,1e+300,6\n20,1.000,1,inf,7\n"
    )
    assert found.dtype.names == ("step", "second", "worker", "return", "length")
    assert found["return"].tolist() == [1 / 3, -2.0, 1e300, math.inf]
    assert found["length"].tolist() == [4, 5, 6, 7]
    assert found["worker"].tolist() == [0, 0, 2, 1]
    assert found["step"].tolist() == [10, 10, 10, 20]


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    assert csv_rows(1, 2.0, {0: [Episode(np.float64(0.5), 3)]}) == b"1,2.000,0,0.5,3\n"


@given(
    steps=st.lists(st.integers(0, 60), max_size=80).map(sorted),
    cut=st.integers(-1, 61),
)
@settings(deadline=None)
def test_rows_after_a_checkpoint_are_dropped_and_no_others(
    steps: list[int], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = EpisodeFile(tmp_path_factory.mktemp("x") / "episodes.csv")
    file.append(rows_of(*steps))
    file.truncate(cut)
    assert file.path.read_bytes() == HEADER + rows_of(*(step for step in steps if step <= cut))
    file.append(rows_of(61))
    assert file.read()["step"].tolist() == [*(step for step in steps if step <= cut), 61]
    file.close()


@pytest.mark.parametrize("tail", [b"7", b"7,0.7,1,1.", b"\x00" * 5000])
def test_a_torn_last_row_is_passed_over_and_never_continued(tmp_path: Path, tail: bytes) -> None:
    with created(tmp_path / "x") as run:
        run.add_episodes(rows_of(1, 2))
    path = tmp_path / "x" / "episodes.csv"
    with path.open("ab") as file:
        file.write(tail)
    if len(tail) < 200:
        with RunFolder.open(tmp_path / "x", lock=False) as reader:
            assert reader.read_episodes()["step"].tolist() == [1, 2]
    with RunFolder.open(tmp_path / "x") as run:
        run.add_episodes(rows_of(4))
        assert run.read_episodes()["step"].tolist() == [1, 2, 4]


def test_a_header_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    created(tmp_path / "x").close()
    (tmp_path / "x" / "episodes.csv").write_bytes(HEADER[:10])
    with RunFolder.open(tmp_path / "x") as run:
        run.add_episodes(rows_of(1))
        assert run.read_episodes()["step"].tolist() == [1]


@pytest.mark.parametrize(
    "row", [b"rubbish", b"3,0.3,1,1.0", b"3,0.3,1,1.0,5,6", b"x,0.3,1,1.0,5", b"9" * 30 + b",1,1,1,1"]
)
def test_a_bad_row_in_the_middle_is_named(tmp_path: Path, row: bytes) -> None:
    created(tmp_path / "x").close()
    (tmp_path / "x" / "episodes.csv").write_bytes(HEADER + rows_of(1, 2) + row + b"\n" + rows_of(4))
    with RunFolder.open(tmp_path / "x", lock=False) as run, pytest.raises(PasselError, match=r"line 4, .* is no row"):
        run.read_episodes()


def test_a_full_disk_tears_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with created(tmp_path / "x") as run:
        run.add_episodes(rows_of(1))
        real, calls = os.write, 0

        def nearly_full(fd: int, data: Any) -> int:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, data[:3])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", nearly_full)
            with pytest.raises(PasselError, match=r"episodes\.csv cannot be written \(No space left"):
                run.add_episodes(rows_of(2))
        run.add_episodes(rows_of(3))
        assert run.read_episodes()["step"].tolist() == [1, 3]


def test_a_file_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    """A run of an earlier version has no such file; its user may."""
    created(tmp_path / "x").close()
    path = tmp_path / "x" / "episodes.csv"
    path.write_text("my,own,table\n1,2,3\n")
    with pytest.raises(PasselError, match=r"its first line is not step,second,worker,return,length.*move it away"):
        RunFolder.open(tmp_path / "x")
    assert path.read_text() == "my,own,table\n1,2,3\n"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: replaced_by(path, os.mkfifo),
        lambda path: replaced_by(path, os.mkdir),
        lambda path: os.truncate(path, 10**12),
        lambda path: path.write_bytes(HEADER + b"7" * 3_000_000),
        lambda path: os.link(path, path.with_name("second")),
    ],
    ids=["a pipe", "a folder", "huge", "one line", "a second name"],
)
def test_what_is_no_file_of_episodes_is_refused_at_once(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    with created(tmp_path / "x") as run:
        run.add_episodes(rows_of(1, 2))
    damage(tmp_path / "x" / "episodes.csv")
    began = time.perf_counter()
    with pytest.raises(PasselError, match=r"episodes\.csv (cannot be read|is no file of episodes)"):
        RunFolder.open(tmp_path / "x")
    assert time.perf_counter() - began < 5


def test_a_provisional_run_takes_it_along(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "x", {"env": "x", "algo": "dqn"}, {}, provisional=True) as run:
        run.add_episodes(rows_of(1))
        assert (tmp_path / "x" / "episodes.csv").exists()
    assert not (tmp_path / "x").exists()


def test_without_the_lock_nothing_can_be_written(tmp_path: Path) -> None:
    created(tmp_path / "x").close()
    run = RunFolder.open(tmp_path / "x", lock=False)
    for write in (lambda: run.add_episodes(b""), lambda: run.truncate_episodes(0)):
        with pytest.raises(PasselError, match="reading only"):
            write()


def test_a_million_episodes_are_cut_without_being_read(tmp_path: Path) -> None:
    file = EpisodeFile(tmp_path / "episodes.csv")
    for start in range(0, 1_000_000, 100_000):
        block = "".join(f"{step},{step}.000,0,1.0,1\n" for step in range(start, start + 100_000))
        file.append(block.encode())
    assert file.path.stat().st_size < 40_000_000
    began = time.perf_counter()
    file.truncate(700_000)
    assert time.perf_counter() - began < 0.5
    file.close()
    assert file.path.read_bytes().endswith(b"\n700000,700000.000,0,1.0,1\n")
