from __future__ import annotations

import math

import pytest

from passel.view.format import (
    format_count,
    format_duration,
    format_number,
    format_share,
    sparkline,
    stages_in,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (4.21, "4.2s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (3599.7, "1h 00m"),
        (3725, "1h 02m"),
        (86399.9, "1d 00h"),
        (183_600, "2d 03h"),
        (-1, "0.0s"),
        (math.inf, "-"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_durations_have_two_units_at_most_and_never_sixty_of_one(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (3.42, "3.4"),
        (9.96, "10"),
        (42, "42"),
        (999, "999"),
        (999.6, "1k"),
        (1234, "1.2k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (999_499, "999k"),
        (999_999, "1M"),
        (1_234_567, "1.2M"),
        (2.5e9, "2.5G"),
        (4e12, "4000G"),
        (-1234, "-1.2k"),
        (math.nan, "nan"),
    ],
)
def test_counts_are_short_and_carry_over_to_the_next_unit(value: float, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize("exponent", range(-4, 11))
@pytest.mark.parametrize("mantissa", [1.0, 1.05, 3.3333, 9.949, 9.951, 9.9949, 9.9951, 9.99999])
def test_a_count_read_back_is_within_five_percent(mantissa: float, exponent: int) -> None:
    value = mantissa * 10**exponent
    text = format_count(value)
    unit = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1.0)
    assert float(text.rstrip("kMG")) * unit == pytest.approx(value, rel=0.05, abs=0.005)
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (143.24, "143.2"),
        (200.0, "200"),
        (-110.0, "-110"),
        (34.2, "34.2"),
        (1.234, "1.23"),
        (0.01234, "0.0123"),
        (0.05, "0.05"),
        (0.99999, "1"),
        (2.5e-4, "2.5e-04"),
        (0.0, "0"),
        (1_234_567.0, "1.2M"),
        (math.inf, "inf"),
    ],
)
def test_scores_and_losses_keep_the_figures_that_matter(value: float, text: str) -> None:
    assert format_number(value) == text


def test_a_share_is_never_minus_zero() -> None:
    assert format_share(-0.001) == "0%"
    assert format_share(0.425) == "42%"
    assert format_share(1.0) == "100%"


def test_stages_come_in_the_order_of_a_turn_with_strangers_before_other() -> None:
    assert stages_in([{"other": 0.1, "learn": 0.2}, {"plan": 0.3, "env": 0.4}]) == ["env", "learn", "plan", "other"]


def test_a_sparkline_rises_with_its_values_and_fits() -> None:
    line = sparkline(list(range(1000)), 8)
    assert line == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0, 5.0], 10) == "▁▁▁"
    assert sparkline([], 10) == ""
    assert sparkline([math.nan, 1.0, 2.0], 10) == "▁█"
