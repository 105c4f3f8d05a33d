"""--algo auto: the algorithm by the spaces of the environment, which is described once."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import passel
from passel import api, cli, examiner
from passel.place.plan import Plan
from passel.recipes import presets
from passel.recipes.auto import choose, resolve_open
from passel.types import Episode, PasselError
from passel.view.terminal import QuietView
from small import AIM, CORRIDOR, IDENTITY

SHORT: dict[str, Any] = {
    "place": "inline",
    "workers": 1,
    "envs": 2,
    "steps": 40,
    "hidden": [8],
    "tensorboard": False,
    "quiet": True,
}


class Listening(QuietView):
    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)


class Picture(gym.Env[Any, Any]):
    """An image of 40 x 40 pixels and two actions."""

    observation_space = Box(0, 255, (40, 40, 3), np.uint8)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((40, 40, 3), np.uint8), {}

    def step(self, action: Any) -> Any:
        return np.zeros((40, 40, 3), np.uint8), 0.0, True, False, {}


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was described, each time."""
    found: list[Any] = []
    describe = api.describe

    def watch(env: Any, *more: Any) -> Any:
        found.append(env)
        return describe(env, *more)

    monkeypatch.setattr(api, "describe", watch)
    monkeypatch.setattr(examiner, "play", lambda *args, **options: [Episode(0.0, 1)])
    return found


def planned(env: str | Callable[[], gym.Env[Any, Any]], **said: Any) -> tuple[Plan, list[str]]:
    """The plan of a new run, and its line about the algorithm; nothing is started."""
    said = {**SHORT, "env": env if isinstance(env, str) else "function", **said}
    config, numbers = resolve_open(said)
    return api._first_plan(said, config, numbers, config.env if isinstance(env, str) else env)


@pytest.mark.parametrize(
    ("facts", "algo"),
    [
        ({}, "dqn"),
        ({"vectors": True}, "ppo"),
        ({"images": True}, "ppo"),
        ({"levels": True}, "ppo"),
        ({"vectors": True, "images": True}, "ppo"),
    ],
    ids=str,
)
def test_the_rule(facts: dict[str, bool], algo: str) -> None:
    assert choose(**facts).algo == algo


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (CORRIDOR, "Algo: dqn (actions are discrete)."),
        (AIM, "Algo: ppo (actions are vectors)."),
        (Picture, "Algo: ppo (observations are images)."),
    ],
    ids=str,
)
def test_auto_chooses_by_the_spaces_and_says_why(env: Any, line: str, described: list[Any]) -> None:
    plan, told = planned(env, algo="auto")
    assert told == [line]
    assert line.startswith(f"Algo: {plan.config.algo} ")
    assert described == [env]


def test_a_set_of_levels_is_for_ppo(tmp_path: Path) -> None:
    (tmp_path / "set.toml").write_text(f'[[train]]\nid = "{IDENTITY}"\n[[train]]\nid = "{IDENTITY}"\nname = "two"\n')
    plan, told = planned(f"levels:{tmp_path / 'set.toml'}", algo="auto")
    assert (plan.config.algo, plan.config.sync) == ("ppo", "allreduce")
    assert told == ["Algo: ppo (the environment is a set of levels)."]


@pytest.mark.parametrize(("env", "algo"), [(CORRIDOR, "dqn"), (Picture, "dqn"), (AIM, "ppo")], ids=str)
def test_without_a_word_it_is_dqn_unless_actions_are_vectors(env: Any, algo: str, described: list[Any]) -> None:
    plan, told = planned(env)
    assert plan.config.algo == algo
    assert told == ([] if algo == "dqn" else ["Algo: ppo (actions are vectors)."])
    assert described == [env]


def test_a_run_keeps_what_was_chosen(tmp_path: Path, described: list[Any]) -> None:
    view = Listening()
    run = passel.train(AIM, **SHORT, algo="auto", horizon=8, minibatches=1, out=str(tmp_path / "run"), view=view).path
    assert tomllib.loads((run / "config.toml").read_text())["algo"] == "ppo"
    assert "Algo: ppo (actions are vectors)." in view.said
    assert f"No preset for (ppo, {AIM}): the defaults of ppo (tuned for steps) are used." in view.said
    assert described == [AIM]
    passel.resume(run, steps=60, quiet=True)
    for algo in ({}, {"algo": "auto"}):
        again = passel.train(AIM, **SHORT, **algo, start_from=str(run), out=str(tmp_path / f"{len(algo)}"), view=view)
        assert (again.summary.algo, view.said.count(f"Settings of ppo: those of {run}.")) == ("ppo", 1 + len(algo))


def test_settings_of_another_algorithm_are_refused_with_the_choice() -> None:
    with pytest.raises(PasselError, match=r"--algo auto is ppo here, because actions are vectors: .* called capacity"):
        planned(AIM, algo="auto", capacity=500)
    with pytest.raises(PasselError, match=r"--algo auto is dqn here, because actions are discrete: .* called horizon"):
        planned(CORRIDOR, algo="auto", horizon=8)
    with pytest.raises(PasselError, match=r"--minibatches 4 does not divide the 10 steps"):
        planned(CORRIDOR, algo="auto", horizon=5, minibatches=4)
    with pytest.raises(PasselError, match=r"--algo dqn chooses among Discrete actions.* Use --algo a3c or ppo"):
        planned(AIM, capacity=500)


@pytest.mark.parametrize("algo", [{}, {"algo": "auto"}], ids=str)
def test_settings_of_none_are_refused_before_the_environment_is_described(
    algo: dict[str, str], described: list[Any]
) -> None:
    with pytest.raises(PasselError, match=r"--gamma is 1\.5"):
        passel.train(CORRIDOR, **SHORT, **algo, gamma=1.5)
    assert described == []


def test_a_preset_with_another_back_end_is_described_by_that(
    monkeypatch: pytest.MonkeyPatch, described: list[Any]
) -> None:
    monkeypatch.setitem(presets.PRESETS, ("ppo", AIM), {"backend": "gymnasium"})
    plan, _ = planned(AIM, algo="auto")
    assert (plan.spec.backend, described) == ("gymnasium", [AIM, AIM])


class TestCommandLine:
    @pytest.fixture
    def passed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
        """The settings that reach `passel.train`."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("passel.place.forkserver.warm_up", lambda env: None)
        found: dict[str, Any] = {}

        def train(**settings: Any) -> Any:
            found.update(settings)
            raise PasselError("this test trains nothing")

        monkeypatch.setattr(api, "train", train)

        def run(*words: str) -> dict[str, Any]:
            found.clear()
            assert cli.main(["train", "--place", "inline", *words]) == 2
            return {key: value for key, value in found.items() if key not in ("began", "place")}

        return run

    def test_auto_takes_the_flags_of_every_candidate(self, passed: Callable[..., dict[str, Any]]) -> None:
        flags = ("--capacity", "500", "--horizon", "8", "--lr", "0.5")
        assert passed("--algo", "auto", *flags) == {"algo": "auto", "capacity": 500, "horizon": 8, "lr": 0.5}

    def test_a_flag_in_one_form_replaces_the_file_s_in_the_other(self, passed: Callable[..., dict[str, Any]]) -> None:
        Path("my.toml").write_text("epsilon-steps = 500\nlr_fraction = 0.5\n")
        found = passed("--config", "my.toml", "--epsilon-fraction", "0.3", "--lr-steps", "7")
        assert found == {"epsilon_fraction": 0.3, "lr_steps": 7}
