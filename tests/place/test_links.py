"""What one part hands to the next arrives there: priorities, progress, judgements and actions as they were drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from passel.algos.ppo import PPO, PPOConfig
from passel.arena import Arena, Tensors
from passel.data import PrioritisedReplay
from passel.data.shared_replay import Surprise
from passel.place.board import Board, Command
from passel.place.inline import InlineKit
from passel.place.plan import Plan
from passel.place.worker import Worker
from passel.types import EnvSpec, Minibatch
from small import AIM, new_arena, small_plan

PRIORITIES: dict[str, Any] = {"workers": 1, "prioritized": True, "priority_alpha": 0.7, "n_step": 3}


def running(plan: Plan) -> tuple[Worker, Board, Arena]:
    arena = new_arena(plan)
    worker = plan.build_worker(arena, plan.links(InlineKit()), 0)
    board = Board(arena.below("board"))
    board.command = Command.RUN
    return worker, board, arena


@pytest.mark.parametrize("algo", ["dqn", "apex"])
def test_after_an_update_the_priorities_are_its_errors(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, board, arena = running(small_plan(algo=algo, **PRIORITIES, lr=1e-2))
    seen: list[tuple[Any, Any]] = []
    find_loss = worker._algo.loss

    def loss(batch: Any, progress: float = 0.0) -> Any:
        found = find_loss(batch, progress)
        seen.append((batch.index, found.td_abs))
        return found

    monkeypatch.setattr(worker._algo, "loss", loss)
    while board.column("updates")[0] < 5:
        worker.turn()
    index, errors = seen[-1]  # by now the errors are not those that the actor found
    memory = PrioritisedReplay(arena.below("memory/0"), alpha=0.7)
    np.testing.assert_allclose(memory._tree.leaves[index], (errors.astype(np.float64) + memory.eps) ** 0.7, rtol=1e-6)
    assert len(np.unique(errors)) > 1
    worker.close()


def test_a_transition_enters_with_the_priority_of_the_error_that_its_actor_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Any] = []
    push = Surprise.push

    def recorded(self: Surprise, *args: Any) -> Any:
        found.append(push(self, *args))
        return found[-1]

    monkeypatch.setattr(Surprise, "push", recorded)
    worker, board, arena = running(small_plan(algo="apex", **PRIORITIES, warmup=1000, steps=40))
    while board.steps < 40:
        worker.turn()
    errors = np.concatenate(found).astype(np.float64)
    memory = PrioritisedReplay(arena.below("memory/0"), alpha=0.7)
    assert len(memory) == len(errors) > 20
    np.testing.assert_allclose(memory._tree.leaves[: len(errors)], (errors + memory.eps) ** 0.7, rtol=1e-6)
    worker.close()


def test_a_rollout_is_judged_once_however_many_epochs_learn_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old log-probabilities are those of the policy that acted; judged anew, every ratio would be 1."""
    worker, _, arena = running(small_plan(algo="ppo", workers=1, sync="solo", horizon=8, epochs=3, minibatches=2))
    judged: list[Any] = []
    algo: Any = worker._algo
    judge = algo.judge
    monkeypatch.setattr(algo, "judge", lambda *args: judged.append(judge(*args)) or judged[-1])
    for rollout in range(1, 3):
        for _ in range(3 * 2):
            worker.turn()
            assert len(judged) == rollout
            np.testing.assert_array_equal(arena["worker/0/rollout/logp"].numpy(), judged[-1].logp)
    worker.close()


def test_a_loss_hears_how_much_of_the_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, _, _ = running(small_plan(algo="ppo", workers=1, sync="solo", horizon=8, envs=2, steps=160))
    heard: list[float] = []
    algo: Any = worker._algo
    find_loss = algo.loss
    monkeypatch.setattr(algo, "loss", lambda batch, progress=0.0: heard.append(progress) or find_loss(batch, progress))
    while not worker.resting:
        worker.turn()
    assert sorted(set(heard)) == [16 * rollout / 160 for rollout in range(1, 11)]
    assert heard == sorted(heard)
    worker.close()


@pytest.mark.parametrize("shared", ["no", "yes"])
def test_the_critic_s_gradient_is_that_of_its_clipped_loss(shared: str) -> None:
    """max((v - R)^2, (v_old + clip(v - v_old, -e, e) - R)^2) / 2, by autograd."""
    spec = EnvSpec("test", (3,), np.dtype(np.float32), n_actions=4)
    torch.manual_seed(0)
    config = PPOConfig(hidden=(8,), shared=shared, value_clip=0.1, normalise=False, entropy=0.0, critic_weight=0.5)  # type: ignore[arg-type]
    algo = PPO(config, spec, Tensors({}))
    rng, rows = np.random.default_rng(0), 64
    obs = rng.standard_normal((rows, 3), np.float32)
    value = algo.values(obs) + 0.2 * rng.standard_normal(rows, np.float32)
    target, zeros = rng.standard_normal(rows, np.float32), np.zeros(rows, np.float32)
    action = rng.integers(0, 4, rows)
    # Without advantages and entropy the policy has no gradient, so a joined network has the critic's alone.
    batch = Minibatch(obs, action, zeros, target, zeros, value, np.ones(rows, np.float32))
    network = algo.flats["policy" if shared == "yes" else "value"]
    network.backward(algo.loss(batch).losses["policy" if shared == "yes" else "value"])
    found = network.grads.clone()

    said = network.module(torch.from_numpy(obs))[:, -1]
    old, wanted = torch.from_numpy(value), torch.from_numpy(target)
    near = old + (said - old).clamp(-0.1, 0.1)
    loss = torch.maximum((said - wanted).square(), (near - wanted).square()).mean() / 2
    network.backward((0.5 if shared == "yes" else 1.0) * loss)
    torch.testing.assert_close(found, network.grads, rtol=1e-3, atol=1e-5)
    assert ((said - old).abs() > 0.1).any(), "the clip has work to do"


def test_what_is_kept_of_an_action_is_the_draw_and_not_what_the_bounds_made_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Aim's actions lie between -3 and 10, and it raises on others; the policy's probabilities are of the draw."""
    worker, _, arena = running(small_plan(algo="ppo", env=AIM, workers=1, sync="solo", horizon=8, envs=2))
    far = np.array([[-50.0, 60.0], [40.0, -70.0]], np.float32)
    monkeypatch.setattr(worker._algo, "act", lambda obs, step, rng: far)
    worker.turn()
    np.testing.assert_array_equal(arena["worker/0/rollout/action"].numpy(), np.broadcast_to(far, (8, 2, 2)))
    worker.close()
