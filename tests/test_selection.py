"""Evaluations during training: when they are made, which policy they choose, and that they change nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import passel
from harness import kinds, newest, rows, summary
from passel import examiner, trained
from passel.arena import Arena
from passel.run import checkpoint
from passel.selection import COST, IN_A_RUN, Snapshot, interval
from passel.trained import SkippedCheckpointWarning, vectors_of
from passel.types import Episode, PasselError
from small import CORRIDOR, IDENTITY, settings_for, small_plan

#: One environment and one worker: every step is a round, so an evaluation comes at the very step that is asked for.
ONE = settings_for(env=IDENTITY, workers=1, sync="solo", envs=1, until_solved=False, eval_every=100)


class Flat(gym.Env[Any, Any]):
    """Every episode scores 3, whatever is done."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(0.0, 1.0, (2,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.zeros(2, np.float32), 1.0, self._steps == 3, False, {}


class Scripted:
    """Stands in for `examiner.play`: each evaluation scores what the test has laid out, and is written down."""

    def __init__(self, *scores: float, length: int = 1) -> None:
        self.scores = itertools.chain(scores, itertools.repeat(scores[-1]))
        self.length = length
        self.seeds: list[int] = []
        self.counts: list[int] = []
        self.vectors: list[torch.Tensor] = []

    def __call__(self, policy: Any, env: Any, episodes: int, seed: int, **options: Any) -> list[Episode]:
        self.seeds.append(seed)
        self.counts.append(episodes)
        self.vectors.append(torch.cat([flat.values.clone() for flat in policy._algorithm.flats.values()]))
        return [Episode(next(self.scores), self.length)] * episodes


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripted]:
    def install(*scores: float, **options: Any) -> Scripted:
        made = Scripted(*scores, **options)
        monkeypatch.setattr(examiner, "play", made)
        return made

    return install


def evaluated(path: Path) -> list[tuple[int, float, bool]]:
    """Step, mean, and whether it was the best so far, of each evaluation during training."""
    found = [row for row in rows(path / "events.jsonl") if row["kind"] == "evaluated"]
    return [(row["steps"], row["mean"], row["best"]) for row in found]


def best_of(path: Path) -> checkpoint.Checkpoint:
    saved = checkpoint.latest(path, pytest.fail, into=checkpoint.BEST)
    assert saved is not None
    return saved


class TestWhichPolicy:
    def test_the_best_is_kept_and_of_equals_the_later(self, tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
        plays = scripted(1.0, 5.0, 5.0, 2.0, 77.0)
        run = passel.train(**ONE, out=str(tmp_path / "run"))
        assert evaluated(run.path) == [(100, 1.0, True), (200, 5.0, True), (300, 5.0, True), (400, 2.0, False)]
        assert run.summary.best_step == 300
        assert run.summary.eval is not None
        assert run.summary.eval.mean == 77.0, "the score that is reported is of fresh episodes"
        saved = best_of(run.path)
        assert (saved.step, saved.meta["mean"]) == (300, 5.0)
        chosen = torch.cat(list(vectors_of(saved).values()))
        assert torch.equal(chosen, plays.vectors[2]), "what is kept is what was evaluated"
        assert torch.equal(chosen, plays.vectors[4]), "and what the reported score is of"
        assert not torch.equal(chosen, plays.vectors[3])
        assert len(set(plays.seeds)) == len(plays.seeds), "no evaluation plays the episodes of another"
        assert plays.counts == [10, 10, 10, 10, 2]

    def test_the_last_is_considered_also_where_no_score_is_reported(
        self, tmp_path: Path, scripted: Callable[..., Scripted]
    ) -> None:
        scripted(1.0, 2.0, 3.0, 4.0)
        run = passel.train(**{**ONE, "eval_episodes": 0}, out=str(tmp_path / "run"))
        assert evaluated(run.path)[-1] == (400, 4.0, True)
        assert run.policy.step == 400
        assert run.summary.eval is None

    def test_load_takes_the_best_unless_asked_for_the_last(
        self, tmp_path: Path, scripted: Callable[..., Scripted]
    ) -> None:
        scripted(1.0, 5.0, 2.0)
        run = passel.train(**ONE, out=str(tmp_path / "run"))
        assert run.policy.step == passel.load(run.path).step == 200
        assert passel.load(run.path, last=True).step == 400
        assert passel.evaluate(run.path, episodes=1).step == 200
        assert passel.evaluate(run.path, episodes=1, last=True).step == 400

    def test_a_solved_policy_is_chosen(self, tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
        """It was confirmed by many episodes; that ten of an earlier one scored more does not count."""
        settings = ONE | {"until_solved": True, "solved_at": 0.1, "steps": 5000, "eval_episodes": 4}
        plays = scripted(9.0, 8.0, 8.0, 7.0)
        run = passel.train(**settings, out=str(tmp_path / "run"))
        assert run.summary.status == "solved"
        assert run.summary.best_step == run.summary.solved_at_steps == run.summary.steps
        assert plays.counts[-2:] == [4, 4], "one confirms, and another one is reported"
        assert plays.seeds[-1] != plays.seeds[-2]

    def test_a_damaged_one_is_told_and_the_last_is_used(
        self, tmp_path: Path, scripted: Callable[..., Scripted]
    ) -> None:
        scripted(1.0, 5.0, 2.0)
        run = passel.train(**ONE, out=str(tmp_path / "run"))
        (file,) = (run.path / "best").glob("*/parameters.safetensors")
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.warns(SkippedCheckpointWarning, match="best policy of .* is damaged, and its last one is used"):
            assert passel.load(run.path).step == 400


class TestWhen:
    def test_training_does_not_notice(self, tmp_path: Path) -> None:
        """Workers are not brought to rest, and no random stream is touched: the weights are the same to the bit."""
        vectors = []
        for every in ("none", 50):
            run = passel.train(
                **ONE | {"eval_every": every, "workers": 2, "sync": "gossip"}, out=str(tmp_path / f"{every}")
            )
            vectors.append(torch.cat(list(trained.weights_of(run.path).values())))
        assert len(evaluated(tmp_path / "50")) >= 6
        assert torch.equal(*vectors)

    def test_beside_processes(self, tmp_path: Path) -> None:
        """In a thread, while workers train on: none is asked to rest before the end."""
        settings = ONE | {"place": "processes", "workers": 2, "sync": "hogwild", "steps": 6000, "eval_every": 500}
        run = passel.train(**settings, out=str(tmp_path / "run"))
        found = evaluated(run.path)
        assert len(found) >= 2
        assert found[-1][0] == run.summary.steps, "the last policy is evaluated too"
        assert kinds(run.path).count("checkpointed") == 1
        best = max(mean for _, mean, _ in found)
        assert best_of(run.path).step == run.summary.best_step == max(at for at, mean, _ in found if mean == best)

    def test_the_curve_is_in_the_metrics(self, tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
        scripted(1.0, 5.0, 3.0, 2.0)
        run = passel.train(**ONE, out=str(tmp_path / "run"))
        curve = dict.fromkeys((row["eval_steps"], row["eval_mean"]) for row in rows(run.path / "metrics.jsonl"))
        assert [point for point in curve if point[0]] == [(100, 1.0), (200, 5.0), (300, 3.0), (400, 2.0)]

    def test_resumed_runs_go_on_evaluating(self, tmp_path: Path, scripted: Callable[..., Scripted]) -> None:
        scripted(1.0, 5.0, 9.0, 2.0)
        settings = ONE | {"steps": 200}
        run = passel.train(**settings, out=str(tmp_path / "run"))
        assert run.summary.best_step == 200
        scripted(4.0, 5.0, 9.0)
        run = passel.resume(run.path, steps=400)
        assert [step for step, _, _ in evaluated(run.path)] == [100, 200, 300, 400]
        assert run.summary.best_step == 400

    def test_an_evaluation_costs_a_tenth_of_the_steps_at_most(
        self, tmp_path: Path, scripted: Callable[..., Scripted]
    ) -> None:
        """Every 20 steps would be a 20th of 400; but each takes 10 episodes of 1 step, so 100 lie between two. The
        first comes with the first look after warm-up.
        """
        scripted(1.0)
        run = passel.train(**ONE | {"eval_every": 0}, out=str(tmp_path / "run"))
        assert (IN_A_RUN, COST) == (20, 10)
        assert [step for step, _, _ in evaluated(run.path)] == [64, 180, 300, 400]

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"eval_every": 0}, 20),
            ({"eval_every": 0, "steps": 3}, 1),
            ({"eval_every": 7}, 7),
            ({"eval_every": 7, "eval_episodes": 0}, 7),
            ({"eval_every": 0, "eval_episodes": 0}, 0),
            ({"eval_every": "none"}, 0),
        ],
    )
    def test_how_often(self, changes: dict[str, Any], expected: int) -> None:
        assert interval(small_plan(**{"env": CORRIDOR, **changes})) == expected


class TestTheEnd:
    def test_patience(self, tmp_path: Path) -> None:
        settings = ONE | {"steps": 2000, "patience": 3, "eval_every": 100}
        run = passel.train(Flat, **{k: v for k, v in settings.items() if k != "env"}, out=str(tmp_path / "run"))
        assert run.summary.steps == 400, "one evaluation that is the best, and three that are not better"
        assert run.summary.status == "finished"
        (notice,) = [row["text"] for row in rows(run.path / "events.jsonl") if "patience" in row.get("text", "")]
        assert notice == (
            "3 evaluations in a row brought no better policy than that of step 400: training ends (--patience)."
        )

    def test_patience_without_evaluations_is_refused(self) -> None:
        with pytest.raises(PasselError, match="--patience has no effect without evaluations during training"):
            small_plan(patience=3)

    def test_one_that_fails_costs_nothing_but_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*args: Any, **options: Any) -> list[Episode]:
            raise RuntimeError("no more of this")

        monkeypatch.setattr(examiner, "play", broken)
        run = passel.train(**ONE, out=str(tmp_path / "run"))
        assert (run.summary.status, run.summary.steps, run.summary.eval) == ("finished", 400, None)
        failed = [row for row in rows(run.path / "events.jsonl") if row["kind"] == "evaluation failed"]
        assert [row["steps"] for row in failed] == [100, 400], "no other one is tried before the end"
        assert passel.load(run.path).step == newest(run.path).step == summary(run.path)["steps"]

    def test_parameters_that_are_not_finite_are_never_the_best(self, tmp_path: Path) -> None:
        plan = small_plan(eval_every=100)
        arena = Arena(plan.specs())
        plan.prepare(arena)
        vectors = {f"sync/{name}/vector": arena[f"sync/{name}/vector"].clone() for name in plan.schemes}
        assert Snapshot(1, vectors).sound
        next(iter(vectors.values()))[0] = torch.nan
        assert not Snapshot(1, vectors).sound
