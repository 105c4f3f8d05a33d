"""The memory of a process tree: everything in it, and shared pages once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from passel.run.rss import PeakRss, tree_rss_mb

MB = 10**6
FILLED = f"block = bytearray(b'x') * (60 * {MB}); print('ready', flush=True); input()"
NESTED = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FILLED!r}])"
SHARED = f"""
import mmap, os
block = mmap.mmap(-1, 60 * {MB})
block.write(b"x" * (60 * {MB}))
block.seek(0)
if os.fork() == 0:
    while block.read({MB}):
        pass
    print("ready", flush=True)
    input()
else:
    os.wait()
"""


@contextmanager
def python(code: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.communicate(b"\n")


@pytest.mark.parametrize("code", [FILLED, NESTED], ids=["child", "grandchild"])
def test_the_memory_of_descendants_is_counted(code: str) -> None:
    before = tree_rss_mb(os.getpid())
    with python(code) as pid:
        alone, all_of_us = tree_rss_mb(pid), tree_rss_mb(os.getpid())
    assert 60 < alone < 110
    # Some pages that were this process's alone are now shared with the child, so the sum is not quite additive.
    assert before + 50 < all_of_us < before + 120


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells proportional sizes")
def test_pages_shared_by_two_processes_are_counted_once() -> None:
    with python(SHARED) as pid:
        assert 60 < tree_rss_mb(pid) < 110


def test_a_process_that_has_gone_has_no_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert tree_rss_mb(child.pid) == 0.0


def test_a_zombie_in_the_tree_does_no_harm() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()  # it has ended or is about to, and has not been waited for
    assert tree_rss_mb(os.getpid()) > 10
    child.wait()
    child.stdout.close()


def test_where_the_proportional_size_cannot_be_read_the_resident_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: object) -> bytes:
        raise PermissionError

    proportional = tree_rss_mb(os.getpid())
    monkeypatch.setattr("pathlib.Path.read_bytes", forbidden)
    resident = tree_rss_mb(os.getpid())
    assert proportional <= resident * 1.05
    assert resident > 10


def test_the_peak_stays_when_the_memory_goes() -> None:
    peak = PeakRss(os.getpid())
    with python(FILLED):
        high = peak.sample()
    low = peak.sample()
    assert peak.mb == high
    assert low < high - 40
