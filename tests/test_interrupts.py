"""Ctrl-C: the first is polite where it may be, and none is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from passel.interrupts import ECHO, Interrupts


@pytest.fixture(autouse=True)
def _nothing_is_ignored() -> Iterator[None]:
    """As at a terminal: a suite that runs in the background, or under nohup, has some of them ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_is_ignored_stays_ignored(number: signal.Signals) -> None:
    """`nohup passel train` lives on when its terminal closes; `passel train &` of a script does not hear Ctrl-C."""
    signal.signal(number, signal.SIG_IGN)
    with Interrupts() as interrupts:
        interrupts.polite = True
        signal.raise_signal(number)
        assert interrupts.requested is None
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.requested == signal.SIGTERM
    assert signal.getsignal(number) is signal.SIG_IGN


def test_the_second_has_an_echo_too_and_the_third_ends() -> None:
    with Interrupts() as interrupts:
        interrupts.polite = True
        signal.raise_signal(signal.SIGINT)
        time.sleep(1.1 * ECHO)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            pytest.fail("an echo of the second was heard")
        time.sleep(1.1 * ECHO)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_while_held_nothing_is_raised_until_it_is_asked_for() -> None:
    with Interrupts(signal.SIGINT, held=True) as interrupts:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # an echo
        with pytest.raises(KeyboardInterrupt), Interrupts():
            pytest.fail("it was entered")
        with pytest.raises(KeyboardInterrupt):
            interrupts.release()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_while_held_a_second_ends_the_process_at_once() -> None:
    script = f"""
import signal, time
from passel.interrupts import Interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)
with Interrupts(signal.SIGINT, held=True):
    signal.raise_signal(signal.SIGINT)
    time.sleep({1.2 * ECHO})
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        print("this code went on")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "passel: interrupted.\n")


IMPORTING = """
import os, signal, sys
sys.path.insert(0, {folder!r})
signal.signal(signal.SIGINT, signal.default_int_handler)
from passel import cli
cli.IMPORTS = {{**cli.IMPORTS, "train": ("interrupted_here", "never_imported")}}
sys.exit(cli.main(["train", "--place", "inline", "--out", {out!r}]))
"""


def test_a_ctrl_c_while_a_module_is_imported_is_heard_after_it(tmp_path: Path) -> None:
    """The module that is being imported runs to its end, no other begins, and nothing is left on disk."""
    (tmp_path / "interrupted_here.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('imported to the end', flush=True)\n"
    )
    (tmp_path / "never_imported.py").write_text("print('this one too')\n")
    script = IMPORTING.format(folder=str(tmp_path), out=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "imported to the end\n", "passel: interrupted.\n")
    assert not (tmp_path / "run").exists()
