"""What every measurement shares: a fair order, a clean process for each contender, progress, and a result on disk.

Light to import: the scripts that run inside a peer's environment use it too, and passel need not be installed there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEER_PACKAGES = ("stable-baselines3", "sbx-rl", "torch", "jax")
RESULTS = HERE / "results"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "XLA_FLAGS")
STOPPED = 130  # exit code of a run that was asked to stop
STOP_PATIENCE = 60.0  # seconds


class BenchError(Exception):
    """A contender failed; the message holds the end of what it said."""


def parser(text: str | None, *, peers: bool = False) -> argparse.ArgumentParser:
    """The flags that every measurement has."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--python", default=sys.executable, help="The Python that runs passel (default: this one).")
    if peers:
        made.add_argument(
            "--peers-python", default=sys.executable, help="The Python that runs the peers (default: this one)."
        )
    made.add_argument("--out", type=Path, default=RESULTS, help="Folder for the result (default: bench/results).")
    return made


def call(command: Sequence[object], *, timeout: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a contender in a process of its own, and read the JSON on the last line that it prints.

    Settings of threads that this process has inherited are not passed on: each contender sets its own.
    """
    clean = {name: value for name, value in os.environ.items() if name not in _THREAD_VARIABLES}
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=timeout, env={**clean, **(env or {})}, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{shlex.join(words)} did not end within {timeout:.0f} s") from None
    if done.returncode:
        raise BenchError(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as flags of `passel train`."""
    words: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list | tuple):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return words


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one run, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="passel-bench-") as folder:
        yield Path(folder) / "run"


def train(python: str, settings: Mapping[str, Any], *, limit: float) -> dict[str, Any]:
    """One `passel train`, as a user would start it. Its summary, and the wall seconds from command to exit.

    After `limit` seconds it is asked to stop, as Ctrl-C would: it ends as "stopped", with all its counts.
    """
    with scratch() as out:
        words = [python, "-m", "passel", "train", "--quiet", "--out", str(out), *flags(settings)]
        start = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, said = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            said = _stop(process)
        wall = time.perf_counter() - start
        if process.returncode not in (0, STOPPED):
            raise BenchError(f"{shlex.join(words)} ended with {process.returncode}:\n{said[-2000:]}")
        if not (out / "summary.json").exists():
            raise BenchError(f"{shlex.join(words)} was stopped after {limit:g} s, before it had begun. Allow it more.")
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary | {"wall_seconds": wall}


def _stop(process: subprocess.Popen[str]) -> str:
    """Ask it to stop, then insist. What it said."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=STOP_PATIENCE)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[1]


class Progress:
    """Says on stderr what is being measured, and when it will all be over."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._start = total, 0, time.perf_counter()

    def begin(self, what: str) -> None:
        gone = time.perf_counter() - self._start
        left = f", {clock(gone / self._done * (self._total - self._done))} left" if self._done else ""
        print(f"[{self._done + 1}/{self._total}{left}] {what}", file=sys.stderr, flush=True)

    def end(self, outcome: str) -> None:
        self._done += 1
        print(f"    {outcome}", file=sys.stderr, flush=True)


def alternating(contenders: Sequence[str], repeats: int) -> Iterator[tuple[int, str]]:
    """Every contender once a round, and the order turns round by round: what a busy machine or a warm processor does
    to one, it does to all.
    """
    for repeat in range(repeats):
        for name in contenders if repeat % 2 == 0 else reversed(contenders):
            yield repeat, name


def measure(
    contenders: Mapping[str, Callable[[int], dict[str, Any]]],
    repeats: int,
    progress: Progress,
    tell: Callable[[dict[str, Any]], str],
) -> dict[str, list[dict[str, Any]]]:
    """Call every contender `repeats` times, alternating, with the number of the round."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for repeat, name in alternating(list(contenders), repeats):
        progress.begin(f"{name}, round {repeat + 1} of {repeats}")
        result = contenders[name](repeat)
        found[name].append(result)
        progress.end(tell(result))
    return found


def middle(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers to the right."""

    def numeric(column: int) -> bool:
        cells = [row[column] for row in rows]
        return bool(cells) and all(str(cell)[:1].isdigit() or str(cell)[:1] in "-–" for cell in cells)

    rule = ["---:" if numeric(column) else "---" for column in range(len(head))]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *rows))


def number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def clock(seconds: float) -> str:
    whole = round(seconds)
    minutes = f"{whole // 60 % 60}:{whole % 60:02}"
    return f"{whole // 3600}:{minutes:>05}" if whole >= 3600 else minutes


def shares(found: Mapping[str, float]) -> str:
    """The stages that took a hundredth of the time or more, the largest first."""
    largest = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{stage} {share:.0%}" for stage, share in largest if share >= 0.01) or "–"


def mean_shares(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    stages = dict.fromkeys(stage for report in reports for stage in report)
    return {stage: statistics.fmean(report.get(stage, 0.0) for report in reports) for stage in stages}


def machine() -> dict[str, Any]:
    """The facts without which a speed means nothing."""
    from passel.run.card import machine_card

    return machine_card() | {"load_before": round(os.getloadavg()[0], 2), "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def peer_versions(python: str) -> dict[str, str]:
    """The versions of the peers, and of what they compute with, in another Python's environment."""
    code = (
        "import json, sys\nfrom importlib.metadata import distributions\n"
        "found = {d.name.lower().replace('_', '-'): d.version for d in distributions()}\n"
        "print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))"
    )
    found = call([python, "-c", code, *PEER_PACKAGES], timeout=60)
    missing = [name for name in PEER_PACKAGES if name not in found]
    if missing:
        raise BenchError(
            f"{python} has no {' and no '.join(missing)}. Install them with `pip install 'passel[bench]'`, "
            "or name an environment that has them with --peers-python."
        )
    return dict(found)


def write(
    name: str, title: str, folder: Path, card: Mapping[str, Any], sections: Sequence[str], data: Mapping[str, Any]
) -> None:
    """`name`.md for people and `name`.json for programs, with the command, the date and the machine."""
    command = shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *_portable(sys.argv[1:])])
    packages = [name for name in ("passel", "torch", "gymnasium", "envpool") if card.get(name)]
    described = (
        f"{card['date']}, {card['cpu']}, {card['usable_cores']} cores, {card['memory_mb'] / 1000:.0f} GB, "
        f"{card['platform']}; Python {card['python']}, {', '.join(f'{name} {card[name]}' for name in packages)}. "
        f"Load average before the start: {card['load_before']}."
    )
    text = "\n\n".join([f"# {title}", f"Made by `{command}`.", described, *sections]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text)
    content = {"command": command, "machine": dict(card), **data}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(text)


def _portable(arguments: Sequence[str]) -> list[str]:
    """The arguments without those that only name places on this machine."""
    kept, skip = [], False
    for word in arguments:
        if skip:
            skip = False
        elif word in ("--python", "--peers-python", "--out", "--before"):
            skip = True
        elif not word.startswith(("--python=", "--peers-python=", "--out=", "--before=")):
            kept.append(word)
    return kept


def undone(algo: str, env: str, tune_for: str) -> dict[str, Any]:
    """The defaults of whatever the preset sets."""
    from passel.algos import ALGORITHMS
    from passel.config import RunConfig
    from passel.recipes.presets import preset

    fields = [*dataclasses.fields(RunConfig), *dataclasses.fields(ALGORITHMS[algo].Config)]
    default = {field.name: field.default for field in fields}
    return {key: default[key] for key in preset(algo, env, tune_for=tune_for)}
