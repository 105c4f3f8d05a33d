"""Who talks to whom, and with what weight: graphs that leave nobody out, and matrices that keep the mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from passel.sync.mixing import chances, expected_exchange, lazy, metropolis, spectral_gap
from passel.sync.topology import TOPOLOGIES, Graph, from_anywhere, make_graph
from passel.types import PasselError

SIZES = [1, 2, 3, 4, 5, 6, 8, 13]

every_graph = pytest.mark.parametrize(
    "graph", [make_graph(name, size) for name in TOPOLOGIES for size in SIZES], ids=lambda graph: str(len(graph))
)


def write(folder: Path, text: str) -> str:
    path = folder / "graph.toml"
    path.write_text(text)
    return str(path)


@every_graph
def test_neighbours_have_each_other_nobody_itself_and_all_are_joined(graph: Graph) -> None:
    for rank, others in enumerate(graph.neighbours):
        assert rank not in others
        assert all(rank in graph.neighbours[other] for other in others)
    assert graph.unreachable == []


@pytest.mark.parametrize(
    ("name", "size", "neighbours"),
    [
        ("ring", 5, (1, 4)),
        ("ring", 2, (1,)),
        ("complete", 4, (1, 2, 3)),
        ("exponential", 8, (1, 2, 4, 6, 7)),
        ("exponential", 2, (1,)),
        ("bipartite", 5, (1, 3)),
    ],
)
def test_the_neighbours_of_the_first(name: str, size: int, neighbours: tuple[int, ...]) -> None:
    assert make_graph(name, size).neighbours[0] == neighbours


@every_graph
def test_every_edge_has_somebody_who_begins(graph: Graph) -> None:
    begins = set(graph.active)
    assert all(rank in begins or other in begins for rank, others in enumerate(graph.neighbours) for other in others)


def test_of_a_bipartite_graph_one_side_only_answers() -> None:
    for name, size in (("bipartite", 6), ("bipartite", 7), ("ring", 6), ("ring", 2)):
        graph = make_graph(name, size)
        assert graph.active == tuple(range(0, size, 2))
        assert not any(other in graph.active for rank in graph.active for other in graph.neighbours[rank])
    for name, size in (("ring", 5), ("complete", 3), ("exponential", 8)):
        assert make_graph(name, size).active == tuple(range(size)), "no two sides: everybody begins"


@every_graph
def test_metropolis_weights_are_symmetric_doubly_stochastic_and_make_all_alike(graph: Graph) -> None:
    weights = metropolis(graph)
    ones = torch.ones(len(graph), dtype=torch.float64)
    for matrix in (weights, lazy(weights)):
        torch.testing.assert_close(matrix @ ones, ones)
        assert torch.equal(matrix, matrix.T)
        assert (matrix >= 0).all()
        assert spectral_gap(matrix) > 1e-3
    assert torch.linalg.eigvalsh(lazy(weights)).min() > -1e-12
    for rank, others in enumerate(graph.neighbours):
        assert {i for i in range(len(graph)) if i != rank and weights[rank, i]} == set(others)


def test_metropolis_weights_of_a_star() -> None:
    """The hub has three neighbours, so every edge weighs 1/4, and each leaf keeps the rest."""
    star = Graph.of(4, [(0, 1), (0, 2), (0, 3)])
    expected = torch.tensor([[1, 1, 1, 1], [1, 3, 0, 0], [1, 0, 3, 0], [1, 0, 0, 3]], dtype=torch.float64) / 4
    torch.testing.assert_close(metropolis(star), expected)
    assert chances(star, 0) == pytest.approx([1 / 3] * 3)
    assert chances(star, 1) == [1.0]


def test_the_gap_of_a_ring_is_known_and_others_have_more() -> None:
    """The eigenvalues of a ring with weights of a third are (1 + 2 cos(2 pi k / n)) / 3."""
    n = 8
    known = 1 - (1 + 2 * float(torch.cos(torch.tensor(2 * torch.pi / n, dtype=torch.float64)))) / 3
    gaps = {name: spectral_gap(metropolis(make_graph(name, n))) for name in TOPOLOGIES}
    assert gaps["ring"] == pytest.approx(known)
    assert gaps["ring"] < gaps["bipartite"] < gaps["exponential"] < gaps["complete"] == pytest.approx(1)


@every_graph
def test_an_exchange_keeps_the_mean_and_averages_two(graph: Graph) -> None:
    ones = torch.ones(len(graph), dtype=torch.float64)
    for rank in graph.active:
        if graph.neighbours[rank]:
            matrix = expected_exchange(graph, rank)
            torch.testing.assert_close(matrix @ ones, ones)
            torch.testing.assert_close(matrix, matrix.T)
            assert matrix[rank, rank] == pytest.approx(0.5)


class TestFiles:
    def test_edges(self, tmp_path: Path) -> None:
        graph = make_graph(write(tmp_path, "edges = [[0, 1], [2, 1], [1, 3]]"), 4)
        assert graph.neighbours == ((1,), (0, 2, 3), (1,), (1,))
        assert graph.active == (0, 2, 3)

    def test_a_file_is_known_from_every_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path, "edges = [[0, 1]]")
        monkeypatch.chdir(tmp_path)
        assert from_anywhere("graph.toml") == path
        assert from_anywhere("ring") == "ring"
        assert from_anywhere("rnig") == "rnig"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("edges = [[0, 1]", "is not valid TOML"),
            ("nodes = 3", "as pairs of ranks. It should say edges = "),
            ("edges = [[0, 1, 2]]", "as pairs of ranks"),
            ("edges = [[0, 1.5]]", "as pairs of ranks"),
            ('edges = "0-1"', "as pairs of ranks"),
            ("edges = [[0, 4]]", r"an edge \[0, 4\], and the 4 learners are 0 to 3"),
            ("edges = [[-1, 2]]", r"an edge \[-1, 2\]"),
            ("edges = [[0, 1], [2, 2]]", "joins learner 2 to itself"),
            ("edges = [[0, 1], [2, 3]]", "leaves learner 2, 3 unconnected to learner 0.*Add an edge"),
        ],
    )
    def test_a_file_that_is_wrong_is_refused_with_the_reason(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(PasselError, match=said) as caught:
            make_graph(write(tmp_path, text), 4)
        assert str(tmp_path) in str(caught.value)

    def test_no_file_and_no_such_name(self, tmp_path: Path) -> None:
        with pytest.raises(PasselError, match=r"none\.toml cannot be read \(No such file"):
            make_graph(str(tmp_path / "none.toml"), 2)
        with pytest.raises(
            PasselError, match=r"no --topology star\. Choose from ring, complete, exponential, bipartite"
        ):
            make_graph("star", 2)
