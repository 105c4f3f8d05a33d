"""Dyna whose dreaming ends: after that nothing is dreamt, no model learns, and updates go on at the same rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import passel
from passel.data import dream_gain
from passel.run import checkpoint
from passel.run.folder import RunFolder
from small import settings_for

STEPS, FRACTION = 400, 0.4


@pytest.mark.parametrize(("workers", "place"), [(1, "inline"), (3, "inline"), (2, "processes")])
def test_it_ends_and_says_so(workers: int, place: str, tmp_path: Path) -> None:
    settings = settings_for(algo="dyna", workers=workers, place=place, steps=STEPS, dream_fraction=FRACTION)
    run = passel.train(**settings, out=str(tmp_path / "run"))
    said = _said(run)
    assert len(said) == 1
    assert said[0].startswith("Dreaming ended after 160 steps (--dream-fraction 0.4): the values are learnt from real")
    ratio = RunFolder.open(run.path, lock=False).read_metrics()[-1]["scalars"]["dream_ratio"]
    assert ratio == pytest.approx(settings.get("dream_ratio", 4.0), rel=0.2), "what takes the place of dreams counts"


def _said(run: passel.Run) -> list[str]:
    events = (json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines())
    return [event["text"] for event in events if event["kind"] == "notice" and event["text"].startswith("Dreaming")]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("stop", "clear", "ends"), [("gain", 1e9, True), ("gain", -1e9, False), ("never", 1e9, False)])
def test_it_ends_when_imagined_updates_no_longer_help(
    workers: int, stop: str, clear: float, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dream_gain, "WINDOW", 10)
    monkeypatch.setattr(dream_gain, "CLEAR", clear)
    settings = settings_for(algo="dyna", workers=workers, place="inline", steps=STEPS, dream_stop=stop)
    run = passel.train(**settings, out=str(tmp_path / "run"))
    said = _said(run)
    assert len(said) == ends
    if ends:
        assert "imagined updates no longer lowered the TD error of real steps" in said[0]
        step = int(said[0].split()[3].replace(",", ""))
        assert 0 < step < STEPS


def _parameters(run: passel.Run) -> dict[str, Any]:
    last = max((run.path / "checkpoints").iterdir(), key=lambda path: int(path.name))
    return dict(checkpoint.load(last).groups["parameters"])


def test_to_measure_changes_nothing_of_what_one_worker_learns(tmp_path: Path) -> None:
    settings = settings_for(algo="dyna", workers=1, place="inline", steps=STEPS)
    runs = [
        passel.train(**settings, dream_stop=stop, out=str(tmp_path / stop), backend="gymnasium")
        for stop in ("gain", "never")
    ]
    measured, not_measured = map(_parameters, runs)
    assert all(measured[name].equal(not_measured[name]) for name in measured)


def test_a_run_that_is_resumed_after_dreaming_ended_goes_on_without_and_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dream_gain, "WINDOW", 10)
    monkeypatch.setattr(dream_gain, "CLEAR", 1e9)
    settings = settings_for(algo="dyna", workers=1, place="inline", exact=True)
    whole = passel.train(**{**settings, "steps": STEPS}, out=str(tmp_path / "whole"))
    (end,) = (int(text.split()[3].replace(",", "")) for text in _said(whole))
    half = passel.train(**{**settings, "steps": end + 20}, out=str(tmp_path / "half"))
    passel.resume(half.path, steps=STEPS)
    found, expected = _parameters(half), _parameters(whole)
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)


@pytest.mark.parametrize("fraction", [FRACTION, 1.0])
def test_models_learn_until_then(fraction: float, tmp_path: Path) -> None:
    """A lesson of the models for each real step, but those of the first batch."""
    settings = settings_for(algo="dyna", workers=1, place="inline", steps=STEPS, dream_fraction=fraction)
    settings |= {"model_updates_per_step": 1.0, "model_batch": 8, "warmup": 0}
    run = passel.train(**settings, out=str(tmp_path / "run"))
    last = max((run.path / "checkpoints").iterdir(), key=lambda path: int(path.name))
    tensors = {name: tensor for group in checkpoint.load(last).groups.values() for name, tensor in group.items()}
    lessons = int(tensors["limiter/models/samples"].sum()) // 8
    assert lessons == pytest.approx(STEPS * fraction - 8, abs=3)
