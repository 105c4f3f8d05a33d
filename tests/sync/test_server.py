"""The parameter server: slices, whole reads, staleness."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from passel.place.inline import InlineKit
from passel.sync.base import SyncSettings
from passel.sync.optimiser import OptimiserSettings
from passel.sync.server import ParameterServer
from teams import PLAIN_SGD, Team, Weights, total

LINE = 16


def server(size: int, shards: int, workers: int = 1) -> ParameterServer:
    return ParameterServer(size, workers, SyncSettings(PLAIN_SGD, shards=shards))


@given(st.integers(1, 3000), st.integers(1, 40))
def test_slices_cover_the_vector_without_overlap(size: int, shards: int) -> None:
    scheme = server(size, shards)
    spans = [scheme.span(index) for index in range(shards)]
    covered = [position for span in spans for position in range(size)[span]]
    assert covered == list(range(size))
    assert spans[0].start == 0
    assert spans[-1].stop == size


@given(st.integers(1, 3000), st.integers(1, 40))
def test_slices_are_about_equal_and_never_share_a_cache_line(size: int, shards: int) -> None:
    scheme = server(size, shards)
    spans = [scheme.span(index) for index in range(shards)]
    assert all(span.start % LINE == 0 for span in spans)
    assert all(abs(span.stop - span.start - size / shards) < 2 * LINE for span in spans)


@pytest.mark.parametrize(("size", "shards"), [(5, 8), (17, 3), (100, 7)])
@pytest.mark.parametrize("kind", ["adam", "rmsprop", "sgd"])
def test_more_shards_than_there_is_to_own_still_apply_everything_once(size: int, shards: int, kind: str) -> None:
    settings = SyncSettings(OptimiserSettings(kind, lr=1.0), shards=shards)
    one = Team("server", partial(Weights, size), 1, SyncSettings(OptimiserSettings(kind, lr=1.0)))
    many = Team("server", partial(Weights, size), 1, settings)
    for team in (one, many):
        for _ in range(3):
            team.syncs[0].pull()
            team.syncs[0].push(total(team.syncs[0]))
    assert torch.equal(one.vector, many.vector)
    assert one.vector.any()


def test_a_torn_read_is_never_returned() -> None:
    """An odd number says that a shard is half-way through its slice: a reader waits, and takes the whole update."""
    team = Team("server", partial(Weights, 40), 1, SyncSettings(PLAIN_SGD, shards=2))
    sync, writing, vector = team.syncs[0], team.tensors["writing"], team.tensors["vector"]
    writing[1] = 1
    vector[32:36] = 5.0
    reader = threading.Thread(target=sync.pull, daemon=True)
    reader.start()
    reader.join(0.2)
    assert reader.is_alive(), "it did not wait for the shard to finish"
    vector[16:] = 5.0
    writing[1] = 2
    reader.join(5)
    assert not reader.is_alive()
    assert sync.flat.values.tolist() == [0.0] * 16 + [5.0] * 24


def test_a_slice_that_changes_while_it_is_read_is_read_again() -> None:
    team = Team("server", partial(Weights, 8), 1, SyncSettings(PLAIN_SGD))
    sync = team.syncs[0]
    copies = []

    class Counting:
        """The shard's number as a reader sees it: an update happens between the first look and the check."""

        def __init__(self) -> None:
            self.looks = 0

        def __getitem__(self, index: int) -> int:
            self.looks += 1
            if self.looks == 3:
                team.tensors["vector"].fill_(9.0)
            copies.append(sync.flat.values.tolist())
            return 0 if self.looks < 3 else 2

    sync._writing = Counting()  # type: ignore[attr-defined]
    sync.pull()
    assert [0.0] * 8 in copies
    assert sync.flat.values.tolist() == [9.0] * 8


def test_readers_of_a_busy_vector_only_ever_see_whole_updates() -> None:
    """A shard that never rests, and a reader beside it: every slice is the work of a whole number of updates."""
    team = Team("server", partial(Weights, 4096), 2, SyncSettings(PLAIN_SGD, shards=2))
    stop = threading.Event()

    def write() -> None:
        sync = team.syncs[1]
        while not stop.is_set():
            sync.pull()
            sync.push(total(sync))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    seen = set()
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        team.syncs[0].pull()
        for index in range(2):
            values = team.flats[0].values[team.scheme.span(index)]  # type: ignore[attr-defined]
            assert (values == values[0]).all()
            seen.add(float(values[0]))
    stop.set()
    writer.join(5)
    assert len(seen) > 5


def test_staleness_counts_the_updates_of_others_between_a_pull_and_its_application() -> None:
    """The same number as under the other schemes: what is applied after mine and before my next pull does not count."""
    team = Team("server", partial(Weights, 4), 3, SyncSettings(PLAIN_SGD, shards=2))
    for sync in team.syncs:
        sync.pull()
    for sync in team.syncs:
        sync.push(total(sync))
    for sync in team.syncs:
        sync.pull()
    assert [sync.version for sync in team.syncs] == [3, 3, 3]
    assert [sync.costs.staleness for sync in team.syncs] == [0, 1, 2]


def test_a_worker_reads_its_own_writes() -> None:
    team = Team("server", partial(Weights, 40), 2, SyncSettings(PLAIN_SGD, shards=3))
    sync = team.syncs[0]
    for expected in (0.0, -1.0, -2.0):
        sync.pull()
        assert (sync.flat.values == expected).all()
        sync.push(total(sync))


def test_only_shards_write_the_vector() -> None:
    """A worker whose shards are asleep changes nothing but its own mailbox."""
    scheme = server(8, 2, workers=2)
    team = Team("server", partial(Weights, 8), 2, SyncSettings(PLAIN_SGD, shards=2))
    links = scheme.links(InlineKit())
    links.shared = True
    sync = scheme.attach(team.flats[1], team.tensors, links, 1)
    sync.pull()
    sync.push(total(sync))
    assert not team.tensors["vector"].any()
    assert team.tensors["mail"].tolist() == [[0.0] * 8, [1.0] * 8]
    assert all(bell.acquire(False) for bell in links.shard_bells)


def test_a_resumed_server_forgets_what_was_sent_and_never_applied() -> None:
    scheme = server(8, 2, workers=2)
    tensors = {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in scheme.specs().items()}
    tensors["pushes"].copy_(torch.tensor([5, 7]))
    scheme.start(tensors)  # type: ignore[arg-type]
    assert tensors["applied"].tolist() == [[5, 7], [5, 7]]


def test_the_count_of_steps_is_kept_once_whatever_the_number_of_shards() -> None:
    """Adam's own counter must be the number of updates, not that number times the shards."""
    for shards in (1, 3):
        team = Team("server", partial(Weights, 60), 2, SyncSettings(OptimiserSettings("adam"), shards=shards))
        for _ in range(4):
            for sync in team.syncs:
                sync.pull()
                sync.push(total(sync))
        assert float(team.tensors["optimiser/step"]) == 8
