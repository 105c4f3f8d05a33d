"""P2D2: with its correction a ring of learners finds what one with all their losses would; without it, it does not."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from passel.arena import Tensors
from passel.nets.flat import Flat
from passel.place.inline import InlineKit
from passel.sync import proximal
from passel.sync.base import SyncSettings
from passel.sync.mixing import lazy, metropolis
from passel.sync.optimiser import OptimiserSettings
from passel.sync.proximal import Neighbourhood, Proximal
from passel.sync.topology import make_graph
from teams import ADAM, PLAIN_SGD, Lesson, Team, Weights, examples, in_processes, perceptron, total

AGENTS, SIZE = 6, 10


class Wide(Flat):
    """A vector of double precision, to see nine places behind the point."""

    def __init__(self, size: int) -> None:
        self.module = nn.Module()
        self.values = torch.zeros(size, dtype=torch.float64)
        self.grads = torch.zeros(size, dtype=torch.float64)

    def bind(self, values: Tensor | None = None, grads: Tensor | None = None) -> None:
        self.values = self.values if values is None else values
        self.grads = self.grads if grads is None else grads


@dataclass(frozen=True)
class Quadratic:
    """J(w) = |A w - b|^2 / 2, as seen from wherever `flat` is."""

    a: Tensor
    b: Tensor
    flat: Flat

    def item(self) -> float:
        return float((self.a @ self.flat.values - self.b).square().sum() / 2)

    def backward(self) -> None:
        self.flat.grads.copy_(self.a.T @ (self.a @ self.flat.values - self.b))


class Ring:
    """Learners on a ring in double precision, each with a loss of its own whose minimiser is its own too."""

    def __init__(self, l1: float, workers: int = AGENTS, topology: str = "ring") -> None:
        draw = torch.Generator().manual_seed(5)
        self.a = torch.randn(workers, 2 * SIZE, SIZE, dtype=torch.float64, generator=draw) / SIZE**0.5
        self.b = torch.randn(workers, 2 * SIZE, dtype=torch.float64, generator=draw)
        self.l1 = l1
        largest = max(float(torch.linalg.eigvalsh(a.T @ a)[-1]) for a in self.a)
        self.lr = 0.5 / largest
        settings = SyncSettings(OptimiserSettings("sgd", lr=self.lr), topology=topology, l1=l1)
        scheme = Proximal(SIZE, workers, settings)
        wide = {torch.float32: torch.float64}
        self.tensors = Tensors(
            {
                name: torch.zeros(spec.shape, dtype=wide.get(spec.dtype, spec.dtype))
                for name, spec in scheme.specs().items()
            }
        )
        scheme.start(self.tensors)
        links = scheme.links(InlineKit())
        self.syncs = [scheme.attach(Wide(SIZE), self.tensors, links, rank) for rank in range(workers)]
        self.scheme = scheme

    def round(self) -> None:
        for sync, a, b in zip(self.syncs, self.a, self.b, strict=True):
            sync.pull()
            sync.push(Quadratic(a, b, sync.flat))

    def distance(self, goal: Tensor) -> float:
        """How far the farthest is."""
        for sync in self.syncs:
            sync.pull()
        return max(float((sync.flat.values - goal).norm()) for sync in self.syncs)

    def minimiser(self) -> Tensor:
        """Of the mean loss plus l1 |w|_1, by one learner: proximal gradients, until they stand still."""
        hessian = torch.einsum("kij,kil->jl", self.a, self.a) / len(self.a)
        linear = torch.einsum("kij,ki->j", self.a, self.b) / len(self.a)
        step = 1 / float(torch.linalg.eigvalsh(hessian)[-1])
        w = torch.zeros(SIZE, dtype=torch.float64)
        for _ in range(5000):
            moved = w - step * (hessian @ w - linear)
            w = moved.sign() * (moved.abs() - step * self.l1).clamp_min(0)
        return w


class TestTheMinimiser:
    @pytest.mark.parametrize("topology", ["ring", "complete", "exponential", "bipartite"])
    @pytest.mark.parametrize("l1", [0.1, 0.0])
    def test_is_found_to_nine_places(self, l1: float, topology: str) -> None:
        ring = Ring(l1, topology=topology)
        goal = ring.minimiser()
        assert ring.distance(goal) > 0.3
        for _ in range(600):
            ring.round()
        assert ring.distance(goal) < 1e-9
        ring.scheme.settle(ring.tensors)
        assert float((ring.tensors["vector"] - goal).norm()) < 1e-9
        if l1:
            assert (goal == 0).any(), "the test should have something to shrink"
            assert torch.equal(ring.tensors["vector"] == 0, goal == 0)

    @pytest.mark.parametrize("l1", [0.1, 0.0])
    def test_is_not_found_without_the_correction(self, l1: float) -> None:
        ring = Ring(l1)
        goal = ring.minimiser()
        found = []
        for _ in range(600):
            ring.round()
            found.append(ring.distance(goal))
            for rank in range(AGENTS):
                ring.tensors[f"peer/{rank}/correction"].zero_()
        assert found[-1] > 0.05
        assert found[-1] == pytest.approx(found[-100], rel=1e-6), "it stands still where it should not"

    def test_corrections_add_up_to_nothing_and_are_something(self) -> None:
        ring = Ring(0.1)
        for _ in range(200):
            ring.round()
        ring.distance(ring.minimiser())
        corrections = torch.stack([ring.tensors[f"peer/{rank}/correction"] for rank in range(AGENTS)])
        assert corrections.abs().max() > 0.01
        assert corrections.sum(dim=0).abs().max() < 1e-12

    def test_the_first_rounds_are_those_of_the_equations(self) -> None:
        """The iteration as it is written in the paper, with matrices over all learners at once."""
        ring = Ring(0.1)
        c = lazy(metropolis(make_graph("ring", AGENTS)))
        w = torch.zeros(AGENTS, SIZE, dtype=torch.float64)
        z = psi_before = torch.zeros_like(w)
        for number in range(20):
            gradient = torch.einsum("kij,ki->kj", ring.a, torch.einsum("kij,kj->ki", ring.a, w) - ring.b)
            psi = w - ring.lr * gradient
            z = c @ z + psi - psi_before if number else psi
            phi = c @ z
            w = phi.sign() * (phi.abs() - ring.lr * ring.l1).clamp_min(0)
            psi_before = psi
            ring.round()
            for sync in ring.syncs:
                sync.pull()
            torch.testing.assert_close(torch.stack([sync.flat.values for sync in ring.syncs]), w, rtol=0, atol=1e-12)


def test_l1_shrinks_a_learner_alone_as_well() -> None:
    team = Team("proximal", partial(Weights, 3), 1, SyncSettings(OptimiserSettings("sgd", lr=0.5), l1=0.25))
    team.tensors["vector"].copy_(torch.tensor([1.0, 0.1, -1.0]))
    sync = team.syncs[0]
    sync.pull()
    sync.push(0 * total(sync))
    assert team.vector.tolist() == [0.875, 0.0, -0.875]


def test_l1_shrinks_by_the_rates_of_all_local_steps_together() -> None:
    settings = SyncSettings(OptimiserSettings("sgd", lr=0.25), l1=0.25, every=2)
    team = Team("proximal", partial(Weights, 3), 1, settings)
    team.tensors["vector"].copy_(torch.tensor([1.0, 0.1, -1.0]))
    sync = team.syncs[0]
    for _ in range(2):
        sync.pull()
        sync.push(0 * total(sync))
    assert team.vector.tolist() == [0.875, 0.0, -0.875]


def test_the_optimiser_s_step_is_what_is_corrected_and_combined() -> None:
    """Two learners and Adam: psi is where each one's own Adam leads, and the mean of both is the mean of the psi."""
    team = Team("proximal", perceptron, 2, SyncSettings(ADAM))
    start = team.tensors["vector"].clone()
    alone = [Team("solo", perceptron, 1, SyncSettings(ADAM)) for _ in range(2)]
    for rank, one in enumerate(alone):
        row = examples(1, seed=rank)[0]
        team.learn(rank, row)
        one.learn(0, row)
    psi = torch.stack([one.vector for one in alone])
    torch.testing.assert_close(team.vector, psi.mean(dim=0), rtol=0, atol=1e-6)
    assert (team.vector - start).abs().max() > 1e-3
    combined = lazy(metropolis(make_graph("ring", 2))).float() @ psi
    torch.testing.assert_close(torch.stack([flat.values for flat in team.flats]), combined, rtol=0, atol=1e-6)


def test_processes_find_what_turns_in_one_process_find() -> None:
    settings = SyncSettings(ADAM, max_grad_norm=0.5, l1=1e-4)
    size = sum(weight.numel() for weight in perceptron().parameters())
    scheme = Proximal(size, 3, settings)
    arena = in_processes(scheme, perceptron, Lesson(20, 8))
    scheme.settle(arena.below("sync"))
    team = Team("proximal", perceptron, 3, settings)
    lessons = [examples(20, 8, seed=100 + rank) for rank in range(3)]
    for number in range(20):
        for rank in range(3):
            team.learn(rank, lessons[rank][number])
    assert torch.equal(arena["sync/vector"], team.vector)


class TestALearnerThatStops:
    @pytest.mark.timeout(30)
    def test_is_waited_for_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(proximal, "PATIENCE", 0.1)
        team = Team("proximal", partial(Weights, 4), 3, SyncSettings(PLAIN_SGD, topology="ring"))
        began = time.perf_counter()
        for _ in range(50):
            for sync in team.syncs[:2]:
                sync.pull()
                sync.push(total(sync))
        assert 0.2 < time.perf_counter() - began < 2.0, "each of the two waited once"
        assert [sync.costs.wait > 0.09 for sync in team.syncs] == [True, True, False]
        for flat in team.flats[:2]:
            assert flat.values.max() < -40, "they have learnt on"
        assert team.flats[2].values.tolist() == [0.0] * 4

    def test_is_heard_again_when_it_has_caught_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(proximal, "PATIENCE", 0.02)
        tensors = Tensors({"rows": torch.zeros(2, 2, 1), "spoken": torch.zeros(2, dtype=torch.int64)})
        one, other = (Neighbourhood(tensors, rank) for rank in range(2))
        out, zero = torch.empty(1), torch.zeros(1)
        weights = {0: 0.5, 1: 0.5}
        one.tell(torch.tensor([8.0]), zero)
        assert one.combine(weights, out) > 0.01
        assert out.tolist() == [8.0], "its own row stands for the other's"
        other.tell(torch.tensor([4.0]), zero)
        assert one.combine(weights, out) < 0.01
        assert out.tolist() == [6.0]

    def test_leaves_nothing_uneven_behind(self) -> None:
        """A resumed run begins with everybody at the same update, and corrections that add up to 0."""
        team = Team("proximal", partial(Weights, 4), 3, SyncSettings(PLAIN_SGD))
        team.tensors["pushes"].copy_(torch.tensor([5, 4, 5]))
        for rank in range(3):
            team.tensors[f"peer/{rank}/correction"].fill_(float(rank))
        team.scheme.start(team.tensors)
        assert team.tensors["pushes"].tolist() == [4, 4, 4]
        assert [float(team.tensors[f"peer/{rank}/correction"][0]) for rank in range(3)] == [-1, 0, 1]
