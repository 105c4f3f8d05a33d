"""How much memory a run holds, workers and shared blocks included, each page counted once."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import psutil

_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


def tree_rss_mb(pid: int) -> float:
    """Megabytes held by a process and all its descendants; 0 if it has gone.

    Resident sizes count a shared page once for every worker that touched it, so a replay memory shared by eight would
    count eight times. Linux also tells the proportional size (PSS), which divides a page by its users; elsewhere the
    resident size is all there is.
    """
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0.0
    return sum(_process_bytes(process) for process in tree) / 1e6


class PeakRss:
    """The largest of the samples so far: call `sample` at every report, and read `mb` at the end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.mb = 0.0

    def sample(self) -> float:
        """Megabytes now."""
        now = tree_rss_mb(self.pid)
        self.mb = max(self.mb, now)
        return now


def _process_bytes(process: psutil.Process) -> int:
    with suppress(OSError):
        found = _PSS.search(Path(f"/proc/{process.pid}/smaps_rollup").read_bytes())
        if found:
            return int(found[1]) * 1024
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
