"""Who acts and who learns: every worker has a role, every actor a learner."""

from __future__ import annotations

import pytest

from passel.place.cast import ACTOR, BOTH, DREAMER, LEARNER, PLAYER, WHOLE, cast


def test_where_nothing_is_apart_everybody_is_both() -> None:
    players = cast(3, 1, apart=False)
    assert players.roles == (BOTH, BOTH, BOTH)
    assert players.actors == players.learners == (0, 1, 2)
    assert not players.apart
    assert [players.name(rank) for rank in range(3)] == ["worker 0", "worker 1", "worker 2"]
    assert [players.learner_of(rank) for rank in range(3)] == [0, 1, 2]


def test_a_worker_alone_is_both_whatever_the_algorithm() -> None:
    players = cast(1, 1, apart=True)
    assert players.roles == (BOTH,)
    assert players.actors_of(0) == (0,)


def test_learners_come_first_and_are_counted_by_themselves() -> None:
    players = cast(5, 2, apart=True)
    assert players.roles == (LEARNER, LEARNER, ACTOR, ACTOR, ACTOR)
    assert [players.name(rank) for rank in range(5)] == ["learner 0", "learner 1", "actor 0", "actor 1", "actor 2"]


def test_where_it_is_dreamt_one_acts_and_all_learn() -> None:
    players = cast(3, 1, apart=False, dreams=True)
    assert players.roles == (PLAYER, DREAMER, DREAMER)
    assert players.actors == (0,)
    assert players.learners == (0, 1, 2)
    assert players.dreamers == (1, 2)
    assert [players.name(rank) for rank in range(3)] == ["player 0", "dreamer 0", "dreamer 1"]
    alone = cast(1, 1, apart=False, dreams=True)
    assert alone.roles == (WHOLE,)
    assert alone.actors == alone.learners == alone.dreamers == (0,)
    assert alone.name(0) == "worker 0"


@pytest.mark.parametrize(("workers", "learners"), [(2, 1), (4, 1), (4, 2), (7, 3), (9, 4)])
def test_every_actor_has_one_learner_and_every_learner_an_actor(workers: int, learners: int) -> None:
    players = cast(workers, learners, apart=True)
    assert len(players.learners) == learners
    assert len(players.actors) == workers - learners
    dealt = [players.actors_of(learner) for learner in players.learners]
    assert sorted(rank for part in dealt for rank in part) == list(players.actors)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert all(players.learner_of(rank) == learner for learner, part in enumerate(dealt) for rank in part)
