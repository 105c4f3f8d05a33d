"""Workers in processes of their own: whenever they are asked to rest, everybody does, and then nothing moves."""

from __future__ import annotations

import time

import pytest

from passel.place.processes import Processes
from small import new_arena, small_plan


@pytest.mark.parametrize("sync", ["hogwild", "allreduce"])
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
