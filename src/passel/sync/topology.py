"""Who talks to whom, where learners have no centre: a graph whose nodes are learners.

How strongly two that talk pull at each other is `mixing.py`; what carries the talk is the scheme's transport.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from passel.reading import read_regular
from passel.types import PasselError

Edge = tuple[int, int]

FORMAT = "edges = [[0, 1], [1, 2]]"


@dataclass(frozen=True)
class Graph:
    """The neighbours of each learner, by rank. Whoever is somebody's neighbour has it for a neighbour too."""

    neighbours: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(learners: int, edges: Iterable[Edge]) -> Graph:
        found: list[set[int]] = [set() for _ in range(learners)]
        for one, other in edges:
            found[one].add(other)
            found[other].add(one)
        return Graph(tuple(tuple(sorted(others)) for others in found))

    def __len__(self) -> int:
        return len(self.neighbours)

    @cached_property
    def _sides(self) -> tuple[list[int | None], bool]:
        """The side of each learner that can be reached from 0 (None: it cannot), each on the other side than whoever
        it was reached from; and whether all neighbours are on different sides.
        """
        sides: list[int | None] = [None] * len(self)
        sides[0] = 0
        queue = [0]
        for rank in queue:
            for other in self.neighbours[rank]:
                if sides[other] is None:
                    sides[other] = 1 - (sides[rank] or 0)
                    queue.append(other)
        apart = all(sides[rank] != sides[other] for rank in queue for other in self.neighbours[rank])
        return sides, apart

    @property
    def unreachable(self) -> list[int]:
        """Who never hears of learner 0, not even by others. Empty: the graph is connected."""
        return [rank for rank, side in enumerate(self._sides[0]) if side is None]

    @property
    def active(self) -> tuple[int, ...]:
        """Who begins an exchange. Of a bipartite graph that is one side, and the other only answers: no two ever want
        each other's attention at once. In any other graph everybody begins.
        """
        sides, bipartite = self._sides
        return tuple(rank for rank, side in enumerate(sides) if side == 0 or not bipartite)


def ring(learners: int) -> list[Edge]:
    return [(rank, (rank + 1) % learners) for rank in range(learners) if learners > 1]


def complete(learners: int) -> list[Edge]:
    return list(combinations(range(learners), 2))


def exponential(learners: int) -> list[Edge]:
    """Everybody's neighbours are 1, 2, 4, 8, ... places away on a ring: few edges, and nobody is far from anybody."""
    jumps = [1 << power for power in range(learners.bit_length()) if 1 << power <= learners // 2]
    return [(rank, (rank + jump) % learners) for rank in range(learners) for jump in jumps]


def bipartite(learners: int) -> list[Edge]:
    """Every even rank with every odd one."""
    return [(one, other) for one in range(0, learners, 2) for other in range(1, learners, 2)]


TOPOLOGIES: dict[str, Callable[[int], list[Edge]]] = {
    "ring": ring,
    "complete": complete,
    "exponential": exponential,
    "bipartite": bipartite,
}


def is_file(name: str) -> bool:
    return name not in TOPOLOGIES and (name.endswith(".toml") or "/" in name or Path(name).is_file())


def from_anywhere(name: str) -> str:
    """The same topology by a name that means it in every folder: a run is resumed from another one too."""
    return str(Path(name).resolve()) if is_file(name) else name


def make_graph(name: str, learners: int) -> Graph:
    """The graph of that name, or of the TOML file at that path."""
    if name in TOPOLOGIES:
        return Graph.of(learners, TOPOLOGIES[name](learners))
    if is_file(name):
        return read_graph(Path(name), learners)
    raise PasselError(
        f"there is no --topology {name}. Choose from {', '.join(TOPOLOGIES)}, or give the path of a TOML file that "
        f"says who talks to whom: {FORMAT}."
    )


def read_graph(path: Path, learners: int) -> Graph:
    """The graph that a file describes, if it fits the learners and leaves nobody out."""
    edges = _edges(path)
    for edge in edges:
        if max(edge) >= learners or min(edge) < 0:
            raise PasselError(
                f"{path} has an edge {list(edge)}, and the {learners} learners are 0 to {learners - 1}. "
                "Correct it, or use more --workers."
            )
        if edge[0] == edge[1]:
            raise PasselError(f"{path} joins learner {edge[0]} to itself. Remove the edge {list(edge)}.")
    graph = Graph.of(learners, edges)
    if graph.unreachable:
        names = ", ".join(map(str, graph.unreachable))
        raise PasselError(
            f"{path} leaves learner {names} unconnected to learner 0: they would never agree. Add an edge between them."
        )
    return graph


def _edges(path: Path) -> list[Edge]:
    try:
        content = tomllib.loads(read_regular(path).decode())
    except OSError as error:
        raise PasselError(
            f"--topology {path} cannot be read ({error.strerror}). Give it the path of a TOML file: {FORMAT}."
        ) from None
    except (ValueError, RecursionError) as error:  # of TOML, or of what is no text at all
        raise PasselError(f"{path} is not valid TOML: {error}. It should say {FORMAT}.") from None
    edges = content.get("edges")
    if not isinstance(edges, list) or not all(map(_is_edge, edges)):
        raise PasselError(f"{path} does not say who talks to whom as pairs of ranks. It should say {FORMAT}.")
    return [(one, other) for one, other in edges]


def _is_edge(edge: Any) -> bool:
    return isinstance(edge, list) and len(edge) == 2 and all(type(rank) is int for rank in edge)
