"""A reader has what was written, by its version, and writes nothing."""

from __future__ import annotations

import pytest
import torch

from passel.nets.flat import Flat
from passel.sync import SCHEMES
from passel.sync.base import SyncSettings
from passel.sync.reader import Reader
from teams import DECENTRALISED, PLAIN_SGD, Team, examples, perceptron

SETTINGS = SyncSettings(PLAIN_SGD)


def reader_of(team: Team) -> Reader:
    return Reader(Flat(perceptron()), team.tensors, team.scheme)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_reads_what_the_learner_wrote_when_it_is_asked_to(scheme: str) -> None:
    team = Team(scheme, perceptron, settings=SETTINGS)
    reader = reader_of(team)
    assert reader.version == 0
    for row in examples(3):
        team.learn(0, row)
    before = reader.flat.values.clone()
    newest = team.scheme.version(team.tensors)
    assert newest >= 2, "the last may still be under way"
    assert (reader.newest, reader.lag) == (newest, newest)
    assert torch.equal(reader.flat.values, before)
    assert reader.fetch()
    assert (reader.version, reader.lag) == (newest, 0)
    assert torch.equal(reader.flat.values, team.tensors["vector"])
    assert not reader.fetch(), "there is nothing new"


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("scheme", DECENTRALISED)
def test_of_vectors_of_their_own_it_reads_what_stands_for_all(scheme: str, workers: int) -> None:
    team = Team(scheme, perceptron, workers, SETTINGS)
    reader = reader_of(team)
    lessons = [examples(3, seed=rank) for rank in range(workers)]
    for number in range(3):
        for rank in range(workers):
            team.learn(rank, lessons[rank][number])
    before = team.tensors["vector"].clone()
    for sync in team.syncs:
        sync.pull()
    assert reader.fetch()
    assert torch.equal(team.tensors["vector"], before), "it writes nothing"
    assert not torch.equal(reader.flat.values, before)
    assert torch.equal(reader.flat.values, team.vector)
    assert reader.version == team.scheme.version(team.tensors)


def test_what_is_done_to_the_copy_stays_there() -> None:
    team = Team("solo", perceptron, settings=SETTINGS)
    reader = reader_of(team)
    vector = team.tensors["vector"].clone()
    reader.flat.values.fill_(7)
    assert torch.equal(team.tensors["vector"], vector)
