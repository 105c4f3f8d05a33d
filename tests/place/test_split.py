"""A worker in two halves learns what a whole one does, to the bit, wherever the halves are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import passel
from passel.place.plan import Plan
from passel.sync import SCHEMES
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


def test_a_critic_that_finds_no_number_says_why(tmp_path: Path) -> None:
    env, out = "passel.testing.envs:passel/NaN-v0", str(tmp_path / "run")
    asked = settings_for(env=env, algo="a3c", sync="solo", place="processes", split=True, steps=2000, out=out)
    with pytest.raises(passel.PasselError, match="observations hold NaN or infinity"):
        passel.train(**asked)
