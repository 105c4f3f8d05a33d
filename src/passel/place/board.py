"""The board: what workers and the one who watches them tell each other, in a few cells of the arena.

Each cell has one writer. Commands go down, states and counters come up; nothing is sent, so nothing can be lost,
block or arrive twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch

from passel.arena import Spec, Tensors, cells, fence
from passel.clock import STAGES, Clock
from passel.types import Bools, Episode

EPISODES = 4096  # finished episodes that a worker may be ahead of whoever reads them

COUNTERS = ("steps", "updates", "episodes", "loss", "staleness", "heartbeat")
SCALARS = 32  # numbers of its own that a run may show
COLUMNS = {name: column for column, name in enumerate((*COUNTERS, *STAGES))}
#: Columns of `counters` that held those numbers in earlier versions: checkpoints have them, and nothing reads them.
UNUSED = 8
STEPS, UPDATES, FINISHED = (COLUMNS[name] for name in ("steps", "updates", "episodes"))


class Command(IntEnum):
    WAIT = 0
    RUN = 1
    STOP = 2


class State(IntEnum):
    STARTING = 0
    READY = 1
    RUNNING = 2
    PARKED = 3
    GONE = 4


class Board:
    """A view of the board. The watcher writes `command`; worker `rank` writes its own row of everything else."""

    @staticmethod
    def specs(workers: int, servers: int = 0) -> dict[str, Spec]:
        return {
            "servers": Spec((servers,), torch.int64, keep=False),
            "served": Spec((servers,), torch.int64, keep=False),
            "waits": Spec((workers,), torch.int64, keep=False),
            "command": Spec((1,), torch.int64, keep=False),
            "state": Spec((workers,), torch.int64, keep=False),
            "asked": Spec((1,), torch.int64, keep=False),
            "rested": Spec((workers,), torch.int64, keep=False),
            "woken": Spec((workers,), torch.int64, keep=False),
            "counters": Spec((workers, len(COLUMNS) + UNUSED), torch.float64),
            "scalars": Spec((workers, SCALARS), torch.float64, keep=False),
            "episodes": Spec((workers, EPISODES, 2), torch.float64, keep=False),
        }

    def __init__(self, tensors: Tensors) -> None:
        self._command = cells(tensors["command"].numpy())
        self.states = tensors["state"].numpy()
        self._asked = cells(tensors["asked"].numpy())
        self.rested = tensors["rested"].numpy()
        self._rested = cells(self.rested)
        self.woken = tensors["woken"].numpy()
        self.servers = tensors["servers"].numpy()
        #: Signs of life: each server counts how often it has looked for work, each worker how often it has found itself
        #: waiting for another.
        self.served = tensors["served"].numpy()
        self.waits = tensors["waits"].numpy()
        self.counters = tensors["counters"].numpy()
        self.scalars = tensors["scalars"].numpy()
        self._episodes = tensors["episodes"].numpy()
        self._steps = cells(self.counters[:, STEPS])
        self.workers = len(self.states)

    @property
    def command(self) -> Command:
        return Command(self._command[0])

    @command.setter
    def command(self, command: Command) -> None:
        self._command[0] = command

    @property
    def asked(self) -> int:
        """How often everybody was asked to rest. Whoever has come to rest writes this number into its cell of `rested`:
        a state alone would not tell a worker that rests from one that has not noticed yet that it should work.
        """
        return int(self._asked[0])

    def ask_for_rest(self) -> None:
        self._asked[0] += 1
        self.command = Command.WAIT

    def wake(self, rank: int) -> int:
        """Worker `rank` is about to leave its rest; returns what its cell of `rested` held. `woken` counts this first:
        a watcher that finds all workers at rest and no count changed knows that they were so at the same moment.
        """
        before = int(self._rested[rank])
        self.woken[rank] += 1
        fence()
        self._rested[rank] = 0
        fence()
        return before

    def at_rest(self) -> Bools:
        """Which workers have come to rest since the last `ask_for_rest`, all at the same moment.

        A worker that another waits for leaves its rest for one more update. Cells that are read one after the other
        would then show each worker at rest, though never all of them at once.
        """
        before = self.woken.copy()
        fence()
        rested: Bools = self.rested == self.asked
        fence()
        rested &= self.woken == before
        return rested

    @property
    def running(self) -> bool:
        return bool(self._command[0] == 1)  # Command.RUN, without the price of an enum: this is asked at every turn

    @property
    def steps(self) -> int:
        """Steps of all workers together."""
        return int(sum(self._steps))

    def column(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self.counters[:, COLUMNS[name]]

    def seconds(self, rank: int) -> dict[str, float]:
        """Where worker `rank`'s time went so far, by stage."""
        return {stage: float(self.counters[rank, COLUMNS[stage]]) for stage in STAGES}

    def finished(self, rank: int, episodes: list[Episode]) -> None:
        """Worker `rank` reports finished episodes."""
        count = int(self.counters[rank, FINISHED])
        for episode in episodes:
            self._episodes[rank, count % EPISODES] = episode.score, episode.length
            count += 1
        fence()
        self.counters[rank, FINISHED] = count

    def read_episodes(self, rank: int, seen: int, count: int | None = None) -> list[Episode]:
        """What worker `rank` has reported since `seen` episodes; of no more than `count`, where the caller has read the
        counter itself: one that ends meanwhile is for the next look.
        """
        count = int(self.counters[rank, FINISHED]) if count is None else count
        fence()
        start = max(seen, count - EPISODES)
        rows = [self._episodes[rank, number % EPISODES] for number in range(start, count)]
        return [Episode(float(score), int(length)) for score, length in rows]

    def publish(self, rank: int, clock: Clock, scalars: Sequence[float], **numbers: float) -> None:
        """Worker `rank` says where its time went and what its numbers and its algorithm's are."""
        row = self.counters[rank]
        for name, value in {**numbers, **clock.seconds, "heartbeat": time.time()}.items():
            row[COLUMNS[name]] = value
        self.scalars[rank, : len(scalars)] = scalars

    def scalar(self, number: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The algorithm's number `number`, of every worker."""
        return self.scalars[:, number]
