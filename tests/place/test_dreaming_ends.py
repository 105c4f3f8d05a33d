"""Dyna whose dreaming ends: after that nothing is dreamt, no model learns, and updates go on at the same rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import passel
from passel.run import checkpoint
from passel.run.folder import RunFolder
from small import settings_for

STEPS, FRACTION = 400, 0.4


@pytest.mark.parametrize(("workers", "place"), [(1, "inline"), (3, "inline"), (2, "processes")])
def test_it_ends_and_says_so(workers: int, place: str, tmp_path: Path) -> None:
    settings = settings_for(algo="dyna", workers=workers, place=place, steps=STEPS, dream_fraction=FRACTION)
    run = passel.train(**settings, out=str(tmp_path / "run"))
    events = (json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines())
    said = [event["text"] for event in events if event["kind"] == "notice" and event["text"].startswith("Dreaming")]
    assert len(said) == 1
    assert said[0].startswith("Dreaming ended after 160 steps (--dream-fraction 0.4): the values are learnt from real")
    ratio = RunFolder.open(run.path, lock=False).read_metrics()[-1]["scalars"]["dream_ratio"]
    assert ratio == pytest.approx(settings.get("dream_ratio", 4.0), rel=0.2), "what takes the place of dreams counts"


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
