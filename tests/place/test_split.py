"""A worker in two halves learns what a whole one does, to the bit, wherever the halves are."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import passel
from passel.place.plan import Plan
from passel.place.split import PATIENCE
from passel.sync import SCHEMES
from passel.testing.envs import Identity
from passel.types import DivergedError
from small import inline_run, settings_for, small_plan

ON_POLICY = ["a3c", "ppo"]


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    return {name: network.perceptron.layers[0].weight for name, network in passel.load(path).networks.items()}


@pytest.mark.parametrize("algo", ON_POLICY)
@pytest.mark.parametrize("sync", SCHEMES)
def test_inline_two_halves_equal_a_whole_bit_for_bit(sync: str, algo: str) -> None:
    asked: dict[str, Any] = {"sync": sync, "algo": algo, "workers": 1 if sync == "solo" else 2}
    assert torch.equal(inline_run(small_plan(**asked, split=True)), inline_run(small_plan(**asked)))


def test_in_processes_two_halves_equal_a_whole_bit_for_bit(tmp_path: Path) -> None:
    """One worker under solo: nobody's order matters but its own."""
    weights = []
    for split in (False, True):
        run = passel.train(
            **settings_for(algo="ppo", sync="solo", place="processes", split=split, out=str(tmp_path / f"{split}"))
        )
        assert run.summary.status == "finished"
        weights.append(weights_of(run.path))
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name])


@pytest.mark.parametrize("sync", ["hogwild", "server", "allreduce", "gossip"])
def test_in_processes_halves_of_two_workers_share_with_each_other(sync: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    run = passel.train(**settings_for(algo="a3c", sync=sync, workers=2, place="processes", split=True, out=out))
    assert run.summary.status == "finished"
    assert run.summary.updates > 10
    again = passel.resume(run.path, steps=800, quiet=True)
    assert again.summary.steps >= 800


def test_a_plan_names_who_serves() -> None:
    plan: Plan = small_plan(algo="a3c", sync="server", shards=2, workers=2, split=True)
    assert plan.server_names == [*(f"shard {number}" for number in range(4)), "critic 0", "critic 1"]
    assert small_plan(algo="a3c", sync="hogwild", workers=2).server_names == []


class Huge(Identity):
    """Identity whose observations or rewards are finite, and too large for the squares and sums of single precision."""

    def __init__(self, obs: float = 1.0, reward: float = 1.0) -> None:
        super().__init__()
        self.observation_space = Box(0.0, np.inf, self.observation_space.shape, np.float32)
        self._obs_scale, self._reward_scale = np.float32(obs), reward

    def reset(self, **asked: Any) -> Any:
        obs, info = super().reset(**asked)
        return obs * self._obs_scale, info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs * self._obs_scale, reward * self._reward_scale, *rest


@pytest.mark.parametrize("place", ["inline", "processes"])
@pytest.mark.parametrize("sync", ["solo", "allreduce"])
@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (
            {"reward": 3e37},
            r"^the loss is inf: the targets are no longer finite\. The environment's rewards are as large",
        ),
        (
            {"obs": 3e38},
            r"^the loss is (inf|nan): .* The environment's observations are as large as 3e\+38: scale them",
        ),
    ],
    ids=["rewards", "observations"],
)
def test_a_critic_that_finds_no_number_says_why(
    made: dict[str, float], sentence: str, sync: str, place: str, tmp_path: Path
) -> None:
    """Numbers that are finite pass at the environment's boundary. The half that finds the loss ends the run."""
    workers = 1 if sync == "solo" else 2
    asked = settings_for(algo="a3c", sync=sync, workers=workers, place=place, split=True, steps=2000)
    del asked["env"]
    began = time.monotonic()
    with pytest.raises(DivergedError, match=sentence):
        passel.train(partial(Huge, **made), **asked, out=str(tmp_path / "run"))
    assert time.monotonic() - began < PATIENCE, "nobody waits for the half that has ended"


def test_nan_stops_at_the_environment_s_boundary(tmp_path: Path) -> None:
    env, out = "passel.testing.envs:passel/NaN-v0", str(tmp_path / "run")
    asked = settings_for(env=env, algo="a3c", sync="solo", place="processes", split=True, steps=2000, out=out)
    with pytest.raises(passel.PasselError, match="observations hold NaN or infinity"):
        passel.train(**asked)
