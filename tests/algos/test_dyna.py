"""Dyna: the model as a world, what is taught, and what DQN it is without dreams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from passel.algos.dyna import Dyna, DynaConfig, LearntWorld
from passel.arena import Tensors
from passel.nets.flat import Flat
from passel.nets.world_model import WorldModel
from passel.place.diets.dreams import LEAD
from passel.sync.optimiser import OptimiserSettings, make_optimiser, state_specs
from passel.types import Batch, EnvSpec, Floats
from small import inline_run, new_arena, run_over, settings_for, small_plan

SPEC = EnvSpec("toy", (3,), np.dtype(np.float32), 2)
#: Angles are small, speeds are large, and the reward is larger: a model must see all of them.
SIZES = np.array([0.01, 1.0, 100.0], np.float32)


def world(members: int = 2) -> tuple[LearntWorld, Flat, Floats]:
    torch.manual_seed(0)
    model, error = WorldModel(3, 2, [64, 64], members), np.zeros(2, np.float32)
    mean = np.concatenate([np.zeros(3), np.zeros(3), [-5.0]]).astype(np.float32)
    std = np.concatenate([SIZES, SIZES / 10, [50.0]]).astype(np.float32)
    flat = Flat(model)
    return LearntWorld(model, flat, lambda: (mean, std), error), flat, error


def steps(rows: int, rng: np.random.Generator) -> Batch:
    """Action 1 moves everything up by a tenth of its size, action 0 down; the last number pays; above 1.5 it ends."""
    obs = (rng.standard_normal((rows, 3)) * SIZES).astype(np.float32)
    action = rng.integers(0, 2, rows)
    change = (SIZES / 10 * (2 * action - 1)[:, None]).astype(np.float32)
    over = obs[:, 1] > 1.5
    return Batch(obs, action, -5 + obs[:, 2] / 2, (~over).astype(np.float32), obs + change)


def taught(updates: int = 600) -> tuple[LearntWorld, Floats, np.random.Generator]:
    learnt, flat, error = world()
    rng, settings = np.random.default_rng(0), OptimiserSettings(lr=3e-3)
    state = {name: torch.zeros(spec.shape) for name, spec in state_specs(settings, len(flat)).items()}
    optimiser = make_optimiser(settings, flat.values, state)
    for number in range(updates):
        flat.backward(learnt.loss(steps(2 * 64, rng)).losses["model"])
        optimiser.step(3e-3 * (1 - number / updates), flat.grads)
    return learnt, error, rng


class TestLearntWorld:
    def test_what_it_imagines_is_what_happens_in_the_units_of_the_environment(self) -> None:
        learnt, error, rng = taught()
        batch = steps(500, rng)
        seen = learnt.imagine(batch.obs, batch.action)
        assert np.abs((seen.next_obs - batch.next_obs) / (SIZES / 10)).mean() < 0.1
        assert np.abs(seen.reward - batch.reward).mean() < 0.05 * 50
        assert ((seen.over > 0.5) == (batch.discount == 0)).mean() > 0.97
        assert (seen.over[batch.obs[:, 1] < 0] == 0).all(), "no small chance of an end where there is none"
        assert 0 < error[0] < 0.2
        assert error[1] == 0

    def test_doubt_is_about_one_where_it_has_been_and_more_where_it_has_not(self) -> None:
        learnt, _, rng = taught()
        batch = steps(500, rng)
        known = learnt.doubt(batch.obs, batch.action)
        unknown = learnt.doubt(8 * batch.obs, batch.action)
        assert 0.1 < np.median(known) < 3
        assert np.median(unknown) > 3 * np.median(known)
        assert (learnt.imagine(batch.obs, batch.action).doubt == known).all()

    def test_one_model_has_no_doubt(self) -> None:
        learnt, _, _ = world(members=1)
        assert (learnt.doubt(np.ones((5, 3), np.float32), np.zeros(5, np.int64)) == 0).all()

    def test_a_dream_cannot_run_away(self) -> None:
        learnt, flat, _ = world()
        flat.values.mul_(100)
        seen = learnt.imagine(np.ones((5, 3), np.float32), np.zeros(5, np.int64))
        assert (np.abs(seen.next_obs) <= 10 * SIZES).all()


def test_td_errors_are_of_single_steps() -> None:
    config = DynaConfig(hidden=(8,), model_hidden=(8,))
    blank = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in Dyna.specs(config, SPEC).items()}
    algo = Dyna(config, SPEC, Tensors(blank))
    batch = steps(20, np.random.default_rng(0))
    with torch.no_grad():
        q = algo.flats["q"].module(torch.from_numpy(batch.obs)).numpy()
        q_next = algo.flats["q"].module(torch.from_numpy(batch.next_obs)).numpy()
    expected = [
        abs(batch.reward[i] + 0.9 * batch.discount[i] * q_next[i].max() - q[i, batch.action[i]]) for i in range(20)
    ]
    np.testing.assert_allclose(algo.td_abs(batch, 0.9), expected, rtol=1e-4, atol=1e-5)


class TestRuns:
    def test_without_dreams_it_is_dqn_to_the_bit(self) -> None:
        same: dict[str, Any] = {"workers": 1, "sync": "solo", "n_step": 3, "envs": 2, "steps": 300, "lr_end": 1e-4}
        plan = small_plan(algo="dyna", dream_ratio=0.0, **same)
        size = plan.schemes["q"].size
        assert torch.equal(inline_run(plan)[:size], inline_run(small_plan(algo="dqn", **same)))

    @pytest.mark.parametrize("workers", [1, 3])
    def test_inline_a_run_is_the_same_run_again(self, workers: int) -> None:
        asked = settings_for(algo="dyna", workers=workers, steps=250, dream="sweeping")
        assert torch.equal(inline_run(small_plan(**asked)), inline_run(small_plan(**asked)))

    def test_the_number_of_workers_does_not_change_how_much_of_each_happens(self) -> None:
        counted = []
        for workers in (1, 2, 4):
            plan = small_plan(algo="dyna", workers=workers, steps=600)
            arena = new_arena(plan)
            run_over(plan, arena)
            names = ("ratio/inserts", "ratio/samples", "reuse/inserts", "models/samples")
            counted.append([int(arena[f"limiter/{name}"].sum()) for name in names])
        for other in counted[1:]:
            # Within what each side may be ahead of another: four batches, and thirty-two of the models.
            np.testing.assert_allclose(other[:3], counted[0][:3], rtol=0.1, atol=5 * 16)
            assert abs(other[3] - counted[0][3]) <= (LEAD + 2) * 16

    def test_real_and_imagined_are_never_mixed(self) -> None:
        """Every state of the corridor has one 1; what a model imagines has not, to the last bit."""
        plan = small_plan(algo="dyna", workers=2, steps=300)
        arena = new_arena(plan)
        run_over(plan, arena)
        size = plan.spec.obs_shape[0]

        def states(name: str) -> torch.Tensor:
            rows = arena[f"{name}/rows"].flatten(0, 1)[:, size : 2 * size]
            return rows[: int(arena[f"{name}/committed"].sum())] if name != "imagined" else rows[rows.any(dim=1)]

        for real in ("memory/0", "trail"):
            assert len(states(real)) > 200
            assert torch.equal(states(real).sort(dim=1).values[:, -1], torch.ones(len(states(real))))
            assert (states(real).count_nonzero(dim=1) == 1).all()
        assert len(states("imagined")) > 200
        assert (states("imagined").count_nonzero(dim=1) == size).all()
