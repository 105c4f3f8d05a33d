"""Ctrl-C: the first is polite where it may be, and none is lost."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import pytest

from passel.interrupts import ECHO, Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_and_the_second_ends(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        interrupts.polite = True
        signal.raise_signal(number)
        assert interrupts.requested == number
        interrupts.insist()  # it was heard
        time.sleep(1.1 * ECHO)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_an_echo_of_the_first_is_no_second() -> None:
    """`timeout -s INT` signals its child, and then the group that the child is in."""
    with Interrupts() as interrupts:
        interrupts.polite = True
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        assert interrupts.requested == signal.SIGINT
        interrupts.insist()


def test_before_it_is_polite_there_are_no_echoes() -> None:
    with Interrupts(signal.SIGINT) as interrupts:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert interrupts.requested is None


def test_only_the_signals_that_are_given() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts(signal.SIGINT):
        assert signal.getsignal(signal.SIGTERM) is before


def test_one_that_nobody_heard_is_raised_again() -> None:
    with Interrupts(signal.SIGINT) as interrupts:
        interrupts.insist()
        with suppress(KeyboardInterrupt):  # as Python does in a destructor
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.insist()


def test_whoever_enters_within_reach_of_another_insists_for_it() -> None:
    with Interrupts(signal.SIGINT) as outer:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        mine = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), Interrupts():
            pytest.fail("it was entered")
        assert signal.getsignal(signal.SIGINT) == mine
        assert outer.requested is None
