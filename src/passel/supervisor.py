"""The watcher of a run: it looks, reports, checkpoints, evaluates and decides when to stop. It never trains.

Runs in: the process that the user started.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_type_hints

import numpy as np
import torch

from passel.arena import Arena
from passel.config import as_dict
from passel.examiner import REPORT, Examiner
from passel.health import Health
from passel.interrupts import Interrupts
from passel.journal import Journal
from passel.normalizer import CLIP
from passel.place.base import PAUSE_PATIENCE, Placement, WorkerDiedError
from passel.place.board import EPISODES
from passel.place.plan import Plan
from passel.reading import as_fields
from passel.reports import Reporter
from passel.run.folder import RunFolder
from passel.run.rss import PeakRss
from passel.run.summary import EvalResult, Status, Summary
from passel.saving import Saver
from passel.selection import Selection, Snapshot
from passel.stopwatch import ACTIVITIES, Stopwatch
from passel.types import DivergedError, Episode, PasselError, Report, counted
from passel.view.display import guarded
from passel.view.terminal import View

WINDOW = 100  # episodes of the mean return that says "solved" (Gymnasium's convention)
PATIENCE_AFTER_A_MISS = 25  # new episodes before an evaluation is tried again
TICK = 0.1  # seconds between two looks
FIRST_TICK = 0.005  # until the first step, which is worth a precise time
LATE = 2.0  # seconds between two looks that are worth a notice
SHOW_EVERY = 0.25  # seconds between two reports to the display
SAMPLE_EVERY = 5.0  # seconds between two looks at memory, which cost some milliseconds a process
STOP_PATIENCE = 5.0  # seconds that a user who stops a run waits for a worker to come to rest
HURRY = 3.0  # seconds that a checkpoint may take after the second Ctrl-C


@dataclass
class History:
    """What a run remembers of itself beside the arena; a checkpoint's `meta`."""

    seconds: float = 0.0
    resumed: int = 0
    episodes: int = 0
    scores: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    solved_at_seconds: float | None = None
    solved_at_steps: int | None = None
    solved_at_episodes: int | None = None
    eval: dict[str, float] | None = None
    next_evaluation: int = 0
    peak_rss_mb: float = 0.0
    startup_seconds: float = 0.0
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    #: Evaluations during training: when the next one is due, the last one, the best one, and how many came after it.
    evaluate_at: int = 0
    eval_step: int | None = None
    eval_mean: float | None = None
    best_step: int | None = None
    best_mean: float | None = None
    evaluations_since_best: int = 0

    def spent(self) -> dict[str, float]:
        """Seconds by activity. Checkpoints of earlier versions have the whole alone: it counts as training."""
        spent: dict[str, float] = {activity: getattr(self, f"{activity}_seconds") for activity in ACTIVITIES}
        return spent if any(spent.values()) else {"train": self.seconds}

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Self:
        """What a checkpoint remembers. Raises ValueError, with the reason, for anything that `vars` of a history never
        is. A field that the checkpoint does not have is as at the start; a score that was not finite is null there.
        """
        hints = get_type_hints(cls) | {"scores": list[float | None], "eval": dict[str, float | None] | None}
        found = as_fields(hints, meta)
        negative = [name for name, value in found.items() if hints[name] is int and value < 0]
        if negative:
            raise ValueError(f"{negative[0]} is negative")
        found["scores"] = [score for score in found.get("scores", []) if score is not None]
        return cls(**found)


class Supervisor:
    """Watches one run from its first turn to its summary."""

    def __init__(
        self,
        plan: Plan,
        arena: Arena,
        placement: Placement,
        folder: RunFolder,
        view: View,
        history: History,
        interrupts: Interrupts,
        began: float,
        base: Path | None = None,
    ) -> None:
        self._plan, self._arena, self._placement, self._folder = plan, arena, placement, folder
        self._view, self._history, self._interrupts = guarded(view), history, interrupts
        self._board = placement.board
        self._began = began - history.seconds
        self._stopwatch = Stopwatch(began, history.spent())
        self._scores = deque(history.scores, maxlen=WINDOW)
        self._lengths = deque(history.lengths, maxlen=WINDOW)
        self._seen = [int(count) for count in self._board.column("episodes")]
        hparams = as_dict(plan.config, plan.numbers) if plan.config.tensorboard else None
        self._journal = Journal(folder, self._view, hparams)
        self._saver = Saver(plan, arena, self._journal, base)
        self._saver.schedule(self._board.steps)
        self._reporter = Reporter(plan, self._board, self._stopwatch)
        self.shares = self._reporter.shares
        numbers = plan.numbers
        rewards = plan.normalized is not None and plan.normalized.reward
        self._health = Health(
            numbers.gamma,
            getattr(numbers, "reward_scale", 1.0),
            plan.spec.max_episode_steps,
            CLIP if rewards else 0.0,
        )
        self._started = self._ended = False
        self._resting = True
        self._shown = self._reported = 0.0
        self._sampled = self._looked = time.perf_counter()
        self._latest = LATE
        self._peak = PeakRss(os.getpid())
        self._peak.mb = history.peak_rss_mb
        self.threshold = plan.config.solved_at if plan.config.solved_at is not None else plan.spec.reward_threshold
        self._examiner = Examiner(plan, self._journal, lambda: interrupts.requested is None)
        self._selection = Selection(plan, arena, self._examiner, self._journal, history)

    @property
    def path(self) -> Path:
        """Where the run is now: it may have been moved, or saved in another place."""
        return self._journal.folder.path

    def run(self) -> Summary:
        """Train until solved, finished or stopped. What was learnt is on disk when this returns or raises."""
        try:
            status = self._outcome()
            self._placement.stop()
            self._draw_networks()
            return self._finish(status)
        except BaseException as error:
            self._placement.stop()
            self._fail(error)
            raise
        finally:
            self._selection.cancel()
            self._placement.stop()
            self._journal.close()
            self._saver.close()
            if self._journal.folder is not self._folder:
                self._journal.folder.close()

    def _outcome(self) -> Status:
        """Train to the end, and keep what was learnt, whatever ends it."""
        try:
            self._train_on()
            return self._watch()
        except BaseException as error:
            self._placement.stop()
            self._save_what_is_left(error)
            if self._interrupts.requested and isinstance(error, WorkerDiedError):
                # It did not come to rest in time, or the signal that asked for the stop reached it too.
                self._journal.notice(f"{error.name} was ended while the run was stopped: {error.cause}.", "worker died")
                return "stopped"
            raise

    def _draw_networks(self) -> None:
        """The networks' graphs for TensorBoard. Tracing takes a second and 60 MB: both are there when all is done."""
        if self._plan.config.tensorboard:
            spec = self._plan.spec
            example = torch.zeros((1, *spec.obs_shape), dtype=torch.from_numpy(np.empty(0, spec.obs_dtype)).dtype)
            for network in self._selection.policy(self._selection.snapshot(self._board.steps)).networks.values():
                self._journal.draw(network, example)

    def _watch(self) -> Status:
        while True:
            self._placement.advance(TICK if self._started else FIRST_TICK)
            self._look()
            if self._interrupts.requested:
                return self._stop("stopped")
            if self._board.steps >= self._plan.config.steps:
                return self._stop("finished")
            self._select()
            if self._selection.over:
                return self._stop("finished")
            if self._looks_solved() and self._confirm():
                if self._plan.config.until_solved:
                    return self._stop("solved")
                self._train_on()
            if self._saver.due(self._board.steps):
                self._rest()
                self._save()
                self._train_on()

    def _train_on(self) -> None:
        self._stopwatch.switch("train")
        self._resting = False
        self._looked = time.perf_counter()
        self._placement.resume()

    def _rest(self) -> None:
        """Bring every worker to rest, and count the episodes that ended on the way."""
        if not self._resting:
            self._placement.pause(lambda: STOP_PATIENCE if self._interrupts.requested else PAUSE_PATIENCE)
            self._resting = True
            self._stopwatch.switch("checkpoint")
            self._count_episodes()

    def _stop(self, status: Status) -> Status:
        """Bring every worker to rest, keep everything, and only then measure the policy if that is still to be done."""
        self._show("checkpoint")
        self._selection.cancel()
        self._rest()
        self._save(last=True)
        if status != "stopped" and self._plan.config.eval_episodes:
            result = self._evaluate_best(consider_last=status == "finished")
            if result is None and self._interrupts.requested and status == "finished":
                status = "stopped"
            if result is not None and self._mean_is_enough() and self._confirms(result):
                self._solve(result)
        elif status == "finished" and self._selection.every:
            self._consider_last()
        if status == "finished" and self._history.solved_at_steps is not None:
            status = "solved"
        self._tell_notices()
        if status != "stopped":
            self._tell_of_deaths()
            self._save(last=True)  # with the result of the evaluation
        return status

    def _tell_of_deaths(self) -> None:
        """A worker that died at rest has cost nothing: everything is on disk."""
        try:
            self._placement.check()
        except (WorkerDiedError, PasselError) as error:
            self._journal.notice(f"{str(error).splitlines()[0]}, at rest: nothing is lost.", "worker died")

    def _select(self) -> None:
        """Evaluate the policy if that is due, without stopping the workers, and note what came of it."""
        inline = self._plan.config.place == "inline"
        with self._stopwatch.during("evaluation") if inline else nullcontext():
            result = self._selection.look(self._board.steps)
        if result is not None:
            self._show(self._phase(), always=True)
        if self._selection.over:
            self._journal.notice(
                f"{counted(self._history.evaluations_since_best, 'evaluation')} in a row brought no better policy than "
                f"that of step {self._history.best_step:,}: training ends (--patience)."
            )

    def _phase(self) -> str:
        return "train" if self._board.column("updates").any() else "warm-up"

    def _look(self) -> None:
        """Read the board; report if it is time."""
        self._count_episodes()
        now = time.perf_counter()
        self._tell_if_late(now)
        if not self._started and self._board.steps:
            self._started = True
            self._journal.event("first step", seconds=now - self._began)
        if now - self._shown >= SHOW_EVERY:
            self._shown = now
            self._show(self._phase())
        if now - self._sampled >= SAMPLE_EVERY:
            self._sampled = now
            self._peak.sample()
            self._tell_notices()
            with suppress(PasselError, OSError):  # the next checkpoint says it, if it lasts
                self._saver.find_home()
        self._journal.tell_of_the_view()

    def _count_episodes(self) -> None:
        new: dict[int, list[Episode]] = {}
        for rank, seen in enumerate(self._seen):
            count = int(self._board.column("episodes")[rank])
            if count > seen:
                new[rank] = self._board.read_episodes(rank, seen, count)
                self._history.episodes += count - seen
                self._seen[rank] = count
            if count - seen > EPISODES:
                self._journal.notice(
                    f"{count - seen - EPISODES:,} episodes of {self._plan.cast.name(rank)} ended before the watcher "
                    "looked: they are counted, and their scores are lost.",
                    "episodes lost",
                    count=count - seen - EPISODES,
                )
        if not new:
            return
        self._journal.episodes(self._board.steps, self._seconds(), new)
        ended = [episode for of in new.values() for episode in of]
        if len(ended) > WINDOW:
            # More than the window holds: the mean must be of all workers, not of the one that comes last here.
            placed = [((i + 1) / len(of), episode) for of in new.values() for i, episode in enumerate(of)]
            ended = [episode for _, episode in sorted(placed, key=lambda item: item[0])]
        self._scores.extend(episode.score for episode in ended)
        self._lengths.extend(episode.length for episode in ended)

    def _tell_if_late(self, now: float) -> None:
        """Workers that are processes train on unwatched while the watcher is held up."""
        late, self._looked = now - self._looked, now
        if self._started and late > self._latest and self._plan.config.place != "inline":
            self._latest = 2 * late
            self._journal.notice(
                f"The watcher looked {late:.1f} s after its last look, at step {self._board.steps:,}: reports, "
                "checkpoints and the test for solved came late.",
                "late look",
                seconds=late,
            )

    def _tell_notices(self) -> None:
        health = self._health.look(self._reporter.scalars(), self._scores)
        for notice in (*self._plan.notices(self._arena), *self._placement.notices(), *health):
            self._journal.notice(notice)

    def _show(self, phase: str, *, always: bool = False) -> None:
        report = self._report(phase)
        self._view.report(report)
        now = time.perf_counter()
        # Fewer lines as a run grows old: a curve needs some thousand points, not one for every second of a week.
        if always or phase == "finished" or now - self._reported >= max(1.0, (now - self._began) / 4000):
            self._reported = now
            self._journal.report(report)

    def _report(self, phase: str) -> Report:
        return self._reporter.report(
            phase,
            training=not self._resting,
            seconds=self._seconds(),
            episodes=self._history.episodes,
            mean_return=self._mean_return(),
            mean_length=_mean(self._lengths),
            solved_at=self.threshold,
            eval_steps=self._history.eval_step,
            eval_mean=self._history.eval_mean,
        )

    def _seconds(self) -> float:
        """How old the run is. Its clock stops with its last checkpoint, for a resumed run goes on from there."""
        return self._history.seconds if self._ended else time.perf_counter() - self._began

    def _mean_return(self) -> float | None:
        return _mean(self._scores)

    def _mean_is_enough(self) -> bool:
        """The mean of the last 100 training episodes reached the threshold, for the first time."""
        if self.threshold is None or len(self._scores) < WINDOW or self._history.solved_at_steps is not None:
            return False
        if not self._plan.config.eval_episodes:
            return False
        mean = self._mean_return()
        return mean is not None and mean >= self.threshold

    def _looks_solved(self) -> bool:
        """The mean is enough, and no evaluation has just denied it."""
        return self._mean_is_enough() and self._history.episodes >= self._history.next_evaluation

    def _confirms(self, result: EvalResult) -> bool:
        return self.threshold is not None and result.mean >= self.threshold

    def _confirm(self) -> bool:
        """A greedy evaluation agrees. If so, every worker is left at rest with the policy that was evaluated."""
        self._selection.cancel()
        self._rest()
        self._save()
        candidate = self._selection.snapshot(self._board.steps)
        result = self._evaluate(candidate, "confirmation")
        confirmed = result is not None and self._confirms(result)
        if result is not None:
            self._selection.consider(candidate, result, choose=confirmed)
        if result is not None and confirmed:
            self._solve(result)
            return True
        if result is not None:
            self._view.message(
                f"The mean return reached {self._mean_return():.1f}, but {result.episodes} greedy episodes average "
                f"{result.mean:.1f}: training goes on."
            )
            self._journal.event("not confirmed", steps=self._board.steps, mean=result.mean)
        # One that failed is tried again after twice as many episodes each time: it may fail again, and takes long.
        wait = PATIENCE_AFTER_A_MISS * 2 ** min(self._examiner.failures, 8)
        self._history.next_evaluation = self._history.episodes + wait
        self._train_on()
        return False

    def _solve(self, result: EvalResult) -> None:
        self._history.solved_at_steps, self._history.solved_at_episodes = self._board.steps, self._history.episodes
        self._history.solved_at_seconds = self._seconds()
        self._journal.event(
            "solved", steps=self._board.steps, seconds=self._history.solved_at_seconds, mean=result.mean
        )

    def _evaluate(self, candidate: Snapshot, role: str) -> EvalResult | None:
        self._show("evaluate")
        with self._stopwatch.during("evaluation"):
            return self._examiner.evaluate(self._selection.policy(candidate), role, candidate.step)

    def _evaluate_best(self, *, consider_last: bool) -> EvalResult | None:
        """Score the policy that the run leaves behind, on episodes that had no part in choosing it."""
        if consider_last:
            self._consider_last()
        chosen = self._selection.best() or self._selection.snapshot(self._board.steps)
        result = self._evaluate(chosen, REPORT)
        if result is None:
            return None
        self._history.eval = vars(result) | {}
        with self._stopwatch.during("evaluation"):
            self._examiner.compare_levels(self._selection.policy(chosen), chosen.step)
        return result

    def _consider_last(self) -> None:
        """The policy that training has ended with may be the best."""
        self._show("evaluate")
        with self._stopwatch.during("evaluation"):
            self._selection.finish(self._board.steps)

    def _save(self, *, last: bool = False) -> None:
        """Write the arena to disk; every worker must be at rest."""
        self._show("checkpoint")
        with self._stopwatch.during("checkpoint"):
            self._remember()
            self._journal.write_episodes()  # before the checkpoint: a resumed run makes only later ones again
            save = self._saver.save_last if last else self._saver.save
            save(self._board.steps, vars(self._history))

    def _remember(self) -> None:
        history = self._history
        history.seconds = self._seconds()
        history.scores = list(self._scores)
        history.lengths = list(self._lengths)
        history.peak_rss_mb = self._peak.mb
        for activity in ACTIVITIES:
            setattr(history, f"{activity}_seconds", self._stopwatch.spent(activity))

    def _save_what_is_left(self, error: BaseException) -> None:
        """After a failure: keep what the arena holds, if it is sound. The error itself is the one to tell."""
        self._plan.settle(self._arena)
        self._count_episodes()
        self._stopwatch.switch("checkpoint")
        self._resting = True
        if not self._board.steps:
            return
        if isinstance(error, DivergedError) and self._saver.base is not None:
            return  # what a diverging loss left behind is no better than the checkpoint before it
        if isinstance(error, KeyboardInterrupt) and self._saver.seconds_needed() > HURRY:
            self._journal.notice("Interrupted again: no checkpoint was written, because it would take too long.")
            return
        try:
            self._save(last=True)
        except (PasselError, OSError) as failure:
            reason = str(failure).rstrip(".")
            self._journal.notice(f"What was learnt since the last checkpoint is not saved: {reason}.")

    def _fail(self, error: BaseException) -> None:
        """The last words of a run that is ended by an error, or by a second Ctrl-C."""
        self._remember()  # the summary has the steps of now, saved or not, so it must have the seconds of now
        self._ended = True
        self._journal.hurry()
        status: Status = "stopped" if isinstance(error, KeyboardInterrupt) else "failed"
        if isinstance(error, WorkerDiedError):
            self._journal.event("worker died", worker=error.name, cause=error.cause)
        reason = (str(error) or type(error).__name__).split("\n")[0]
        self._journal.event(status, **({} if status == "stopped" else {"reason": reason}))
        self._write_summary(self._summary(status))

    def _finish(self, status: Status) -> Summary:
        self._ended = True
        self._journal.hurry()
        self._show("finished")
        self._journal.event(status, steps=self._board.steps)
        summary = self._summary(status)
        self._journal.ended()
        self._write_summary(summary)
        self._journal.tell_of_the_view()
        return summary

    def _write_summary(self, summary: Summary) -> None:
        try:
            self._saver.find_home()
            self._journal.folder.write_summary(summary)
        except (PasselError, OSError) as error:
            self._journal.notice(f"The summary cannot be written: {str(error).rstrip('.')}. {self._saver.last()}")

    def _nothing_learnt(self, status: Status, report: Report) -> tuple[str, ...]:
        """A run that has taken all its steps and learnt from none of them looks like any other."""
        if status != "finished" or report.updates:
            return ()
        return (f"No update was made in {report.steps:,} steps: nothing was learnt. Use more --steps.",)

    def _summary(self, status: Status) -> Summary:
        self._peak.sample()
        history, config = self._history, self._plan.config
        report = self._report("finished")
        return Summary(
            algo=config.algo,
            env=self._plan.spec.id,
            sync=config.sync,
            place=config.place,
            workers=config.workers,
            seed=config.seed,
            status=status,
            steps=report.steps,
            frames=report.frames,
            updates=report.updates,
            episodes=report.episodes,
            seconds=history.seconds,
            steps_per_second=report.steps_per_second,
            updates_per_second=report.updates_per_second,
            return_mean_100=report.return_mean_100,
            solved_at_seconds=history.solved_at_seconds,
            solved_at_steps=history.solved_at_steps,
            solved_at_episodes=history.solved_at_episodes,
            eval=None if history.eval is None else EvalResult(**history.eval),  # type: ignore[arg-type]
            peak_rss_mb=self._peak.mb,
            workers_restarted=0,
            checkpoint=None if self._saver.base is None else str(self._saver.base),
            return_human_normalised=report.human_normalised,
            eval_human_normalised=self._plan.spec.human_normalised(history.eval["mean"] if history.eval else None),
            best_step=history.best_step,
            warnings=(*self._health.warnings, *self._nothing_learnt(status, report)),
            **{f"{activity}_seconds": getattr(history, f"{activity}_seconds") for activity in ACTIVITIES},
        )


def _mean(numbers: Collection[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None
