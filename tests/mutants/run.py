"""Mutation tests: applies each mutant of the tables in this folder to a copy of src/ and demands that its tests fail.

    python tests/mutants/run.py                    # every mutant
    python tests/mutants/run.py folder "fsync"     # the mutants of folder.toml, and those with fsync in their name
    python tests/mutants/run.py --check            # only: does every mutant still apply?

A table is a TOML file:

    [[mutant]]
    name = "checkpoint files are not fsynced"
    file = "src/passel/run/tensors.py"
    find = '''text that occurs exactly once in the file'''
    replace = '''the text that replaces it'''
    tests = ["tests/run/test_checkpoint.py::test_name"]  # each must pass without the mutant and fail with it
    seconds = 300      # optional: time limit of the tests together
    hang = true        # optional: a time-out counts as a failure

The listed tests run once unmutated and must pass. A parametrized test fails if one of its cases fails. A mutant that
breaks the collection of tests proves nothing, and counts as alive.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED, TIMED_OUT, SKIPPED, MISSING = "passed", "failed", "timed out", "skipped", "did not run"


class MutantError(Exception):
    """A table that cannot be used, and why."""


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    table: str = ""
    seconds: float = 300.0
    hang: bool = False

    def apply(self, root: Path) -> None:
        """Replace the text in the file below `root`."""
        path = root / self.file
        path.write_text(self._checked(path).replace(self.find, self.replace))
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # of the text before, and perhaps of the same second and size

    def check(self, root: Path) -> None:
        """Raise MutantError if the mutant does not apply to the files below `root`."""
        self._checked(root / self.file)
        for test in self.tests:
            if not (root / test.partition("::")[0]).is_file():
                raise MutantError(f"stale mutant {self.name!r} ({self.table}): there is no test {test}")

    def _checked(self, path: Path) -> str:
        if not self.file.startswith("src/") or not path.is_file():
            raise MutantError(f"stale mutant {self.name!r} ({self.table}): there is no source file {self.file}")
        text = path.read_text()
        if (times := text.count(self.find)) != 1:
            raise MutantError(
                f"stale mutant {self.name!r} ({self.table}): its text occurs {times} times in {self.file}"
            )
        return text


def read_tables(folder: Path) -> list[Mutant]:
    """Every mutant of the tables in `folder`."""
    mutants: list[Mutant] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            entries = tomllib.loads(path.read_text())["mutant"]
            mutants += [Mutant(**{**entry, "tests": tuple(entry["tests"]), "table": path.stem}) for entry in entries]
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise MutantError(f"{path} is not a table of mutants: {error!r}") from None
    for mutant in mutants:
        if not mutant.tests or mutant.find == mutant.replace:
            raise MutantError(f"the mutant {mutant.name!r} ({mutant.table}) lists no test or changes nothing")
        if sum(mutant.name == other.name for other in mutants) > 1:
            raise MutantError(f"two mutants have the name {mutant.name!r}")
    return mutants


def chosen(mutants: Sequence[Mutant], words: Sequence[str]) -> list[Mutant]:
    """The mutants that one of `words` names: a table, a source file, or a part of the name; all without words."""

    def fits(mutant: Mutant, word: str) -> bool:
        return word in mutant.name or word == mutant.file or Path(word).stem == mutant.table

    for word in words:
        if not any(fits(mutant, word) for mutant in mutants):
            raise MutantError(f"no mutant, table or source file is called {word!r}")
    return [mutant for mutant in mutants if not words or any(fits(mutant, word) for word in words)]


def run_tests(root: Path, source: Path, tests: Sequence[str], seconds: float) -> tuple[int | None, dict[str, str]]:
    """pytest's exit code (None after a time-out) and what came of each of `tests`, with the packages in `source`."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH"))))}
    _check_imports(root, source, env)
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        report, output = Path(scratch, "report.xml"), Path(scratch, "output")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={root}"]
        command += [f"--basetemp={scratch}/tests", f"--junitxml={report}", *tests]
        with output.open("w") as file:
            process = subprocess.Popen(command, cwd=root, env=env, stdout=file, stderr=file, start_new_session=True)
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        results = dict.fromkeys(tests, MISSING) if code is None else read_report(report, tests)
        if code is not None and code not in (0, 1):
            print(output.read_text()[-2000:], file=sys.stderr)
    return code, results


def _check_imports(root: Path, source: Path, env: dict[str, str]) -> None:
    """Raise MutantError unless Python imports the packages of `source` from there."""
    names = sorted(path.parent.name for path in source.glob("*/__init__.py"))
    program = "import importlib.util, sys\nfor name in sys.argv[1:]: print(importlib.util.find_spec(name).origin)"
    command = [sys.executable, "-c", program, *names]
    found = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=True, timeout=60)
    for name, origin in zip(names, found.stdout.splitlines(), strict=True):
        if not Path(origin).resolve().is_relative_to(source.resolve()):
            raise MutantError(f"Python imports {name} from {origin}, not from the mutated copy")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End pytest and the processes that its tests left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_report(report: Path, tests: Iterable[str]) -> dict[str, str]:
    """What a JUnit report says of each node id: its worst case, where a failure is worse than a time-out."""
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    results: dict[str, str] = {}
    for test in tests:
        found = {_outcome(case) for case in cases if _belongs(case, test)}
        results[test] = next((kind for kind in (FAILED, TIMED_OUT, PASSED, SKIPPED) if kind in found), MISSING)
    return results


def _belongs(case: ElementTree.Element, test: str) -> bool:
    path, *names = test.split("::")
    owner = ".".join(path.removesuffix(".py").split("/"))
    classname, name = case.get("classname", ""), case.get("name", "")
    full = f"{classname}.{name}"
    wanted = ".".join([owner, *names])
    return full == wanted or full.startswith((wanted + "[", wanted + "."))


def _outcome(case: ElementTree.Element) -> str:
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            return TIMED_OUT if "from pytest-timeout" in (found.get("message") or "") else FAILED
    return SKIPPED if case.find("skipped") is not None else PASSED


def verdict(mutant: Mutant, root: Path) -> str:
    """An empty string if the tests kill the mutant, or a sentence that says why it is alive."""
    with tempfile.TemporaryDirectory(prefix="mutant-src-") as copy:
        shutil.copytree(root / "src", Path(copy, "src"))
        mutant.apply(Path(copy))
        code, results = run_tests(root, Path(copy, "src"), mutant.tests, mutant.seconds)
    if code is None:
        return "" if mutant.hang else f"the tests took more than {mutant.seconds:g} s"
    if code != 1:
        return f"pytest ended with code {code}, not with failed tests"
    dead = (FAILED, TIMED_OUT) if mutant.hang else (FAILED,)
    return "; ".join(f"{test} {outcome}" for test, outcome in results.items() if outcome not in dead)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Runs the mutants and prints a line for each; 0 if the tests kill them all, 1 if one lives, 2 for a bad table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="Tables, source files or parts of names; default: every mutant.")
    parser.add_argument("--check", action="store_true", help="Only check that every mutant applies.")
    said = parser.parse_args(arguments)
    try:
        mutants = chosen(read_tables(root / "tests" / "mutants"), said.words)
        for mutant in mutants:
            mutant.check(root)
        if said.check:
            print(f"{len(mutants)} mutants apply")
            return 0
        return _run(mutants, root)
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2


def _run(mutants: Sequence[Mutant], root: Path) -> int:
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    print(f"{len(mutants)} mutants; first {len(tests)} tests without a mutant ...", flush=True)
    began = time.perf_counter()
    code, results = run_tests(root, root / "src", tests, 60 + 120 * len(tests))
    bad = {test: outcome for test, outcome in results.items() if outcome != PASSED}
    if code != 0 or bad:
        raise MutantError("\n".join(["the tests must pass without a mutant:", *(f"  {t} {o}" for t, o in bad.items())]))
    print(f"all pass in {time.perf_counter() - began:.0f} s", flush=True)
    alive, began = 0, time.perf_counter()
    for number, mutant in enumerate(mutants, 1):
        reason = verdict(mutant, root)
        alive += bool(reason)
        spent = time.perf_counter() - began
        left = spent / number * (len(mutants) - number)
        clock = f"{number:4}/{len(mutants)}  {spent:5.0f} s  ETA {left:5.0f} s"
        print(f"{clock}  {'ALIVE ' if reason else 'killed'}  {mutant.table}: {mutant.name}", flush=True)
        if reason:
            print(f"        {reason}", flush=True)
    print(f"{len(mutants) - alive} of {len(mutants)} mutants killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
