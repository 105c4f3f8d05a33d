"""The watcher of a run: it looks, reports, checkpoints, evaluates and decides when to stop. It never trains.

Runs in: the process that the user started.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_type_hints

import numpy as np
import torch
from torch import Tensor

from passel.arena import Arena
from passel.clock import DREAMING, STAGES
from passel.evaluation import EvaluationStoppedError, level_table, play, play_levels, summarise
from passel.health import Health
from passel.interrupts import Interrupts
from passel.place.base import Placement, WorkerDiedError
from passel.place.board import COLUMNS, State
from passel.place.budget import at_most, usable_cores
from passel.place.plan import Plan
from passel.policy import Policy
from passel.reading import as_fields
from passel.run import checkpoint
from passel.run.folder import RunFolder
from passel.run.rss import PeakRss
from passel.run.summary import EvalResult, Status, Summary
from passel.streams import derive
from passel.types import Episode, PasselError, Report, WorkerRow
from passel.view.tensorboard import TensorBoardLog
from passel.view.terminal import View

WINDOW = 100  # episodes of the mean return that says "solved" (Gymnasium's convention)
PATIENCE_AFTER_A_MISS = 25  # new episodes before an evaluation is tried again
TICK = 0.1  # seconds between two looks
FIRST_TICK = 0.005  # until the first step, which is worth a precise time
SHOW_EVERY = 0.25  # seconds between two reports to the display
SAMPLE_EVERY = 5.0  # seconds between two looks at memory, which cost some milliseconds a process
RATE_OVER = 5.0  # seconds over which a speed is averaged


@dataclass
class History:
    """What a run remembers of itself beside the arena; a checkpoint's `meta`."""

    seconds: float = 0.0
    resumed: int = 0
    episodes: int = 0
    scores: list[float] = field(default_factory=list)
    solved_at_seconds: float | None = None
    solved_at_steps: int | None = None
    solved_at_episodes: int | None = None
    eval: dict[str, float] | None = None
    next_evaluation: int = 0
    peak_rss_mb: float = 0.0

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
        self._view, self._history, self._interrupts = view, history, interrupts
        self._board = placement.board
        self._began = began - history.seconds
        self._scores = deque(history.scores, maxlen=WINDOW)
        self._seen = [int(count) for count in self._board.column("episodes")]
        self._checkpoint_at = self._next_checkpoint()
        self._saved: str | None = None
        #: The checkpoint that this arena has grown from: what has not changed since need not be written again.
        self._base = base
        self._told: set[str] = set()
        numbers = plan.numbers
        self._health = Health(numbers.gamma, getattr(numbers, "reward_scale", 1.0), plan.spec.max_episode_steps)
        self._marks: deque[tuple[float, Any]] = deque(maxlen=64)
        self._started = self._ended = False
        self._shown = self._reported = 0.0
        self._sampled = time.perf_counter()
        self._peak = PeakRss(os.getpid())
        self._peak.mb = history.peak_rss_mb
        self.threshold = plan.config.solved_at if plan.config.solved_at is not None else plan.spec.reward_threshold
        self._trained: dict[str, list[Episode]] | None = None
        self._tensorboard = TensorBoardLog(folder.tb) if plan.config.tensorboard else None

    def run(self) -> Summary:
        """Train until solved, finished or stopped. What was learnt is on disk when this returns or raises."""
        try:
            self._placement.resume()
            status = self._watch()
            self._placement.stop()
            self._draw_networks()
            return self._finish(status)
        except (WorkerDiedError, PasselError) as error:
            self._save_what_is_left(error)
            raise
        finally:
            self._placement.stop()
            if self._tensorboard:
                self._tensorboard.close()

    def _draw_networks(self) -> None:
        """The networks' graphs for TensorBoard. Tracing takes a second and 60 MB: both are there when all is done."""
        if self._tensorboard:
            spec = self._plan.spec
            example = torch.zeros((1, *spec.obs_shape), dtype=torch.from_numpy(np.empty(0, spec.obs_dtype)).dtype)
            for network in self.policy().networks.values():
                self._tensorboard.graph(network, example)

    def _watch(self) -> Status:
        while True:
            self._placement.advance(TICK if self._started else FIRST_TICK)
            self._look()
            if self._interrupts.requested:
                return self._stop("stopped")
            if self._board.steps >= self._plan.config.steps:
                return self._stop("finished")
            if self._looks_solved() and self._confirm():
                if self._plan.config.until_solved:
                    return self._stop("solved")
                self._history.eval = None  # the final evaluation is still to come
                self._placement.resume()
            if self._board.steps >= self._checkpoint_at:
                with self._placement.paused():
                    self._save()

    def _stop(self, status: Status) -> Status:
        """Bring everybody to rest, keep everything, and measure the policy if nobody has."""
        self._show("checkpoint")
        self._placement.pause()
        self._history.seconds = self._seconds()
        wanted = self._plan.config.eval_episodes > 0
        if status == "finished" and wanted and self._history.eval is None and self._evaluate() is None:
            status = "stopped"
        if status == "finished" and self._history.solved_at_steps is not None:
            status = "solved"
        self._compare_levels()
        self._tell_notices()
        self._save()
        return status

    def _look(self) -> None:
        """Read the board; report if it is time."""
        for rank, seen in enumerate(self._seen):
            count = int(self._board.column("episodes")[rank])
            if count > seen:
                self._scores.extend(episode.score for episode in self._board.read_episodes(rank, seen))
                self._history.episodes += count - seen
                self._seen[rank] = count
        now = time.perf_counter()
        if not self._started and self._board.steps:
            self._started = True
            self._folder.event("first step", seconds=now - self._began)
        if now - self._shown >= SHOW_EVERY:
            self._shown = now
            self._show("train" if self._board.column("updates").any() else "warm-up")
        if now - self._sampled >= SAMPLE_EVERY:
            self._sampled = now
            self._peak.sample()
            self._tell_notices()

    def _tell_notices(self) -> None:
        losses = self._board.column("loss")[list(self._plan.cast.learners)]
        scalars = {"loss": float(losses.mean()), **self._scalars()}
        for notice in (*self._plan.notices(self._arena), *self._health.look(scalars, self._scores)):
            if notice not in self._told:
                self._told.add(notice)
                self._view.message(notice)
                self._folder.event("notice", text=notice)

    def _show(self, phase: str) -> None:
        report = self._report(phase)
        self._view.report(report)
        now = time.perf_counter()
        # Fewer lines as a run grows old: a curve needs some thousand points, not one for every second of a week.
        if phase == "finished" or now - self._reported >= max(1.0, (now - self._began) / 4000):
            self._reported = now
            self._folder.metric(report)
            if self._tensorboard:
                self._tensorboard.report(report)

    def _report(self, phase: str) -> Report:
        now, counters = time.perf_counter(), self._board.counters.copy()
        self._marks.append((now, counters))
        while len(self._marks) > 2 and now - self._marks[0][0] > RATE_OVER:
            self._marks.popleft()
        then, before = self._marks[0]
        gone = max(now - then, 1e-9)
        moved = counters - before if then < now else counters * 0
        seconds = moved[:, [COLUMNS[stage] for stage in STAGES]]
        rows = tuple(
            WorkerRow(
                name=self._plan.cast.name(rank),
                state=State(self._board.states[rank]).name.lower(),
                steps=int(counters[rank, COLUMNS["steps"]]),
                updates=int(counters[rank, COLUMNS["updates"]]),
                steps_per_second=float(moved[rank, COLUMNS["steps"]] / gone),
                shares=_shares(seconds[rank]),
                staleness=float(counters[rank, COLUMNS["staleness"]]),
            )
            for rank in range(self._plan.workers)
        )
        steps, total = int(counters[:, COLUMNS["steps"]].sum()), self._plan.config.steps
        learners = counters[list(self._plan.cast.learners)]
        # Updates are those of the first network: a second one may be shared by other rules.
        collective = len(learners) if next(iter(self._plan.schemes.values())).collective else 1
        return Report(
            steps=steps,
            frames=steps * self._plan.spec.frame_skip,
            seconds=self._seconds(),
            episodes=self._history.episodes,
            updates=int(counters[:, COLUMNS["updates"]].sum()) // collective,
            return_mean_100=self._mean_return(),
            steps_per_second=float(moved[:, COLUMNS["steps"]].sum() / gone),
            updates_per_second=float(moved[:, COLUMNS["updates"]].sum() / gone) / collective,
            staleness=float(counters[list(self._plan.measures_staleness), COLUMNS["staleness"]].mean()),
            shares=_shares(seconds.sum(axis=0)),
            scalars={"loss": float(learners[:, COLUMNS["loss"]].mean()), **self._scalars()},
            workers=rows,
            total_steps=total,
            solved_at=self.threshold,
            phase=phase,
            human_normalised=self._plan.spec.human_normalised(self._mean_return()),
        )

    def _scalars(self) -> dict[str, float]:
        """The algorithm's own numbers, the mean over the workers that have them yet."""
        columns = ((name, self._board.scalar(i)) for i, name in enumerate(self._plan.scalar_names))
        known = ((name, column[np.isfinite(column)]) for name, column in columns)
        return {name: float(column.mean()) for name, column in known if len(column)}

    def _seconds(self) -> float:
        """How old the run is. Its clock stops with its last checkpoint, for a resumed run goes on from there."""
        return self._history.seconds if self._ended else time.perf_counter() - self._began

    def _mean_return(self) -> float | None:
        return sum(self._scores) / len(self._scores) if self._scores else None

    def _looks_solved(self) -> bool:
        """The mean of the last 100 training episodes reached the threshold, and no evaluation has just denied it."""
        if self.threshold is None or len(self._scores) < WINDOW or self._history.solved_at_steps is not None:
            return False
        if not self._plan.config.eval_episodes:
            return False
        mean = self._mean_return()
        return mean is not None and mean >= self.threshold and self._history.episodes >= self._history.next_evaluation

    def _confirm(self) -> bool:
        """A greedy evaluation agrees. If so, everybody is left at rest with the policy that was evaluated."""
        steps, seconds = self._board.steps, self._seconds()
        self._placement.pause()
        result = self._evaluate()
        if result is None or self.threshold is None or result.mean < self.threshold:
            if result is not None:
                self._view.message(
                    f"The mean return reached {self._mean_return():.1f}, but {result.episodes} greedy episodes average "
                    f"{result.mean:.1f}: training goes on."
                )
                self._folder.event("not confirmed", steps=steps, mean=result.mean)
            self._history.eval = None
            self._history.next_evaluation = self._history.episodes + PATIENCE_AFTER_A_MISS
            self._placement.resume()
            return False
        self._history.solved_at_steps, self._history.solved_at_episodes = self._board.steps, self._history.episodes
        self._history.solved_at_seconds = self._seconds()
        self._folder.event("solved", steps=steps, seconds=seconds, mean=result.mean)
        return True

    def _evaluate(self) -> EvalResult | None:
        """Fresh greedy episodes with the vector as it stands; everybody must be at rest."""
        self._show("evaluate")
        seed = derive(self._plan.config.seed, "evaluation", self._board.steps)

        def go_on(ended: int) -> bool:
            return not self._interrupts.requested

        try:
            with at_most(1):
                if self._plan.parts is not None:
                    self._trained = self._play_levels(self._plan.parts.levels.train, seed)
                    played = [episode for level in self._trained.values() for episode in level]
                else:
                    played = play(
                        self.policy(),
                        self._plan.env,
                        self._plan.config.eval_episodes,
                        seed,
                        threads=usable_cores(),
                        env_args=self._plan.evaluation_args,
                        progress=go_on,
                    )
        except EvaluationStoppedError:
            return None
        result = summarise(played)
        self._history.eval = vars(result) | {}
        return result

    def _play_levels(self, names: tuple[str, ...], seed: int) -> dict[str, list[Episode]]:
        """Every one of these levels, equally often: as often as --eval-episodes is enough for."""
        parts, config = self._plan.parts, self._plan.config
        assert parts is not None
        each = max(1, config.eval_episodes // max(len(names), 1))
        return play_levels(
            self.policy(), parts.levels, names, each, seed, progress=lambda _: not self._interrupts.requested
        )

    def _compare_levels(self) -> None:
        """The levels that were held out, beside those that were trained on, into levels.json."""
        parts = self._plan.parts
        if parts is None or self._history.eval is None or self._trained is None:
            return
        self._show("evaluate")
        seed = derive(self._plan.config.seed, "held-out", self._board.steps)
        with suppress(EvaluationStoppedError), at_most(1):
            held_out = self._play_levels(parts.levels.held_out, seed)
            self._folder.write_levels(level_table(parts.levels, self._trained, held_out) | {"actions": "greedy"})

    def policy(self) -> Policy:
        vectors = {name: self._arena[f"sync/{name}/vector"] for name in self._plan.schemes}
        return Policy(self._plan.algorithm, self._plan.numbers, self._plan.spec, vectors)

    def _next_checkpoint(self) -> int:
        every = self._plan.config.checkpoint_every
        return (self._board.steps // every + 1) * every

    def _save(self) -> None:
        """Write the arena to disk; everybody must be at rest."""
        self._show("checkpoint")
        steps = self._board.steps
        self._history.seconds = self._seconds()
        self._history.scores = list(self._scores)
        self._history.peak_rss_mb = self._peak.mb
        path = checkpoint.save(
            self._folder.path,
            steps,
            grouped(self._arena.kept()),
            vars(self._history),
            self._plan.config.keep_checkpoints,
            pages=self._arena.paged(),
            base=self._base,
        )
        self._saved, self._base = str(path), path
        self._folder.event("checkpointed", steps=steps, path=f"checkpoints/{steps}")
        self._checkpoint_at = self._next_checkpoint()

    def _save_what_is_left(self, error: Exception) -> None:
        """After a death: end the others, keep what the arena holds if it is sound, and say what happened."""
        self._placement.stop()
        self._plan.settle(self._arena)
        sound = all(torch.isfinite(self._arena[f"sync/{name}/vector"]).all() for name in self._plan.schemes)
        with suppress(PasselError, OSError):  # a full disk, say: the first error is the one to tell
            # What a mistake or a diverging loss left behind is no better than the checkpoint before it.
            if sound and self._board.steps and (isinstance(error, WorkerDiedError) or not self._saved):
                self._save()
        with suppress(PasselError, OSError):
            if isinstance(error, WorkerDiedError):
                self._folder.event("worker died", worker=error.name, cause=error.cause)
            self._folder.event("failed", reason=str(error).split("\n")[0])
            self._folder.write_summary(self._summary("failed"))

    def _finish(self, status: Status) -> Summary:
        self._ended = True
        self._show("finished")
        self._folder.event(status, steps=self._board.steps)
        summary = self._summary(status)
        self._folder.write_summary(summary)
        return summary

    def _summary(self, status: Status) -> Summary:
        self._peak.sample()
        history, config = self._history, self._plan.config
        report = self._report("finished")
        seconds = max(history.seconds, 1e-9)
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
            steps_per_second=report.steps / seconds,
            updates_per_second=report.updates / seconds,
            return_mean_100=report.return_mean_100,
            solved_at_seconds=history.solved_at_seconds,
            solved_at_steps=history.solved_at_steps,
            solved_at_episodes=history.solved_at_episodes,
            eval=None if history.eval is None else EvalResult(**history.eval),  # type: ignore[arg-type]
            peak_rss_mb=self._peak.mb,
            workers_restarted=0,
            checkpoint=self._saved,
            return_human_normalised=report.human_normalised,
            eval_human_normalised=self._plan.spec.human_normalised(history.eval["mean"] if history.eval else None),
            warnings=self._health.warnings,
        )

    def shares(self) -> dict[str, float]:
        """Where the time of all workers went, over the whole run."""
        return _shares(self._board.counters[:, [COLUMNS[stage] for stage in STAGES]].sum(axis=0))


def _shares(seconds: Any) -> dict[str, float]:
    total, by_stage = float(seconds.sum()), zip(STAGES, seconds, strict=True)
    spent = {stage: float(s) for stage, s in by_stage if s > 0 or stage not in DREAMING}
    return {stage: s / total for stage, s in spent.items()} if total > 0 else {}


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The arena's tensors by the file of a checkpoint that they belong in."""
    groups: dict[str, dict[str, Tensor]] = {"parameters": {}, "optimiser": {}, "memory": {}, "workers": {}}
    for name, tensor in tensors.items():
        parts = name.split("/")
        if parts[0] == "memory":
            group = "memory"
        elif parts[0] == "sync":
            group = "parameters" if parts[-1] == "vector" and "local" not in parts else "optimiser"
        else:
            group = "workers"
        groups[group][name] = tensor
    return groups
