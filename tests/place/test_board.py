"""The board: a few cells of the arena, each with one writer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passel.arena import Arena
from passel.clock import STAGES, Clock
from passel.place.board import COLUMNS, COUNTERS, EPISODES, Board, Command, State
from passel.types import Episode


def board(workers: int = 2) -> Board:
    return Board(Arena(Board.specs(workers)))


def numbered(start: int, count: int) -> list[Episode]:
    return [Episode(float(number), number + 1) for number in range(start, start + count)]


def test_a_new_board_tells_everybody_to_wait() -> None:
    new = board()
    assert new.command == Command.WAIT
    assert not new.running
    assert new.states.tolist() == [State.STARTING] * 2
    assert new.steps == 0
    assert new.workers == 2


@pytest.mark.parametrize("command", Command)
def test_a_command_is_seen_by_whoever_looks_at_the_same_arena(command: Command) -> None:
    arena = Arena(Board.specs(2))
    watcher, worker = Board(arena), Board(arena)
    watcher.command = command
    assert worker.command is command
    assert worker.running == (command is Command.RUN)


def test_steps_are_those_of_all_workers_together() -> None:
    one = board(3)
    one.column("steps")[:] = [5, 0, 7]
    assert one.steps == 12
    one.column("steps")[1] += 4
    assert one.steps == 16


def test_every_counter_and_stage_has_a_column_of_its_own() -> None:
    assert len(COLUMNS) == len(COUNTERS) + len(STAGES)
    assert sorted(COLUMNS.values()) == list(range(len(COLUMNS)))
    one = board(1)
    for number, name in enumerate(COLUMNS):
        one.column(name)[0] = number
    assert one.counters[0, : len(COLUMNS)].tolist() == list(range(len(COLUMNS)))


@given(st.lists(st.integers(0, 300), max_size=20), st.data())
def test_episodes_are_read_once_in_order(reports: list[int], data: Any) -> None:
    read: list[Episode] = []
    one, told = board(), 0
    for count in reports:
        one.finished(1, numbered(told, count))
        told += count
        if data.draw(st.booleans()):
            read += one.read_episodes(1, len(read))
    read += one.read_episodes(1, len(read))
    assert read == numbered(0, told)
    assert one.read_episodes(1, len(read)) == []
    assert one.read_episodes(0, 0) == []


def test_a_reader_that_is_too_slow_gets_the_newest() -> None:
    one = board()
    one.finished(0, numbered(0, EPISODES + 10))
    assert one.read_episodes(0, 0) == numbered(10, EPISODES)
    assert one.column("episodes")[0] == EPISODES + 10


def test_publish_writes_one_row_and_says_that_the_worker_lives() -> None:
    one, clock = board(), Clock()
    clock.mark("env")
    one.column("steps")[:] = 9
    before = one.counters[0].copy()
    one.publish(1, clock, [0.1], loss=0.5, staleness=1.5)
    assert one.counters[0].tolist() == before.tolist()
    assert one.column("loss")[1] == 0.5
    assert one.scalar(0).tolist() == [0, 0.1]
    assert one.column("staleness")[1] == 1.5
    assert one.column("env")[1] == clock.seconds["env"] > 0
    assert one.column("heartbeat")[1] > 1e9
    assert one.column("steps")[1] == 9, "what is not published stays"


def test_a_number_without_a_column_is_a_mistake_of_the_programmer_s() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        board().publish(0, Clock(), [], nonsense=1.0)


def test_a_checkpoint_keeps_counters_and_no_commands() -> None:
    assert {name for name, spec in Board.specs(1).items() if spec.keep} == {"counters"}


def test_the_clock_gives_every_moment_to_one_stage() -> None:
    clock = Clock()
    for stage in STAGES:
        clock.mark(stage)
    total = sum(clock.seconds.values())
    assert all(seconds >= 0 for seconds in clock.seconds.values())
    clock.move(clock.seconds["learn"], "learn", "wait")
    assert clock.seconds["learn"] == 0
    assert sum(clock.seconds.values()) == pytest.approx(total)
