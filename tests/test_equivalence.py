"""What makes two schemes the same: each is compared with a simpler one, to the bit where the arithmetic is the same."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from passel.algos import ALGORITHMS
from passel.algos.ppo import PPO, PPOConfig
from passel.arena import Tensors
from passel.nets.flat import Flat
from passel.place.board import Board
from passel.place.inline import Inline, InlineKit
from passel.sync import SCHEMES
from passel.sync.allreduce import ArenaMean
from passel.sync.base import SyncSettings
from passel.types import EnvSpec, Minibatch
from small import inline_run, new_arena, run_over, small_plan
from teams import (
    ADAM,
    ASYNCHRONOUS,
    PLAIN_SGD,
    SHARING,
    Example,
    Lesson,
    Team,
    Weights,
    by_hand,
    examples,
    in_processes,
    perceptron,
)

UPDATES = 30

#: Sums of the same float32 numbers in another order, through 30 steps of Adam at 1e-2.
ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}

#: Schemes whose learners may write one after the other, by name and number of shards.
IN_TURN = [("locked", 1), ("hogwild", 1), ("server", 1), ("server", 3)]


class TestOneLearner:
    """Alone, every scheme is solo; and solo is torch."""

    def test_solo_equals_torch_s_own_adam_bit_for_bit(self) -> None:
        rows = examples(UPDATES)
        team = Team("solo", perceptron, settings=SyncSettings(ADAM))
        for row in rows:
            team.learn(0, row)
        assert torch.equal(team.vector, by_hand(perceptron(), rows, ADAM))

    @pytest.mark.parametrize(("name", "shards"), [*((name, 1) for name in SHARING), ("server", 3)])
    @pytest.mark.parametrize("max_grad_norm", [None, 0.5])
    def test_equals_solo_bit_for_bit(self, name: str, shards: int, max_grad_norm: float | None) -> None:
        solo = Team("solo", perceptron, settings=SyncSettings(ADAM, max_grad_norm))
        team = Team(name, perceptron, settings=SyncSettings(ADAM, max_grad_norm, shards=shards))
        for row in examples(UPDATES):
            solo.learn(0, row)
            team.learn(0, row)
        assert torch.equal(team.vector, solo.vector)

    @pytest.mark.parametrize("algo", ALGORITHMS)
    @pytest.mark.parametrize(("name", "shards"), [*((name, 1) for name in SHARING), ("server", 3)])
    def test_a_whole_training_run_equals_solo_bit_for_bit(self, name: str, shards: int, algo: str) -> None:
        solo = inline_run(small_plan(sync="solo", workers=1, algo=algo))
        more = {"shards": shards} if shards > 1 else {}
        assert torch.equal(inline_run(small_plan(sync=name, workers=1, algo=algo, **more)), solo)


class TestAllReduce:
    """Everybody takes the same step along the mean."""

    def test_the_mean_of_two_learners_gradients_of_ppo_is_one_s_on_the_joined_minibatch(self) -> None:
        """Unless advantages are normalised, which each does over its own."""
        spec = EnvSpec("test", (3,), np.dtype(np.float32), n_actions=2)
        torch.manual_seed(0)
        algo = PPO(PPOConfig(hidden=(8,), normalise=False), spec, Tensors({}))
        rng = np.random.default_rng(0)

        def gradient(rows: slice) -> Tensor:
            loss = algo.loss(Minibatch(*(column[rows] for column in columns)))
            for name, flat in algo.flats.items():
                flat.backward(loss.losses[name])
            return torch.cat([flat.grads for flat in algo.flats.values()])

        obs, numbers = rng.standard_normal((32, 3), np.float32), rng.standard_normal((4, 32), np.float32)
        columns = (obs, rng.integers(0, 2, 32), *numbers, np.ones(32, np.float32))
        halves = [gradient(slice(0, 16)), gradient(slice(16, 32))]
        torch.testing.assert_close((halves[0] + halves[1]) / 2, gradient(slice(0, 32)), **ROUNDING)

    @pytest.mark.parametrize("every", [1, 3])
    def test_learners_of_ppo_leave_a_rollout_together(self, every: int) -> None:
        """On the divergence that they agreed on: whoever stopped on its own would leave the others waiting."""
        counted = {}
        for target in (None, 1e-5):
            asked = {"lr": 1e-2, "epochs": 8, "target_kl": target, "sync_every": every}
            plan = small_plan(sync="allreduce", workers=2, algo="ppo", **asked)
            arena = new_arena(plan)
            run_over(plan, arena)
            updates = Board(arena.below("board")).column("updates")
            assert updates[0] == updates[1] > 0
            counted[target] = updates[0]
        assert counted[1e-5] < 0.5 * counted[None]

    def test_two_learners_equal_one_on_the_joined_batch(self) -> None:
        halves = [examples(UPDATES, size=8, seed=seed) for seed in (1, 2)]
        joined = [
            Example(torch.cat([left.x, right.x]), torch.cat([left.y, right.y]))
            for left, right in zip(*halves, strict=True)
        ]
        team = Team("allreduce", perceptron, 2, SyncSettings(ADAM, max_grad_norm=0.5))
        one = Team("solo", perceptron, 1, SyncSettings(ADAM, max_grad_norm=0.5))
        for number, both in enumerate(joined):
            for rank in range(2):
                team.learn(rank, halves[rank][number])
            one.learn(0, both)
        torch.testing.assert_close(team.vector, one.vector, **ROUNDING)

    def test_all_learners_hold_the_same_vector_to_the_bit(self) -> None:
        team = Team("allreduce", perceptron, 3, SyncSettings(ADAM))
        rows = [examples(UPDATES, seed=seed) for seed in range(3)]
        for number in range(UPDATES):
            for rank in range(3):
                team.learn(rank, rows[rank][number])
                assert torch.equal(team.flats[rank].values, team.flats[0].values)
        assert not torch.equal(team.vector, Team("solo", perceptron).vector)

    def test_replicas_stay_equal_while_the_learning_rate_falls(self) -> None:
        """Workers look at the schedule at different moments, and must take the same step all the same."""
        plan = small_plan(sync="allreduce", workers=2, lr=1e-2, lr_end=0.0)
        placement = Inline(plan, new_arena(plan))
        placement.start()
        placement.resume()
        while placement.board.steps < plan.config.steps:
            placement.advance(0.0)
        placement.pause()
        first, second = (worker.learner._syncs["q"].flat.values for worker in placement._workers)
        placement.stop()
        assert torch.equal(first, second)

    def test_shared_memory_and_torch_distributed_agree_in_real_processes(self) -> None:
        vectors = {}
        for transport in ("arena", "distributed"):
            scheme = SCHEMES["allreduce"](len(_blank()), 2, SyncSettings(ADAM, max_grad_norm=0.5, transport=transport))
            vectors[transport] = in_processes(scheme, perceptron, Lesson(UPDATES, 8))["sync/vector"]
        torch.testing.assert_close(vectors["arena"], vectors["distributed"], **ROUNDING)
        team = Team("allreduce", perceptron, 2, SyncSettings(ADAM, max_grad_norm=0.5))
        for number in range(UPDATES):
            for rank in range(2):
                team.learn(rank, examples(UPDATES, 8, seed=100 + rank)[number])
        assert torch.equal(vectors["arena"], team.vector), "processes add up the same rows in the same order"

    def test_the_mean_of_rows_is_the_mean(self) -> None:
        scheme = SCHEMES["allreduce"](5, 3, SyncSettings(PLAIN_SGD))
        tensors: Any = {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in scheme.specs().items()}
        means = [ArenaMean(tensors, rank, 3) for rank in range(3)]
        for _ in range(5):
            rows = torch.randn(3, 5)
            for number, (mean, row) in enumerate(zip(means, rows, strict=True)):
                mean.start(row, float(number))
            found = [mean.finish()[0] for mean in means]
            for each in found:
                torch.testing.assert_close(each[:-1], rows.mean(dim=0))
                assert float(each[-1]) == 1.0
                assert torch.equal(each, found[0])


@pytest.mark.parametrize(("name", "shards"), IN_TURN)
class TestTakingTurns:
    """Two learners that never meet are one learner with the same gradients in the same order."""

    def test_fresh_gradients(self, name: str, shards: int) -> None:
        rows = examples(UPDATES)
        team = Team(name, perceptron, 2, SyncSettings(ADAM, shards=shards))
        for number, row in enumerate(rows):
            team.learn(number % 2, row)
        assert torch.equal(team.vector, by_hand(perceptron(), rows, ADAM))

    def test_stale_gradients(self, name: str, shards: int) -> None:
        """Both look, then both write: the second gradient is of weights that are gone by then."""
        rows = examples(UPDATES)
        team = Team(name, perceptron, 2, SyncSettings(ADAM, shards=shards))
        for first, second in zip(rows[::2], rows[1::2], strict=True):
            for sync in team.syncs:
                sync.pull()
            team.syncs[0].push(first.loss(team.flats[0].module))
            team.syncs[1].push(second.loss(team.flats[1].module))
        assert torch.equal(team.vector, _stale_by_hand(rows))


class TestWhereTheNormIsClipped:
    """A part of the scheme: gradients (10, 0) and (0, 1), a limit of 1, and two right answers."""

    SETTINGS = SyncSettings(PLAIN_SGD, max_grad_norm=1.0)
    ONE, OTHER = torch.tensor([10.0, 0.0]), torch.tensor([0.0, 1.0])

    def _push_both(self, name: str) -> Tensor:
        team = Team(name, partial(Weights, 2), 2, self.SETTINGS)
        for sync in team.syncs:
            sync.pull()
        for sync, gradient in zip(team.syncs, (self.ONE, self.OTHER), strict=True):
            sync.push((sync.flat.module.w * gradient).sum())
        return team.vector

    def test_after_the_mean_for_allreduce(self) -> None:
        mean = (self.ONE + self.OTHER) / 2
        torch.testing.assert_close(self._push_both("allreduce"), -mean / mean.norm())

    @pytest.mark.parametrize("name", ASYNCHRONOUS)
    def test_before_the_push_for_the_others(self, name: str) -> None:
        torch.testing.assert_close(self._push_both(name), -(self.ONE / 10 + self.OTHER))

    def test_the_two_orders_differ(self) -> None:
        assert (self._push_both("allreduce") - self._push_both("locked")).abs().max() > 0.5


@pytest.mark.parametrize("name", SCHEMES)
class TestInlineIsDeterministic:
    def test_the_same_seed_gives_the_same_weights_and_another_seed_others(self, name: str) -> None:
        plans = [small_plan(sync=name, workers=1 if name == "solo" else 2, seed=seed) for seed in (1, 1, 2)]
        hashes = [_hash(inline_run(plan)) for plan in plans]
        assert hashes[0] == hashes[1]
        assert hashes[0] != hashes[2]

    def test_all_workers_start_from_the_same_weights(self, name: str) -> None:
        plan = small_plan(sync=name, workers=1 if name == "solo" else 2)
        arena = new_arena(plan)
        links = plan.links(InlineKit())
        workers = [plan.build_worker(arena, links, rank) for rank in range(plan.workers)]
        for worker in workers:
            worker.learner.pull()
            for sync in worker.learner._syncs.values():
                assert torch.equal(sync.flat.values, arena["sync/q/vector"])
                assert sync.flat.values.any()
            worker.close()


def _blank() -> Tensor:
    return torch.cat([weight.detach().reshape(-1) for weight in perceptron().parameters()])


def _stale_by_hand(rows: list[Example]) -> Tensor:
    """Pairs of gradients at the same weights, applied one after the other."""
    flat = Flat(perceptron())
    weight = torch.nn.Parameter(flat.values)
    optimiser = torch.optim.Adam([weight], lr=ADAM.lr, eps=ADAM.eps, fused=True)
    for pair in zip(rows[::2], rows[1::2], strict=True):
        gradients = []
        for row in pair:
            flat.backward(row.loss(flat.module))
            gradients.append(flat.grads.clone())
        for gradient in gradients:
            weight.grad = gradient
            optimiser.step()
    return flat.values


def _hash(vector: Tensor) -> str:
    return hashlib.sha256(vector.numpy().tobytes()).hexdigest()
