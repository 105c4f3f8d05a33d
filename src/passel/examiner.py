"""The evaluations of a run: greedy episodes with the policy as it stands, in the watcher's process.

Runs in: the process that the user started.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

from passel.evaluation import EvaluationStoppedError, level_table, play, play_levels, summarise
from passel.journal import Journal
from passel.place.budget import at_most, usable_cores
from passel.place.plan import Plan
from passel.policy import Policy
from passel.run.summary import EvalResult
from passel.streams import derive
from passel.types import Episode, PasselError

#: The role of the evaluation whose score is reported.
REPORT = "evaluation"


class Examiner:
    """Lets a policy play fresh episodes of the run's environment.

    An environment that raises here costs the evaluation and nothing else: it is a notice, and an event with the
    traceback. `go_on` is asked after every step.
    """

    def __init__(self, plan: Plan, journal: Journal, go_on: Callable[[], bool]) -> None:
        self._plan, self._journal, self._go_on = plan, journal, go_on
        self._trained: dict[str, list[Episode]] | None = None
        #: How many evaluations have failed since the last that did not.
        self.failures = 0
        #: Whether there are evaluations during training, whose curve the score in the end is no point of: it may be of
        #: a policy of long ago.
        self.periodic = False

    def evaluate(self, policy: Policy, role: str, steps: int) -> EvalResult | None:
        """The scores of `--eval-episodes` fresh episodes; None if it was stopped or failed. `role` names their seeds:
        an evaluation that chooses a policy and one that reports its score have different ones.
        """
        try:
            played = self.play(policy, self._plan.config.eval_episodes, role, steps, threads=usable_cores())
        except EvaluationStoppedError:
            return None
        except (Exception, SystemExit) as error:
            self.tell(error, steps)
            return None
        self.failures = 0
        result = summarise(played)
        if role != REPORT or not self.periodic:
            self.draw(steps, played)
        if result.cut:
            longest = max(episode.length for episode in played if episode.cut)
            self._journal.notice(
                f"{result.cut} of {result.episodes} episodes of the evaluation had no end after {longest:,} steps, and "
                "count with their score so far. A larger --eval-max-steps lets them go on."
            )
        return result

    def draw(self, steps: int, played: Sequence[Episode]) -> None:
        """A point of the curve of evaluations, in TensorBoard."""
        count = len(played)
        score, length = sum(episode.score for episode in played), sum(episode.length for episode in played)
        self._journal.evaluation(steps, score / count, length / count)

    def play(
        self,
        policy: Policy,
        episodes: int,
        role: str,
        steps: int,
        *,
        threads: int = 1,
        go_on: Callable[[], bool] = lambda: True,
    ) -> list[Episode]:
        """Fresh greedy episodes, of every level that is trained on equally many."""
        config, parts = self._plan.config, self._plan.parts
        seed = derive(config.seed, role, steps)
        with at_most(1):
            if parts is not None:
                self._trained = self._play_levels(policy, parts.levels.train, episodes, seed, go_on)
                return [episode for level in self._trained.values() for episode in level]
            return play(
                policy,
                self._plan.env,
                episodes,
                seed,
                threads=threads,
                env_args=self._plan.evaluation_args,
                max_steps=config.eval_max_steps,
                progress=lambda _: self._go_on() and go_on(),
            )

    def compare_levels(self, policy: Policy, steps: int) -> None:
        """The levels that were held out, beside those that were trained on, into levels.json."""
        parts = self._plan.parts
        if parts is None or self._trained is None:
            return
        seed = derive(self._plan.config.seed, "held-out", steps)
        try:
            with suppress(EvaluationStoppedError), at_most(1):
                held_out = self._play_levels(policy, parts.levels.held_out, self._plan.config.eval_episodes, seed)
                table = level_table(parts.levels, self._trained, held_out)
                self._journal.folder.write_levels(table | {"actions": "greedy"})
        except (Exception, SystemExit) as error:
            self.tell(error, steps)

    def _play_levels(
        self, policy: Policy, names: Sequence[str], episodes: int, seed: int, go_on: Callable[[], bool] = lambda: True
    ) -> dict[str, list[Episode]]:
        """Every one of these levels, equally often: as often as so many episodes are enough for."""
        parts = self._plan.parts
        assert parts is not None
        return play_levels(
            policy,
            parts.levels,
            names,
            max(1, episodes // max(len(names), 1)),
            seed,
            max_steps=self._plan.config.eval_max_steps,
            progress=lambda _: self._go_on() and go_on(),
        )

    def tell(self, error: BaseException, steps: int) -> None:
        """An evaluation has failed, which costs nothing but itself."""
        self.failures += 1
        cause = str(error).rstrip(".") if isinstance(error, PasselError) else f"{type(error).__name__}: {error}"
        self._journal.notice(
            f"The evaluation at step {steps:,} failed: {cause}. events.jsonl has the traceback.",
            "evaluation failed",
            steps=steps,
            traceback="".join(traceback.format_exception(error)),
        )
