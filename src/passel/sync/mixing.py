"""With what weight learners without a centre pull at each other: doubly stochastic matrices over a graph.

Rows and columns add up to 1, so mixing moves nobody's mean; how fast it makes all alike is the spectral gap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from passel.sync.topology import Graph


def metropolis(graph: Graph) -> Tensor:
    """The Metropolis weights, which every learner can find from its own degree and its neighbours'.

    A_ij = 1 / (1 + max(d_i, d_j)) for neighbours,    A_ii = 1 - sum_j A_ij
    """
    degrees = [len(others) for others in graph.neighbours]
    weights = torch.zeros(len(graph), len(graph), dtype=torch.float64)
    for rank, others in enumerate(graph.neighbours):
        for other in others:
            weights[rank, other] = 1 / (1 + max(degrees[rank], degrees[other]))
        weights[rank, rank] = 1 - weights[rank].sum()
    return weights


def lazy(weights: Tensor) -> Tensor:
    """(I + A) / 2: the same mean, half as eager, and no eigenvalue below 0."""
    return (torch.eye(len(weights), dtype=weights.dtype) + weights) / 2


def chances(graph: Graph, rank: int) -> list[float]:
    """How likely learner `rank` is to choose each of its neighbours: by its Metropolis weights, so that whoever is
    everybody's neighbour is not everybody's choice.
    """
    weights = metropolis(graph)[rank, list(graph.neighbours[rank])]
    return [float(share) for share in weights / weights.sum()]


def expected_exchange(graph: Graph, rank: int) -> Tensor:
    """What one exchange that learner `rank` begins does on average: the mean over its neighbours j of

        I - (e_rank - e_j)(e_rank - e_j)^T / 2,

    which averages the two and leaves all others alone.
    """
    matrix = torch.eye(len(graph), dtype=torch.float64)
    for other, chance in zip(graph.neighbours[rank], chances(graph, rank), strict=True):
        apart = torch.zeros(len(graph), dtype=torch.float64)
        apart[rank], apart[other] = 1, -1
        matrix -= chance * torch.outer(apart, apart) / 2
    return matrix


def spectral_gap(weights: Tensor) -> float:
    """1 minus the second largest singular value: mixing shrinks every distance from the mean by that share or more."""
    if len(weights) == 1:
        return 1.0
    return 1 - float(torch.linalg.svdvals(weights)[1])
