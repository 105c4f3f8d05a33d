"""Procgen's numbered levels: who plays which, and that what is held out stays held out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import passel
from passel.envs import level_procgen
from passel.envs.level_sets import level_set
from passel.envs.levels import Copies, LevelSet
from passel.place.parts import divide
from passel.types import PasselError


def first_frames(levels: LevelSet, names: tuple[str, ...], seed: int) -> list[bytes]:
    envs = levels.each(names, Copies(1, seed))
    frames = [frame.tobytes() for frame in envs.reset()]
    envs.close()
    return frames


@pytest.fixture(scope="module")
def jumper() -> LevelSet:
    return level_set("levels:procgen:jumper:easy:6+4")


def test_seeds_are_levels_and_the_held_out_ones_are_far_away(jumper: LevelSet) -> None:
    assert jumper.train == ("0", "1", "2", "3", "4", "5")
    assert jumper.held_out == ("1000000", "1000001", "1000002", "1000003")
    spec = jumper.describe()
    assert (spec.obs_shape, spec.obs_dtype, spec.n_actions) == ((3, 64, 64), np.uint8, 15)
    assert len(level_set("levels:procgen:coinrun").train) == 200


def test_a_level_begins_the_same_whatever_the_seed_and_levels_differ(jumper: LevelSet) -> None:
    names = (*jumper.train, *jumper.held_out)
    frames = first_frames(jumper, names, seed=1)
    assert frames == first_frames(jumper, names, seed=2)
    assert len(set(frames)) == len(names)


def test_each_worker_draws_from_its_own_levels_and_nobody_from_those_held_out(jumper: LevelSet) -> None:
    parts = divide(jumper, 2)
    assert parts.held == (("0", "1", "2"), ("3", "4", "5"))
    assert (parts.rows(0, 16), parts.groups(0, 16)) == (16, None)
    known = dict(zip(first_frames(jumper, jumper.train, 0), jumper.train, strict=True))
    for held in parts.held:
        envs = jumper.make(held, Copies(32, seed=5))
        drawn = {known[frame.tobytes()] for frame in envs.reset()}
        envs.close()
        assert drawn == set(held)


def test_the_step_after_an_end_is_no_transition_and_scores_are_the_games_own(jumper: LevelSet) -> None:
    envs = jumper.make(jumper.train, Copies(16, seed=3))
    envs.reset()
    rng, episodes, unreal = np.random.default_rng(0), 0, 0
    for _ in range(400):
        step = envs.step(rng.integers(0, 15, 16))
        episodes += len(step.episodes)
        unreal += int((~step.real).sum())
        assert all(episode.score in (0, 10) for episode in step.episodes)
        assert len(step.episodes) == int((step.ended & step.real).sum())
    envs.close()
    assert episodes > 5
    assert 0 <= episodes - unreal <= 16


def test_a_policy_is_trained_on_some_levels_and_evaluated_on_all(tmp_path: Path) -> None:
    run = passel.train(
        "levels:procgen:leaper:easy:3+2", algo="ppo", workers=2, envs=4, steps=256, horizon=16, epochs=1, minibatches=2,
        hidden=[16], eval_episodes=3, tensorboard=False, quiet=True, out=str(tmp_path / "run"),
    )  # fmt: skip
    table = json.loads((run.path / "levels.json").read_text())
    assert [row["name"] for row in table["train"]["levels"]] == ["0", "1", "2"]
    assert [row["name"] for row in table["held_out"]["levels"]] == ["1000000", "1000001"]
    assert all(row["episodes"] == 1 for row in table["train"]["levels"])
    card = json.loads((run.path / "card.json").read_text())["levels"]
    assert card["workers"] == [["0", "1"], ["2"]]
    assert card["weights"] == pytest.approx([4 / 3, 2 / 3])
    assert card["rows"] == [4, 4]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("jmper", r'Procgen has no game "jmper"\. Did you mean jumper'),
        ("jumper:hrd", "Write procgen:jumper, or more fully procgen:jumper:easy:200"),
        ("jumper:extreme", r"jumper has no extreme levels\. It has: easy, hard, memory, exploration"),
        ("jumper:easy:0+5", '"0[+]5" is no number of levels'),
        ("jumper:easy:1+9999999999", '"1[+]9999999999" is no number of levels'),
        (f"jumper:easy:1+{'9' * 5000}", "is no number of levels"),
        ("jumper:easy:a+5", '"a[+]5" is no number of levels'),
        ("jumper@77777", r'has no level "77777"'),
    ],
)
def test_what_is_wrong_with_a_name_is_said_with_its_cure(name: str, sentence: str) -> None:
    with pytest.raises(PasselError, match=sentence):
        level_set(f"levels:procgen:{name}")


def test_without_qt_the_cure_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise OSError("not there")

    monkeypatch.setattr(level_procgen.ctypes, "CDLL", nothing)
    with pytest.raises(PasselError, match=r"cannot be loaded \(not there\).*pip install --force-reinstall PyQt5-Qt5"):
        level_procgen._load_qt()
    monkeypatch.setattr(level_procgen.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(PasselError, match=r"Qt 5, which is not installed\. Run: pip install 'passel\[levels\]'"):
        level_procgen._load_qt()
