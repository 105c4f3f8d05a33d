"""Groups that a token joins: Hogwild! inside, and every change everywhere once."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from passel.sync.base import SyncSettings
from passel.sync.tokenring import PATIENCE, TokenRing
from teams import ADAM, PLAIN_SGD, Team, Weights, examples, perceptron, total


def groups(workers: int, size: int, numbers: int = 4) -> Team:
    return Team("tokenring", partial(Weights, numbers), workers, SyncSettings(PLAIN_SGD, group_size=size))


def turn(team: Team, rank: int, gradient: float = 1.0) -> None:
    sync = team.syncs[rank]
    sync.pull()
    sync.push(gradient * total(sync))


def vectors(team: Team) -> Tensor:
    scheme = team.scheme
    assert isinstance(scheme, TokenRing)
    return torch.stack([scheme.values(team.tensors, group) for group in range(scheme.peers)])


def test_one_group_is_hogwild_to_the_bit() -> None:
    rows = examples(20)
    ring = Team("tokenring", perceptron, 2, SyncSettings(ADAM, group_size=2))
    wild = Team("hogwild", perceptron, 2, SyncSettings(ADAM))
    for number, row in enumerate(rows):
        ring.learn(number % 2, row)
        wild.learn(number % 2, row)
    assert torch.equal(ring.vector, wild.vector)
    assert "token" not in ring.tensors


def test_who_is_in_which_group() -> None:
    scheme = TokenRing(4, 5, SyncSettings(PLAIN_SGD, group_size=2))
    assert [scheme.group(rank) for rank in range(5)] == [0, 0, 1, 1, 2]
    assert scheme.peers == 3


def test_the_token_brings_every_change_to_every_group_once() -> None:
    team = groups(3, 1)
    for rank, gradient in enumerate((1.0, 10.0, 100.0)):
        turn(team, rank, gradient)
    assert vectors(team)[:, 0].tolist() == [-1.0, -11.0, -111.0], "it has been to each once"
    assert team.vector.tolist() == [-111.0] * 4
    for _ in range(2):
        for rank in range(3):
            turn(team, rank, 0.0)
        assert (vectors(team) == -111.0).all()
    assert team.tensors["token"].tolist() == [-111.0] * 4


def test_workers_of_a_group_see_each_other_at_once_and_the_others_with_the_token() -> None:
    team = groups(4, 2)
    turn(team, 0)  # handles the token, and sends it on to the second group
    turn(team, 1)
    assert team.syncs[0].flat.values.tolist() == [0.0] * 4
    team.syncs[0].pull()
    assert team.syncs[0].flat.values.tolist() == [-2.0] * 4
    team.syncs[2].pull()
    assert team.syncs[2].flat.values.tolist() == [0.0] * 4
    turn(team, 3)
    team.syncs[2].pull()
    assert team.syncs[2].flat.values.tolist() == [-2.0] * 4, "the first update of the others, and its neighbour's"
    assert team.vector.tolist() == [-3.0] * 4


def test_a_group_that_stops_is_passed_over() -> None:
    team = groups(3, 1)
    updates = 4 * PATIENCE
    for _ in range(updates):
        for rank in (0, 2):
            turn(team, rank)
    assert team.vector.tolist() == [-2.0 * updates] * 4
    assert (vectors(team)[1] == 0).all(), "nobody else writes to its vector"
    first, _, third = vectors(team)[:, 0].tolist()
    assert abs(first - third) <= 2 * PATIENCE + 2, "the others have heard of each other"
    assert min(-first, -third) > updates
    for _ in range(2):
        for rank in range(3):
            turn(team, rank, 0.0)
    assert vectors(team)[:, 0].tolist() == [-2.0 * updates] * 3, "it hears of everything when it comes back"


def test_who_is_handling_the_token_is_not_waited_for() -> None:
    team = groups(2, 1)
    sync = team.syncs[0]
    sync._token._permit.acquire(False)  # type: ignore[attr-defined]
    for _ in range(3):
        turn(team, 0)
    assert team.tensors["moves"].tolist() == [0]
    assert vectors(team)[:, 0].tolist() == [-3.0, 0.0]
    assert team.vector.tolist() == [-3.0] * 4


@pytest.mark.parametrize(("workers", "size"), [(2, 1), (5, 2)])
def test_rounding_never_drives_the_groups_apart(workers: int, size: int) -> None:
    team = groups(workers, size, 8)
    draw = torch.Generator().manual_seed(6)
    for _ in range(1000):
        for sync in team.syncs:
            sync.pull()
            sync.flat.grads.copy_(torch.randn(8, generator=draw) * 1e-3)
            sync.send()
    for _ in range(2):
        for rank in range(workers):
            turn(team, rank, 0.0)
    apart = vectors(team) - team.tensors["token"]
    assert apart.abs().max() < 1e-6
    torch.testing.assert_close(team.vector, team.tensors["token"], rtol=0, atol=1e-6)
