"""What a run promises of being repeated and resumed: schedules, totals, and the level of exactness that it names."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import passel
from harness import newest
from passel import api, examiner
from passel.algos.dqn import DQN
from passel.algos.ppo import PPO
from passel.api import make_plan
from passel.clock import STAGES
from passel.place import budget
from passel.place.base import Placement
from passel.place.board import COLUMNS
from passel.place.exactness import exactness
from passel.place.plan import _blank
from passel.recipes.resolve import resolve_config
from passel.types import Episode, PasselError
from passel.view.terminal import QuietView

QUICK: dict[str, Any] = {
    "env": "CartPole-v1",
    "tune_for": "seconds",
    "place": "inline",
    "backend": "gymnasium",
    "until_solved": False,
    "tensorboard": False,
    "quiet": True,
}
MEASURED = [COLUMNS[name] for name in ("heartbeat", "staleness", *STAGES)]


@pytest.fixture(autouse=True)
def _no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examiner, "play", lambda *args, **options: [Episode(0.0, 1)])


def content(run: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint, without the times that were measured."""
    found = newest(run)
    tensors = {name: tensor.clone() for group in found.groups.values() for name, tensor in group.items()}
    tensors["board/counters"][:, MEASURED] = 0
    return {name: tensor.reshape(-1).numpy().tobytes() for name, tensor in tensors.items()}


def extended(tmp_path: Path, first: int, total: int, **settings: Any) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """What a run of `total` steps comes to, and one of `first` that is resumed with --steps `total`."""
    settings = {**QUICK, **settings}
    whole = passel.train(**settings, steps=total, out=str(tmp_path / "whole")).path
    part = passel.train(**settings, steps=first, out=str(tmp_path / "part")).path
    passel.resume(part, steps=total, quiet=True)
    return content(whole), content(part)


# A round of two workers with 16 environments each is 32 steps: 1,216 steps end with the second worker's experience, and
# before its update.
@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 1},
        {"workers": 2},
        {"workers": 3, "sync": "server", "envs": 4},
        {"workers": 2, "sync": "allreduce"},
        {"algo": "ppo", "workers": 1, "horizon": 32},
        {"algo": "a3c", "workers": 3, "envs": 3},
        {
            "algo": "awr",
            "workers": 2,
            "envs": 4,
            "horizon": 10,
            "capacity": 600,
            "batch": 8,
            "critic_updates": 3,
            "policy_updates": 4,
        },
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_a_run_with_more_steps_afterwards_equals_one_that_had_them_at_first(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    few = {"warmup": 500, "schedule_steps": 2_000} if "algo" not in settings else {}
    whole, part = extended(tmp_path, 1_216, 2_000, **few, **settings)
    assert whole.keys() == part.keys()
    assert [name for name in whole if whole[name] != part[name]] == []


def test_checkpoints_do_not_change_a_run(tmp_path: Path) -> None:
    """What was drawn ahead from the memory is learnt from after a checkpoint too."""
    settings = {**QUICK, "steps": 1_600, "workers": 2, "warmup": 500}
    runs = [
        passel.train(**settings, checkpoint_every=every, out=str(tmp_path / str(every))).path for every in (100, 10_000)
    ]
    often, once = (content(run) for run in runs)
    assert [name for name in often if often[name] != once[name]] == []


class TestSchedules:
    SETTINGS: ClassVar[dict[str, Any]] = {
        **QUICK,
        "workers": 1,
        "sync": "solo",
        "envs": 2,
        "hidden": [8],
        "batch": 8,
        "warmup": 20,
        "capacity": 200,
        "lr": 1e-2,
        "lr_end": 1e-4,
        "lr_steps": 0,
        "prioritized": True,
    }

    def test_go_on_over_the_length_that_they_began_with(self, tmp_path: Path) -> None:
        run = passel.train(**self.SETTINGS, steps=100, out=str(tmp_path / "run")).path
        passel.resume(run, steps=200, quiet=True)
        config, numbers = resolve_config(tomllib.loads((run / "config.toml").read_text()))
        plan = make_plan(config, numbers, config.env)
        assert (config.steps, config.schedule_steps) == (200, 100)
        assert plan.lr(50) == pytest.approx(5.05e-3)
        assert plan.lr(100) == plan.lr(150) == 1e-4
        assert plan.diet._beta(100) == plan.diet._beta(150) == 1.0  # type: ignore[attr-defined]
        algo = plan.make_algorithm(_blank(plan.algorithm.specs(numbers, plan.spec)))
        assert isinstance(algo, DQN)
        # Warm-up is over at 20, and a tenth of the first total are 10 steps.
        assert [algo.epsilon(step) for step in (20, 25, 30)] == pytest.approx([1.0, 0.5, 0.0])

    def test_reach_the_loss_as_progress(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[float] = []
        lesson = PPO.lesson

        def watch(self: PPO, logits: Any, batch: Any, progress: float) -> Any:
            seen.append(progress)
            return lesson(self, logits, batch, progress)

        monkeypatch.setattr(PPO, "lesson", watch)
        settings = {**QUICK, "algo": "ppo", "sync": "solo", "workers": 1, "envs": 2, "horizon": 10, "minibatches": 1}
        run = passel.train(**settings, epochs=1, clip_end=0.01, steps=110, out=str(tmp_path / "run")).path
        assert seen == pytest.approx([20 * update / 110 for update in range(1, 6)])
        passel.resume(run, steps=250, quiet=True)
        assert seen[5:] == pytest.approx([1.0] * 7)

    def test_may_be_as_long_as_the_run_will_be(self, tmp_path: Path) -> None:
        whole, part = extended(tmp_path, 150, 300, **{**self.SETTINGS, "schedule_steps": 300})
        assert whole == part

    def test_of_epsilon_alone_are_not_stretched_by_a_new_total(self, tmp_path: Path) -> None:
        """The run with more steps afterwards is the one that was told its first total as length of its schedules."""
        settings = {**self.SETTINGS, "lr_end": "none", "prioritized": False, "epsilon_fraction": 0.5}
        whole = passel.train(**settings, steps=300, schedule_steps=150, out=str(tmp_path / "whole")).path
        part = passel.train(**settings, steps=150, out=str(tmp_path / "part")).path
        passel.resume(part, steps=300, quiet=True)
        assert content(whole) == content(part)

    def test_have_their_length_refused_where_nothing_changes(self) -> None:
        with pytest.raises(PasselError, match="--schedule-steps has no effect"):
            resolve_config({"env": "CartPole-v1", "schedule_steps": 1_000, "lr_end": "none", "epsilon_steps": 500})


def test_the_next_resume_remembers_the_new_total(tmp_path: Path) -> None:
    settings = {**QUICK, "workers": 1, "envs": 2, "checkpoint_every": 100, "keep_checkpoints": 9, "hidden": [8]}
    run = passel.train(**settings, steps=100, out=str(tmp_path / "run")).path
    before = tomllib.loads((run / "config.toml").read_text())
    passel.resume(run, steps=300, quiet=True)
    after = tomllib.loads((run / "config.toml").read_text())
    assert {key for key in after if after[key] != before[key]} == {"steps", "schedule_steps"}
    assert after["schedule_steps"] == 100, "too short for the preset's schedules: epsilon takes a tenth of it"
    shutil.rmtree(run / "checkpoints" / "300")  # as if the run had been killed on the way
    (run / "summary.json").unlink()
    assert passel.resume(run, quiet=True).summary.steps == 300


class Listening(QuietView):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.facts: dict[str, str] = {}

    def start(self, title: str, facts: Any) -> None:
        self.facts = dict(facts)

    def message(self, text: str) -> None:
        self.said.append(text)


class TestLevels:
    def level(self, **settings: Any) -> Any:
        config, numbers = resolve_config({"env": "CartPole-v1", **settings})
        return exactness(config, make_plan(config, numbers, config.env).spec)

    def test_each_says_what_would_raise_it(self) -> None:
        pytest.importorskip("envpool")
        assert self.level(place="inline", backend="gymnasium").level == "exact"
        assert self.level(place="inline", backend="gymnasium").cure == ""
        restarts = self.level(place="inline", backend="envpool")
        assert restarts.level == "seeded, episodes restart on resume"
        assert "--exact" in restarts.cure
        seeded = self.level(place="processes", backend="gymnasium")
        assert (seeded.level, "--exact" in seeded.cure) == ("seeded", True)
        assert "episodes restart on resume" in self.level(place="processes", backend="envpool").meaning

    @pytest.mark.parametrize(
        ("workers", "said"), [(2, "also across a resume"), (3, "a stop between two checkpoints may")]
    )
    def test_a_run_that_a_rest_changes_does_not_promise_more(self, workers: int, said: str, tmp_path: Path) -> None:
        """Among three that gossip, whoever is at rest is not asked by another: a stop is not without a trace."""
        view, settings = Listening(), {"sync": "gossip", "workers": workers, "envs": 2, "steps": 40}
        run = passel.train("CartPole-v1", exact=True, **settings, out=str(tmp_path / "run"), view=view).path
        card = json.loads((run / "card.json").read_text())
        assert said in card["determinism"]
        assert any(said in text for text in view.said)

    def test_a_run_says_its_own_at_the_start_and_in_its_card(self, tmp_path: Path) -> None:
        view = Listening()
        run = passel.train(
            "CartPole-v1", exact=True, workers=1, envs=2, steps=40, out=str(tmp_path / "run"), view=view
        ).path
        card = json.loads((run / "card.json").read_text())
        assert card["determinism"] == "exact: the same seed gives the same weights, also across a resume"
        assert card["more_deterministic"] is None
        assert view.facts["exactness"] == "exact"
        assert f"Exactness: {card['determinism']}." in view.said

    def test_envpool_inline_repeats_and_restarts_episodes(self, tmp_path: Path) -> None:
        """The middle level: two runs are equal, and one that was stopped on the way is not."""
        pytest.importorskip("envpool")
        settings = {"backend": "envpool", "workers": 2, "envs": 4, "warmup": 200}
        whole, part = extended(tmp_path, 400, 600, **settings)
        again = content(passel.train(**{**QUICK, **settings}, steps=600, out=str(tmp_path / "again")).path)
        assert whole == again
        assert whole["sync/q/vector"] != part["sync/q/vector"]


class TestExact:
    def test_chooses_a_place_and_a_back_end(self) -> None:
        config, _ = resolve_config({"env": "CartPole-v1", "exact": True})
        assert (config.place, config.backend) == ("inline", "gymnasium")

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({"place": "processes"}, "--exact runs in one process, and --place processes was asked for"),
            ({"backend": "envpool"}, "--exact needs Gymnasium.*--backend envpool"),
        ],
    )
    def test_refuses_what_contradicts_it(self, settings: dict[str, Any], reason: str) -> None:
        with pytest.raises(PasselError, match=reason):
            resolve_config({"env": "CartPole-v1", "exact": True, **settings})

    def test_says_why_an_environment_cannot_keep_it(self) -> None:
        pytest.importorskip("ale_py")
        config, numbers = resolve_config({"env": "ALE/Pong-v5", "exact": True})
        with pytest.raises(PasselError, match=r"--exact cannot be kept in ALE/Pong-v5\. ale-py's vector environment"):
            make_plan(config, numbers, config.env)


def test_more_workers_than_cores_are_named_before_they_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unstarted(Placement):
        def start(self) -> None:
            raise PasselError("this test starts nothing")

        def advance(self, seconds: float) -> None: ...
        def pause(self) -> None: ...
        def stop(self) -> None: ...

    monkeypatch.setattr(budget, "usable_cores", lambda: 2)
    monkeypatch.setitem(api.PLACEMENTS, "processes", Unstarted)
    for workers in (64, 2):
        view = Listening()
        with pytest.raises(PasselError, match="starts nothing"):
            passel.train(
                "CartPole-v1", workers=workers, steps=100, hidden=[8], out=str(tmp_path / "run"), view=view, quiet=True
            )
        warned = any("64 workers on 2 cores" in text for text in view.said)
        assert warned == (workers == 64)


def test_what_is_drawn_again_is_what_was_drawn() -> None:
    """The words of a generator's state bring back the generator."""
    from passel.streams import Stream, words_of

    rng = np.random.default_rng(3)
    rng.integers(0, 7, 3)  # leaves half a word behind
    words = torch.from_numpy(words_of(rng.bit_generator.state).view(np.int64))
    again = Stream(words, 0).rng
    assert (again.integers(0, 1_000, 50) == rng.integers(0, 1_000, 50)).all()
