"""Reports: what the counters of the board say of the last seconds."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from passel.arena import Arena
from passel.place.board import COLUMNS, Board
from passel.reports import Reporter
from passel.stopwatch import Stopwatch


def test_a_loss_that_is_infinite_disturbs_no_speed() -> None:
    """Workers publish it before the run ends of it. Warnings are errors here, and lines across the screen elsewhere."""
    board = Board(Arena(Board.specs(2)))
    reporter = Reporter(cast(Any, SimpleNamespace()), board, Stopwatch(time.perf_counter(), {}))
    board.counters[:, COLUMNS["loss"]] = np.inf
    assert not reporter._speed("checkpoint", training=False)[1].any(), "nothing is known yet"
    reporter._speed("train", training=True)
    board.counters[:, COLUMNS["steps"]] += 30
    _, moved, gone = reporter._speed("train", training=True)
    assert moved[:, COLUMNS["steps"]].tolist() == [30, 30]
    assert gone > 0
