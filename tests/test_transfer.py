"""From one run to the next: what `--from` takes along and refuses, and the comparison with learning from scratch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import passel
from passel.cli import main
from passel.run.folder import RunFolder
from passel.study.transfer import transfer
from passel.types import PasselError
from small import CORRIDOR, settings_for
from test_joint import toml


def vectors(path: Path) -> dict[str, Tensor]:
    return {name: flat.values for name, flat in passel.load(path)._algorithm.flats.items()}


@pytest.fixture(scope="module")
def joint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a set of toys, a little trained."""
    folder = tmp_path_factory.mktemp("joint")
    settings = settings_for(algo="ppo", sync="allreduce", workers=2, out=str(folder / "run"), horizon=16)
    return passel.train(**{**settings, "env": toml(folder, train=3, held_out=2), "steps": 6_000, "lr": 3e-3}).path


def quick(**changes: Any) -> dict[str, Any]:
    return {"place": "inline", "workers": 1, "tensorboard": False, "quiet": True, "eval_episodes": 2, **changes}


def level_of(run: Path, name: str = "held_out 0") -> str:
    return f"{RunFolder.open(run, lock=False).read_config()['env']}@{name}"


def test_a_run_begins_with_the_weights_and_settings_of_another(joint: Path, tmp_path: Path) -> None:
    """A learning rate of nearly nothing leaves them as they were."""
    settings = quick(steps=64, lr=1e-30, out=str(tmp_path / "run"))
    run = passel.train(level_of(joint), start_from=str(joint), **settings)
    before, after = vectors(joint), vectors(run.path)
    assert all(torch.equal(before[name], after[name]) for name in before)
    config = RunFolder.open(run.path, lock=False).read_config()
    assert (config["algo"], config["sync"], config["hidden"], config["horizon"]) == ("ppo", "allreduce", [16], 16)
    assert config["start_from"] == str(joint)
    assert RunFolder.open(run.path, lock=False).read_card()["levels"]["workers"] == [["held_out 0"]]


def test_without_it_a_run_begins_elsewhere(joint: Path, tmp_path: Path) -> None:
    settings = quick(steps=64, lr=1e-30, hidden=[16], horizon=16, algo="ppo", out=str(tmp_path / "run"))
    run = passel.train(level_of(joint), **settings)
    assert not torch.equal(vectors(run.path)["policy"], vectors(joint)["policy"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"env": CORRIDOR}, r"do not fit: they are for observations of shape \(4,\), and .*Corridor-v0 has \(6,\)"),
        ({"hidden": [8, 8]}, r"do not fit: they are for hidden layers of \(16,\), and .* has \(8, 8\)"),
        ({"algo": "dqn"}, "was trained by ppo, whose weights --algo dqn cannot use"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_left(
    joint: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    settings = {**quick(steps=64), "env": level_of(joint), "out": str(tmp_path / "run"), **changes}
    with pytest.raises(PasselError, match=sentence):
        passel.train(start_from=str(joint), **settings)
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--from", str(tmp_path / "none"), "--place", "inline"]) == 2
    assert "there is no run" in capsys.readouterr().err


def test_the_command_takes_it_too(joint: Path, tmp_path: Path) -> None:
    """Flags of the other run's algorithm are known without naming it again."""
    words = ["train", "--from", str(joint), "--env", level_of(joint), "--out", str(tmp_path / "run"), "--clip", "0.1"]
    flags = ["--place", "inline", "--workers", "1", "--steps", "64", "--quiet", "--no-tensorboard"]
    assert main([*words, *flags, "--eval-episodes", "2"]) == 0
    assert RunFolder.open(tmp_path / "run", lock=False).read_config()["clip"] == 0.1


def test_the_comparison_is_one_command(joint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = transfer(joint, steps=600, seeds=2, workers=1, out=out, settings=quick())
    assert found.content["level"] == "held_out 0"
    assert found.content == json.loads((out / "transfer.json").read_text())
    for way in ("fine-tuned", "from scratch"):
        assert [run["seed"] for run in found.content["ways"][way]] == [1, 2]
    tuned, scratch = (found.content["ways"][way][0]["curve"] for way in ("fine-tuned", "from scratch"))
    assert tuned > scratch + 0.5, "the toys differ in nothing but their length, so what was learnt helps at once"
    assert found.content["zero_shot"]["greedy"]["mean"] > 2
    with pytest.raises(PasselError, match=r"exists\. Remove it"):
        transfer(joint, steps=600, out=out)


def test_the_command_shows_both_ways(joint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["transfer", str(joint), "--level", "held_out 1", "--steps", "64", "--workers", "1", "--out", str(out)]
    words += ["--envs", "2"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "level held_out 1, 64 steps each" in said
    assert "from scratch" in said
    assert (out / "transfer.png").stat().st_size > 1000
    assert main([*words[:3], "held_out 9", *words[4:]]) == 2
    assert "Did you mean held_out" in capsys.readouterr().err


def test_the_comparison_needs_a_set_of_levels(tmp_path: Path) -> None:
    run = passel.train(**settings_for(algo="ppo", sync="solo", workers=1, env=CORRIDOR, out=str(tmp_path / "run")))
    with pytest.raises(PasselError, match="which is no set of levels"):
        transfer(run.path, steps=100)
