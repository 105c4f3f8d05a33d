"""The watcher of a run, with puppets in place of workers: what it decides, says and keeps, and when."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import passel
from harness import assert_whole, kinds, newest, rows, summary
from passel import examiner, supervisor
from passel.api import make_plan
from passel.arena import Arena
from passel.evaluation import EvaluationStoppedError
from passel.interrupts import Interrupts
from passel.journal import Retry
from passel.place.base import PAUSE_PATIENCE, Placement, WorkerDiedError
from passel.place.board import COLUMNS, EPISODES, Board, Command
from passel.recipes.resolve import resolve_config
from passel.run import checkpoint
from passel.run.folder import RunFolder
from passel.supervisor import History, Supervisor
from passel.testing.envs import Crash
from passel.types import DivergedError, Episode, PasselError, Report
from passel.view.tensorboard import TensorBoardLog

IDENTITY = "passel.testing.envs:passel/Identity-v0"  # solved at 7.5 of 8

#: What the design promises to programs that read summary.json.
FIELDS = [
    *("algo", "env", "sync", "place", "workers", "seed", "status", "steps", "frames", "updates", "episodes", "seconds"),
    *("steps_per_second", "updates_per_second", "return_mean_100", "solved_at_seconds", "solved_at_steps"),
    *("solved_at_episodes", "eval", "peak_rss_mb", "workers_restarted", "checkpoint"),
    *("return_human_normalised", "eval_human_normalised"),
    *("startup_seconds", "train_seconds", "evaluation_seconds", "checkpoint_seconds", "best_step", "warnings"),
]


class Puppets(Placement):
    """Workers that do what the test says, a line of it at each look, and write down what they are told."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.script: Iterator[Callable[[], None]] = iter(())
        self.told: list[str] = []
        self.patience = 0.0
        self.while_pausing: Callable[[], None] = lambda: None
        self.check: Callable[[], None] = lambda: None  # type: ignore[method-assign]

    def start(self) -> None:
        pass

    def advance(self, seconds: float) -> None:
        next(self.script)()

    def pause(self, patience: Callable[[], float] = lambda: PAUSE_PATIENCE) -> None:
        self.told.append("pause")
        self.board.command = Command.WAIT
        try:
            self.while_pausing()
        finally:
            self.patience = patience()

    def resume(self) -> None:
        self.told.append("resume")
        super().resume()

    def stop(self) -> None:
        self.told.append("stop")


class Spectator:
    """A view that remembers."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.messages: list[str] = []

    def start(self, title: str, facts: Any) -> None:
        pass

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def message(self, text: str) -> None:
        self.messages.append(text)

    def stop(self) -> None:
        pass


class Stage:
    """A run of puppets on an environment that counts as solved at 7.5."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, history: History | None = None, **said: Any
    ) -> None:
        settings = {"env": IDENTITY, "place": "inline", "workers": 2, "hidden": [4], "capacity": 400, "batch": 8}
        settings |= {"tensorboard": False, "eval_every": "none", "steps": 10_000, "out": str(folder / "run"), **said}
        config, numbers = resolve_config(settings)
        self.plan = make_plan(config, numbers, config.env)
        self.arena = Arena(self.plan.specs())
        self.plan.prepare(self.arena)
        self.puppets = Puppets(self.plan, self.arena)
        self.path, self.spectator, self.interrupts = folder / "run", Spectator(), Interrupts()
        self.evaluations: list[tuple[int, list[str]]] = []
        self.scores: Iterator[float] = iter(())
        self.folder = RunFolder.create(self.path, {}, {})
        self.history = history or History()
        monkeypatch.setattr(examiner, "play", self._play)

    def _play(self, policy: Any, env: Any, episodes: int, seed: int, **options: Any) -> list[Episode]:
        """Every episode of an evaluation scores the same: the next number that the test has laid out."""
        self.evaluations.append((self.history.episodes, self.puppets.told[-1:]))
        return [Episode(next(self.scores), 8)] * episodes

    def work(self, episodes: int = 10, score: float = 8.0, steps: int = 80, updates: int = 20) -> Callable[[], None]:
        """A line of the script: what worker 0 has done when the watcher looks."""

        def done() -> None:
            board = self.puppets.board
            board.finished(0, [Episode(score, 8)] * episodes)
            board.counters[0, COLUMNS["steps"]] += steps
            board.counters[0, COLUMNS["updates"]] += updates

        return done

    def run(self, script: list[Callable[[], None]]) -> passel.Summary:
        self.puppets.script = iter(script)
        with self.folder:
            return Supervisor(
                self.plan,
                self.arena,
                self.puppets,
                self.folder,
                self.spectator,
                self.history,
                self.interrupts,
                time.perf_counter(),
            ).run()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    return lambda **said: Stage(tmp_path, monkeypatch, **said)


class TestSolved:
    def test_an_evaluation_that_denies_lets_training_go_on(self, stage: Callable[..., Stage]) -> None:
        """100 episodes of 8 look solved. The first evaluation says 5; 25 episodes later another one says 8. What is
        reported is a third one, of fresh episodes.
        """
        run = stage()
        run.scores = iter([5.0, 8.0, 7.0])
        result = run.run([run.work()] * 20)
        assert run.evaluations == [(100, ["pause"]), (130, ["pause"]), (130, ["pause"])]
        assert run.spectator.messages == [
            "The mean return reached 8.0, but 100 greedy episodes average 5.0: training goes on."
        ]
        assert run.puppets.told[:4] == ["resume", "pause", "resume", "pause"]
        assert "resume" not in run.puppets.told[4:], "the policy that is saved is the one that was evaluated"
        assert run.puppets.told[-1] == "stop"
        assert (result.status, result.solved_at_episodes, result.solved_at_steps) == ("solved", 130, 13 * 80)
        assert result.steps == 13 * 80
        assert result.eval == passel.EvalResult(100, 7.0, 0.0, 7.0, 7.0)
        assert result.solved_at_seconds is not None
        assert 0 < result.solved_at_seconds <= result.seconds
        assert [kind for kind in kinds(run.path) if kind != "first step"] == [
            "checkpointed",
            "not confirmed",
            "checkpointed",
            "solved",
            "solved",
        ]
        assert newest(run.path).step == 13 * 80
        assert_same_summary(run.path, result)

    def test_less_than_a_hundred_episodes_prove_nothing(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=99 * 8)
        run.scores = iter([8.0])
        result = run.run([run.work(episodes=33, steps=33 * 8)] * 3)
        assert result.status == "finished"
        assert result.solved_at_steps is None
        assert run.evaluations == [(99, ["pause"])], "one, at the end, to measure"
        assert result.eval is not None

    def test_only_the_last_hundred_count(self, stage: Callable[..., Stage]) -> None:
        """100 episodes of 0, then episodes of 8: 94 of them make a mean of 7.52, the first that is enough."""
        run = stage()
        run.scores = iter([8.0])
        result = run.run([run.work(episodes=100, score=0.0), *[run.work(episodes=1)] * 100])
        assert result.solved_at_episodes == 194
        assert result.return_mean_100 == pytest.approx(7.52)

    def test_a_threshold_of_the_users_own(self, stage: Callable[..., Stage]) -> None:
        run = stage(solved_at=3.0)
        run.scores = iter([3.0])
        assert run.run([run.work(score=3.0)] * 10).status == "solved"

    def test_without_until_solved_training_goes_on_to_the_end(self, stage: Callable[..., Stage]) -> None:
        """The moment is kept, and the last word has the policy that comes out, not the one that was good enough."""
        run = stage(until_solved=False, steps=2000)
        run.scores = iter([8.0, 7.0])
        result = run.run([run.work()] * 25)
        assert (result.status, result.solved_at_steps, result.steps) == ("solved", 800, 2000)
        assert result.eval is not None
        assert result.eval.mean == 7.0
        assert [episodes for episodes, _ in run.evaluations] == [100, 250]


def assert_same_summary(path: Path, result: passel.Summary) -> None:
    on_disk = json.loads((path / "summary.json").read_text())
    assert on_disk == result.to_json()
    assert list(on_disk) == FIELDS


class TestTheEnd:
    def test_finished(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=800)
        run.scores = iter([2.5])
        result = run.run([run.work(score=2.0)] * 10)
        assert (result.status, result.steps, result.episodes, result.updates) == ("finished", 800, 100, 200)
        assert result.frames == result.steps
        assert result.eval == passel.EvalResult(100, 2.5, 0.0, 2.5, 2.5)
        assert result.checkpoint == str(run.path / "checkpoints/800")
        assert result.peak_rss_mb > 10
        assert result.steps_per_second == pytest.approx(result.steps / result.train_seconds)
        assert_same_summary(run.path, result)

    def test_a_request_to_stop(self, stage: Callable[..., Stage]) -> None:
        """No evaluation: whoever stops a run does not want to wait for one."""
        run = stage()
        result = run.run([run.work(), lambda: setattr(run.interrupts, "requested", 2)])
        assert (result.status, result.steps, result.eval) == ("stopped", 80, None)
        assert run.evaluations == []
        assert newest(run.path).step == 80
        assert run.puppets.told == ["resume", "pause", "stop", "stop"]

    def test_a_request_to_stop_in_the_last_evaluation(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = stage(steps=80)

        def interrupted(*args: Any, progress: Callable[[int], bool], **options: Any) -> list[Episode]:
            assert progress(1)
            run.interrupts.requested = 2
            assert not progress(2)
            raise EvaluationStoppedError

        monkeypatch.setattr(examiner, "play", interrupted)
        result = run.run([run.work()])
        assert (result.status, result.eval) == ("stopped", None)
        assert newest(run.path).step == 80

    @pytest.mark.parametrize(
        "error", [WorkerDiedError("worker 1", "of boredom", "where"), PasselError("the loss is nan")]
    )
    def test_a_death(self, stage: Callable[..., Stage], error: Exception) -> None:
        run = stage()
        with pytest.raises(type(error)) as raised:
            run.run([run.work(), lambda: _raise(error)])
        assert raised.value is error
        assert summary(run.path)["status"] == "failed"
        assert summary(run.path)["steps"] == newest(run.path).step == 80
        assert summary(run.path)["checkpoint"] == str(run.path / "checkpoints/80")
        last = rows(run.path / "events.jsonl")[-1]
        assert (last["kind"], last["reason"]) == ("failed", str(error).split("\n", maxsplit=1)[0])
        assert ("worker died" in kinds(run.path)) == isinstance(error, WorkerDiedError)
        assert run.puppets.told[:2] == ["resume", "stop"], "the others are ended before anything is saved"
        assert_whole(run.path)

    def test_a_vector_that_is_no_longer_finite_is_not_kept(self, stage: Callable[..., Stage]) -> None:
        run = stage(checkpoint_every=80)

        def spoil() -> None:
            run.arena["sync/q/vector"][0] = torch.nan
            raise PasselError("the loss is nan")

        with pytest.raises(PasselError):
            run.run([run.work(), spoil])
        assert newest(run.path).step == 80
        assert newest(run.path).groups["parameters"]["sync/q/vector"].isfinite().all()
        assert summary(run.path)["checkpoint"] == str(run.path / "checkpoints/80")

    def test_a_death_before_the_first_step(self, stage: Callable[..., Stage]) -> None:
        run = stage()
        with pytest.raises(WorkerDiedError):
            run.run([lambda: _raise(WorkerDiedError("worker 0", "at birth"))])
        assert not (run.path / "checkpoints").exists()
        assert summary(run.path)["checkpoint"] is None
        assert summary(run.path)["return_mean_100"] is None

    def test_a_disk_that_stays_full_everywhere(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The sentence about the disk is what the user must read, and the summary still says that the run failed."""
        run = stage(checkpoint_every=80, steps=240)

        def full(*args: Any, **options: Any) -> Path:
            raise PasselError("no space left on disk for the checkpoint")

        monkeypatch.setattr(checkpoint, "save", full)
        with pytest.raises(PasselError, match="no space left on disk"):
            run.run([run.work()] * 3)
        assert summary(run.path)["status"] == "failed"
        assert summary(run.path)["steps"] == 240
        assert kinds(run.path)[-1] == "failed"


def _raise(error: Exception) -> None:
    raise error


class TestNothingLearntIsLost:
    """Whatever fails in the watcher, what the arena holds is on disk first."""

    @pytest.mark.parametrize("error", [RuntimeError("the environment broke"), SystemExit(3), PasselError("gone.")])
    def test_a_final_evaluation_that_fails(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        run = stage(steps=80)
        saved: list[int] = []

        def broken(*args: Any, **options: Any) -> list[Episode]:
            saved.append(newest(run.path).step)
            raise error

        monkeypatch.setattr(examiner, "play", broken)
        result = run.run([run.work()])
        assert saved == [80], "the checkpoint is there before the evaluation begins"
        assert (result.status, result.eval, result.steps) == ("finished", None, 80)
        (failed,) = [row for row in rows(run.path / "events.jsonl") if row["kind"] == "evaluation failed"]
        assert str(error) in failed["text"]
        assert "in broken" in failed["traceback"]
        assert failed["text"] in run.spectator.messages
        assert ".." not in failed["text"]
        assert_same_summary(run.path, result)

    def test_a_confirming_evaluation_that_fails(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Training goes on; the next try comes after 50 more episodes, for the first has failed."""
        run = stage()
        tried: list[tuple[int, int]] = []

        def broken_once(*args: Any, **options: Any) -> list[Episode]:
            tried.append((run.history.episodes, newest(run.path).step))
            if len(tried) == 1:
                raise RuntimeError("the environment broke")
            return [Episode(8.0, 8)] * 100

        monkeypatch.setattr(examiner, "play", broken_once)
        result = run.run([run.work()] * 30)
        assert tried == [(100, 800), (150, 1200), (150, 1200)], "the last one is the score that is reported"
        assert (result.status, result.solved_at_episodes) == ("solved", 150)
        assert "evaluation failed" in kinds(run.path)

    def test_any_error_at_all(self, stage: Callable[..., Stage]) -> None:
        run = stage()
        error = ZeroDivisionError("a mistake of passel's own")
        with pytest.raises(ZeroDivisionError):
            run.run([run.work(), lambda: _raise(error)])
        assert newest(run.path).step == 80
        assert summary(run.path)["status"] == "failed"
        assert rows(run.path / "events.jsonl")[-1]["reason"] == "a mistake of passel's own"

    def test_an_environment_that_raises_inline(self, tmp_path: Path) -> None:
        """As of a worker that is a process: its name, the environment's own traceback, and a checkpoint."""

        def crashing() -> Crash:
            return Crash(how="raise", at=200)

        settings = {"place": "inline", "workers": 1, "sync": "solo", "envs": 2, "hidden": [8], "batch": 8}
        settings |= {"warmup": 20, "capacity": 400, "steps": 100_000, "tensorboard": False, "quiet": True}
        with pytest.raises(WorkerDiedError) as raised:
            passel.train(crashing, **settings, out=str(tmp_path / "run"))  # type: ignore[arg-type]
        assert str(raised.value).startswith("worker 0 died: RuntimeError: this environment raises")
        assert "in _go_wrong" in raised.value.traceback
        assert newest(tmp_path / "run").step > 100
        assert summary(tmp_path / "run")["status"] == "failed"
        assert_whole(tmp_path / "run")

    @pytest.mark.parametrize("error", [PasselError("the server is away"), WorkerDiedError("worker 0", "killed")])
    def test_an_error_that_is_no_divergence_is_saved_after_a_checkpoint_too(
        self, stage: Callable[..., Stage], error: Exception
    ) -> None:
        run = stage(checkpoint_every=80)
        with pytest.raises(type(error)):
            run.run([run.work(), run.work(steps=40), lambda: _raise(error)])
        assert newest(run.path).step == 120

    def test_a_run_that_diverged_keeps_its_last_good_checkpoint(self, stage: Callable[..., Stage]) -> None:
        """The parameters are still finite, because the update was refused: they are worthless all the same."""
        run = stage(checkpoint_every=80)
        with pytest.raises(DivergedError):
            run.run([run.work(), run.work(steps=40), lambda: _raise(DivergedError("the loss is nan"))])
        assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["80"]

    def test_parameters_that_are_not_finite_are_not_saved_after_a_death(self, stage: Callable[..., Stage]) -> None:
        run = stage()

        def spoil() -> None:
            run.arena["sync/q/vector"][0] = torch.nan
            raise WorkerDiedError("worker 1", "killed")

        with pytest.raises(WorkerDiedError):
            run.run([run.work(), spoil])
        assert not (run.path / "checkpoints").exists()
        assert summary(run.path)["checkpoint"] is None

    def test_parameters_that_are_not_finite_end_the_run_at_the_next_checkpoint(
        self, stage: Callable[..., Stage]
    ) -> None:
        run = stage(checkpoint_every=80)

        def spoil() -> None:
            run.work()()
            run.arena["sync/q/vector"][0] = torch.inf

        with pytest.raises(DivergedError, match=r"no longer finite at step 160\. The last checkpoint is .*80\."):
            run.run([run.work(), spoil])
        assert newest(run.path).step == 80

    def test_a_second_ctrl_c_still_saves(self, stage: Callable[..., Stage]) -> None:
        run = stage()

        def twice() -> None:
            run.interrupts.requested = 2
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run.run([run.work(), twice])
        assert newest(run.path).step == 80
        assert summary(run.path)["status"] == "stopped"
        assert kinds(run.path)[-1] == "stopped"

    def test_a_second_ctrl_c_does_not_wait_for_a_long_checkpoint(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = stage()
        monkeypatch.setattr("passel.saving.WRITTEN_PER_SECOND", 1.0)
        with pytest.raises(KeyboardInterrupt):
            run.run([run.work(), lambda: _raise(KeyboardInterrupt())])
        assert not (run.path / "checkpoints").exists()
        assert "it would take too long" in run.spectator.messages[-1]

    def test_a_worker_that_does_not_come_to_rest_while_the_run_is_stopped(self, stage: Callable[..., Stage]) -> None:
        """It is killed after some seconds; what is left is saved, and the run was stopped, not failed."""
        run = stage()
        run.puppets.while_pausing = lambda: _raise(WorkerDiedError("worker 1", "did not come to rest within 5 s"))
        result = run.run([run.work(), lambda: setattr(run.interrupts, "requested", 15)])
        assert run.puppets.patience == supervisor.STOP_PATIENCE
        assert (result.status, newest(run.path).step) == ("stopped", 80)
        assert "worker died" in kinds(run.path)
        assert_same_summary(run.path, result)

    def test_otherwise_a_pause_has_the_patience_of_the_placement(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        run.run([run.work()])
        assert run.puppets.patience == PAUSE_PATIENCE

    def test_a_stop_that_is_asked_for_during_a_pause_shortens_it(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        run.puppets.while_pausing = lambda: setattr(run.interrupts, "requested", 15)
        run.run([run.work()])
        assert run.puppets.patience == supervisor.STOP_PATIENCE

    def test_a_death_at_rest_is_told(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        run.puppets.check = lambda: _raise(WorkerDiedError("worker 1", "killed by signal 9"))  # type: ignore[method-assign]
        assert run.run([run.work()]).status == "finished"
        assert "worker died" in kinds(run.path)
        assert "worker 1 died: killed by signal 9, at rest: nothing is lost." in run.spectator.messages


class TestADiskThatFails:
    @pytest.fixture(autouse=True)
    def _other_places(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))

    def failing(self, monkeypatch: pytest.MonkeyPatch, only: Callable[[Path], bool]) -> list[Path]:
        """Saves into the folders that `only` picks fail; all that were tried."""
        tried: list[Path] = []
        save = checkpoint.save

        def sometimes(folder: Path, *args: Any, **options: Any) -> Path:
            tried.append(folder)
            if only(folder):
                raise PasselError("no space left on disk for the checkpoint.")
            return save(folder, *args, **options)

        monkeypatch.setattr(checkpoint, "save", sometimes)
        return tried

    def test_a_checkpoint_that_fails_is_tried_again(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = stage(checkpoint_every=80, steps=400)
        run.scores = iter([1.0])
        full = iter([True])
        self.failing(monkeypatch, lambda folder: next(full, False))
        monkeypatch.setattr("passel.journal.Retry.failed", lambda retry: None)
        result = run.run([run.work()] * 5)
        assert result.status == "finished"
        assert newest(run.path).step == 400
        events = [row["steps"] for row in rows(run.path / "events.jsonl") if row["kind"] == "checkpointed"]
        assert events == [160, 240, 320, 400]
        assert "The checkpoint at step 80 was not written: no space left on disk" in run.spectator.messages[0]

    def test_it_is_not_tried_at_every_look(self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch) -> None:
        run = stage(checkpoint_every=80, steps=800)
        run.scores = iter([1.0])
        tried = self.failing(monkeypatch, lambda folder: folder == run.path)
        run.run([run.work()] * 10)
        assert tried.count(run.path) <= 4, "one, and then none for five seconds; the last; and with the evaluation"

    def test_the_last_one_goes_elsewhere(
        self, stage: Callable[..., Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        self.failing(monkeypatch, lambda folder: folder == run.path)
        result = run.run([run.work()])
        (place,) = (tmp_path / "elsewhere").iterdir()
        assert newest(place).step == 80
        assert result.checkpoint == str(place / "checkpoints/80")
        assert result.status == "finished"
        assert {"config.toml", "card.json", "summary.json"} <= {path.name for path in place.iterdir()}
        assert any(f"`passel resume {place}`" in text for text in run.spectator.messages)
        RunFolder.open(place).close()

    def test_a_folder_that_is_moved_is_followed(self, stage: Callable[..., Stage], tmp_path: Path) -> None:
        run = stage(steps=160, checkpoint_every=80)
        run.scores = iter([1.0])

        def moved() -> None:
            run.work()()
            run.path.rename(tmp_path / "moved")

        result = run.run([run.work(), moved])
        assert not run.path.exists()
        assert newest(tmp_path / "moved").step == 160
        assert result.checkpoint == str(tmp_path / "moved/checkpoints/160")
        assert summary(tmp_path / "moved")["status"] == "finished"
        assert any("was moved from" in text for text in run.spectator.messages)
        assert_whole(tmp_path / "moved")

    def test_a_folder_that_is_removed_is_made_again(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=160, checkpoint_every=80)
        run.scores = iter([1.0])

        def removed() -> None:
            run.work()()
            shutil.rmtree(run.path)

        result = run.run([run.work(), removed])
        assert newest(run.path).step == 160
        assert (run.path / "config.toml").exists()
        assert result.status == summary(run.path)["status"] == "finished"
        assert any("was removed, and is made again" in text for text in run.spectator.messages)
        assert_whole(run.path)

    def test_a_folder_that_is_made_again_has_a_checkpoint_at_once(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those that it held are gone: until the next were due, a kill would cost everything."""
        monkeypatch.setattr(supervisor, "SAMPLE_EVERY", 0.0)
        run = stage(steps=320, checkpoint_every=300)
        run.scores = iter([1.0])
        found: list[int] = []

        def look() -> None:
            found.append(newest(run.path).step)
            run.work()()

        def removed() -> None:
            run.work()()
            shutil.rmtree(run.path)

        run.run([run.work(), removed, look, run.work()])
        assert found == [160]

    def test_a_folder_that_is_removed_and_taken_by_another_is_left_alone(
        self, stage: Callable[..., Stage], tmp_path: Path
    ) -> None:
        run = stage(steps=240, checkpoint_every=80)
        run.scores = iter([1.0])

        def replaced() -> None:
            run.work()()
            shutil.rmtree(run.path)
            run.path.mkdir()
            (run.path / "config.toml").write_text("another")

        result = run.run([run.work(), replaced, run.work()])
        (place,) = (tmp_path / "elsewhere").iterdir()
        assert {path.name: path.read_text() for path in run.path.iterdir()} == {"config.toml": "another"}
        assert newest(place).step == 240
        assert result.status == summary(place)["status"] == "finished"
        told = [text for text in run.spectator.messages if "what is there now is not this run's" in text]
        assert any(f"The last checkpoint was {run.path / 'checkpoints/80'}." in text for text in told)

    def test_a_failed_run_leaves_no_summary_in_the_folder_of_another(self, stage: Callable[..., Stage]) -> None:
        run = stage(checkpoint_every=80)

        def replaced() -> None:
            shutil.rmtree(run.path)
            run.path.mkdir()
            (run.path / "summary.json").write_text("another")
            raise DivergedError("the loss is nan")

        with pytest.raises(DivergedError):
            run.run([run.work(), replaced])
        assert {path.name: path.read_text() for path in run.path.iterdir()} == {"summary.json": "another"}

    def test_without_a_temporary_folder_it_is_the_home_folder(
        self, stage: Callable[..., Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Python looks for a temporary folder that it can write in, and raises where every disk of those is full."""

        def none() -> str:
            raise FileNotFoundError(2, "No usable temporary directory found")

        (tmp_path / "nowhere").mkdir()
        monkeypatch.setattr("tempfile.gettempdir", none)
        run = stage(steps=80)
        run.scores = iter([1.0])
        self.failing(monkeypatch, lambda folder: folder == run.path)
        assert run.run([run.work()]).status == "finished"
        (place,) = (tmp_path / "nowhere").iterdir()
        assert newest(place).step == 80

    def test_what_cannot_be_saved_when_a_run_is_stopped_is_told(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = stage()
        run.puppets.while_pausing = lambda: _raise(WorkerDiedError("worker 1", "did not come to rest within 5 s"))
        self.failing(monkeypatch, lambda folder: True)
        result = run.run([run.work(), lambda: setattr(run.interrupts, "requested", 15)])
        assert (result.status, result.checkpoint) == ("stopped", None)
        assert (
            "What was learnt since the last checkpoint is not saved: no space left on disk for the checkpoint."
            in run.spectator.messages
        )

    def test_what_waits_for_the_disk_is_written_at_the_end(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run ends before the first second is over after which an event, or a report, is tried again."""
        run = stage(steps=80)
        run.scores = iter([1.0])
        for what in ("metric", "event"):
            self.fail_once(monkeypatch, what)
        run.run([run.work()])
        assert kinds(run.path)[0] == "first step"
        assert kinds(run.path)[-1] == "finished"
        assert rows(run.path / "metrics.jsonl")[-1]["phase"] == "finished"
        told = "The metrics cannot be written (No space left on device). Training goes on, and it is tried again."
        assert told in run.spectator.messages

    def fail_once(self, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
        original, full = getattr(RunFolder, what), iter([True])

        def sometimes(*args: Any, **fields: Any) -> None:
            if next(full, False):
                error = PasselError("metrics.jsonl cannot be written (No space left on device). Mend that and resume.")
                raise error from OSError(28, "No space left on device")
            original(*args, **fields)

        monkeypatch.setattr(RunFolder, what, sometimes)

    @pytest.mark.parametrize("another", [True, False], ids=["another run", "a folder of the user's"])
    def test_what_took_the_place_of_a_removed_folder_stays(
        self, stage: Callable[..., Stage], tmp_path: Path, another: bool
    ) -> None:
        run = stage(steps=160, checkpoint_every=80)
        run.scores = iter([1.0])
        before: dict[str, bytes] = {}

        def replaced() -> None:
            run.work()()
            shutil.rmtree(run.path)
            if another:
                RunFolder.create(run.path, {"env": "another", "algo": "ppo"}, {"env": {}}).close()
            else:
                run.path.mkdir()
                (run.path / "config.toml").write_text("mine")
            before.update({path.name: path.read_bytes() for path in run.path.iterdir()})

        result = run.run([run.work(), replaced])
        assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
        (place,) = (tmp_path / "elsewhere").iterdir()
        assert (result.status, newest(place).step) == ("finished", 160)
        assert any("what is there now is not this run's" in text for text in run.spectator.messages)

    def test_a_last_checkpoint_elsewhere_is_kept_if_the_run_cannot_move_there(
        self, stage: Callable[..., Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        self.failing(monkeypatch, lambda folder: folder == run.path)
        monkeypatch.setattr("passel.saving.Saver._settle", lambda *_: (_ for _ in ()).throw(OSError(24, "Too many")))
        run.run([run.work()])
        places = list((tmp_path / "elsewhere").iterdir())
        assert {newest(place).step for place in places} == {80}

    @pytest.mark.parametrize("what", ["metric", "event", "add_episodes"])
    def test_a_diary_that_cannot_be_written_ends_nothing(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        original, full = getattr(RunFolder, what), iter([True])

        def sometimes(*args: Any, **fields: Any) -> None:
            if next(full, False):
                raise PasselError("the file cannot be written (No space left on device)")
            original(*args, **fields)

        monkeypatch.setattr(RunFolder, what, sometimes)
        monkeypatch.setattr("passel.journal.Retry.failed", lambda retry: None)
        assert run.run([run.work()]).status == "finished"
        assert kinds(run.path)[0] == "first step", "an event waits until it can be written"
        assert any("No space left on device" in text for text in run.spectator.messages)
        assert rows(run.path / "metrics.jsonl")
        assert len(RunFolder.open(run.path, lock=False).read_episodes()) == 10, "episodes wait for the disk"

    def test_tensorboard_that_cannot_be_written_ends_nothing(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = stage(steps=80, tensorboard=True)
        run.scores = iter([1.0])

        def full(*args: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(TensorBoardLog, "report", full)
        monkeypatch.setattr(TensorBoardLog, "graph", full)
        assert run.run([run.work()]).status == "finished"
        assert newest(run.path).step == 80
        assert any("TensorBoard cannot be written" in text for text in run.spectator.messages)


class TestRetry:
    def test_the_wait_grows_and_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = FakeTime()
        monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
        retry = Retry(first=1.0, longest=5.0)
        assert retry.due
        waits = []
        for _ in range(4):
            retry.failed()
            assert not retry.due
            waits.append(retry.seconds)
            clock.now += retry.seconds
            assert retry.due
        assert waits == [1.0, 2.0, 4.0, 5.0]
        retry.worked()
        retry.failed()
        assert retry.seconds == 1.0


class TestTrueWords:
    def test_a_run_that_meets_budget_and_criterion_at_once_is_solved(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=800)
        run.scores = iter([8.0])
        result = run.run([run.work()] * 10)
        assert (result.status, result.solved_at_steps, result.solved_at_episodes) == ("solved", 800, 100)
        assert len(run.evaluations) == 1
        assert newest(run.path).meta["solved_at_steps"] == 800
        assert kinds(run.path)[-2:] == ["solved", "solved"]

    @pytest.mark.parametrize(("trained", "evaluated"), [(8.0, 7.0), (7.0, 8.0)])
    def test_one_of_the_two_is_not_enough(self, stage: Callable[..., Stage], trained: float, evaluated: float) -> None:
        run = stage(steps=800)
        run.scores = iter([evaluated])
        result = run.run([run.work(score=trained)] * 10)
        assert (result.status, result.solved_at_steps) == ("finished", None)

    def test_episodes_that_end_on_the_way_to_rest_are_counted(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=800)
        run.scores = iter([8.0])
        run.puppets.while_pausing = run.work(episodes=60, steps=0)
        result = run.run([run.work(episodes=5)] * 10)
        assert result.episodes == 110
        assert result.status == "solved", "the mean is of a hundred now"

    def test_a_view_that_raises_ends_nothing(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        run.spectator.report = lambda report: _raise(ConnectionError("away"))  # type: ignore[method-assign]
        assert run.run([run.work()]).status == "finished"
        (told,) = [row["text"] for row in rows(run.path / "events.jsonl") if row["kind"] == "notice"]
        assert told == "The view failed in report (ConnectionError: away). Training goes on."

    def test_a_view_that_fails_with_the_notice_of_its_failure_ends_nothing(self, stage: Callable[..., Stage]) -> None:
        """Each error has another text, as those of connections have, which name an object by its address."""
        run = stage(steps=80)
        run.scores = iter([1.0])
        calls: list[object] = []

        def away(said: object) -> None:
            calls.append(said)
            if len(calls) > 100:
                pytest.fail("each failure is told, which fails, which is told")
            raise ConnectionError(f"connection {len(calls)} failed")

        run.spectator.report = run.spectator.message = away  # type: ignore[method-assign]
        assert run.run([run.work()]).status == "finished"

    def test_an_episode_that_ends_while_the_board_is_read_counts_once(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = stage(steps=160)
        run.scores = iter([1.0])
        read, late = Board.read_episodes, iter([True])

        def while_another_ends(board: Board, rank: int, *args: int) -> list[Episode]:
            if next(late, False):
                board.finished(rank, [Episode(5.0, 8)])
            return read(board, rank, *args)

        monkeypatch.setattr(Board, "read_episodes", while_another_ends)
        result = run.run([run.work(episodes=1), run.work(episodes=1)])
        assert result.episodes == 3
        assert newest(run.path).meta["scores"] == [8.0, 5.0, 8.0]

    def test_a_run_without_an_update_says_so(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        result = run.run([run.work(updates=0)])
        assert result.warnings == ("No update was made in 80 steps: nothing was learnt. Use more --steps.",)
        assert summary(run.path)["warnings"] == list(result.warnings)

    def test_the_seconds_of_a_run_that_failed_are_those_of_its_steps(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is saved after a divergence, so no checkpoint has written them down."""
        clock = FakeTime()
        monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
        run = stage(checkpoint_every=150)

        def look() -> None:
            clock.now += 10.0
            run.work(steps=80)()

        with pytest.raises(DivergedError):
            run.run([look, look, look, lambda: _raise(DivergedError("the loss is nan"))])
        assert newest(run.path).step == 160
        found = summary(run.path)
        assert (found["steps"], found["seconds"], found["train_seconds"]) == (240, 30.0, 30.0)
        assert found["steps_per_second"] == pytest.approx(found["steps"] / found["train_seconds"])

    def test_refused_gradients_of_all_workers_are_summed(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        place = run.plan.scalar_names.index("refused_gradients")

        def refused() -> None:
            run.work()()
            run.puppets.board.scalar(place)[:] = 3.0, 5.0

        run.run([refused])
        assert run.spectator.reports[-1].scalars["refused_gradients"] == 8.0

    def test_more_episodes_than_the_board_holds_are_counted_and_told(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=80)
        run.scores = iter([1.0])
        result = run.run([run.work(episodes=EPISODES + 7, score=1.0)])
        assert result.episodes == EPISODES + 7
        (lost,) = [row for row in rows(run.path / "events.jsonl") if row["kind"] == "episodes lost"]
        assert lost["count"] == 7
        assert len(RunFolder.open(run.path, lock=False).read_episodes()) == EPISODES

    def test_a_late_look_takes_the_mean_over_all_workers(self, stage: Callable[..., Stage]) -> None:
        """A hundred and fifty episodes of each: the mean is not that of the worker that is read last."""
        run = stage(steps=80)
        run.scores = iter([1.0])

        def both() -> None:
            run.puppets.board.finished(0, [Episode(0.0, 1)] * 150)
            run.puppets.board.finished(1, [Episode(8.0, 1)] * 150)
            run.work(episodes=0)()

        assert run.run([both]).return_mean_100 == pytest.approx(4.0)

    @pytest.mark.parametrize(("place", "told"), [("processes", 1), ("inline", 0)])
    def test_a_late_look_is_told(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, place: str, told: int
    ) -> None:
        """Of 3 s, and not again at the next of 3 s. Inline nothing trains while the watcher is held up."""
        run = stage(steps=400, place=place)
        run.scores = iter([1.0])
        clock = FakeTime()
        monkeypatch.setattr(time, "perf_counter", clock.perf_counter)

        def held_up() -> None:
            clock.now += 3.0
            run.work()()

        run.run([run.work(), run.work(), held_up, held_up, run.work()])
        late = [row for row in rows(run.path / "events.jsonl") if row["kind"] == "late look"]
        assert len(late) == told
        assert all(row["seconds"] == pytest.approx(3.0) for row in late)

    def test_speed_is_that_of_training_alone(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """5 s to start, 10 s of training at 100 steps/s, 20 s of evaluation; and a resumed run adds to each."""
        clock = FakeTime()
        monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
        history = History(seconds=36.0, startup_seconds=5.0, train_seconds=10.0, evaluation_seconds=20.0)
        history.checkpoint_seconds = 1.0
        run = stage(steps=1000, history=history)

        def slow(*args: Any, **options: Any) -> list[Episode]:
            clock.now += 20.0
            return [Episode(1.0, 8)] * 100

        monkeypatch.setattr(examiner, "play", slow)
        run.puppets.resume = lambda: setattr(clock, "now", clock.now + (5.0 if clock.now == 1000.0 else 0.0))  # type: ignore[method-assign]

        def look() -> None:
            clock.now += 1.0
            run.work(steps=100, updates=50)()

        result = run.run([look] * 10)
        assert result.train_seconds == pytest.approx(10.0 + 15.0)
        assert result.evaluation_seconds == pytest.approx(40.0)
        assert result.startup_seconds == pytest.approx(5.0)
        assert result.seconds == pytest.approx(36.0 + 35.0)
        parts = result.startup_seconds + result.train_seconds + result.evaluation_seconds + result.checkpoint_seconds
        assert parts == pytest.approx(result.seconds)
        assert result.steps_per_second == pytest.approx(1000 / 25.0)
        assert result.updates_per_second == pytest.approx(500 / 25.0)
        assert newest(run.path).meta["train_seconds"] == pytest.approx(25.0)
        last = rows(run.path / "metrics.jsonl")[-1]
        assert (last["phase"], last["steps_per_second"]) == ("finished", pytest.approx(40.0)), "0 would be no speed"
        assert all(row["steps_per_second"] for row in rows(run.path / "metrics.jsonl")[2:])
        assert [row.state for row in run.spectator.reports[-1].workers] == ["done", "done"]

    def test_a_checkpoint_of_an_earlier_version_counts_its_seconds_as_training(self) -> None:
        assert History(seconds=50.0).spent() == {"train": 50.0}


class FakeTime:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now


class TestReports:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> FakeTime:
        clock = FakeTime()
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(perf_counter=clock.perf_counter))
        monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
        return clock

    def looks(self, run: Stage, clock: FakeTime, count: int, seconds: float) -> list[Callable[[], None]]:
        def line() -> None:
            clock.now += seconds
            run.work(episodes=0, steps=10, updates=5)()

        return [line] * count

    def test_speed_is_that_of_the_last_seconds(self, stage: Callable[..., Stage], clock: FakeTime) -> None:
        """100 steps a second for 20 s, then 1000: the mean since the start would still say 250."""
        run = stage(steps=2000 + 8000)
        run.scores = iter([0.0])
        run.run([*self.looks(run, clock, 200, 0.1), *self.looks(run, clock, 800, 0.01)])
        reports = [report for report in run.spectator.reports if report.phase == "train"]
        assert any(report.steps_per_second == pytest.approx(100, rel=0.01) for report in reports)
        assert reports[-1].steps_per_second == pytest.approx(1000, rel=0.01)
        assert reports[-1].updates_per_second == pytest.approx(500, rel=0.01)

    def test_few_lines_for_a_long_run(self, stage: Callable[..., Stage], clock: FakeTime) -> None:
        """The display is told four times a second; the file once, and less often when the run is old."""
        run = stage(steps=10_000)
        run.scores = iter([0.0])
        run.run(self.looks(run, clock, 1000, 0.1))
        assert 300 <= len(run.spectator.reports) <= 410
        seconds = [row["seconds"] for row in rows(run.path / "metrics.jsonl")]
        assert 85 <= len(seconds) <= 105
        assert seconds == sorted(seconds)

    def test_fewer_lines_for_one_that_is_eleven_hours_old(self, stage: Callable[..., Stage], clock: FakeTime) -> None:
        run = stage(steps=10_000, history=History(seconds=40_000.0))
        run.scores = iter([0.0])
        result = run.run(self.looks(run, clock, 1000, 0.1))
        assert 8 <= len(rows(run.path / "metrics.jsonl")) <= 13
        assert result.seconds == pytest.approx(40_100.0)

    @pytest.mark.parametrize(("sync", "updates"), [("hogwild", 30), ("allreduce", 15)])
    def test_an_update_that_everybody_takes_part_in_is_one(
        self, stage: Callable[..., Stage], sync: str, updates: int
    ) -> None:
        run = stage(steps=80, sync=sync)
        run.scores = iter([0.0])

        def both() -> None:
            run.puppets.board.counters[:, COLUMNS["steps"]] = 40
            run.puppets.board.counters[:, COLUMNS["updates"]] = 15

        assert run.run([both]).updates == updates
        assert [row.updates for row in run.spectator.reports[-1].workers] == [15, 15]

    def test_phases(self, stage: Callable[..., Stage], clock: FakeTime) -> None:
        run = stage(steps=160)
        run.scores = iter([0.0])
        warm = run.work(updates=0)

        def a_second_later(line: Callable[[], None]) -> Callable[[], None]:
            def done() -> None:
                clock.now += 1.0
                line()

            return done

        run.run([a_second_later(warm), a_second_later(run.work())])
        phases = [report.phase for report in run.spectator.reports]
        assert list(dict.fromkeys(phases)) == ["warm-up", "train", "checkpoint", "evaluate", "finished"]


class TestEpisodes:
    def test_each_is_a_row_with_the_moment_at_which_it_was_seen(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = FakeTime()
        monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
        run = stage(steps=240, history=History(seconds=100.0))
        run.scores = iter([1.0])

        def both() -> None:
            clock.now += 2.0
            run.puppets.board.finished(1, [Episode(-0.5, 3), Episode(7.25, 4)])
            run.work(episodes=1, score=2.0)()

        run.run([both, run.work(episodes=0), run.work(episodes=1)])
        assert (run.path / "episodes.csv").read_text() == (
            "step,second,worker,return,length\n"
            "80,102.000,0,2.0,8\n80,102.000,1,-0.5,3\n80,102.000,1,7.25,4\n240,102.000,0,8.0,8\n"
        )

    def test_the_mean_length_is_that_of_the_last_hundred(self, stage: Callable[..., Stage]) -> None:
        """A hundred of length 8, then ten of length 28."""
        run = stage(steps=240, eval_episodes=0)

        def longer() -> None:
            run.puppets.board.finished(1, [Episode(0.0, 28)] * 10)
            run.work(episodes=0)()

        run.run([run.work(episodes=0), run.work(episodes=100), longer])
        reports = run.spectator.reports
        assert reports[0].length_mean_100 is None
        assert reports[-1].length_mean_100 == pytest.approx(10.0)
        assert rows(run.path / "metrics.jsonl")[-1]["length_mean_100"] == pytest.approx(10.0)
        assert newest(run.path).meta["lengths"] == [8] * 90 + [28] * 10

    def test_a_checkpoint_of_an_earlier_version_has_no_lengths(self) -> None:
        assert History.from_meta({"episodes": 3, "scores": [1.0, 2.0, None]}).lengths == []
        with pytest.raises(ValueError, match="lengths"):
            History.from_meta({"lengths": [1.5]})

    def test_what_was_seen_is_on_disk_before_a_checkpoint_is(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that is killed after a checkpoint and resumed from it must find every episode up to there."""
        run = stage(checkpoint_every=80, steps=240, eval_episodes=0)
        found: list[int] = []
        original = checkpoint.save

        def save(folder: Path, *args: Any, **options: Any) -> Path:
            found.append(len(RunFolder.open(folder, lock=False).read_episodes()))
            return original(folder, *args, **options)

        monkeypatch.setattr(checkpoint, "save", save)
        run.run([run.work(episodes=5)] * 3)
        assert found[:3] == [5, 10, 15]

    def test_too_many_that_wait_for_a_disk_are_given_up_from_the_oldest_on(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("passel.journal.MOST_BYTES", 1000)
        run = stage(steps=800, eval_episodes=0)
        original, full = RunFolder.add_episodes, [True]

        def sometimes(folder: RunFolder, data: bytes) -> None:
            if full:
                raise OSError(28, "No space left on device")
            original(folder, data)

        monkeypatch.setattr(RunFolder, "add_episodes", sometimes)
        run.run([*[run.work(episodes=10)] * 9, lambda: (run.work(episodes=10)(), full.clear())[0]])
        found = RunFolder.open(run.path, lock=False).read_episodes()
        assert 0 < len(found) < 100
        assert found["step"][-1] == 800, "the newest are kept"
        assert any("the oldest of them will be missing" in text for text in run.spectator.messages)

    def test_evaluations_and_settings_reach_tensorboard(
        self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[tuple[Any, ...]] = []
        monkeypatch.setattr(TensorBoardLog, "evaluation", lambda log, *numbers: told.append(numbers))
        monkeypatch.setattr(TensorBoardLog, "end_session", lambda log: told.append(("ended", log._hparams["algo"])))
        monkeypatch.setattr(TensorBoardLog, "report", lambda *_: None)
        monkeypatch.setattr(TensorBoardLog, "graph", lambda *_: None)
        run = stage(steps=80, tensorboard=True)
        run.scores = iter([2.5])
        run.run([run.work()])
        assert told == [(80, 2.5, 8.0), ("ended", "dqn")]


class TestCheckpoints:
    def test_after_every_so_many_steps(self, stage: Callable[..., Stage]) -> None:
        """80 steps a look: the first looks at or beyond 200, 400, 600, 800, and the end."""
        run = stage(checkpoint_every=200, keep_checkpoints=2, steps=880)
        run.scores = iter([0.0])
        run.run([run.work(score=0.0)] * 11)
        events = [row["steps"] for row in rows(run.path / "events.jsonl") if row["kind"] == "checkpointed"]
        assert events == [240, 400, 640, 800, 880]
        assert sorted(int(path.name) for path in (run.path / "checkpoints").iterdir()) == [800, 880]
        assert run.puppets.told[:3] == ["resume", "pause", "resume"]

    def test_after_so_many_seconds(self, stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch) -> None:
        """A slow run: a checkpoint every 300 s, long before its first 100,000 steps."""
        clock = FakeTime()
        monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
        run = stage(steps=80 * 10)
        run.scores = iter([0.0])

        def slow() -> None:
            clock.now += 100.0
            run.work(score=0.0)()

        run.run([slow] * 10)
        events = [row["steps"] for row in rows(run.path / "events.jsonl") if row["kind"] == "checkpointed"]
        assert events == [240, 480, 720, 800]

    def test_holds_what_a_run_remembers_of_itself(self, stage: Callable[..., Stage]) -> None:
        run = stage(steps=80)
        run.scores = iter([3.0])
        run.run([run.work(episodes=7, score=2.0)])
        history = History(**newest(run.path).meta)
        assert (history.episodes, history.scores, history.resumed) == (7, [2.0] * 7, 0)
        assert history.lengths == [8] * 7
        assert history.eval is not None
        assert history.eval["mean"] == 3.0
        assert history.seconds > 0
        assert dataclasses.asdict(history) == newest(run.path).meta


def test_a_real_run_is_solved_and_says_so(tmp_path: Path) -> None:
    """The easiest environment there is, and no puppets: the mean reaches 7.5 and greedy episodes confirm it."""
    run = passel.train(
        IDENTITY,
        place="inline",
        sync="hogwild",
        workers=2,
        envs=4,
        hidden=[32],
        lr=1e-2,
        gamma=0.0,
        n_step=1,
        batch=32,
        warmup=100,
        capacity=2000,
        epsilon_steps=500,
        epsilon_end=0.0,
        steps=20_000,
        tensorboard=False,
        quiet=True,
        out=str(tmp_path / "run"),
    )
    result = run.summary
    assert result.status == "solved"
    assert run.threshold == 7.5
    assert result.eval is not None
    assert result.eval.episodes == 100
    assert 7.5 <= result.eval.mean <= 8.0
    assert result.return_mean_100 is not None
    assert 7.5 <= result.return_mean_100 <= 8.0
    assert 800 <= (result.solved_at_steps or 0) == result.steps < 20_000
    assert result.solved_at_episodes == result.episodes
    assert newest(run.path).step == result.steps
    assert_same_summary(run.path, result)
    again = passel.load(run.path)
    assert [int(a) for a in again.act(torch.eye(4).numpy())] == [0, 1, 2, 3]  # type: ignore[union-attr]
    with pytest.raises(PasselError, match=r"is solved, and --until-solved stops there\. Use --no-until-solved"):
        passel.resume(run.path, quiet=True)
