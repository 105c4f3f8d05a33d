"""The limiter: how often each transition is drawn, and the only reason for which actors and learners wait."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from passel.arena import Spec, cells


class Limiter:
    """So many samples for each insert, within a slack, counted from the end of the warm-up.

        if limiter.may_insert():  ...; limiter.inserted(n)     # an actor
        if limiter.may_sample():  ...; limiter.sampled()       # a learner

    With `owed = inserts * ratio - samples`, relative to what it was when the warm-up ended:

        insert while owed < slack,     sample while owed >= batch - slack

    A slack of at least a batch never lets both sides wait: where sampling is not allowed, owed < batch - slack <= 0.
    Each actor and each learner counts in a cell of its own, so nothing is locked; an actor may be ahead of the limit by
    what others insert at the same moment. It answers and never waits: how to wait is the placement's affair.
    """

    @staticmethod
    def specs(actors: int, learners: int) -> dict[str, Spec]:
        return {"inserts": Spec((actors,), torch.int64), "samples": Spec((learners,), torch.int64)}

    def __init__(
        self, tensors: Mapping[str, Tensor], rank: int = 0, *, ratio: float, batch: int, warmup: int, slack: float
    ) -> None:
        if slack < batch:
            raise ValueError(f"a slack of {slack} samples is less than a batch of {batch}: both sides might wait")
        self._inserts, self._samples = cells(tensors["inserts"].numpy()), cells(tensors["samples"].numpy())
        self._rank, self._ratio, self._batch, self._warmup, self._slack = rank, ratio, batch, max(warmup, batch), slack

    @property
    def inserts(self) -> int:
        return int(sum(self._inserts))

    @property
    def samples(self) -> int:
        return int(sum(self._samples))

    @property
    def owed(self) -> float:
        """Samples that are due by what was inserted since the warm-up, less those that were drawn."""
        return (self.inserts - self._warmup) * self._ratio - self.samples

    @property
    def samples_per_insert(self) -> float:
        """What the ratio has been so far, since the warm-up."""
        return self.samples / max(self.inserts - self._warmup, 1)

    def may_insert(self) -> bool:
        return self.inserts < self._warmup or self.owed < self._slack

    def may_sample(self) -> bool:
        return self.inserts >= self._warmup and self.owed >= self._batch - self._slack

    def inserted(self, count: int) -> None:
        self._inserts[self._rank] += count

    def sampled(self) -> None:
        self._samples[self._rank] += self._batch
