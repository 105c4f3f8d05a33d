from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from passel.view.result import FILES, Situation, advice, render_result

SUMMARY: dict[str, Any] = {
    "env": "CartPole-v1",
    "algo": "dqn",
    "sync": "hogwild",
    "place": "processes",
    "workers": 4,
    "status": "solved",
    "steps": 150_234,
    "episodes": 812,
    "seconds": 33.2,
    "steps_per_second": 4525.0,
    "updates_per_second": 271.0,
    "return_mean_100": 478.2,
    "solved_at": 475.0,
    "solved_at_seconds": 31.1,
    "solved_at_steps": 148_000,
    "solved_at_episodes": 800,
    "eval": {"episodes": 100, "mean": 498.2, "std": 4.2, "min": 452.0, "max": 500.0},
    "peak_rss_mb": 1234.0,
    "workers_restarted": 2,
    "shares": {"env": 0.55, "learn": 0.3, "wait": 0.05, "other": 0.1},
}


def rendered(summary: dict[str, Any], folder: Path, width: int = 80) -> str:
    console = Console(file=io.StringIO(), record=True, width=width, force_terminal=True)
    render_result(summary, folder, console)
    return console.export_text()


def test_a_solved_run_says_when_how_well_how_fast_and_what_next(tmp_path: Path) -> None:
    text = rendered(SUMMARY, tmp_path)
    for wanted in (
        "Solved in 31s, 148k steps, 800 episodes",
        "498.2 ± 4.2  [452, 500] over 100 greedy episodes",
        "478.2 mean return of the last 100 episodes",
        "4.5k steps/s, 271 updates/s",
        "1,234 MB",
        "workers restarted: 2",
        "env 55%  learn 30%  wait 5%  other 10%",
    ):
        assert wanted in text, wanted
    assert advice(SUMMARY["shares"], Situation.of(SUMMARY, {})) in " ".join(text.split())


def test_a_run_that_did_not_solve_it_never_claims_to(tmp_path: Path) -> None:
    finished = {**SUMMARY, "status": "finished", "eval": None, "return_mean_100": None, "solved_at_steps": None}
    text = rendered(finished, tmp_path)
    assert "Finished, not solved (that takes 475)" in text
    assert "Solved" not in text
    assert "none was made" in text
    assert "not solved" not in rendered({**finished, "solved_at": None}, tmp_path), "there was no threshold to reach"


def test_a_run_that_was_solved_before_it_was_stopped_is_not_called_unsolved(tmp_path: Path) -> None:
    text = rendered({**SUMMARY, "status": "stopped"}, tmp_path)
    assert "Stopped before the end, solved after 148k steps" in text
    assert "not solved" not in text


def test_without_an_evaluation_a_mean_that_is_enough_is_unconfirmed(tmp_path: Path) -> None:
    unknown = {**SUMMARY, "status": "finished", "solved_at_steps": None, "eval": None}
    text = rendered(unknown, tmp_path, width=200)
    assert "Finished, no evaluation has confirmed that it is solved (that takes 475)" in text
    assert "Finished, not solved (that takes 475)" in rendered({**unknown, "return_mean_100": 474.0}, tmp_path)


@pytest.mark.parametrize(("status", "words"), [("stopped", "Stopped before the end"), ("failed", "Failed")])
def test_the_other_ends_are_named(status: str, words: str, tmp_path: Path) -> None:
    assert words in rendered({"status": status}, tmp_path)


def test_each_file_that_is_there_is_explained_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    (tmp_path / "checkpoints").mkdir()
    text = rendered(SUMMARY, tmp_path, width=200)
    for name, what in FILES.items():
        assert (what in text) == (name in ("config.toml", "checkpoints"))
    assert "checkpoints/" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_commands_can_be_copied_whole_from_any_width(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    folder = tmp_path / ("a run with a long name " * 4).strip()
    (folder / "tb").mkdir(parents=True)
    lines = [line.strip() for line in rendered(SUMMARY, folder, width).splitlines()]
    assert f"passel resume '{folder}' --no-until-solved" in lines
    for command in ("eval", "plot", "video"):
        assert f"passel {command} '{folder}'" in lines
    assert f"tensorboard --logdir '{folder / 'tb'}'" in lines


@pytest.mark.parametrize(
    ("card", "offered"),
    [
        ({"env": {"backend": "gymnasium"}}, {"video"}),
        ({"env": {"backend": "levels"}, "levels": {"train": 3}}, {"levels"}),
        ({"env": {"backend": "remote"}}, set()),
    ],
)
def test_only_what_can_be_looked_at_is_offered(card: dict[str, Any], offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(json.dumps(card))
    text = rendered(SUMMARY, tmp_path, width=300)
    assert {command for command in ("video", "levels") if f"passel {command} {tmp_path}" in text} == offered


@pytest.mark.parametrize(
    ("status", "more"),
    [("solved", " --no-until-solved"), ("finished", " --steps 296000"), ("stopped", ""), ("failed", "")],
)
def test_the_command_to_go_on_is_one_that_goes_on(status: str, more: str, tmp_path: Path) -> None:
    text = rendered({**SUMMARY, "status": status, "steps": 148_000}, tmp_path, width=300)
    assert f"passel resume {tmp_path}{more}  " in text


@pytest.mark.parametrize(
    ("status", "total", "more"),
    [
        ("solved", 148_000, " --steps 296000 --no-until-solved"),
        ("solved", 500_000, " --no-until-solved"),
        ("stopped", 148_000, " --steps 296000"),
        ("stopped", 500_000, ""),
        ("finished", 148_000, " --steps 296000"),
    ],
)
def test_a_run_that_has_no_steps_left_needs_more_to_go_on(status: str, total: int, more: str, tmp_path: Path) -> None:
    text = rendered({**SUMMARY, "status": status, "steps": 148_000, "total_steps": total}, tmp_path, width=300)
    assert f"passel resume {tmp_path}{more}  " in text


def test_where_the_shell_does_not_know_passel_its_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / ".venv" / "bin"
    here.mkdir(parents=True)
    (here / "passel").touch()
    monkeypatch.setattr(sys, "executable", str(here / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert ".venv/bin/passel eval runs/a" in rendered(SUMMARY, Path("runs/a"))
    monkeypatch.chdir(here)
    assert f"{here}/passel eval runs/a" in rendered(SUMMARY, Path("runs/a"), width=300)


def test_a_short_folder_keeps_to_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert max(len(line) for line in rendered(SUMMARY, Path("runs/a")).splitlines()) <= 80


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"env": 0.51, "learn": 0.49}, "more environments"),
        ({"env": 0.51, "wait": 0.4}, "more environments"),
        ({"learn": 0.71, "env": 0.2}, "smaller batch"),
        ({"act": 0.6, "env": 0.4}, "one forward pass"),
        ({"wait": 0.16, "learn": 0.6, "env": 0.24}, "--sync hogwild"),
        ({"copy": 0.2, "learn": 0.6, "env": 0.2}, "--sync-every"),
        ({"sample": 0.35, "learn": 0.4, "env": 0.25}, "Sampling"),
        ({"env": 0.5, "learn": 0.35, "wait": 0.15}, "No stage stands out (the largest is env, with 50%)"),
        ({"env": 0.2, "other": 0.8}, "profiler"),
        ({}, "nothing to advise"),
    ],
)
def test_advice_names_the_cause_before_its_consequence(shares: dict[str, float], words: str) -> None:
    sentence = advice(shares)
    assert words in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


SPREAD = {"env": 0.3, "learn": 0.36, "idle": 0.34}  # nothing stands out
APART = {"learner": {"wait": 0.88, "learn": 0.12}, "actor": {"env": 0.6, "act": 0.4}}
WAITING = {"wait": 0.4, "learn": 0.3, "env": 0.3}


@pytest.mark.parametrize(
    ("shares", "situation", "words", "never"),
    [
        (WAITING, {"sync": "solo", "roles": APART}, "Learners wait for experience 88%", "hogwild"),
        (WAITING, {"roles": APART, "workers": 2, "cores": 8}, "add actors (--workers 8)", "hogwild"),
        (
            WAITING,
            {"roles": APART, "workers": 2, "cores": 2},
            "give each actor more environments (--envs)",
            "--workers",
        ),
        (WAITING, {"roles": {"learner": {"learn": 0.9}, "actor": {"wait": 0.5}}}, "Actors wait for the learner", "add"),
        (
            WAITING,
            {"roles": {"learner": {"learn": 0.9}, "actor": {"env": 0.9}}},
            "actors keep up: use a smaller",
            "add",
        ),
        (WAITING, {"sync": "allreduce"}, "--sync hogwild", "--workers"),
        (WAITING, {"sync": "hogwild"}, "No stage stands out", "--sync hogwild"),
        ({"env": 0.8}, {"backend": "gymnasium"}, "or use EnvPool", "--workers"),
        ({"env": 0.8}, {"backend": "envpool"}, "more environments", "EnvPool"),
        ({"env": 0.8}, {"backend": "remote"}, "more environments", "EnvPool"),
        ({"learn": 0.8}, {"workers": 2, "cores": 2}, "use a smaller batch", "workers"),
        ({"learn": 0.8}, {"workers": 2, "cores": 8}, "use --workers 8, or use a smaller batch", "EnvPool"),
        ({"copy": 0.3, "learn": 0.5}, {"sync": "solo"}, "No stage stands out", "--sync-every"),
        (SPREAD, {"workers": 2, "cores": 2}, "largest is learn, with 36%), and every core has a worker.", "add"),
        (SPREAD, {"workers": 2, "cores": 4}, "use --workers 4.", "hogwild"),
        (SPREAD, {"workers": 1, "cores": 4, "sync": "solo"}, "use --workers 4 and --sync hogwild", "EnvPool"),
        (SPREAD, {"workers": 2, "cores": 4, "place": "inline"}, "--place processes", "--workers"),
        (
            WAITING,
            {"workers": 64, "cores": 2, "sync": "locked"},
            "64 workers share 2 cores: use --workers 2.",
            "hogwild",
        ),
    ],
)
def test_advice_follows_from_role_back_end_scheme_and_cores(
    shares: dict[str, float], situation: dict[str, Any], words: str, never: str
) -> None:
    sentence = advice(shares, Situation(**situation))
    assert words in sentence
    assert never not in sentence
    assert sentence.endswith(".")


def test_the_closing_screen_knows_its_situation(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(json.dumps({"usable_cores": 2, "env": {"backend": "envpool"}}))
    summary = {**SUMMARY, "workers": 2, "sync": "solo", "shares": WAITING, "roles": APART}
    assert "every core has a worker" in " ".join(rendered(summary, tmp_path, 200).split())
    assert "EnvPool" not in rendered({**SUMMARY, "workers": 2}, tmp_path, 200)


def test_advice_quotes_the_share_it_rests_on() -> None:
    assert "wait for each other 23% of the time" in advice({"wait": 0.23, "learn": 0.5})
