"""Evaluations during training, and the best policy by them.

Runs in: the process that the user started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from passel.arena import Arena, Tensors
from passel.envs.make import is_served
from passel.evaluation import EvaluationStoppedError, summarise
from passel.examiner import Examiner
from passel.journal import Journal
from passel.normalizer import PREFIX, Statistics
from passel.place.plan import Plan
from passel.policy import Policy
from passel.run import checkpoint
from passel.run.files import cause_of
from passel.run.summary import EvalResult
from passel.trained import vectors_of
from passel.types import Episode, PasselError

IN_A_RUN = 20  # evaluations, where --eval-every does not say how many steps lie between two
COST = 10  # training steps for each step of an evaluation, where --eval-every does not say when the next one is due
PATIENCE = 5.0  # seconds that an evaluation may take to notice that it is canceled


class Record(Protocol):
    """What a run remembers of its evaluations: fields of its history."""

    evaluate_at: int
    evaluations_since_best: int
    best_step: int | None
    best_mean: float | None
    eval_step: int | None
    eval_mean: float | None


@dataclass(frozen=True)
class Snapshot:
    """What a policy needs to act, as it was at one step of the training, under the names of the arena."""

    step: int
    tensors: Mapping[str, Tensor]

    @property
    def sound(self) -> bool:
        return all(bool(torch.isfinite(tensor).all()) for tensor in self.tensors.values())


def interval(plan: Plan) -> int:
    """Steps between two evaluations during training; 0: there are none."""
    config = plan.config
    if config.eval_every is None:
        return 0
    if config.eval_every or not config.eval_episodes or plan.parts is not None or is_served(plan.env):
        return config.eval_every
    return max(1, config.steps // IN_A_RUN)


class Selection:
    """Evaluates the policy at intervals, and keeps the best one on disk.

    Training goes on meanwhile: the parameters are read as an actor reads them, under every scheme. Inline, an
    evaluation takes place between two rounds, at a step that the seed decides. Beside worker processes it runs in a
    thread, one at a time.
    """

    def __init__(self, plan: Plan, arena: Arena, examiner: Examiner, journal: Journal, record: Record) -> None:
        self._plan, self._arena, self._examiner, self._journal, self._record = plan, arena, examiner, journal, record
        self.every = interval(plan)
        examiner.periodic = bool(self.every)
        record.evaluate_at = record.evaluate_at or self.every  # at the start there is nothing to evaluate
        self._best: tuple[Snapshot, EvalResult] | None = None
        self._running: _Background | None = None

    @property
    def over(self) -> bool:
        """No evaluation has been better for as long as --patience allows."""
        patience = self._plan.config.patience
        return bool(patience) and self._record.evaluations_since_best >= patience

    def snapshot(self, step: int) -> Snapshot:
        """The parameters that stand for all learners now. Workers need not be at rest."""
        tensors = {}
        for name, scheme in self._plan.schemes.items():
            vector = tensors[f"sync/{name}/vector"] = torch.empty_like(self._arena[f"sync/{name}/vector"])
            scheme.look(self._arena.below(f"sync/{name}"), vector)
        if self._plan.normalized is not None:
            seen = Statistics(self._arena.below(PREFIX)).merged()
            tensors |= {f"{PREFIX}/{name}": tensor for name, tensor in Statistics.tensors_of(seen).items()}
        return Snapshot(step, tensors)

    def look(self, step: int) -> EvalResult | None:
        """Begin an evaluation if one is due. Returns the result of one that has ended since the last look."""
        if self._running is None:
            if not self.every or step < self._record.evaluate_at or self._examiner.failures:
                return None
            taken = self.snapshot(step)
            if not taken.sound:
                return None
            self._running = _Background(taken, lambda go_on: self._play(taken, go_on))
            if self._plan.config.place == "inline":
                self._running.run()
            else:
                self._running.start()
        if not self._running.ended:
            return None
        ended, self._running = self._running, None
        if isinstance(ended.found, BaseException):
            if not isinstance(ended.found, EvaluationStoppedError):
                self._examiner.tell(ended.found, ended.of.step)
            return None
        assert ended.found is not None, "it has ended"
        return self._note(ended.of, ended.found)

    def finish(self, step: int) -> None:
        """Training has ended, and workers are at rest: evaluate the last policy too, so that it can be chosen."""
        if self.every and self._record.eval_step != step and not self._examiner.failures:
            last = self.snapshot(step)
            try:
                played = self._play(last, lambda: True)
            except EvaluationStoppedError:
                return
            except (Exception, SystemExit) as error:
                self._examiner.tell(error, step)
                return
            self._note(last, played)

    def _note(self, candidate: Snapshot, played: list[Episode]) -> EvalResult:
        result = summarise(played)
        self._examiner.draw(candidate.step, played)
        self.consider(candidate, result)
        self._record.evaluate_at = self._next(candidate.step, sum(episode.length for episode in played))
        return result

    def consider(self, candidate: Snapshot, result: EvalResult, *, choose: bool = False) -> None:
        """Note an evaluation, and keep its policy if no earlier one was better, or in any case (`choose`)."""
        if not self.every:
            return
        record = self._record
        better = record.best_mean is None or result.mean > record.best_mean
        record.evaluations_since_best = 0 if better else record.evaluations_since_best + 1
        record.eval_step, record.eval_mean = candidate.step, result.mean
        # Of equals the later one: it has learnt more.
        if better or choose or result.mean == record.best_mean:
            self._keep(candidate, result)
        self._journal.event("evaluated", steps=candidate.step, best=record.best_step == candidate.step, **vars(result))

    def best(self) -> Snapshot | None:
        """The policy that is on disk as the best; None if there is none, or it can no longer be read."""
        folder = self._journal.folder.path
        if self._best is not None and not (folder / checkpoint.BEST / str(self._best[0].step)).exists():
            self._keep(*self._best)  # the run's folder was removed, or is another one now
        saved = checkpoint.latest(
            folder, self._journal.notice, wanted=("parameters",), usable=vectors_of, into=checkpoint.BEST
        )
        return None if saved is None else Snapshot(saved.step, saved.groups["parameters"])

    def policy(self, snapshot: Snapshot) -> Policy:
        plan, tensors = self._plan, Tensors(snapshot.tensors)
        vectors = {name: tensors[f"sync/{name}/vector"] for name in plan.schemes}
        scaling = None
        if plan.normalized is not None:
            scaling = plan.normalized.scaling(Statistics(tensors.below(PREFIX)).merged())
        return Policy(plan.algorithm, plan.numbers, plan.spec, vectors, scaling)

    def cancel(self) -> None:
        """End an evaluation that is under way: nothing is known of its policy."""
        if self._running is not None:
            running, self._running = self._running, None
            running.cancel()

    def _play(self, candidate: Snapshot, go_on: Callable[[], bool]) -> list[Episode]:
        return self._examiner.play(
            self.policy(candidate), self._plan.config.select_episodes, "selection", candidate.step, go_on=go_on
        )

    def _next(self, step: int, cost: int) -> int:
        """When the next evaluation is due."""
        if not self.every:
            return 0
        earliest = step if self._plan.config.eval_every else step + COST * cost
        return (earliest // self.every + 1) * self.every

    def _keep(self, candidate: Snapshot, result: EvalResult) -> None:
        groups = {"parameters": candidate.tensors}
        try:
            checkpoint.save(
                self._journal.folder.path, candidate.step, groups, vars(result), keep=1, into=checkpoint.BEST
            )
        except (PasselError, OSError) as error:
            self._journal.notice(
                f"The best policy was not written: {cause_of(error)}. Training goes on, and the next one is tried."
            )
            return
        self._best = candidate, result
        self._record.best_step, self._record.best_mean = candidate.step, result.mean


class _Background:
    """One evaluation, here or in a thread. `found` is what it returned or raised."""

    def __init__(self, of: Snapshot, work: Callable[[Callable[[], bool]], list[Episode]]) -> None:
        self.of, self._work = of, work
        self.found: list[Episode] | BaseException | None = None
        self._canceled = threading.Event()
        # A daemon: an environment that never returns from a step must not keep the command from ending.
        self._thread = threading.Thread(target=self.run, name="passel-evaluation", daemon=True)

    @property
    def ended(self) -> bool:
        return self.found is not None

    def run(self) -> None:
        try:
            self.found = self._work(lambda: not self._canceled.is_set())
        except (Exception, SystemExit) as error:
            self.found = error

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        self._canceled.set()
        self._thread.join(PATIENCE)
