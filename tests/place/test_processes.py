"""Workers in processes of their own: whenever they are asked to rest, everybody does, and then nothing moves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import passel
from passel.place.processes import Processes
from small import new_arena, settings_for, small_plan


@pytest.mark.parametrize("sync", ["hogwild", "allreduce", "gossip", "proximal", "tokenring"])
def test_everybody_comes_to_rest_however_soon_they_are_asked(sync: str) -> None:
    """Also who has not even noticed that it should work."""
    plan = small_plan(place="processes", sync=sync, workers=2, steps=10**9)
    arena = new_arena(plan, shared=True)
    placement = Processes(plan, arena)
    placement.start()
    try:
        for number in range(60):
            placement.resume()
            time.sleep(0.002 * (number % 3))
            placement.pause()
            steps, vector = placement.board.steps, arena["sync/q/vector"].clone()
            time.sleep(0.003)
            assert placement.board.steps == steps
            assert vector.equal(arena["sync/q/vector"])
        assert placement.board.steps > 0
    finally:
        placement.stop()


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_under_gossip_nobody_waits(algo: str, tmp_path: Path) -> None:
    """Not even on a busy machine, where whoever waits for another waits for its turn on a core."""
    out = str(tmp_path / "run")
    run = passel.train(**settings_for(algo=algo, sync="gossip", workers=2, place="processes", steps=3000, out=out))
    assert run.summary.updates > 100
    assert run.shares["wait"] < 0.02
