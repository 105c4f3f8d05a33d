"""The test that the much-copied Hogwild! code fails: a gradient of 1 is applied as 1, 1, 1, 1, under every scheme.

loss = w.sum() and SGD with a step of 1, so the vector falls by exactly 1 an update: no more (gradients that pile up),
no less (gradients that nobody applies).
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from passel.sync import SCHEMES
from passel.sync.base import SyncSettings
from teams import DECENTRALISED, PLAIN_SGD, SHARING, Countdown, Team, Weights, in_processes, total

SIZE = 37


def alike(name: str, workers: int) -> bool:
    """Whether all learners see one vector, or there is only one. Vectors of their own have tests of their own below."""
    return workers == 1 or name not in DECENTRALISED


CELLS = [
    ("solo", 1, 1, 1),
    *((name, 1, workers, every) for name in SHARING for workers in (1, 2) for every in (1, 3) if alike(name, workers)),
    *(("server", 3, 2, every) for every in (1, 3)),
]


def test_every_scheme_is_here() -> None:
    assert {name for name, *_ in CELLS} == set(SCHEMES)


@pytest.mark.parametrize(("name", "shards", "workers", "every"), CELLS)
def test_inline_a_gradient_of_1_is_applied_as_1(name: str, shards: int, workers: int, every: int) -> None:
    settings = SyncSettings(PLAIN_SGD, every=every, shards=shards)
    team = Team(name, partial(Weights, SIZE), workers, settings)
    applied = 0
    for _ in range(4):
        for sync in team.syncs:
            for update in range(every):
                sync.pull()
                assert sync.flat.values.tolist() == [-float(applied + update)] * SIZE
                sync.push(total(sync))
                assert sync.flat.grads.unique().tolist() == [float(every if update == every - 1 else 1)]
            applied += 0 if team.scheme.collective else every
        applied += every if team.scheme.collective else 0
    assert team.vector.tolist() == [-float(applied)] * SIZE
    assert team.scheme.version(team.tensors) * every == applied


@pytest.mark.parametrize(
    ("name", "shards", "workers", "every"), [cell for cell in CELLS if cell[2] > 1 or cell[0] == "solo"]
)
def test_in_processes_a_gradient_of_1_is_applied_as_1(name: str, shards: int, workers: int, every: int) -> None:
    scheme = SCHEMES[name](SIZE, workers, SyncSettings(PLAIN_SGD, every=every, shards=shards))
    countdown = Countdown(4, workers, every, scheme.collective)
    arena = in_processes(scheme, partial(Weights, SIZE), countdown, countdown.specs(SIZE))
    assert torch.equal(arena["own/seen"], countdown.expected(SIZE))
    total = 4 * every * (1 if scheme.collective else workers)
    assert arena["sync/vector"].tolist() == [-float(total)] * SIZE
    assert scheme.version(arena.below("sync")) * every == total


@pytest.mark.parametrize("name", ["locked", "server", "allreduce"])
def test_in_processes_nothing_is_lost_when_everybody_pushes_at_once(name: str) -> None:
    """Nobody takes turns here. Only Hogwild! may lose a write, and says so."""
    updates, workers = 200, 2
    scheme = SCHEMES[name](SIZE, workers, SyncSettings(PLAIN_SGD, shards=2))
    rush = Countdown(updates, workers, 1, collective=True)
    arena = in_processes(scheme, partial(Weights, SIZE), rush, rush.specs(SIZE))
    total = updates * (1 if scheme.collective else workers)
    assert arena["sync/vector"].tolist() == [-float(total)] * SIZE
    falls = arena["own/seen"].diff(dim=1)
    assert (falls <= 0).all(), "a later pull never sees an older vector"


def test_in_processes_hogwild_never_applies_more_than_was_pushed_and_loses_little() -> None:
    updates, workers = 200, 2
    scheme = SCHEMES["hogwild"](SIZE, workers, SyncSettings(PLAIN_SGD))
    rush = Countdown(updates, workers, 1, collective=True)
    arena = in_processes(scheme, partial(Weights, SIZE), rush, rush.specs(SIZE))
    total = updates * workers
    assert arena["sync/vector"].min() >= -total
    assert arena["sync/vector"].max() <= -0.8 * total
    assert scheme.version(arena.below("sync")) == total


#: How far one update of one of two learners moves what stands for both.
SHARE = {"gossip": 0.5, "proximal": 0.5, "tokenring": 1.0}


def test_every_scheme_without_a_centre_has_its_share() -> None:
    assert set(SHARE) == set(DECENTRALISED)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", DECENTRALISED)
def test_inline_vectors_of_their_own_fall_by_their_share(name: str, every: int) -> None:
    team = Team(name, partial(Weights, SIZE), 2, SyncSettings(PLAIN_SGD, every=every))
    for turn in range(1, 5):
        for sync in team.syncs:
            for _ in range(every):
                sync.pull()
                sync.push(total(sync))
        assert team.vector.tolist() == [-2 * SHARE[name] * every * turn] * SIZE
    assert team.scheme.version(team.tensors) == (4 if team.scheme.collective else 8)


@pytest.mark.parametrize("name", DECENTRALISED)
def test_in_processes_nothing_is_lost_between_vectors_of_their_own(name: str) -> None:
    """Nobody takes turns, and each vector has one writer: everything arrives, but for rounding."""
    updates, workers = 200, 2
    scheme = SCHEMES[name](SIZE, workers, SyncSettings(PLAIN_SGD))
    rush = Countdown(updates, workers, 1, collective=True)
    arena = in_processes(scheme, partial(Weights, SIZE), rush, rush.specs(SIZE))
    scheme.settle(arena.below("sync"))
    expected = torch.full((SIZE,), -updates * workers * SHARE[name])
    torch.testing.assert_close(arena["sync/vector"], expected, rtol=0, atol=1e-2)
