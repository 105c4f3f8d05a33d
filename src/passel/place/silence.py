"""Who has not shown a sign of life for how long. Runs in: the watcher."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from passel.place.board import Board, Command, State
from passel.types import Array, Bools

LOOK_EVERY = 0.1  # seconds
MOST = 1.0  # seconds that one look may add: a watcher that was stopped itself has not watched meanwhile


class Silence:
    """Seconds since each worker, and after them each server, last showed a sign of life, of those it was due of.

    A worker's heartbeat goes on while it takes turns, `steps` within a turn that collects for long (a rollout, the
    warm-up), and `waits` while it waits for another: what is left is one step of its environments, an update, or a
    process that does not run. At rest a worker owes no sign.
    """

    def __init__(self, board: Board, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._board, self._limit, self._clock = board, limit, clock
        self._looked = clock()
        self._signs = self._read()
        self.seconds: Array = np.zeros(len(self._signs))

    def look(self) -> None:
        gone = self._clock() - self._looked
        if gone < LOOK_EVERY:
            return
        self._looked += gone
        signs = self._read()
        quiet = self._due() & (signs == self._signs).all(axis=1)
        self.seconds = np.where(quiet, self.seconds + min(gone, MOST), 0.0)
        self._signs = signs

    def _due(self) -> Bools:
        board = self._board
        if board.command == Command.RUN:
            workers = np.full(board.workers, board.steps < self._limit)
        else:
            workers = board.rested != board.asked
        due: Bools = np.concatenate([workers, board.servers == State.READY])
        return due

    def _read(self) -> Array:
        board = self._board
        workers = np.stack([board.column("heartbeat"), board.column("steps"), board.waits, board.rested], axis=1)
        servers = np.stack([board.served, board.served, board.served, board.servers], axis=1)
        signs: Array = np.concatenate([workers, servers]).astype(np.float64)
        return signs
