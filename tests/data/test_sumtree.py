"""The tree against one running sum over all leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passel.arena import Arena
from passel.data import sumtree
from passel.data.sumtree import SumTree


@pytest.fixture(params=[4096, 8])
def _root(request, monkeypatch) -> None:
    """A narrow root makes a small tree high."""
    monkeypatch.setattr(sumtree, "WIDEST_ROOT", request.param)


def oracle(leaves: np.ndarray, fraction: np.ndarray) -> np.ndarray:
    sums = leaves.cumsum()
    return sums.searchsorted(fraction * sums[-1], side="right")


@pytest.mark.usefixtures("_root")
@settings(deadline=None, max_examples=60)
@given(
    leaves=st.integers(1, 3000),
    trees=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    zeros=st.floats(0, 0.9),
)
def test_finds_what_the_running_sum_finds(leaves, trees, seed, zeros) -> None:
    rng = np.random.default_rng(seed)
    tree = SumTree(Arena(SumTree.specs(leaves, trees)))
    for _ in range(3):
        which = rng.integers(0, leaves, 50) + tree.stride * rng.integers(0, trees, 50)
        # Whole numbers: their sums are exact in any order, so that the oracle cannot differ by a rounding.
        tree.set(which, rng.integers(1, 100, 50) * (rng.random(50) >= zeros) + (np.arange(50) == 49))
    tree.check_valid()
    assert tree.total == tree.leaves.sum()
    fraction = rng.random(200)
    found = tree.find(fraction)
    assert (found == oracle(tree.leaves, fraction)).all()
    assert (tree.leaves[found] > 0).all()
    padding = tree.leaves.reshape(trees, -1)[:, leaves:]
    assert not padding.any()


@pytest.mark.usefixtures("_root")
def test_never_lands_on_a_leaf_without_weight_however_sums_are_rounded() -> None:
    rng = np.random.default_rng(5)
    tree = SumTree(Arena(SumTree.specs(5000)))
    weight = rng.random(5000) ** 40 * (rng.random(5000) < 0.1)
    weight[[0, 1, -1]] = 0
    tree.set(np.arange(5000), weight)
    edges = weight.cumsum() / weight.sum()
    fraction = np.clip(np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1), [0.0, 1.0]]), 0, 1)
    assert (tree.leaves[tree.find(fraction)] > 0).all()


@pytest.mark.usefixtures("_root")
def test_sums_do_not_drift() -> None:
    rng = np.random.default_rng(6)
    tree = SumTree(Arena(SumTree.specs(2000)))
    for _ in range(500):
        tree.set(rng.integers(0, 2000, 64), 10.0 ** rng.integers(-8, 8, 64))
    tree.set(np.arange(2000), np.full(2000, 1e-8))
    assert tree.total == pytest.approx(2e-5, rel=1e-12)


def test_the_levels_follow_from_the_tensors_alone() -> None:
    widths = [spec.shape for spec in SumTree.specs(100_000).values()]
    assert widths == [(1, 100_000), (1, 3125)]
    widths = [spec.shape for spec in SumTree.specs(1_000_000, 2).values()]
    assert widths == [(2, 977 * 1024), (2, 977 * 32), (2, 977)]


def test_rebuild_mends_what_check_valid_finds() -> None:
    tensors = Arena(SumTree.specs(10_000))
    tree = SumTree(tensors)
    tree.set(np.arange(10_000), np.ones(10_000))
    tensors["level0"][0, 77] = 5.0
    with pytest.raises(AssertionError, match="node 2 of level 1"):
        tree.check_valid()
    tree.rebuild()
    tree.check_valid()
    tensors["level0"][0, 77] = -1.0
    with pytest.raises(AssertionError, match="negative"):
        tree.check_valid()
