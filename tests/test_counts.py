"""The count of tests by folder fails a run in which some were lost, and only a run of everything."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite of four tests in two folders, one of which is skipped, with our conftest above it."""
    tests = tmp_path / "tests"
    (tests / "room").mkdir(parents=True)
    shutil.copy(CONFTEST, tests)
    (tests / "test_top.py").write_text("def test_one(): pass\n")
    (tests / "room" / "test_room.py").write_text(
        "import pytest\ndef test_one(): pass\ndef test_two(): pass\n@pytest.mark.skip\ndef test_three(): pass\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    return tmp_path


def run(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=60, check=False)


def floors(suite: Path, **counts: int) -> None:
    names = {"room": "tests/room", "top": "tests/test_top.py"}
    (suite / "tests" / "counts.json").write_text(json.dumps({names[name]: count for name, count in counts.items()}))


def test_a_run_of_everything_prints_its_counts_and_passes_at_the_floor(suite: Path) -> None:
    floors(suite, room=2, top=1)
    done = run(suite)
    assert done.returncode == 0
    assert "2  tests/room" in done.stdout
    assert "1  tests/test_top.py" in done.stdout
    assert "3  in all" in done.stdout


def test_a_run_of_everything_fails_below_the_floor_and_says_where(suite: Path) -> None:
    floors(suite, room=3, top=1)
    done = run(suite)
    assert done.returncode == 1
    assert "only 2 tests ran in tests/room, and 3 must" in done.stdout


@pytest.mark.parametrize("part", [["tests/room"], ["-k", "one"], ["--deselect", "tests/test_top.py"], ["-x"]], ids=str)
def test_a_part_of_the_suite_is_never_too_little(suite: Path, part: list[str]) -> None:
    floors(suite, room=300, top=300)
    done = run(suite, *part)
    assert done.returncode == 0
    assert "in all" in done.stdout


def test_the_floor_is_rewritten_on_request_and_by_a_whole_run_only(suite: Path) -> None:
    floors(suite, room=300)
    refused = run(suite, "--update-counts", "tests/room")
    assert refused.returncode == 4
    assert "whole suite" in refused.stderr
    done = run(suite, "--update-counts")
    assert done.returncode == 0
    assert json.loads((suite / "tests" / "counts.json").read_text()) == {"tests/room": 2, "tests/test_top.py": 1}


def test_the_floors_of_this_suite_name_folders_that_exist() -> None:
    counts = json.loads(CONFTEST.with_name("counts.json").read_text())
    for name, floor in counts.items():
        assert (CONFTEST.parent.parent / name).exists(), name
        assert floor > 0
