"""Verdicts: what an interval says of zero and of the margin, whatever the metric's direction."""

from __future__ import annotations

import math

import pytest

from holdfast.records.comparison import Comparison


def verdict(low: float, high: float, *, margin: float | None = 0.01, higher: bool = True) -> str:
    difference = (low + high) / 2 if math.isfinite(low) else 0.0
    unit = "accuracy" if higher else "nats/token"
    return Comparison(
        suite="s",
        name="e",
        metric="m",
        unit=unit,
        higher_is_better=higher,
        n=100,
        before=0.5,
        after=0.5 + difference,
        difference=difference,
        interval=(low, high),
        p_value=0.5,
        test="t",
        margin=margin,
    ).verdict


CASES = [
    (-0.03, -0.011, "lost"),
    (-0.03, -0.0001, "lost"),
    (-0.009, -0.0001, "lost within the margin"),
    (-0.009, 0.002, "kept"),
    (-0.009, 0.2, "kept"),
    (0.0, 0.0, "kept"),
    (-0.011, 0.002, "not shown"),
    (-0.5, 0.5, "not shown"),
    (0.0001, 0.009, "gained within the margin"),
    (0.0001, 0.02, "gained"),
]


@pytest.mark.parametrize(("low", "high", "expected"), CASES)
def test_verdicts_with_a_margin(low, high, expected):
    assert verdict(low, high) == expected
    assert verdict(-high, -low, higher=False) == expected
    assert verdict(low, high, margin=None) == expected, "1 pt and 0.01 nats/token are the defaults"
    assert verdict(-high, -low, margin=None, higher=False) == expected


def test_verdicts_without_a_margin_are_those_of_the_interval():
    assert [verdict(low, high, margin=0.0) for low, high, _ in CASES] == [
        "lost" if high < 0 else "gained" if low > 0 else "kept" if low == 0 else "not shown" for low, high, _ in CASES
    ]


def test_no_interval_shows_nothing():
    assert verdict(math.nan, math.nan) == "not shown"
