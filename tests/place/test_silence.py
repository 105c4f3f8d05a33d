"""A worker owes signs of life while it should work, and only then."""

from __future__ import annotations

from passel.arena import Arena
from passel.place.board import Board, Command, State
from passel.place.silence import Silence


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watched(servers: int = 0) -> tuple[Board, Silence, Clock]:
    board, clock = Board(Arena(Board.specs(2, servers))), Clock()
    board.servers[:] = State.READY
    return board, Silence(board, 100, clock), clock


def passes(seconds: float, silence: Silence, clock: Clock) -> None:
    for _ in range(round(seconds / 0.5)):
        clock.now += 0.5
        silence.look()


def test_who_neither_takes_turns_nor_waits_is_silent() -> None:
    board, silence, clock = watched()
    board.command = Command.RUN
    passes(2.0, silence, clock)
    assert silence.seconds.tolist() == [2.0, 2.0]
    board.column("heartbeat")[0] = 1.0
    passes(0.5, silence, clock)
    assert silence.seconds.tolist() == [0.0, 2.5]
    board.waits[1] += 1
    passes(0.5, silence, clock)
    assert silence.seconds.tolist() == [0.5, 0.0]


def test_steps_within_a_long_turn_are_a_sign() -> None:
    """A rollout of slow steps, or the warm-up, is one turn of minutes."""
    board, silence, clock = watched()
    board.command = Command.RUN
    for _ in range(30):
        board.column("steps")[1] += 1
        passes(0.5, silence, clock)
    assert silence.seconds.tolist() == [15.0, 0.0]


def test_at_rest_no_sign_is_due() -> None:
    board, silence, clock = watched()
    passes(5.0, silence, clock)
    assert silence.seconds.tolist() == [0.0, 0.0], "before the first turn"
    board.ask_for_rest()
    board.rested[0] = board.asked
    passes(3.0, silence, clock)
    assert silence.seconds.tolist() == [0.0, 3.0]
    board.command = Command.RUN
    board.column("steps")[0] = 100
    passes(3.0, silence, clock)
    assert silence.seconds.tolist() == [0.0, 0.0], "all steps were taken"


def test_a_server_counts_always() -> None:
    board, silence, clock = watched(servers=1)
    passes(1.0, silence, clock)
    assert silence.seconds.tolist() == [0.0, 0.0, 1.0]
    board.served[0] += 1
    passes(0.5, silence, clock)
    assert silence.seconds.tolist() == [0.0, 0.0, 0.0]


def test_time_in_which_the_watcher_was_stopped_does_not_count() -> None:
    board, silence, clock = watched()
    board.command = Command.RUN
    clock.now += 1000.0
    silence.look()
    assert silence.seconds.tolist() == [1.0, 1.0]
