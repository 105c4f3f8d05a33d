"""The evaluations of a run: greedy episodes with the policy as it stands, in the watcher's process.

Runs in: the process that the user started.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

from passel.arena import Arena
from passel.evaluation import EvaluationStoppedError, level_table, play, play_levels, summarise
from passel.journal import Journal
from passel.place.budget import at_most, usable_cores
from passel.place.plan import Plan
from passel.policy import Policy
from passel.run.summary import EvalResult
from passel.streams import derive
from passel.types import Episode, PasselError


class Examiner:
    """Evaluates the policy that the arena holds, while every worker is at rest.

    An environment that raises here costs the evaluation and nothing else: it is a notice, and an event with the
    traceback. `go_on` is asked after every step.
    """

    def __init__(self, plan: Plan, arena: Arena, journal: Journal, go_on: Callable[[], bool]) -> None:
        self._plan, self._arena, self._journal, self._go_on = plan, arena, journal, go_on
        self._trained: dict[str, list[Episode]] | None = None
        #: How many evaluations have failed since the last that did not.
        self.failures = 0

    def policy(self) -> Policy:
        plan = self._plan
        vectors = {name: self._arena[f"sync/{name}/vector"] for name in plan.schemes}
        return Policy(plan.algorithm, plan.numbers, plan.spec, vectors, plan.scaling(self._arena))

    def evaluate(self, steps: int) -> EvalResult | None:
        """Fresh episodes, of every level that is trained on equally many; None if it was stopped or failed."""
        config, parts = self._plan.config, self._plan.parts
        seed = derive(config.seed, "evaluation", steps)
        try:
            with at_most(1):
                if parts is not None:
                    self._trained = self._play_levels(parts.levels.train, seed)
                    played = [episode for level in self._trained.values() for episode in level]
                else:
                    played = play(
                        self.policy(),
                        self._plan.env,
                        config.eval_episodes,
                        seed,
                        threads=usable_cores(),
                        env_args=self._plan.evaluation_args,
                        max_steps=config.eval_max_steps,
                        progress=lambda _: self._go_on(),
                    )
        except EvaluationStoppedError:
            return None
        except (Exception, SystemExit) as error:
            self._tell(error, steps)
            return None
        self.failures = 0
        result = summarise(played)
        if result.cut:
            longest = max(episode.length for episode in played if episode.cut)
            self._journal.notice(
                f"{result.cut} of {result.episodes} episodes of the evaluation had no end after {longest:,} steps, and "
                "count with their score so far. A larger --eval-max-steps lets them go on."
            )
        return result

    def compare_levels(self, steps: int) -> None:
        """The levels that were held out, beside those that were trained on, into levels.json."""
        parts = self._plan.parts
        if parts is None or self._trained is None:
            return
        seed = derive(self._plan.config.seed, "held-out", steps)
        try:
            with suppress(EvaluationStoppedError), at_most(1):
                held_out = self._play_levels(parts.levels.held_out, seed)
                table = level_table(parts.levels, self._trained, held_out)
                self._journal.folder.write_levels(table | {"actions": "greedy"})
        except (Exception, SystemExit) as error:
            self._tell(error, steps)

    def _play_levels(self, names: Sequence[str], seed: int) -> dict[str, list[Episode]]:
        """Every one of these levels, equally often: as often as --eval-episodes is enough for."""
        parts, config = self._plan.parts, self._plan.config
        assert parts is not None
        return play_levels(
            self.policy(),
            parts.levels,
            names,
            max(1, config.eval_episodes // max(len(names), 1)),
            seed,
            max_steps=config.eval_max_steps,
            progress=lambda _: self._go_on(),
        )

    def _tell(self, error: BaseException, steps: int) -> None:
        self.failures += 1
        cause = str(error).rstrip(".") if isinstance(error, PasselError) else f"{type(error).__name__}: {error}"
        self._journal.notice(
            f"The evaluation at step {steps:,} failed: {cause}. events.jsonl has the traceback.",
            "evaluation failed",
            steps=steps,
            traceback="".join(traceback.format_exception(error)),
        )
