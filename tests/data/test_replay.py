"""Uniform replay against a list of the last rows of each writer."""

from __future__ import annotations

import sys
import threading
from collections import deque
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from passel.arena import Arena
from passel.data import Replay
from passel.data.ring import Ring
from passel.types import Batch, PasselError

FLOAT = np.dtype("float32")


class OfEach:
    """In place of a random stream: n draws of n rows are each row once."""

    def random(self, n: int) -> np.ndarray:
        return (np.arange(n) + 0.5) / n


def contents(memory: Replay) -> list[int]:
    return sorted(memory.sample(len(memory), OfEach()).action.tolist())  # type: ignore[arg-type]


def check_whole(batch: Batch) -> None:
    """Every field of a numbered transition says the same number."""
    number = batch.action.astype(np.float64)
    obs, next_obs = (a.astype(np.float64).reshape(len(a), -1) for a in (batch.obs, batch.next_obs))
    assert (obs == number[:, None]).all()
    assert (next_obs == obs + 1).all()
    assert (batch.reward == number).all()
    assert (batch.discount == 0.5).all()


@settings(deadline=None, max_examples=100)
@given(
    capacity=st.integers(1, 12),
    writers=st.integers(1, 3),
    adds=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 17)), min_size=1, max_size=12),
    packed=st.booleans(),
)
def test_holds_what_a_list_of_the_last_rows_holds(numbered, capacity, writers, adds, packed) -> None:
    capacity = max(capacity, writers)
    shape, dtype = ((3,), "float32") if packed else ((2, 2), "int32")
    tensors = Arena(Replay.specs(capacity, shape, np.dtype(dtype), writers))
    naive = [deque(maxlen=capacity // writers) for _ in range(writers)]
    number = 0
    for writer, count in adds:
        # A new object each time: nothing may be remembered outside of the tensors.
        memory = Replay(tensors, writer % writers)
        memory.add(numbered(number, count, shape, dtype))
        naive[writer % writers].extend(range(number, number + count))
        number += count
        memory.check_valid()
        assert len(memory) == sum(map(len, naive))
        if len(memory):
            assert contents(memory) == sorted(chain(*naive))
            check_whole(memory.sample(20, np.random.default_rng(0)))
    assert Replay(tensors).capacity == capacity // writers * writers


@pytest.mark.parametrize(
    ("shape", "dtype"), [((8,), "float32"), ((), "float32"), ((2, 3), "float32"), ((4, 6, 6), "uint8"), ((), "int64")]
)
def test_observations_keep_shape_and_type(numbered, shape, dtype) -> None:
    memory = Replay(Arena(Replay.specs(10, shape, np.dtype(dtype))))
    memory.add(numbered(0, 7, shape, dtype))
    batch = memory.sample(5, np.random.default_rng(0))
    assert batch.obs.shape == batch.next_obs.shape == (5, *shape)
    assert batch.obs.dtype == batch.next_obs.dtype == np.dtype(dtype)
    assert batch.action.dtype == np.int64
    assert batch.reward.shape == batch.discount.shape == (5,)
    assert batch.index is None
    assert batch.weight is None
    assert (batch.obs.reshape(5, -1)[:, 0] == batch.action).all()


@pytest.mark.parametrize("writers", [1, 3])
def test_every_row_is_equally_likely(numbered, writers) -> None:
    tensors = Arena(Replay.specs(30, (3,), FLOAT, writers))
    for writer, count in zip(range(writers), (17, 4, 25), strict=False):
        Replay(tensors, writer).add(numbered(100 * writer, count))
    memory = Replay(tensors)
    rows, draws = len(memory), 20_000
    batch = memory.sample(draws, np.random.default_rng(1))
    _, counts = np.unique(batch.action, return_counts=True)
    expected = draws / rows
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert len(counts) == rows
    # Mean rows - 1, variance twice that: five deviations either way.
    assert abs(chi_square - (rows - 1)) < 5 * np.sqrt(2 * (rows - 1))


def test_many_batches_are_one_draw_in_slices(numbered) -> None:
    memory = Replay(Arena(Replay.specs(50, (3,), FLOAT)))
    memory.add(numbered(0, 50))
    many = memory.sample_many(4, 6, np.random.default_rng(2))
    one = memory.sample(24, np.random.default_rng(2))
    for batch in many:
        check_whole(batch)
        assert batch.obs.shape == (6, 3)
    assert (np.concatenate([batch.action for batch in many]) == one.action).all()


def test_a_writer_touches_only_its_own_stripe(numbered) -> None:
    tensors = Arena(Replay.specs(20, (3,), FLOAT, writers=2))
    Replay(tensors, 0).add(numbered(0, 5))
    before = {name: tensor[:1].clone() for name, tensor in tensors.items()}
    Replay(tensors, 1).add(numbered(50, 33))
    for name, tensor in tensors.items():
        assert torch.equal(tensor[:1], before[name])
    assert contents(Replay(tensors)) == [*range(5), *range(73, 83)]


def test_a_row_overwritten_while_it_is_gathered_is_drawn_anew(numbered, monkeypatch) -> None:
    tensors = Arena(Replay.specs(8, (3,), FLOAT))
    memory, writer = Replay(tensors), Replay(tensors)
    memory.add(numbered(0, 8))
    gather, calls = Ring.gather, []

    def interrupted(ring: Ring, slots: np.ndarray):
        calls.append(len(slots))
        if len(calls) > 1:
            return gather(ring, slots)
        fetched = gather(ring, slots)
        writer.add(numbered(8, 4))
        fetched.rows[slots < 4] = -1.0  # what a reader might see that came at the same moment
        return fetched

    monkeypatch.setattr(Ring, "gather", interrupted)
    batch = memory.sample(64, np.random.default_rng(3))
    check_whole(batch)
    assert 10 < calls[1] < 54, "about half of the rows were torn"
    assert set(batch.action.tolist()) <= set(range(4, 12))


def test_rows_stay_whole_while_a_thread_writes(numbered) -> None:
    tensors = Arena(Replay.specs(16, (3,), FLOAT, writers=2))
    for writer in (0, 1):
        Replay(tensors, writer).add(numbered(0, 8))
    stop = threading.Event()

    def write() -> None:
        memory, number = Replay(tensors, 1), 0
        while not stop.is_set():
            memory.add(numbered(number, 3))
            number = (number + 3) % 1000

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        rng = np.random.default_rng(4)
        for _ in range(300):
            check_whole(Replay(tensors).sample(32, rng))
    finally:
        stop.set()
        thread.join(10)
        sys.setswitchinterval(interval)
    assert int(tensors["committed"][1]) > 100
    Replay(tensors).check_valid()


def test_a_writer_that_died_half_way_leaves_nothing_half_written(numbered, monkeypatch) -> None:
    tensors = Arena(Replay.specs(10, (3,), FLOAT))
    Replay(tensors).add(numbered(0, 10))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ring, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            Replay(tensors).add(numbered(10, 4))
    memory = Replay(tensors)
    memory.check_valid()
    assert contents(memory) == list(range(4, 10))
    memory.add(numbered(20, 1))
    assert contents(memory) == [*range(4, 10), 20]
    memory.add(numbered(21, 9))
    assert contents(memory) == list(range(20, 30))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("reserved", 3, "committed"), ("committed", -1, "committed"), ("rows", float("nan"), "not finite")],
)
def test_corruption_is_noticed(numbered, name, value, reason) -> None:
    tensors = Arena(Replay.specs(10, (3,), FLOAT))
    memory = Replay(tensors)
    memory.add(numbered(0, 5))
    memory.check_valid()
    tensors[name].fill_(value)
    with pytest.raises(AssertionError, match=reason):
        memory.check_valid()


@pytest.mark.parametrize(
    ("column", "value", "reason"), [(-2, 1.5, "discount"), (-1, 0.5, "action"), (-1, 2.0**24, "action")]
)
def test_a_corrupt_column_is_noticed_only_where_it_is_kept(numbered, column, value, reason) -> None:
    tensors = Arena(Replay.specs(10, (3,), FLOAT))
    memory = Replay(tensors)
    memory.add(numbered(0, 5))
    tensors["rows"][0, 5, column] = value
    memory.check_valid()
    tensors["rows"][0, 4, column] = value
    with pytest.raises(AssertionError, match=reason):
        memory.check_valid()


def test_mistakes_are_named() -> None:
    with pytest.raises(PasselError, match="divided"):
        Replay.specs(3, (1,), FLOAT, writers=4)
    with pytest.raises(PasselError, match="tensor"):
        Replay.specs(3, (1,), np.dtype("U4"))
    tensors = Arena(Replay.specs(4, (1,), FLOAT, writers=2))
    with pytest.raises(PasselError, match="writer 2"):
        Replay(tensors, 2)
    with pytest.raises(PasselError, match="empty"):
        Replay(tensors).sample(1, np.random.default_rng(0))
