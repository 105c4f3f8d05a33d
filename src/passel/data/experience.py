"""What stands between an actor and a learner: experience goes in, batches come out, and a limiter sets their ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from passel.arena import Spec, cells
from passel.data.lag import Lag
from passel.data.memory import Memory
from passel.data.nstep import NStep
from passel.data.stacks import Stacks
from passel.streams import Stream, words_of
from passel.types import Array, Batch, Floats, Ints, Step


class Experience(Protocol):
    """What stands between any actor and any learner."""

    def push(self, obs: Array, actions: Array, step: Step, steps_so_far: int) -> int: ...
    def due(self) -> bool: ...
    def unlearnt(self) -> bool: ...
    def batch(self, steps_so_far: int) -> Any: ...
    def feedback(self, batch: Any, td_abs: Floats | None) -> None: ...
    def abandon(self) -> None: ...
    def park(self) -> None: ...


class Inlet(Protocol):
    """The actor's side, where somebody else learns."""

    def room(self) -> bool:
        """Whether there is room for one more step."""

    def push(self, obs: Array, actions: Array, step: Step, steps_so_far: int) -> int: ...
    def park(self) -> None: ...


class Outlet(Protocol):
    """The learner's side, where somebody else acts."""

    #: By how many versions the policy that acted was older, where that is known.
    lag: Lag | None

    def due(self) -> bool: ...
    def unlearnt(self) -> bool:
        """Whether experience is complete and would never be learnt from if the run ended here."""

    def batch(self, steps_so_far: int) -> Any: ...
    def feedback(self, batch: Any, td_abs: Floats | None) -> None: ...
    def abandon(self) -> None: ...
    def park(self) -> None: ...
    def scalars(self) -> list[float]:
        """Numbers worth plotting."""


class Passage:
    """Both sides in one worker, which acts and learns in turn."""

    def __init__(self, inlet: Inlet, outlet: Outlet) -> None:
        self._inlet, self._outlet = inlet, outlet
        self.push, self.due, self.batch = inlet.push, outlet.due, outlet.batch
        self.feedback, self.abandon, self.scalars = outlet.feedback, outlet.abandon, outlet.scalars
        self.unlearnt = outlet.unlearnt

    def park(self) -> None:
        self._inlet.park()
        self._outlet.park()


class ReplayExperience:
    """Replay with a limiter: so many updates for each step, counted from the end of the warm-up.

        experience.push(obs, actions, step, steps_so_far)   # the actor
        while experience.due():                              # the learner
            batch = experience.batch(steps_so_far)
            ...
            experience.feedback(batch, td_abs)

    `credit` is how many updates are owed. It is kept in a tensor, as is everything that a resumed run must find again.
    Learners who make every update together (`in_step`) should act between the same two: who acts makes the others wait.
    So theirs counts the rows that were spent on a reset too, of which each has its own, and stays the same for all.
    With `stacks`, references to frames walk through the n-step windows and the memory's rows in place of observations.
    """

    @staticmethod
    def specs() -> dict[str, Spec]:
        return {
            "credit": Spec((), torch.float64),
            "ahead": Spec((2,), torch.int64, optional=True),
            "drawn_from": replace(Stream.SPEC, optional=True),
        }

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        nstep: NStep,
        memory: Memory,
        rng: np.random.Generator,
        *,
        batch: int,
        updates_per_step: float,
        warmup: int,
        beta: Callable[[int], float] | None = None,
        stacks: Stacks | None = None,
        in_step: bool = False,
        private: bool = True,
    ) -> None:
        self._credit = cells(tensors["credit"].numpy().reshape(1))
        self._nstep, self._memory, self._rng = nstep, memory, rng
        self._batch, self._updates_per_step, self._warmup = batch, updates_per_step, warmup
        self._beta, self._stacks, self._in_step = beta, stacks, in_step
        self._ahead: list[Batch] = []
        self._kept, self._drawn_from = tensors["ahead"].numpy(), tensors["drawn_from"]
        self._private, self._drawn, self._state = private, 0, rng.bit_generator.state
        if self._kept[1]:
            self._draw_again()

    def push(self, obs: Array, actions: Ints, step: Step, steps_so_far: int) -> int:
        """Keep what came out of one step. Returns how many real transitions there were."""
        if self._stacks is not None:
            obs, step = self._stacks.keep(obs, step)
        transitions = self._nstep.push(obs, actions, step)
        if len(transitions):
            self._memory.add(transitions)
        real = int(np.count_nonzero(step.real))
        if steps_so_far >= self._warmup and len(self._memory) >= self._batch:
            self._credit[0] += (len(step.real) if self._in_step else real) * self._updates_per_step
        return real

    def due(self) -> bool:
        return bool(self._credit[0] >= 1)

    def unlearnt(self) -> bool:
        """No: the memory keeps what it holds, and the credit what is owed."""
        return False

    def batch(self, steps_so_far: int) -> Batch:
        """The next batch. Uniform ones are drawn together, as many as are owed: one gather serves them all.
        Prioritised ones are drawn one by one, for each update changes what should be drawn next.
        """
        owed = int(self._credit[0])
        self._credit[0] -= 1
        if self._beta is not None:
            return self._memory.sample(self._batch, self._rng, self._beta(steps_so_far))
        if not self._ahead:
            self._drawn = max(owed, 1)
            if self._drawn > 1:
                self._state = self._rng.bit_generator.state
            self._ahead = self._memory.sample_many(self._drawn, self._batch, self._rng)
        return self._ahead.pop()

    def feedback(self, batch: Batch, td_abs: Floats | None) -> None:
        if batch.index is not None and td_abs is not None:
            self._memory.update_priorities(batch.index, td_abs)

    def abandon(self) -> None:
        """Nothing to do: a batch stands alone."""

    def park(self) -> None:
        """Keep how to draw again what was drawn ahead, so that a run that is resumed here and one that goes on learn
        from the same; or forget it, where others may write to the memory before that.
        """
        if not self._private:
            self._ahead = []
        self._kept[:] = self._drawn if self._ahead else 0, len(self._ahead)
        self._drawn_from.numpy().view(np.uint64)[:] = words_of(self._state) if self._ahead else 0

    def _draw_again(self) -> None:
        """What was drawn ahead when the run came to rest. Nothing was added to the memory after that draw."""
        self._drawn, left = (int(number) for number in self._kept)
        rng = Stream(self._drawn_from, 0).rng
        self._state = rng.bit_generator.state
        self._ahead = self._memory.sample_many(self._drawn, self._batch, rng)[:left]
