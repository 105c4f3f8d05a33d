"""Gossip keeps the mean, makes all alike at the rate of its graph, and never waits for anybody."""

from __future__ import annotations

import random
import threading
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from passel.arena import Tensors
from passel.nets.flat import Flat
from passel.place.inline import InlineKit
from passel.sync.base import Semaphore, Sync, SyncSettings
from passel.sync.exchange import ArenaExchange
from passel.sync.gossip import Gossip, drawn
from passel.sync.mixing import expected_exchange, metropolis, spectral_gap
from passel.sync.topology import TOPOLOGIES, Graph, make_graph
from rounding import assert_rounded
from teams import ADAM, PLAIN_SGD, Team, Weights, by_hand, examples, perceptron

every_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


class Hesitant(threading.Semaphore):
    """Whoever has got it, or given it back, may have to rest at that very moment."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        got = super().acquire(blocking, timeout)
        self._hesitate()
        return got

    def release(self, n: int = 1) -> None:
        self._hesitate()
        super().release(n)

    def _hesitate(self) -> None:
        if random.random() < 0.1:
            time.sleep(random.random() * 1e-4)


class ThreadKit:
    """Learners that are threads of one process."""

    shared = True

    def lock(self) -> AbstractContextManager[Any]:
        return threading.Lock()

    def semaphore(self) -> Semaphore:
        return Hesitant(0)  # type: ignore[return-value]

    def meeting_point(self) -> str:
        return ""


def gossips(workers: int, topology: str, size: int = 4) -> Team:
    return Team("gossip", partial(Weights, size), workers, SyncSettings(PLAIN_SGD, topology=topology))


def rows(team: Team) -> Tensor:
    """Everybody's vector, with what is on its way to it: a matrix [learners, size]."""
    for sync in team.syncs:
        sync.pull()
    return torch.stack([flat.values for flat in team.flats])


def scatter(team: Team, values: Tensor) -> None:
    for flat, row in zip(team.flats, values, strict=True):
        flat.values.copy_(row)


def exchange(team: Team, rank: int) -> None:
    """One exchange that `rank` begins, with a gradient of zero; it is over when this returns."""
    sync = team.syncs[rank]
    sync.pull()
    sync.flat.grads.zero_()
    sync.send()
    for other in team.syncs:
        other.pull()


class TestTheMean:
    @every_topology
    @pytest.mark.parametrize("workers", [2, 3, 6])
    def test_is_kept_and_everybody_comes_to_it(self, topology: str, workers: int) -> None:
        team = gossips(workers, topology, 50)
        start = torch.randn(workers, 50, generator=torch.Generator().manual_seed(1))
        scatter(team, start)
        mean, size = start.double().mean(dim=0), float(start.abs().max())
        for turn in range(1, 61):
            for rank in range(workers):
                exchange(team, rank)
            # An exchange rounds the difference and both vectors, and moves the mean by a share of that.
            assert_rounded(rows(team).double().mean(dim=0), mean, 3 * turn * workers, size)
        torch.testing.assert_close(rows(team), start.mean(dim=0).expand(workers, -1), rtol=0, atol=1e-4)
        assert_rounded(team.vector, mean, 3 * 60 * workers + workers, size)

    def test_counts_what_is_on_its_way(self) -> None:
        """One vector has moved, the other not yet: what stands for both has not."""
        team = gossips(2, "ring")
        scatter(team, torch.tensor([[1.0] * 4, [5.0] * 4]))
        team.syncs[0].send()
        assert team.flats[0].values.tolist() == [3.0] * 4
        assert team.flats[1].values.tolist() == [5.0] * 4
        seen = torch.empty(4)
        team.scheme.look(team.tensors, seen)
        assert seen.tolist() == [3.0] * 4
        team.syncs[1].pull()
        assert team.flats[1].values.tolist() == [3.0] * 4

    @every_topology
    def test_the_spread_shrinks_at_the_rate_of_the_spectral_gap(self, topology: str) -> None:
        """One exchange W of somebody drawn at random averages two, so W W = W, and over all draws

            E |x - mean|^2 after k exchanges <= (1 - gap)^k |x - mean|^2 before,      E x = E[W]^k x.

        The vectors are a unit matrix to begin with, so that what they are in the end is the product of all exchanges.
        """
        workers, count, runs = 6, 12, 500
        team = gossips(workers, topology, workers)
        graph = make_graph(topology, workers)
        expected = torch.stack([expected_exchange(graph, rank) for rank in graph.active]).mean(dim=0)
        gap = spectral_gap(expected)
        slowest = torch.linalg.eigh(expected).eigenvectors[:, -2]
        assert 0.05 < gap < 0.25
        dice = random.Random(3)
        products = []
        for _ in range(runs):
            scatter(team, torch.eye(workers))
            for _ in range(count):
                exchange(team, dice.choice(graph.active))
            products.append(rows(team).double())
        found = torch.stack(products)
        torch.testing.assert_close(found.mean(dim=0), torch.matrix_power(expected, count), rtol=0, atol=0.05)
        spread = float((found @ slowest).square().sum(dim=1).mean())
        assert 0.9 * (1 - gap) ** (2 * count) < spread < 1.15 * (1 - gap) ** count

    def test_where_all_have_as_many_neighbours_the_gap_is_that_of_the_metropolis_weights(self) -> None:
        """I - L / (2 n d) * 2 of an exchange against I - L / (d + 1) of a round in which all talk to all neighbours."""
        for name, size, degree in (("ring", 5, 2), ("complete", 5, 4), ("exponential", 8, 5)):
            graph = make_graph(name, size)
            expected = torch.stack([expected_exchange(graph, rank) for rank in range(size)]).mean(dim=0)
            factor = (degree + 1) / (degree * size)
            eigenvalues = torch.linalg.eigvalsh(metropolis(graph))
            assert spectral_gap(expected) == pytest.approx(factor * (1 - float(eigenvalues[-2])))


class TestAnUpdate:
    def test_the_gradient_is_of_the_vector_before_and_the_step_from_the_mean(self) -> None:
        team = gossips(2, "ring", 1)
        scatter(team, torch.tensor([[2.0], [8.0]]))
        sync = team.syncs[0]
        sync.pull()
        sync.lr = 0.5
        sync.push((sync.flat.module.w**2).sum())  # a gradient of 4
        assert sync.flat.values.tolist() == [5.0 - 0.5 * 4]
        team.syncs[1].pull()
        assert team.flats[1].values.tolist() == [5.0]

    def test_what_a_learner_has_learnt_meanwhile_stays_when_the_average_arrives(self) -> None:
        team = gossips(2, "ring", 1)
        scatter(team, torch.tensor([[0.0], [8.0]]))
        active, passive = team.syncs
        passive.pull()
        active.send()
        passive.flat.values.sub_(1)  # as an update that had begun before the exchange would
        passive.pull()
        assert passive.flat.values.tolist() == [4.0 - 1]

    def test_everybody_has_an_optimiser_of_its_own(self) -> None:
        team = Team("gossip", perceptron, 2, SyncSettings(ADAM))
        lessons = [examples(10, seed=seed) for seed in range(2)]
        for number in range(10):
            for rank in range(2):
                team.learn(rank, lessons[rank][number])
        own = [team.scheme.optimiser(team.tensors, rank) for rank in range(2)]  # type: ignore[attr-defined]
        assert [float(state["step"]) for state in own] == [10, 10]
        assert not torch.equal(own[0]["exp_avg"], own[1]["exp_avg"])

    def test_local_steps_end_half_way_between_where_both_would_have_gone(self) -> None:
        team = Team("gossip", perceptron, 2, SyncSettings(ADAM, every=5))
        lessons = [examples(5, seed=seed) for seed in range(2)]
        for number in range(5):
            for rank in range(2):
                team.learn(rank, lessons[rank][number])
        expected = torch.stack([by_hand(perceptron(), own, ADAM) for own in lessons]).mean(dim=0)
        torch.testing.assert_close(team.vector, expected, rtol=1e-5, atol=1e-6)

    def test_staleness_counts_what_the_others_pushed_meanwhile(self) -> None:
        team = gossips(3, "complete")
        for sync in team.syncs:
            sync.pull()
        for sync in team.syncs:
            sync.flat.grads.zero_()
            sync.send()
        assert [sync.costs.staleness for sync in team.syncs] == [0, 1, 2]
        assert [sync.costs.wait for sync in team.syncs] == [0, 0, 0]


class TestChance:
    def test_draws_are_repeatable_uniform_and_different_for_everybody(self) -> None:
        twice = [[[drawn(7, rank, number) for number in range(2000)] for rank in range(4)] for _ in range(2)]
        assert twice[0] == twice[1]
        draws = torch.tensor(twice[0])
        assert (draws >= 0).all()
        assert (draws < 1).all()
        for row in draws:
            assert torch.histc(row, 10, 0, 1).div(200).sub(1).abs().max() < 0.35
        assert torch.corrcoef(draws).fill_diagonal_(0).abs().max() < 0.1
        assert drawn(8, 0, 0) != drawn(7, 0, 0)

    def test_neighbours_are_chosen_by_their_weights(self) -> None:
        team = gossips(4, "complete", 1)
        met = [0] * 4
        for _ in range(600):
            team.syncs[0].flat.grads.zero_()
            team.syncs[0].send()
            met = [count + int(posted) for count, posted in zip(met, team.tensors["posted"], strict=True)]
            for sync in team.syncs:
                sync.pull()
        assert met[0] == 0
        assert all(150 < count < 250 for count in met[1:])


class TestNobodyWaits:
    def test_a_learner_that_stops_is_passed_over(self) -> None:
        """Learner 1 never looks at its mail. The others have their exchanges all the same, and agree; with it, each has
        one at most.
        """
        team = gossips(4, "bipartite", 8)
        start = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
        scatter(team, start)
        alive = [0, 2, 3]
        began = time.perf_counter()
        for _ in range(100):
            for rank in alive:
                sync = team.syncs[rank]
                sync.pull()
                sync.flat.grads.zero_()
                sync.send()
        assert time.perf_counter() - began < 5
        for rank in alive:
            team.syncs[rank].pull()
        held = torch.stack([team.flats[rank].values for rank in alive])
        assert (held - held.mean(dim=0)).abs().max() < 1e-4
        assert team.flats[1].values.tolist() == start[1].tolist(), "nobody else writes to its vector"
        assert team.tensors["posted"].tolist() == [0, 2, 0, 0]
        torch.testing.assert_close(team.vector, start.mean(dim=0), rtol=0, atol=1e-5)

    @pytest.mark.parametrize(
        "edges", [[(0, 1), (1, 2)], [(0, 1), (0, 2), (0, 3)], [(3, 0), (3, 1), (3, 2)]], ids=["path", "hub", "last"]
    )
    def test_whoever_takes_turns_nobody_is_left_out(self, edges: list[tuple[int, int]], tmp_path: Path) -> None:
        """A learner looks at its mail once a turn, and all who want it come in between, always in the same order."""
        path = tmp_path / "graph.toml"
        path.write_text(f"edges = {[list(edge) for edge in edges]}")
        workers = 1 + max(max(edge) for edge in edges)
        team = gossips(workers, str(path), 8)
        scatter(team, torch.randn(workers, 8, generator=torch.Generator().manual_seed(2)))
        for _ in range(150):
            for sync in team.syncs:
                sync.pull()
                sync.flat.grads.zero_()
                sync.send()
        held = rows(team)
        assert (held - held.mean(dim=0)).abs().max() < 1e-4

    def test_with_nobody_to_meet_a_learner_goes_on_alone(self) -> None:
        team = gossips(2, "ring", 4)
        for number in range(1, 6):
            team.syncs[0].pull()
            team.syncs[0].flat.grads.fill_(1)
            team.syncs[0].send()
            assert team.tensors["posted"].tolist() == [0, 1]
            assert team.scheme.version(team.tensors) == number
        assert team.vector.tolist() == [-2.5] * 4

    @pytest.mark.parametrize("topology", ["ring", "complete", "bipartite"])
    @pytest.mark.timeout(60)
    def test_ten_thousand_pairings_with_delays_end(self, topology: str) -> None:
        """Learners that are threads, rest at random moments, and learn while others average with them."""
        workers, size, turns = 5, 64, 2000
        scheme = Gossip(size, workers, SyncSettings(PLAIN_SGD, topology=topology))
        team = gossips(workers, topology, size)
        permits = scheme.links(ThreadKit())
        flats = [Flat(Weights(size)) for _ in range(workers)]
        syncs = [scheme.attach(flat, team.tensors, permits, rank) for rank, flat in enumerate(flats)]
        start = torch.randn(workers, size, generator=torch.Generator().manual_seed(4))
        for flat, row in zip(flats, start, strict=True):
            flat.values.copy_(row)

        threads = [
            threading.Thread(target=live, args=(sync, turns, rank), daemon=True) for rank, sync in enumerate(syncs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)
        assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
        assert scheme.version(team.tensors) == workers * turns
        scheme.settle(team.tensors)
        # Every update is a step of 1/1000, by every learner: nothing was lost, and nothing counted twice.
        expected = start.mean(dim=0) - turns / 1000
        torch.testing.assert_close(team.tensors["vector"], expected, rtol=0, atol=1e-3)
        for sync in syncs:
            assert sync.costs.wait == 0


def live(sync: Sync, turns: int, seed: int) -> None:
    dice = random.Random(seed)
    sync.lr = 1e-3
    for _ in range(turns):
        sync.pull()
        sync.flat.grads.fill_(1)
        if dice.random() < 0.05:
            time.sleep(dice.random() * 1e-3)
        sync.send()


class TestExchange:
    GRAPH = Graph.of(3, [(0, 1), (1, 2), (0, 2)])

    def exchanges(self, tensors: dict[str, Tensor], permits: list[Semaphore]) -> list[ArenaExchange]:
        vectors = [tensors[f"x/{rank}"] for rank in range(3)]
        return [ArenaExchange(self.GRAPH, vectors, Tensors(tensors), permits, rank) for rank in range(3)]

    @pytest.fixture
    def tensors(self) -> dict[str, Tensor]:
        specs = ArenaExchange.specs(self.GRAPH, 2)
        tensors = {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}
        return tensors | {f"x/{rank}": torch.full((2,), float(4 * rank)) for rank in range(3)}

    def test_one_at_a_time(self, tensors: dict[str, Tensor]) -> None:
        permits = ArenaExchange.permits(InlineKit(), 3)
        first, second, _ = self.exchanges(tensors, permits)
        permits[1].acquire(False)  # as somebody does who is averaging with 1 just now
        assert not first.meet(1)
        assert not second.meet(2)
        second.collect()
        assert [tensors[f"x/{rank}"].tolist() for rank in range(3)] == [[0, 0], [4, 4], [8, 8]]
        permits[1].release()
        assert first.meet(1)

    def test_who_comes_second_meets_what_the_first_left(self, tensors: dict[str, Tensor]) -> None:
        """As if the vector in the middle had been averaged at once, twice: (0 + 4) / 2 = 2, then (2 + 8) / 2 = 5."""
        first, second, third = self.exchanges(tensors, ArenaExchange.permits(InlineKit(), 3))
        assert first.meet(1)
        assert third.meet(1)
        assert not first.meet(1), "both neighbours have been there"
        assert [tensors[f"x/{rank}"].tolist() for rank in range(3)] == [[2, 2], [4, 4], [5, 5]]
        second.collect()
        assert [tensors[f"x/{rank}"].tolist() for rank in range(3)] == [[2, 2], [5, 5], [5, 5]]
        assert first.meet(1)

    def test_whoever_begins_has_read_its_own_mail_first(self, tensors: dict[str, Tensor]) -> None:
        first, second, _ = self.exchanges(tensors, ArenaExchange.permits(InlineKit(), 3))
        assert first.meet(1)
        assert second.meet(2)
        assert [tensors[f"x/{rank}"].tolist() for rank in range(3)] == [[2, 2], [5, 5], [8, 8]]
        assert tensors["posted"].tolist() == [0, 0, 1]

    def test_only_those_who_are_asked_have_mail(self) -> None:
        names = ArenaExchange.specs(make_graph("bipartite", 4), 2)
        assert sorted(names) == ["peer/1/mail", "peer/3/mail", "posted"]
