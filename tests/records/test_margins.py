"""Margins: what they are by unit, and how a command line changes them."""

from __future__ import annotations

import math

import pytest

from holdfast.records.margins import parse_margins


def of(words: list[str], unit: str, before: float = 0.5, metric: str = "") -> float:
    return parse_margins(words).of(unit, metric, before, before)


def test_defaults_by_unit():
    assert of([], "accuracy") == of([], "f1") == 0.01
    assert of([], "nats/token", 2.0) == 0.01
    assert of([], "bits/byte", 1.0) == 0.004
    assert of([], "perplexity", 8.0) == pytest.approx(0.08)
    assert of([], "f1", 61.0) == pytest.approx(0.61), "a score of 0 to 100 is no share"
    assert of([], "perplexity", math.inf) == 0.0


def test_words_change_them():
    assert of(["2pt"], "accuracy") == 0.02 and of(["2pt"], "nats/token") == 0.01
    assert of(["0.02 nats/token"], "nats/token") == 0.02 and of(["0.02 nats/token"], "accuracy") == 0.01
    assert of(["2%"], "nats/token", 3.0) == pytest.approx(0.06) and of(["2%"], "accuracy") == 0.01
    assert of(["0"], "accuracy") == of(["0"], "nats/token") == of(["0"], "perplexity") == 0.0
    assert of(["0", "1 pt"], "accuracy") == 0.01 and of(["0", "1 pt"], "perplexity") == 0.0


@pytest.mark.parametrize("word", ["2", "pt", "-1pt", "nan%", "", "one pt"])
def test_anything_else_is_refused(word):
    with pytest.raises(ValueError, match="expected 0, NUMBERpt, NUMBER% or NUMBER UNIT"):
        parse_margins([word])
