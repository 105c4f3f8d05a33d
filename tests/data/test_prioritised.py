"""Prioritised replay: frequencies against probabilities, weights against the formula, late updates dropped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from passel.arena import Arena
from passel.data import PrioritisedReplay
from passel.data.ring import Ring
from passel.data.sumtree import SumTree
from passel.types import PasselError

FLOAT = np.dtype("float32")
ALPHA, EPS = 0.7, 1e-3


def make(tensors: Arena, writer: int = 0, **options: object) -> PrioritisedReplay:
    return PrioritisedReplay(tensors, writer, alpha=ALPHA, eps=EPS, **options)  # type: ignore[arg-type]


def arena(capacity: int, writers: int = 1) -> Arena:
    return Arena(PrioritisedReplay.specs(capacity, (3,), FLOAT, writers))


def set_all(memory: PrioritisedReplay, td: dict[int, float]) -> None:
    """Give the transition with each number its TD error; all must come up in the first draws."""
    rng = np.random.default_rng(0)
    batch = memory.sample(50 * len(memory), rng)
    assert set(batch.action.tolist()) == set(td)
    memory.update_priorities(batch.index, np.asarray([td[number] for number in batch.action.tolist()]))


@pytest.mark.parametrize("writers", [1, 3])
@pytest.mark.parametrize("k", [1, 4])
def test_frequencies_are_the_probabilities(numbered, writers, k) -> None:
    tensors = arena(30, writers)
    for writer in range(writers):
        make(tensors, writer).add(numbered(10 * writer, 7))
    memory = make(tensors)
    td = {10 * writer + i: 0.1 * (i + writer) ** 2 for writer in range(writers) for i in range(7)}
    set_all(memory, td)
    memory.check_valid()
    priority = (np.asarray(list(td.values())) + EPS) ** ALPHA
    expected = priority / priority.sum()
    n, rounds = 16, 400
    rng = np.random.default_rng(1)
    counts = dict.fromkeys(td, 0)
    for _ in range(rounds):
        for batch in memory.sample_many(k, n, rng):
            for number in batch.action.tolist():
                counts[number] += 1
    found = np.asarray(list(counts.values())) / (rounds * k * n)
    deviation = np.sqrt(expected / (rounds * k * n))
    assert (np.abs(found - expected) < 4.5 * deviation).all()
    # Stratified: the sum of n draws is steadier than n independent draws would be.
    per_slice = np.floor(expected * n)
    batch = memory.sample(n, rng)
    drawn = np.asarray([(batch.action == number).sum() for number in td])
    assert (drawn >= per_slice - 1).all()
    assert (drawn <= per_slice + 2).all()


@settings(deadline=None, max_examples=50)
@given(td=st.lists(st.floats(0, 100), min_size=2, max_size=12), beta=st.floats(0, 1), k=st.integers(1, 3))
def test_weights_are_the_formula(numbered, td, beta, k) -> None:
    memory = make(arena(16))
    memory.add(numbered(0, len(td)))
    index = np.arange(len(td))  # one writer: the index is the count
    memory.update_priorities(index, np.asarray(td))
    priority = (np.asarray(td) + EPS) ** ALPHA
    probability = priority / priority.sum()
    for batch in memory.sample_many(k, 8, np.random.default_rng(2), beta):
        assert batch.index is not None
        assert batch.weight is not None
        weight = (len(td) * probability[batch.action]) ** -beta
        assert batch.weight.dtype == np.float32
        assert batch.weight == pytest.approx(weight / weight.max(), rel=1e-5)
        assert batch.weight.max() == 1
        assert (batch.index == batch.action).all()


def test_newcomers_get_the_largest_priority_so_far(numbered) -> None:
    tensors = arena(8)
    memory = make(tensors)
    leaves = tensors["tree/level0"][0]
    memory.add(numbered(0, 2))
    assert leaves[:3].tolist() == [1, 1, 0]
    memory.update_priorities(np.asarray([0]), np.asarray([9.0]))
    memory.update_priorities(np.asarray([0]), np.asarray([0.5]))
    make(tensors).add(numbered(2, 1))
    assert leaves[2].item() == pytest.approx((9 + EPS) ** ALPHA)
    assert leaves[0].item() == pytest.approx((0.5 + EPS) ** ALPHA)
    memory.check_valid()


@settings(deadline=None, max_examples=60)
@given(
    capacity=st.integers(2, 12),
    writers=st.integers(1, 2),
    adds=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 15)), min_size=1, max_size=10),
)
def test_priorities_follow_their_transitions_around_the_ring(numbered, capacity, writers, adds) -> None:
    tensors = arena(capacity, writers)
    stripe = capacity // writers
    kept: list[dict[int, float]] = [{} for _ in range(writers)]
    highest, number, rng = 1.0, 0, np.random.default_rng(3)
    for drawn_writer, count in adds:
        writer = drawn_writer % writers
        make(tensors, writer).add(numbered(number, count))
        kept[writer] |= dict.fromkeys(range(number, number + count), highest)
        kept[writer] = dict(list(kept[writer].items())[-stripe:])
        number += count
        memory = make(tensors)
        memory.check_valid()
        if not len(memory):
            continue
        batch = memory.sample(4, rng)
        td = rng.random(4) * 3
        memory.update_priorities(batch.index, td)
        for drawn, error in zip(batch.action.tolist(), td, strict=True):
            owner = next(held for held in kept if drawn in held)
            owner[drawn] = error + EPS
            highest = max(highest, error + EPS)
        memory.check_valid()
        total = sum(priority**ALPHA for held in kept for priority in held.values())
        assert tensors["tree/level0"].sum().item() == pytest.approx(total, rel=1e-9)


def test_an_update_that_comes_too_late_is_dropped(numbered) -> None:
    tensors = arena(8, writers=2)
    memory, other = make(tensors, 0), make(tensors, 1)
    memory.add(numbered(0, 4))
    other.add(numbered(100, 4))
    batch = memory.sample(64, np.random.default_rng(4))
    other.add(numbered(200, 2))
    before = tensors["tree/level0"].clone()
    memory.update_priorities(batch.index, np.full(64, 0.25))
    changed = (tensors["tree/level0"] != before).nonzero().tolist()
    assert changed == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 2], [1, 3]]
    memory.check_valid()


def test_adding_touches_only_the_writers_tree(numbered) -> None:
    tensors = Arena(PrioritisedReplay.specs(20_000, (3,), FLOAT, writers=2))
    make(tensors, 0).add(numbered(0, 50))
    before = {name: tensor[0].clone() for name, tensor in tensors.items() if name.startswith("tree/")}
    assert len(before) == 2
    make(tensors, 1).add(numbered(50, 300))
    for name, tensor in before.items():
        assert torch.equal(tensors[name][0], tensor)


class CountingLock:
    def __init__(self) -> None:
        self.entered = self.depth = 0

    def __enter__(self) -> None:
        assert self.depth == 0
        self.entered, self.depth = self.entered + 1, 1

    def __exit__(self, *_: object) -> None:
        self.depth = 0


def test_every_access_to_the_sums_is_under_the_lock(numbered, monkeypatch) -> None:
    lock = CountingLock()
    memory = make(arena(8), lock=lock)
    for name in ("set", "find"):
        original = getattr(SumTree, name)

        def guarded(*arguments: object, original=original) -> object:
            assert lock.depth == 1
            return original(*arguments)

        monkeypatch.setattr(SumTree, name, guarded)
    memory.add(numbered(0, 5))
    batch = memory.sample(4, np.random.default_rng(0))
    memory.update_priorities(batch.index, np.ones(4))
    memory.check_valid()
    assert lock.entered == 4


@pytest.mark.parametrize(("owner", "method"), [(Ring, "_write"), (SumTree, "set")])
def test_what_a_dead_writer_left_half_done_is_mended(numbered, monkeypatch, owner, method) -> None:
    tensors = arena(8)
    make(tensors).add(numbered(0, 8))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, killed)
        with pytest.raises(KeyboardInterrupt):
            make(tensors).add(numbered(8, 3))
    memory = make(tensors)
    drawn = set(memory.sample(400, np.random.default_rng(0)).action.tolist())
    assert drawn == (set(range(3, 8)) if owner is Ring else set(range(3, 11)))
    memory.check_valid()
    memory.add(numbered(20, 8))
    memory.check_valid()
    assert set(memory.sample(400, np.random.default_rng(0)).action.tolist()) == set(range(20, 28))


def test_a_copy_of_the_tensors_draws_the_same(numbered) -> None:
    tensors = arena(64, writers=2)
    memory = make(tensors, 1)
    memory.add(numbered(0, 40))
    memory.update_priorities(memory.sample(32, np.random.default_rng(0)).index, np.linspace(0, 4, 32))
    resumed = Arena(tensors.specs)
    resumed.load(tensors)
    again = make(resumed, 1)
    for m in (memory, again):
        m.add(numbered(40, 5))
    first, second = (m.sample(128, np.random.default_rng(1), 0.4) for m in (memory, again))
    assert (first.obs == second.obs).all()
    assert (first.weight == second.weight).all()
    assert (first.index == second.index).all()


def test_corruption_is_noticed(numbered) -> None:
    def corrupt(name: str, slot: int, value: float) -> PrioritisedReplay:
        tensors = arena(8)
        memory = make(tensors)
        memory.add(numbered(0, 5))
        memory.check_valid()
        tensors[name].view(-1)[slot] = value
        return memory

    for name, slot, value, reason in (
        ("tree/level0", 6, 1.0, "without a transition"),
        ("tree/level0", 2, 0.0, "never be drawn"),
        ("tree/level0", 2, 7.0, "larger priority"),
        ("tree/level0", 2, float("nan"), "not finite"),
        ("committed", 0, 9, "committed"),
    ):
        with pytest.raises(AssertionError, match=reason):
            corrupt(name, slot, value).check_valid()


def test_mistakes_are_named(numbered) -> None:
    tensors = arena(8)
    memory = make(tensors)
    with pytest.raises(PasselError, match="empty"):
        memory.sample(1, np.random.default_rng(0))
    memory.add(numbered(0, 5))
    for td in (np.asarray([-1.0]), np.asarray([np.nan]), np.asarray([np.inf])):
        with pytest.raises(PasselError, match="diverged"):
            memory.update_priorities(np.asarray([0]), td)
    with pytest.raises(PasselError, match="index"):
        memory.update_priorities(None, np.ones(1))
    with pytest.raises(PasselError, match="alpha"):
        PrioritisedReplay(tensors, alpha=-1)
    memory.update_priorities(np.empty(0, np.int64), np.empty(0))
    memory.check_valid()


@pytest.mark.parametrize("start", [0, 5])
def test_who_knows_how_surprising_a_newcomer_is_says_so(numbered, start) -> None:
    """Also where the ring wraps, and where more come at once than there is room for."""
    told, silent = make(arena(8)), make(arena(8))
    for memory in (told, silent):
        memory.add(numbered(0, start))
    td = np.linspace(0.5, 6, 12)
    told.add(numbered(100, 12), td)
    silent.add(numbered(100, 12))
    silent.update_priorities(np.arange(start, start + 12), td)
    told.check_valid()
    np.testing.assert_allclose(told._tree.leaves, silent._tree.leaves)
    told.add(numbered(200, 1))
    assert told._tree.leaves.max() == pytest.approx((6 + EPS) ** ALPHA), "a newcomer of whom nothing is known"


def test_a_newcomer_s_surprise_must_be_a_number(numbered) -> None:
    memory = make(arena(8))
    with pytest.raises(PasselError, match="not finite"):
        memory.add(numbered(0, 2), np.array([1.0, np.nan]))
    assert len(memory) == 0
