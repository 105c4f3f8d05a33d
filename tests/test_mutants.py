"""The runner of mutation tests, on a project of one function; and every mutant of this project's tables applies."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

RUNNER = Path(__file__).parent / "mutants" / "run.py"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_run", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A function and tests of it: one that proves it, one that proves nothing, one that waits for it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer to load than these tests to run
    (tmp_path / "src" / "doubling").mkdir(parents=True)
    (tmp_path / "tests" / "mutants").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "src" / "doubling" / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "tests" / "test_double.py").write_text(
        "import time, doubling, pytest\n"
        "@pytest.mark.parametrize('x', [0, 3])\n"
        "def test_proves(x): assert doubling.double(x) == x + x\n"
        "def test_idles(): doubling.double(3)\n"
        "def test_waits():\n    while doubling.double(3) != 6: time.sleep(0.01)\n"
    )
    return tmp_path


def table(project: Path, name: str, **changes: object) -> None:
    entry: dict[str, object] = {"file": "src/doubling/__init__.py", "find": "2 * x", "replace": "3 * x"} | changes
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in entry.items()
    ]
    with (project / "tests" / "mutants" / "all.toml").open("a") as file:
        file.write("\n".join(["[[mutant]]", f"name = '{name}'", *lines]) + "\n")


def verdicts(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    lines = [line for line in capsys.readouterr().out.splitlines() if "  ETA " in line]
    return {line.split("all: ")[1]: "ALIVE" if "ALIVE" in line else "killed" for line in lines}


def test_a_mutant_lives_unless_every_listed_test_fails(
    runner: ModuleType, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(project, "proved", tests=["tests/test_double.py::test_proves"])
    table(project, "idle", tests=["tests/test_double.py::test_proves", "tests/test_double.py::test_idles"])
    table(project, "case", tests=["tests/test_double.py::test_proves[0]"])
    table(project, "syntax", replace="2 * * x", tests=["tests/test_double.py::test_proves"])
    assert runner.main([], project) == 1
    assert verdicts(capsys) == {"proved": "killed", "idle": "ALIVE", "case": "ALIVE", "syntax": "ALIVE"}
    assert "2 * x" in (project / "src" / "doubling" / "__init__.py").read_text()  # the checkout itself is untouched


def test_a_time_out_counts_only_where_the_table_says_so(
    runner: ModuleType, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(project, "slow", tests=["tests/test_double.py::test_waits"], seconds=1)
    table(project, "hang", tests=["tests/test_double.py::test_waits"], seconds=1, hang=True)
    assert runner.main([], project) == 1
    assert verdicts(capsys) == {"slow": "ALIVE", "hang": "killed"}
    assert runner.main(["hang"], project) == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"find": "5 * x"}, "stale mutant 'bad' (all): its text occurs 0 times"),
        ({"find": "x"}, "occurs 2 times"),
        ({"file": "src/doubling/gone.py"}, "there is no source file"),
        ({"file": "tests/test_double.py"}, "there is no source file"),
        ({"tests": ["tests/test_gone.py::test_x"]}, "there is no test tests/test_gone.py::test_x"),
        ({"tests": []}, "lists no test"),
        ({"replace": "2 * x"}, "changes nothing"),
        ({"colour": "red"}, "is not a table of mutants"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_a_table_that_no_longer_fits_is_an_error(
    runner: ModuleType, project: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], sentence: str
) -> None:
    table(project, "bad", **{"tests": ["tests/test_double.py::test_proves"], **changes})
    assert runner.main(["--check"], project) == 2
    assert sentence in capsys.readouterr().err


def test_the_listed_tests_must_pass_without_a_mutant(
    runner: ModuleType, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(project, "absent", tests=["tests/test_double.py::test_proves", "tests/test_double.py::test_absent"])
    assert runner.main([], project) == 2
    assert "test_absent did not run" in capsys.readouterr().err


def test_every_mutant_of_this_project_applies(runner: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--check"]) == 0, capsys.readouterr().err
