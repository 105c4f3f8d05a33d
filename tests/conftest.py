"""What all tests share, and a count of how many ran in each folder: a check that never runs is no check.

`tests/counts.json` holds the fewest tests that each folder must run. A run of the whole suite that stays below it
fails; `pytest --update-counts` writes the counts of this run as the new floor.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from threadpoolctl import threadpool_limits

TESTS = Path(__file__).resolve().parent
FLOORS = TESTS / "counts.json"

# A shell ignores SIGINT in its background jobs, and so do all processes that come of them: Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline of milliseconds measures whoever else uses the machine; pytest-timeout guards against a real hang.
hypothesis.settings.register_profile("passel", deadline=None)
hypothesis.settings.load_profile("passel")


@pytest.fixture(scope="session", autouse=True)
def _settings_of_nobody() -> Iterator[None]:
    """The key that signs runs is made below this folder, also by the commands that tests start, never in HOME."""
    with tempfile.TemporaryDirectory(prefix="passel-config-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Networks this small are slower with two threads, and results must not depend on how many cores there are."""
    if "torch" in sys.modules:  # collected tests have imported it by now, if any of them needs it
        sys.modules["torch"].set_num_threads(1)
    threadpool_limits(1, user_api="blas")


@pytest.fixture(scope="session", autouse=True)
def _box2d_in_peace() -> None:
    """Its C code warns while it is imported, and crashes if that warning is an error."""
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(ImportError):
        importlib.import_module("Box2D")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-counts", action="store_true", help="Write this run's counts to tests/counts.json.")


def pytest_configure(config: pytest.Config) -> None:
    update = bool(config.getoption("update_counts"))
    if update and not whole_suite(config):
        raise pytest.UsageError("--update-counts needs a run of the whole suite: leave out paths, -k and the like.")
    if not hasattr(config, "workerinput"):  # of the processes of pytest-xdist, the one that hears of all tests counts
        config.pluginmanager.register(Counts(enforce=whole_suite(config), update=update))


def whole_suite(config: pytest.Config) -> bool:
    """Whether nothing was left out: no path, no -k, no -m, no early stop."""
    narrowing = ("keyword", "markexpr", "deselect", "lf", "maxfail", "ignore", "ignore_glob", "stepwise", "collectonly")
    if any(config.getoption(name, None) for name in narrowing):
        return False
    return {Path(config.invocation_params.dir, arg).resolve() for arg in config.args} == {TESTS}


class Counts:
    """Counts the tests that ran, by folder, and fails the session where they are fewer than they must be."""

    def __init__(self, *, enforce: bool, update: bool) -> None:
        self.enforce, self.update = enforce, update
        self.ran: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            self.ran[folder_of(report.nodeid)] += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self.enforce or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        if self.update:
            FLOORS.write_text(json.dumps(dict(sorted(self.ran.items())), indent=2) + "\n")
        if self.fallen():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("tests that ran, by folder")
        for folder, count in sorted(self.ran.items()):
            terminalreporter.line(f"{count:6}  {folder}")
        terminalreporter.line(f"{self.ran.total():6}  in all")
        for sentence in self.fallen() if self.enforce else []:
            terminalreporter.line(sentence, red=True)

    def fallen(self) -> list[str]:
        """Where fewer tests ran than must, in sentences."""
        floors: dict[str, int] = json.loads(FLOORS.read_text()) if FLOORS.exists() else {}
        return [
            f"only {self.ran[folder]} tests ran in {folder}, and {floor} must. Bring them back, or use --update-counts."
            for folder, floor in floors.items()
            if self.ran[folder] < floor
        ]


def folder_of(nodeid: str) -> str:
    """The folder of a test; a file that stands at the top of tests/ counts as one."""
    path = Path(nodeid.partition("::")[0])
    return (path if path.parent.name == TESTS.name else path.parent).as_posix()
