"""Runs that passel 0.1.0 wrote, one of each algorithm and more: this version loads and resumes them all."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import passel
from harness import newest
from passel import examiner
from passel.algos import ALGORITHMS
from passel.types import Episode
from passel.view.plot import plot_run

FIXTURES = Path(__file__).parent / "fixtures"
RUNS = sorted(path.name for path in (FIXTURES / "runs-0.1").iterdir())


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the run of this name."""
    copy = tmp_path / str(request.param)
    shutil.copytree(FIXTURES / "runs-0.1" / str(request.param), copy)
    if "ALE/" in (copy / "config.toml").read_text():
        pytest.importorskip("ale_py")
    return copy


def answers(path: Path) -> dict[str, Any]:
    """What the script that made the runs recorded."""
    spec = importlib.util.spec_from_file_location("make_runs", FIXTURES / "make_runs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.answers(path)
    return found


def test_there_is_a_run_of_every_algorithm() -> None:
    configs = [tomllib.loads((FIXTURES / "runs-0.1" / name / "config.toml").read_text()) for name in RUNS]
    assert {config["algo"] for config in configs} == {"dqn", "a3c", "ppo", "dyna", "apex", "impala", "awr"}
    assert {config["algo"] for config in configs} <= set(ALGORITHMS)


@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_a_policy_of_passel_0_1_0_answers_as_it_did(run: Path) -> None:
    expected, found = json.loads((run / "expected.json").read_text()), answers(run)
    np.testing.assert_allclose(found["action"], expected["action"], rtol=1e-3)
    assert found["outputs"].keys() == expected["outputs"].keys()
    for name, values in expected["outputs"].items():
        scale = float(np.abs(values).max())
        np.testing.assert_allclose(found["outputs"][name], values, rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_a_run_of_passel_0_1_0_is_resumed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "play", lambda *args, **options: [Episode(0.0, 1)])
    before = newest(run)
    more = before.step + (8 if before.step < 100 else 120)
    summary = passel.resume(run, steps=more, quiet=True).summary
    after = newest(run)
    assert (summary.status, after.meta["resumed"]) == ("finished", before.meta["resumed"] + 1)
    assert after.step >= more
    assert (run / "episodes.csv").read_text().startswith("step,second,worker,return,length\n")
    learnt = {name: tensor for name, tensor in after.groups["parameters"].items() if name.endswith("vector")}
    assert any(not tensor.equal(before.groups["parameters"][name]) for name, tensor in learnt.items())


@pytest.mark.parametrize("run", ["ppo"], indirect=True)
def test_the_curve_of_a_run_of_passel_0_1_0_is_drawn(run: Path) -> None:
    """Its metrics have other names for the algorithm's numbers, and no lengths of episodes."""
    assert "kl" in json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["scalars"]
    plot_run([run], run / "plot.png")
    assert (run / "plot.png").stat().st_size > 1000
