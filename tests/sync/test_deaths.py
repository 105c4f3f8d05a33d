"""A worker may die anywhere within an exchange: what the arena holds then is mended, and training goes on from it.

Every state of the arena during an exchange is recorded: before and after each tensor operation, and half-way through
those that write. Each of them is then what a death leaves behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from passel.arena import Tensors
from passel.place.inline import InlineKit
from passel.sync.base import SyncSettings
from passel.sync.optimiser import OptimiserSettings
from passel.sync.tokenring import TokenRing
from teams import Team, Weights

SIZE = 6
#: Gradients of SGD at this rate are the steps themselves.
PLAIN = OptimiserSettings("sgd", lr=1.0)

State = dict[str, Tensor]


class Recorder(TorchFunctionMode):
    """Every state of some tensors while operations run."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self.states: list[State] = []

    def _now(self) -> State:
        return {name: tensor.clone() for name, tensor in self._tensors.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._now()
        result = func(*args, **(kwargs or {}))
        after = self._now()
        self._append(before)
        for name, tensor in after.items():
            if tensor.dim() and not torch.equal(tensor, before[name]):
                torn = tensor.clone()
                half = torn.view(-1)[tensor.numel() // 2 :]
                half.copy_(before[name].view(-1)[tensor.numel() // 2 :])
                self._append({**after, name: torn})
        self._append(after)
        return result

    def _append(self, state: State) -> None:
        last = self.states[-1] if self.states else None
        if last is None or not all(torch.equal(tensor, last[name]) for name, tensor in state.items()):
            self.states.append(state)


@contextmanager
def recorded(team: Team) -> Iterator[list[State]]:
    recorder = Recorder(team.tensors)
    with recorder:
        yield recorder.states
    recorder.states.append({name: tensor.clone() for name, tensor in team.tensors.items()})


def push(team: Team, rank: int, gradient: float) -> None:
    sync = team.syncs[rank]
    sync.flat.grads.fill_(gradient)
    sync.send()


def resume(team: Team, state: State) -> None:
    """Resume a run from what a death left behind, by way of the checkpoint that is written then."""
    dead = Tensors({name: tensor.clone() for name, tensor in state.items()})
    team.scheme.settle(dead)
    for name, spec in team.scheme.specs().items():
        team.tensors[name].zero_()
        if spec.keep:
            team.tensors[name].copy_(dead[name])
    team.scheme.start(team.tensors)
    links = team.scheme.links(InlineKit())
    for flat in team.flats:
        flat.bind(torch.zeros(SIZE), torch.zeros(SIZE))
    team.syncs = [team.scheme.attach(flat, team.tensors, links, rank) for rank, flat in enumerate(team.flats)]


class TestTheToken:
    WORKERS = 3

    def make(self) -> Team:
        team = Team("tokenring", partial(Weights, SIZE), self.WORKERS, SyncSettings(PLAIN))
        for name in ("vector", "token"):
            team.tensors[name].fill_(100.0)
        for group in range(self.WORKERS):
            for name in ("left", "values"):
                team.tensors[f"peer/{group}/{name}"].fill_(100.0)
        return team

    def states(self) -> tuple[list[State], float]:
        """Of the token's second visit to group 0, and the weights before it."""
        team = self.make()
        for rank in range(self.WORKERS):
            team.syncs[rank].pull()
            push(team, rank, 2.0**-rank)
        team.syncs[0].pull()
        weight = float(team.vector[0])
        assert weight == 100 - 1.75
        with recorded(team) as states:
            push(team, 0, 0.25)
        assert team.tensors["moves"].tolist() == [4]
        assert len(states) > 15
        return states, weight

    def test_a_death_within_an_exchange_keeps_every_change_once(self) -> None:
        (states, weight), team = self.states(), self.make()
        for number, state in enumerate(states):
            resume(team, state)
            found = team.tensors["vector"].clone()
            assert ((found == weight) | (found == weight - 0.25)).all(), f"state {number}: {found}"
            for rank in (*range(self.WORKERS), 0):  # the token may begin anywhere
                team.syncs[rank].pull()
                push(team, rank, 0.5)
            assert torch.equal(team.vector, found - 0.5 * (self.WORKERS + 1)), f"state {number}"

    def test_a_reader_does_not_look_into_the_middle_of_an_exchange(self) -> None:
        states, weight = self.states()
        scheme = self.make().scheme
        assert isinstance(scheme, TokenRing)
        middle = [state for state in states if int(state["pending"])]
        assert middle
        for state in middle:
            team = self.make()
            looks = []

            def gather(tensors: Tensors, out: Tensor, scheme: TokenRing = scheme, looks: list[int] = looks) -> None:
                """The exchange is over after the second look."""
                looks.append(int(tensors["pending"]))
                if len(looks) == 2:
                    for name, tensor in states[-1].items():
                        tensors[name].copy_(tensor)
                TokenRing.gather(scheme, tensors, out)

            for name, tensor in state.items():
                team.tensors[name].copy_(tensor)
            out = torch.empty(SIZE)
            team.scheme.gather = gather  # type: ignore[attr-defined]
            team.scheme.look(team.tensors, out)
            assert len(looks) == 3
            assert torch.equal(out, torch.full_like(out, weight - 0.25))


class TestAllReduceWithLocalSteps:
    WORKERS, EVERY = 3, 2

    def make(self) -> Team:
        return Team("allreduce", partial(Weights, SIZE), self.WORKERS, SyncSettings(PLAIN, every=self.EVERY))

    def round(self, team: Team, gradients: tuple[float, ...] = (1.0, 3.0, 8.0)) -> None:
        """Local steps until the next exchange, then the exchange."""
        for rank, sync in enumerate(team.syncs):
            while True:
                sync.pull()
                push(team, rank, gradients[rank])
                if int(team.tensors[f"local/{rank}/count"]) % self.EVERY == 0:
                    break
        for sync in team.syncs:
            sync.pull()

    def test_a_death_leaves_no_two_replicas_apart(self) -> None:
        team = self.make()
        self.round(team)
        common = team.vector.clone()
        assert common.tolist() == [-8.0] * SIZE
        with recorded(team) as states:
            self.round(team)
        assert len(states) > 30
        for number, state in enumerate(states):
            resume(team, state)
            bases = [team.tensors[f"local/{rank}/base"] for rank in range(self.WORKERS)]
            for base in (*bases[1:], team.tensors["vector"]):
                assert torch.equal(base, bases[0]), f"state {number}"
            assert ((bases[0] == common) | (bases[0] == 2 * common)).all(), f"state {number}: {bases[0]}"
            versions = {int(team.tensors[f"local/{rank}/version"]) for rank in range(self.WORKERS)}
            assert {*team.tensors["pushes"].tolist(), *versions} == {team.scheme.version(team.tensors)}
            self.round(team)
            for flat in team.flats:
                assert torch.equal(flat.values, team.flats[0].values), f"state {number}"
            assert torch.equal(team.tensors["vector"], team.flats[0].values)

    def test_a_death_before_the_first_exchange_leaves_the_first_weights(self) -> None:
        team = self.make()
        with recorded(team) as states:
            team.syncs[0].pull()
            push(team, 0, 1.0)
        for state in states:
            resume(team, state)
            assert not team.tensors["vector"].any()
            self.round(team)
            assert all(torch.equal(flat.values, team.flats[0].values) for flat in team.flats)

    def test_a_clean_end_is_left_as_it_is(self) -> None:
        team = self.make()
        self.round(team)
        for rank, sync in enumerate(team.syncs):
            push(team, rank, 0.125)
            sync.pull()
        before = {name: tensor.clone() for name, tensor in team.tensors.items()}
        team.scheme.start(team.tensors)
        assert all(torch.equal(tensor, before[name]) for name, tensor in team.tensors.items())


class TestProximal:
    WORKERS = 3

    def make(self) -> Team:
        return Team("proximal", partial(Weights, SIZE), self.WORKERS, SyncSettings(PLAIN, topology="ring"))

    def round(self, team: Team) -> None:
        for rank in range(self.WORKERS):
            push(team, rank, (1.0, 3.0, 8.0)[rank])
        for sync in team.syncs:
            sync.pull()

    def corrections(self, team: Team) -> Tensor:
        return torch.stack([team.tensors[f"peer/{rank}/correction"] for rank in range(self.WORKERS)])

    def test_a_death_leaves_corrections_that_add_up_to_nothing(self) -> None:
        team = self.make()
        for name in ("vector", *(f"peer/{rank}/values" for rank in range(self.WORKERS))):
            team.tensors[name].fill_(100.0)
        for _ in range(5):
            self.round(team)
        assert self.corrections(team).abs().min() > 0.5
        weights = team.vector.clone()
        with recorded(team) as states:
            self.round(team)
        uneven = [s for s in states if sum(s[f"peer/{rank}/correction"] for rank in range(3)).abs().max() > 0.1]  # type: ignore[union-attr]
        assert uneven, "some deaths would be felt"
        for number, state in enumerate(states):
            resume(team, state)
            assert self.corrections(team).sum(dim=0).abs().max() < 1e-4, f"state {number}"
            assert (team.tensors["vector"] - weights).abs().max() < 8.5, f"state {number}: a sum of some rows only"
            assert len(set(team.tensors["pushes"].tolist())) == 1
            before = team.vector.clone()
            self.round(team)
            assert self.corrections(team).sum(dim=0).abs().max() < 1e-4, f"state {number}"
            assert (team.vector - (before - 4)).abs().max() < 1e-3, f"state {number}"

    def test_a_clean_end_is_left_as_it_is(self) -> None:
        team = self.make()
        for rank in range(self.WORKERS):
            push(team, rank, 0.1 * rank)
        for sync in team.syncs:
            sync.pull()
        assert self.corrections(team).sum(dim=0).any(), "there is rounding that must stay"
        before = {name: tensor.clone() for name, tensor in team.tensors.items()}
        team.scheme.start(team.tensors)
        assert all(torch.equal(tensor, before[name]) for name, tensor in team.tensors.items())

    def test_a_checkpoint_without_the_count_is_mended(self) -> None:
        """One of an older version."""
        team = self.make()
        for rank in range(self.WORKERS):
            push(team, rank, float(rank))
        team.syncs[0].pull()
        assert self.corrections(team).sum(dim=0).abs().max() > 0.1
        team.tensors["combined"].zero_()
        team.scheme.start(team.tensors)
        assert self.corrections(team).sum(dim=0).abs().max() < 1e-6


@pytest.mark.parametrize("name", ["allreduce", "proximal", "tokenring"])
def test_the_recorder_sees_writes_half_done(name: str) -> None:
    team = Team(name, partial(Weights, SIZE), 2, SyncSettings(PLAIN))
    with recorded(team) as states:
        for rank in range(2):
            push(team, rank, 1.0)
        for sync in team.syncs:
            sync.pull()
    vectors = [tensor for state in states for tensor in state.values() if tensor.shape == (SIZE,)]
    assert any(vector[0] != vector[-1] for vector in vectors)
