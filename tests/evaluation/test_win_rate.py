"""Win rates against hand-computed figures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.errors import DataError
from holdfast.evaluation.judge.win_rate import PairResult, pair_result, pair_rows, win_rate
from holdfast.statistics.estimates import Ratio, estimate


def pair(
    first: float | None,
    second: float | None,
    *,
    status: str = "judged",
    sizes: tuple[int, int] = (10, 10),
    doc: str = "d",
) -> PairResult:
    return PairResult(
        doc=doc,
        status=status,
        candidate_first=first,
        candidate_second=second,
        length_candidate=sizes[0],
        length_reference=sizes[1],
    )


# ----------------------------------------------------------------------------------------------------------------- raw


def test_the_figures_are_those_computed_by_hand():
    pairs = [
        pair(0.9, 0.7, sizes=(10, 20)),  # preference 0.8: a win in both orders
        pair(0.8, 0.2, sizes=(30, 20)),  # 0.5: a tie, the winner changes with the order
        pair(0.6, 0.0, sizes=(10, 40)),  # 0.3: a loss, the winner changes with the order
        pair(None, None, status="identical", sizes=(8, 8)),  # 0.5
        pair(0.9, None, status="refused"),
        pair(None, 0.2, status="failed"),
    ]
    found = win_rate(pairs)
    assert found.value == pytest.approx((0.8 + 0.5 + 0.3 + 0.5) / 4)
    preferences = [0.8, 0.5, 0.3, 0.5]
    assert found.standard_error == pytest.approx(np.std(preferences, ddof=1) / 2)
    assert (found.n, found.wins, found.ties, found.losses) == (4, 1, 2, 1)
    assert (found.identical, found.refused, found.failed) == (1, 1, 1)
    # P(first wins): 0.9, 1 - 0.7; 0.8, 1 - 0.2; 0.6, 1 - 0.0. The candidate shown second wins with candidate_second, so
    # the first with the rest.
    assert found.first_preferred == pytest.approx((0.9 + 0.3 + 0.8 + 0.8 + 0.6 + 1.0) / 6)
    assert found.order_changes == pytest.approx(2 / 3)
    assert (found.mean_length_candidate, found.mean_length_reference) == (58 / 4, 88 / 4)


def test_the_interval_is_the_house_bootstrap():
    rng = np.random.default_rng(1)
    pairs = [pair(p, p) for p in rng.random(40)]
    rows = [{"preference": p.preference} for p in pairs]
    assert (win_rate(pairs).value, win_rate(pairs).interval) == estimate(Ratio(numerator="preference"), rows)
    narrow, wide = (win_rate(pairs, confidence=c).interval for c in (0.5, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_reference_against_itself_has_one_half():
    results = [
        pair_result(doc=str(i), candidate="same", reference="same", candidate_first=None, reference_first=None)
        for i in range(5)
    ]
    found = win_rate(results)
    assert (found.value, found.interval, found.length_controlled.value) == (0.5, (0.5, 0.5), 0.5)
    assert (found.ties, found.identical, found.first_preferred, found.order_changes) == (5, 5, None, None)


def test_swapping_the_models_mirrors_every_figure():
    rng = np.random.default_rng(3)
    a, b, sizes = rng.random(30), rng.random(30), rng.integers(1, 900, (30, 2))
    there = win_rate([pair(x, y, sizes=(int(s), int(t))) for x, y, (s, t) in zip(a, b, sizes, strict=True)])
    back = win_rate([pair(1 - y, 1 - x, sizes=(int(t), int(s))) for x, y, (s, t) in zip(a, b, sizes, strict=True)])
    assert back.value == pytest.approx(1 - there.value)
    assert back.length_controlled.value == pytest.approx(1 - there.length_controlled.value)
    assert back.first_preferred == pytest.approx(there.first_preferred)
    assert (back.wins, back.losses) == (there.losses, there.wins)


def test_one_pair_has_a_value_and_no_interval():
    found = win_rate([pair(0.9, 0.7)])
    assert found.value == pytest.approx(0.8) and found.interval is None and math.isnan(found.standard_error)
    assert found.length_controlled.interval is None


def test_a_pair_counts_only_with_both_orders():
    judged, refused = {"outcome": "judged", "p_first": 0.75}, {"outcome": "refused", "p_first": None}
    make = lambda one, other: pair_result(
        doc="d", candidate="long", reference="s", candidate_first=one, reference_first=other
    )
    both = make(judged, judged)
    assert (both.candidate_first, both.candidate_second, both.preference) == (0.75, 0.25, 0.5)
    assert (both.length_candidate, both.length_reference) == (4, 1)
    assert [make(judged, refused).status, make(refused, {"outcome": "failed"}).status, make(None, judged).status] == [
        "refused",
        "failed",
        "failed",
    ]
    assert [make(judged, refused).preference, make(None, judged).preference] == [None, None]
    assert [row["doc"] for row in pair_rows([both, make(judged, refused)])] == ["d"]


def test_no_pair_is_an_error_that_counts():
    with pytest.raises(DataError, match=r"none of 3 \(2 refused, 1 failed\)"):
        win_rate([pair(None, None, status="refused")] * 2 + [pair(None, None, status="failed")])


def test_what_qualifies_the_figures_is_noted():
    assert win_rate([pair(0.8, 0.4)] * 9).notes == []
    notes = win_rate([pair(1.0, 0.0)] * 6 + [pair(None, None, status="refused")] * 4).notes
    assert len(notes) == 2 and "4 of 10 pairs" in notes[0] and "position" in notes[1]
