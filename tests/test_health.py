"""A run that has diverged says so: as a notice, in its events and beside its result."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import passel
from harness import rows
from passel.health import Health, symptoms
from passel.run.summary import Summary
from passel.view.result import render_result
from small import settings_for


@pytest.mark.parametrize(
    "scalars",
    [
        {},
        {"q_mean": 480.0, "loss": 0.5, "epsilon": 0.02},
        {"value_mean": -30_000.0, "approx_kl": 0.02, "loss": 2e5, "entropy": 0.6},
    ],
)
def test_plausible_numbers_are_no_symptom(scalars: dict[str, float]) -> None:
    assert symptoms(scalars, 500.0) == {}
    assert symptoms(scalars, None) == {}


@pytest.mark.parametrize(
    ("name", "value"), [("q_mean", 1e10), ("q_mean", -6e4), ("value_mean", 1e6), ("loss", 1e9), ("approx_kl", 40.0)]
)
def test_a_number_out_of_scale_is_named_with_the_cure(name: str, value: float) -> None:
    found = symptoms({"entropy": 0.1, name: value}, 500.0)
    assert list(found) == [name]
    assert f"{name} is {value:.3g}" in found[name]
    assert "--lr" in found[name]


def test_without_a_return_only_the_absurd_is_said() -> None:
    assert symptoms({"q_mean": 1e6, "loss": 1e9}, None) == {}
    assert list(symptoms({"q_mean": 1e10}, None)) == ["q_mean"]
    assert list(symptoms({"q_mean": math.nan}, None)) == ["q_mean"]


def test_the_scale_is_the_largest_return_so_far_and_each_symptom_is_said_once() -> None:
    health = Health(0.99)
    assert health.look({"q_mean": 9e4}, [1.0, -1000.0]) == []
    assert health.look({"q_mean": 9e4}, [3.0]) == [], "the returns of before still count"
    assert len(health.look({"q_mean": 2e5}, [3.0])) == 1
    assert health.look({"q_mean": 3e5}, [3.0]) == []
    assert len(health.look({"q_mean": 3e5, "refused_gradients": 2.0}, [])) == 1
    assert len(health.warnings) == 2


def test_a_time_limit_below_the_reach_of_the_discount_and_the_scale_of_rewards_stretch_the_scale() -> None:
    """Ten steps of 1, and a discount that looks 10,000 steps ahead: values of 10,000 are right."""
    assert Health(0.9999, 1.0, 10).look({"value_mean": 9e3}, [10.0]) == []
    assert Health(0.9999, 1.0, None).look({"value_mean": 9e3}, [10.0])
    assert Health(0.99, 0.01).look({"value_mean": 300.0}, [100.0])
    assert Health(1.0, 1.0, 10).look({"value_mean": 300.0}, [10.0]) == []


def test_a_diverged_run_says_so_and_a_healthy_one_does_not(tmp_path: Path) -> None:
    wild: dict[str, Any] = {"optimizer": "sgd", "lr": 1e4, "max_grad_norm": 1.0, "warmup": 30}
    for name, more in {"healthy": {}, "diverged": wild}.items():
        run = passel.train(
            **settings_for(workers=1, sync="solo", steps=100, epsilon_steps=20, **more), out=str(tmp_path / name)
        )
        assert run.summary.status == "finished"
        said = [row["text"] for row in rows(run.path / "events.jsonl") if row["kind"] == "notice"]
        assert list(run.summary.warnings) == said
        assert any("q_mean is" in text or "loss is" in text for text in said) == (name == "diverged")
        assert Summary.from_json(run.summary.to_json()) == run.summary
        out = io.StringIO()
        render_result(run.summary.to_json(), run.path, Console(file=out, width=100))
        assert ("warning" in out.getvalue()) == (name == "diverged")
