"""Win rates against hand-computed figures, and the length-controlled fit against planted and independently fitted parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from holdfast.errors import DataError
from holdfast.evaluation.judge.win_rate import (
    LABEL,
    PRIOR_SCALE,
    PairResult,
    fit,
    length_controlled,
    pair_result,
    pair_rows,
    win_rate,
)
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


def sigmoid(t):
    return 1 / (1 + np.exp(-np.asarray(t)))


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
    # P(first wins): 0.9, 1 - 0.7; 0.8, 1 - 0.2; 0.6, 1 - 0.0. The candidate shown second wins with candidate_second, so the first with the rest.
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


# ----------------------------------------------------------------------------------------------------- length control


def test_planted_parameters_are_recovered():
    """Exact probabilities give the parameters back but for the prior; right / wrong verdicts within their error."""
    rng = np.random.default_rng(0)
    d = rng.normal(120, 300, 4000)
    x = np.tanh(d / d.std())
    found = length_controlled(sigmoid(-0.4 + 1.5 * x), d, resamples=20)
    assert (found.t0, found.t1) == (pytest.approx(-0.4, abs=2e-3), pytest.approx(1.5, abs=2e-3))
    assert found.value == pytest.approx(sigmoid(-0.4), abs=1e-3)
    assert found.label == LABEL and "not AlpacaEval" in LABEL
    verdicts = (rng.random(4000) < sigmoid(-0.4 + 1.5 * x)).astype(float)
    rough = length_controlled(verdicts, d, resamples=200)
    assert abs(rough.value - sigmoid(-0.4)) < 3 * rough.standard_error < 0.05
    assert rough.interval[0] < sigmoid(-0.4) < rough.interval[1]
    assert verdicts.mean() - rough.value > 0.05, "the raw figure profits from the longer answers"


def test_equal_lengths_give_the_raw_win_rate():
    y = np.array([0.9, 0.3, 0.5, 0.75, 1.0])
    for d in (0.0, 50.0):
        found = length_controlled(y, np.full(5, d))
        assert found.value == y.mean() and found.scale == 0.0 and found.t1 == 0.0
        assert sigmoid(found.t0) == pytest.approx(y.mean(), abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_fit_is_the_maximum(seed):
    """Against a general optimiser, on soft, hard and separable preferences."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 60))
    x = np.tanh(rng.normal(rng.normal(), 1.5, n))
    y = [rng.random(n), (rng.random(n) < 0.8).astype(float), (x > 0.3).astype(float)][seed % 3]
    y[0], y[1] = 0.0, 1.0
    counts = rng.multinomial(n, np.full(n, 1 / n), size=5).astype(float) + np.eye(5, n) + np.eye(5, n, k=1)
    counts[:, :2] += 1

    def loss(t, weights):
        z = t[0] + t[1] * x
        return float(weights @ (np.logaddexp(0, z) - y * z)) + t[1] ** 2 / (2 * PRIOR_SCALE**2)

    for t, weights in zip(fit(x, y, counts), counts, strict=True):
        best = minimize(loss, np.zeros(2), args=(weights,), method="BFGS", options={"gtol": 1e-9})
        assert loss(t, weights) <= best.fun + 1e-9
        assert t == pytest.approx(best.x, abs=1e-4)


def test_length_that_separates_winners_from_losers_stays_finite():
    d = np.array([-300.0, -200, -100, 100, 200, 300])
    found = length_controlled((d > 0).astype(float), d, resamples=300)
    assert found.value == pytest.approx(0.5, abs=1e-9) and 1 < found.t1 < 10
    assert all(0 <= v <= 1 for v in found.interval)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_winning_or_losing_everything(value):
    found = length_controlled(np.full(20, value), np.linspace(-100, 300, 20), resamples=50)
    assert found.value == pytest.approx(value, abs=1e-9)
    assert found.interval == (pytest.approx(value, abs=1e-9), pytest.approx(value, abs=1e-9))


def test_a_figure_is_the_same_each_time():
    rng = np.random.default_rng(2)
    y, d = rng.random(50), rng.normal(0, 100, 50)
    assert length_controlled(y, d) == length_controlled(y, d)
    assert length_controlled(y, d).interval != length_controlled(y, d, seed=1).interval
