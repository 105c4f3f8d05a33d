"""Mario's stages as a set of levels: the set, and its way through a server, which serves stages made here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import passel
from passel.cli import main
from passel.envs import level_mario, packaged
from passel.envs.level_sets import level_set
from passel.envs.levels import Copies
from passel.place.parts import divide
from passel.run.folder import RunFolder
from passel.study.transfer import transfer
from passel.types import PasselError
from serving import HERE, Stage, pretend_installed

#: Stages whose layout is another's too.
TWINS = (("1-3", "5-3"), ("1-4", "6-4"), ("2-2", "7-2"), ("2-3", "7-3"), ("2-4", "5-4"))
SMALL = {"algo": "ppo", "place": "inline", "workers": 1, "horizon": 4, "minibatches": 2, "epochs": 1, "hidden": [8]}
SMALL |= {"filters": [2, 2, 2], "steps": 104, "tensorboard": False, "quiet": True}


@pytest.fixture
def mario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has installed stages that are no game's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    toy = packaged.Package("", "serving", "SuperMarioBros-1-1-v0", (), ("--channels-first",), "")
    monkeypatch.setitem(packaged.PACKAGES, "mario", toy)
    return pretend_installed(tmp_path / "cache", "mario")


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "--owned" in child.cmdline()]


def number(stage: str) -> int:
    world, _, within = stage.partition("-")
    return 4 * int(world) + int(within) - 5


def test_not_installed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["train", "--algo", "ppo", "--env", "levels:mario", "--place", "inline"]) == 2
    assert capsys.readouterr().err == "passel: mario is not installed yet. Run: passel env install mario\n"


def test_26_stages_to_train_on_and_6_held_out_of_which_none_has_a_twin(mario: Path) -> None:
    levels = level_set("levels:mario")
    assert (len(levels.train), len(levels.held_out)) == (26, 6)
    assert sorted((*levels.train, *levels.held_out)) == sorted(level_mario.STAGES)
    assert {stage for pair in TWINS for stage in pair} <= set(levels.train)
    assert len({stage[0] for stage in levels.held_out}) == 6, "each of another world"
    assert level_set("levels:mario@4-2").train == ("4-2",)
    with pytest.raises(PasselError, match="mario has nothing to choose"):
        level_set("levels:mario:hard")
    with pytest.raises(PasselError, match='has no level "9-1"'):
        level_set("levels:mario@9-1")


def test_one_server_plays_all_stages_of_a_worker(mario: Path) -> None:
    """Gray is 7 times the stage's number and a step more with every step, so each pixel of each stack is known."""
    levels = level_set("levels:mario")
    spec = levels.describe()
    assert (spec.obs_shape, spec.obs_dtype, spec.n_actions, spec.frames) == ((4, 84, 84), np.uint8, 7, 4)
    assert (spec.id, spec.backend, spec.exact_resume) == ("levels:mario", "levels", False)
    assert spec.max_episode_steps == 1200
    stages, copies = ("8-4", "1-1", "2-3"), 2
    envs = levels.make(stages, Copies(copies, seed=0))
    assert len(servers()) == 1
    assert levels.rows(stages, copies) == envs.n == 6
    obs, groups = envs.reset(), levels.groups(stages, copies)
    assert groups is not None
    playing = [number(stages[group]) for group in groups]
    first = np.array([7 * each for each in playing])
    age = np.zeros(6, np.int64)
    ended: list[Any] = []
    for _ in range(9):
        seen = np.maximum(age[:, None] + np.arange(-3, 1), 0) + first[:, None]
        np.testing.assert_array_equal(obs, np.broadcast_to(seen[:, :, None, None], obs.shape))
        step = envs.step(np.zeros(6, np.int64))
        np.testing.assert_array_equal(step.next_obs[:, -1, 0, 0], first + age + 1)
        age += 1
        over = age == [Stage.length(each) for each in playing]
        np.testing.assert_array_equal(step.discount == 0, over)
        age[over] = 0
        obs, ended = step.obs, ended + step.episodes
    assert {(episode.score, episode.length) for episode in ended} == {(6.0, 6), (3.0, 3), (5.0, 5)}
    envs.close()
    assert servers() == []


def test_it_is_not_measured_what_costs_the_same(mario: Path) -> None:
    """26 servers would have to be started for it. Two workers hold 13 stages each."""
    levels = level_set("levels:mario")
    assert not levels.costs_differ
    assert [len(part) for part in divide(levels, 2).held] == [13, 13]


def test_a_policy_is_trained_on_it_tabulated_and_carried_over_to_a_stage(
    mario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = passel.train("levels:mario", eval_episodes=100, out=str(tmp_path / "run"), **SMALL)
    assert run.summary.steps == 104
    table = json.loads((run.path / "levels.json").read_text())
    rows = {row["name"]: row for part in ("train", "held_out") for row in table[part]["levels"]}
    assert {name: row["mean"] for name, row in rows.items()} == {
        name: Stage.length(number(name)) for name in level_mario.STAGES
    }
    assert {row["episodes"] for row in rows.values()} == {1}, "greedy play is the same again and again"
    assert main(["levels", str(run.path)]) == 0
    assert "8-2" in capsys.readouterr().out
    settings = {"place": "inline", "tensorboard": False}
    found = transfer(run.path, "6-3", steps=8, workers=1, out=tmp_path / "out", settings=settings)
    assert RunFolder.open(found.runs[0], lock=False).read_config()["start_from"] == str(run.path)
    assert found.content["zero_shot"]["greedy"]["episodes"] == 1
    assert found.content["zero_shot"]["drawn"]["mean"] == Stage.length(number("6-3"))
    assert servers() == []


def test_a_resumed_run_begins_new_episodes_of_the_same_stages(mario: Path, tmp_path: Path) -> None:
    run = passel.train("levels:mario@1-2", out=str(tmp_path / "run"), eval_episodes=1, **{**SMALL, "steps": 8})
    again = passel.resume(run.path, steps=16, quiet=True)
    assert again.summary.steps == 16
