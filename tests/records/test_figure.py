"""Figures: their parts of noise, their arithmetic as pairs, and how they are stored and shown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from holdfast.records.figure import Figure, NotMeasured, rescaled, t_half_width
from holdfast.records.measure import Measure
from holdfast.support.files import record_from, to_jsonable
from holdfast.support.quantiles import t_quantile


@dataclass(frozen=True, kw_only=True)
class Record:
    """Something that holds figures."""

    by_name: dict[str, Figure] = field(default_factory=dict)
    one: Figure | None = None


def seeds(*values: float, half: float = 0.0) -> Figure:
    return Figure.over_seeds(dict(enumerate(values)), half)


def test_figure_interval_covers_seeds_and_samples():
    figure = seeds(1.0, 2.0, 4.0, half=0.3)
    spread = t_half_width([1.0, 2.0, 4.0])
    assert spread == pytest.approx(t_quantile(2, 0.975) * math.sqrt(7 / 3) / math.sqrt(3))
    assert figure.interval == pytest.approx((7 / 3 - math.hypot(spread, 0.3), 7 / 3 + math.hypot(spread, 0.3)))
    wide = math.hypot(t_half_width([1.0, 2.0, 4.0], confidence=0.99), 0.3 * rescaled(0.99))
    assert figure.interval_at(0.99) == pytest.approx((7 / 3 - wide, 7 / 3 + wide))


def test_figure_without_noise_has_no_interval():
    assert Figure(value=1.0).interval is None
    assert seeds(1.0).interval is None
    assert Figure(value=1.0, samples_half=0.5).interval == (0.5, 1.5)


def test_figure_arithmetic_pairs_seeds():
    difference = seeds(3.0, 5.0) - seeds(2.0, 4.0)
    assert difference.by_seed == {0: 1.0, 1: 1.0}
    assert difference.interval == (1.0, 1.0)
    assert (seeds(3.0, 5.0) + seeds(2.0, 4.0)).by_seed == {0: 5.0, 1: 9.0}
    assert (0.5 * seeds(3.0, 5.0, half=1.0)).samples_half == 0.5
    assert (seeds(3.0, half=0.3) - seeds(1.0, half=0.4)).samples_half == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("one", "other", "missing"),
    [
        (seeds(1.0, 2.0), seeds(1.0), "a figure of training seed 1"),
        (seeds(1.0, 2.0), Figure(value=1.0), "a figure of training seed 0"),
        (Figure(value=1.0), seeds(1.0, 2.0), "a figure of each training seed"),
    ],
)
def test_figure_of_other_seeds_is_no_pair(one, other, missing):
    with pytest.raises(NotMeasured, match=missing):
        one - other


def test_figure_over_samples_keeps_its_interval_as_it_is():
    assert Figure(value=0.1, over_samples=(0.1 / 3, math.inf)).interval == (0.1 / 3, math.inf)
    assert Figure(value=math.inf, over_samples=(-math.inf, math.inf)).interval == (-math.inf, math.inf)


def test_figure_over_samples_widens_on_both_sides():
    figure = Figure(value=0.5, over_samples=(0.4, 0.7))
    assert figure.interval == (0.4, 0.7)
    low, high = figure.interval_at(0.99)
    assert (0.5 - low, high - 0.5) == pytest.approx((0.1 * rescaled(0.99), 0.2 * rescaled(0.99)))
    assert (figure - Figure(value=0.2, over_samples=(0.1, 0.3))).samples_half == pytest.approx(math.hypot(0.15, 0.1))


@pytest.mark.parametrize(
    "figure", [seeds(1.0, 2.0, half=0.1), Figure(value=0.5, over_samples=(0.4, 0.7)), Figure(value=2.0)]
)
def test_figure_stored_and_read_is_the_same(figure):
    stored = to_jsonable(Record(by_name={"a": figure}, one=figure))
    assert stored["one"]["interval"] == (None if figure.interval is None else list(figure.interval))
    assert record_from(Record, stored) == Record(by_name={"a": figure}, one=figure)


def test_figure_of_earlier_records_is_read():
    """As of sequence.json and stages.json of before: seeds as text, and intervals alone."""
    read = record_from(Record, {"one": {"value": 1.5, "interval": [1, 2], "by_seed": {"0": 1.0, "3": 2.0}}})
    assert read.one == Figure(value=1.5, by_seed={0: 1.0, 3: 2.0})
    read = record_from(Record, {"one": {"value": 1.5, "interval": [1, 2]}})
    assert read.one == Figure(value=1.5, over_samples=(1, 2))


def test_measure_shows_shares_within_0_and_1_but_not_their_differences():
    share = Measure(name="acc", unit="acc", share=True)
    figure = Figure(value=0.99, samples_half=0.02)
    assert share.texts(figure) == ("99.0 %", "[97.0, 100.0]")
    assert share.texts(figure, sign=True) == ("+99.0 pt", "[+97.0, +101.0]")
    assert Measure(unit="nats").text(Figure(value=2.0, samples_half=0.5)) == "2.000 nats [1.500, 2.500]"
