"""Studies: each run once, results on disk at once, and what fails costs nothing but itself."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from harness import rows
from passel.study.jobs import Job, run_jobs
from passel.types import PasselError


def job(key: str, program: str) -> Job:
    return Job(key, (sys.executable, "-c", program))


def test_each_runs_once_and_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    program = f"open({str(tmp_path / 'ran')!r}, 'a').write('x'); print('words'); print('{{\"score\": 3}}')"
    said: list[str] = []
    for _ in range(2):
        found = run_jobs([job("a", program), job("b", program)], tmp_path / "results.jsonl", say=said.append)
        assert found == {"a": {"score": 3}, "b": {"score": 3}}
    assert (tmp_path / "ran").read_text() == "xx"
    assert rows(tmp_path / "results.jsonl") == [{"key": "a", "score": 3}, {"key": "b", "score": 3}]
    assert said[0] == "2 runs, of which 0 are there."
    assert said[-1] == "2 runs, of which 2 are there."


def test_one_that_fails_is_said_and_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    broken = job("a", "raise SystemExit('no such game')")
    fine = job("b", "print('{}')")
    assert run_jobs([broken, fine], tmp_path / "r.jsonl", say=said.append) == {"b": {}}
    assert any("a failed" in line and "no such game" in line for line in said)
    assert run_jobs([job("a", "print('{\"x\": 1}')"), fine], tmp_path / "r.jsonl") == {"a": {"x": 1}, "b": {}}


@pytest.mark.parametrize("program", ["", "print('words')", "print([1])"])
def test_one_without_a_result(tmp_path: Path, program: str) -> None:
    said: list[str] = []
    assert run_jobs([job("a", program)], tmp_path / "r.jsonl", say=said.append) == {}
    assert any("printed no result" in line for line in said)


def test_a_torn_last_line_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"key": "a", "x": 1}\n{"key": "b", "x"')
    found = run_jobs([job("a", "print('{\"x\": 2}')"), job("b", "print('{\"x\": 2}')")], tmp_path / "r.jsonl")
    assert found == {"a": {"x": 1}, "b": {"x": 2}}


def test_several_at_once(tmp_path: Path) -> None:
    """Each of two waits until the other has begun: one after the other, neither would end."""
    meet = (
        "import pathlib, time; here = pathlib.Path({0!r}); (here / {1!r}).touch()\n"
        "while not (here / {2!r}).exists(): time.sleep(0.01)\n"
        "print('{{}}')"
    )
    jobs = [job("a", meet.format(str(tmp_path), "a", "b")), job("b", meet.format(str(tmp_path), "b", "a"))]
    assert len(run_jobs(jobs, tmp_path / "r.jsonl", at_once=2, timeout=60)) == 2


def test_one_that_never_ends(tmp_path: Path) -> None:
    said: list[str] = []
    began = time.monotonic()
    assert run_jobs([job("a", "import time; time.sleep(100)")], tmp_path / "r", timeout=1, say=said.append) == {}
    assert time.monotonic() - began < 30
    assert any("did not end within 1 s" in line for line in said)


def test_keys_must_differ(tmp_path: Path) -> None:
    with pytest.raises(PasselError, match="two jobs of a study have the key a"):
        run_jobs([job("a", ""), job("a", "")], tmp_path / "r.jsonl")
