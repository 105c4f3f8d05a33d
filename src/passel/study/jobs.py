"""Many training runs, some at a time. Results are on disk as they come: a study that was stopped goes on later."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from passel.run.lines import JsonLines
from passel.types import PasselError
from passel.view.format import format_duration

Result = dict[str, Any]
STOP_PATIENCE = 20.0  # seconds that a run may take to save what it has after it is asked to stop


@dataclass(frozen=True)
class Job:
    """One command that prints its result as JSON on the last line. `key` says what the result is of."""

    key: str
    command: tuple[str, ...]


class JobError(PasselError):
    """A command failed; the message holds the end of what it said."""


def run_jobs(
    jobs: Sequence[Job],
    results: Path,
    *,
    at_once: int = 1,
    timeout: float = 3600.0,
    say: Callable[[str], None] = print,
) -> dict[str, Result]:
    """Run every job whose key `results`, a file of JSON lines, does not have yet; all results, by key.

    A job that fails is said and left out, and the others go on; it is tried again by the next call.
    """
    twice = [job.key for i, job in enumerate(jobs) if job.key in {other.key for other in jobs[:i]}]
    if twice:
        raise PasselError(f"two jobs of a study have the key {twice[0]}. Give each its own.")
    lines = JsonLines(results)
    lines.repair()
    known = {row.pop("key"): row for row in lines.read()}
    waiting = [job for job in jobs if job.key not in known]
    say(f"{len(jobs)} runs, of which {len(jobs) - len(waiting)} are there.")
    began, ended = time.monotonic(), 0
    pool = _Pool(at_once, timeout)
    try:
        for job, outcome in pool.run(waiting):
            ended += 1
            left = format_duration((time.monotonic() - began) / ended * (len(waiting) - ended))
            if isinstance(outcome, JobError):
                say(f"[{ended}/{len(waiting)}, {left} left] {job.key} failed: {outcome}")
                continue
            lines.append({"key": job.key, **outcome})
            known[job.key] = outcome
            say(f"[{ended}/{len(waiting)}, {left} left] {job.key}")
    finally:
        pool.stop()
        lines.close()
    return {job.key: known[job.key] for job in jobs if job.key in known}


class _Pool:
    """Commands, `at_once` at a time. Each has a process of its own, which ends with this one."""

    def __init__(self, at_once: int, timeout: float) -> None:
        self._threads, self._timeout = ThreadPoolExecutor(at_once), timeout
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopped = threading.Event()

    def run(self, jobs: Sequence[Job]) -> Any:
        """Each job with what came of it, in the order in which they end."""
        running: dict[Future[Result | JobError], Job] = {self._threads.submit(self._one, job): job for job in jobs}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()

    def stop(self) -> None:
        self._stopped.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self._processes):
            process.terminate()
        for process in list(self._processes):
            try:
                process.wait(STOP_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()

    def _one(self, job: Job) -> Result | JobError:
        if self._stopped.is_set():
            return JobError("stopped")
        process = subprocess.Popen(job.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._processes.add(process)
        try:
            said, errors = process.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return JobError(f"{shlex.join(job.command)} did not end within {self._timeout:.0f} s.")
        finally:
            self._processes.discard(process)
        if process.returncode:
            return JobError(f"{shlex.join(job.command)} ended with {process.returncode}:\n{errors[-2000:]}")
        try:
            found = json.loads(said.splitlines()[-1])
        except (IndexError, ValueError):
            found = None
        return found if isinstance(found, dict) else JobError(f"{shlex.join(job.command)} printed no result.")
