"""Text of a stranger's is shown, and is no command to the terminal."""

from __future__ import annotations

import pytest

from passel.types import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("naïve 日本 🎈", "naïve 日本 🎈"),
        ("\x1b]0;title\x07\x1b[2Jx", r"\x1b]0;title\x07\x1b[2Jx"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udc80", r"\udc80"),
        (ValueError("\x1b[1m"), r"\x1b[1m"),
        ("x" * 10, "x" * 10),
    ],
)
def test_what_is_not_printable_is_escaped(text: object, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_cut() -> None:
    assert printable("x" * 10**6, longest=5) == "xxxxx..."
