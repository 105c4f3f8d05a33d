"""A trained policy: acts greedily by the network that the run ended with, and needs nothing else of the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import passel
from harness import newest
from passel.algos.apex import Apex, ApexConfig
from passel.algos.dqn import DQN, DQNConfig
from passel.policy import Policy
from passel.run.folder import RunFolder
from passel.types import Array, EnvSpec, PasselError

SPEC = EnvSpec("Some-v0", (3,), np.dtype(np.float32), 4)
CONFIG = DQNConfig(layer_norm="no", hidden=(5,))


def vector() -> torch.Tensor:
    return torch.randn(44, generator=torch.Generator().manual_seed(0))


def q_values(weights: torch.Tensor, obs: Array) -> Array:
    """The network by hand: the vector is each layer's weights and biases, one after the other."""
    w1, b1, w2, b2 = (part.double().numpy() for part in torch.split(weights, [15, 5, 20, 4]))
    hidden = np.maximum(obs @ w1.reshape(5, 3).T + b1, 0)
    found: Array = hidden @ w2.reshape(4, 5).T + b2
    return found


@pytest.fixture(scope="module")
def observations() -> Array:
    return np.random.default_rng(1).normal(size=(64, 3)).astype(np.float32)


def test_acts_greedily(observations: Array) -> None:
    policy = Policy(DQN, CONFIG, SPEC, {"q": vector()})
    expected = q_values(vector(), observations).argmax(axis=1)
    assert len(set(expected.tolist())) > 1
    actions = policy.act(observations)
    assert isinstance(actions, np.ndarray)
    assert actions.tolist() == expected.tolist()


def test_no_row_of_a_ladder_of_epsilons_explores_more_than_the_others(observations: Array) -> None:
    """Ape-X: the first row of a batch once explored as the boldest of all actors, and every other as the most timid."""
    policy = Policy(Apex, ApexConfig(hidden=(5,), epsilon=0.5, epsilon_alpha=2.0), SPEC, {"q": vector()})
    rng, rounds = np.random.default_rng(0), 600
    strayed = np.mean([policy.act(observations, rng) != policy.act(observations) for _ in range(rounds)], axis=0)
    expected = 0.5**3 * 3 / 4
    assert (np.abs(strayed - expected) < 5 * np.sqrt(expected * (1 - expected) / rounds)).all()
    alone = np.mean([policy.act(observations[0], rng) != policy.act(observations[0]) for _ in range(rounds)])
    assert abs(alone - expected) < 5 * np.sqrt(expected * (1 - expected) / rounds)


def test_one_observation_is_a_batch_of_one(observations: Array) -> None:
    policy = Policy(DQN, CONFIG, SPEC, {"q": vector()})
    batch = policy.act(observations)
    assert isinstance(batch, np.ndarray)
    ones = [policy.act(obs) for obs in observations]
    assert all(type(action) is int for action in ones)
    assert ones == batch.tolist()
    assert policy.act(observations[:1].tolist()) == batch[:1]
    assert policy.act(observations[0].astype(np.float64)) == batch[0], (
        "what an environment returns may be of another type"
    )


def test_is_a_copy() -> None:
    """The run may go on while the policy is used."""
    weights, obs = vector(), np.ones((1, 3), np.float32)
    policy = Policy(DQN, CONFIG, SPEC, {"q": weights})
    before = policy.act(obs)
    weights.neg_()
    assert policy.act(obs) == before
    assert Policy(DQN, CONFIG, SPEC, {"q": weights}).act(obs) != before


def test_leaves_the_users_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    Policy(DQN, CONFIG, SPEC, {"q": torch.zeros(44)}).act(np.zeros(3))
    assert torch.rand(1) == expected


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 2, 3), ()])
def test_wrong_shape(shape: tuple[int, ...]) -> None:
    policy = Policy(DQN, CONFIG, SPEC, {"q": vector()})
    with pytest.raises(PasselError, match=r"an observation of Some-v0 has shape \(3,\), and this one has") as error:
        policy.act(np.zeros(shape, np.float32))
    assert str(error.value).endswith("Give one observation or a batch [B, ...] of them.")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> passel.Run:
    return passel.train(
        "passel.testing.envs:passel/Corridor-v0",
        place="inline",
        sync="server",
        shards=2,
        workers=2,
        envs=2,
        hidden=[8],
        batch=8,
        warmup=40,
        capacity=200,
        steps=200,
        until_solved=False,
        eval_episodes=2,
        eval_every="none",
        tensorboard=False,
        quiet=True,
        out=str(tmp_path_factory.mktemp("runs") / "run"),
    )


class TestLoaded:
    def test_is_the_last_checkpoints(self, run: passel.Run) -> None:
        weights = newest(run.path).groups["parameters"]["sync/q/vector"]
        for policy in (run.policy, passel.load(run.path), passel.load(str(run.path))):
            found = torch.cat([weight.flatten() for weight in policy.networks["q"].parameters()])
            assert torch.equal(found.detach(), weights)
        assert passel.load(run.path).act(np.eye(6, dtype=np.float32)).shape == (6,)  # type: ignore[union-attr]

    def test_needs_no_environment_and_no_lock(self, run: passel.Run, tmp_path: Path) -> None:
        """A robot that runs the policy has no simulator; and one may look at a run that is in somebody's use."""
        copy = shutil.copytree(run.path, tmp_path / "copy")
        for file in ("config.toml", "card.json"):
            text = (copy / file).read_text()
            (copy / file).write_text(text.replace("passel.testing.envs:passel/Corridor-v0", "nowhere:Nothing-v0"))
        shutil.rmtree(copy / "videos", ignore_errors=True)
        before = sorted(path.name for path in copy.iterdir())
        with RunFolder.open(copy):
            policy = passel.load(copy)
        assert policy.spec.id == "nowhere:Nothing-v0"
        assert policy.act(np.zeros(6, np.float32)) in (0, 1)
        assert sorted(path.name for path in copy.iterdir()) == before

    def test_of_a_run_without_a_checkpoint(self, run: passel.Run, tmp_path: Path) -> None:
        copy = shutil.copytree(run.path, tmp_path / "copy")
        shutil.rmtree(copy / "checkpoints")
        shutil.rmtree(copy / "best", ignore_errors=True)
        with pytest.raises(PasselError, match=r"has no checkpoint yet\. Wait for the first, or train longer"):
            passel.load(copy)

    def test_evaluates_as_the_summary_says(self, run: passel.Run) -> None:
        """The same policy and environment: whatever the seed, the corridor is deterministic."""
        found = passel.evaluate(run.path, episodes=3)
        assert run.summary.eval is not None
        assert (found.episodes, found.mean, found.std) == (3, run.summary.eval.mean, 0.0)
