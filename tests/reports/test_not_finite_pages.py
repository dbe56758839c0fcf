"""Pages and sentences of figures that are NaN or infinite: said, never "not shown", never drawn as a figure."""

from __future__ import annotations

import math

import pytest
from synthetic_runs import SOURCE_NOISE, comparison, shown

from holdfast.papers.claims.rules import FAILS, HOLDS, UNKNOWN, ClaimFigure, above, below, side_of_bound
from holdfast.records.comparison import Comparison
from holdfast.records.metrics import is_share
from holdfast.reports.compared import ComparisonRow, gains, headline, suite_tile
from holdfast.reports.format import tally
from holdfast.reports.html import render
from holdfast.reports.run_figures import read_run
from holdfast.reports.run_report import print_run_summary, run_page

NAN, INF = math.nan, math.inf
BROKEN = {"after": NAN, "difference": NAN, "interval": (NAN, NAN), "p_value": NAN}
HIDDEN = {**BROKEN, "after": 0.25, "failed": "after: 3 of 40 samples hold NaN or infinity (the first is row 2)."}
"""An accuracy of NaN log-likelihoods."""


def broken(**changes: object) -> Comparison:
    return comparison(**{**BROKEN, **changes})


def test_a_sentence_never_takes_it_for_noise():
    one, two = broken(), broken(**{**SOURCE_NOISE, **HIDDEN, "flips_lost": None, "flips_gained": None})
    for found in (
        headline([one]),
        headline([one, comparison(), two]),
        tally([one.verdict, "lost"]),
    ):
        assert "not finite" in found, found
        assert "noise" not in found and "did not change" not in found, found
    for suite in ("learn", "keep"):
        tile = suite_tile([ComparisonRow(broken(suite=suite)), ComparisonRow(comparison(suite=suite))])
        assert tile.tone == "bad" and "1 not finite" in tile.below


def test_nothing_is_drawn_of_it():
    rows = [ComparisonRow(broken(**{**SOURCE_NOISE, **HIDDEN})), ComparisonRow(comparison())]
    [chart] = gains(rows)[1:] or gains(rows)
    assert len(chart.rows) == 1
    assert gains([rows[0]]) == []
    [forest] = gains([ComparisonRow(broken()), rows[1]])
    assert forest.caption.endswith("Not drawn, because the difference is not a number: learn/answers nats_per_token.")


@pytest.mark.parametrize("changes", [BROKEN, HIDDEN], ids=["nan", "hidden"])
def test_a_run_says_so_on_its_page_and_in_the_terminal(changes, make_run):
    folder = make_run(comparisons=[comparison(), comparison(**{**SOURCE_NOISE, **changes, "flips_lost": None})])
    page = render(run_page(read_run(folder)))
    assert "NaN or infinity: these comparisons are invalid." in page and "keep/arc_easy: " in page
    text = shown(lambda out: print_run_summary(folder, out))
    assert "not finite" in text and "not shown" not in text


def test_shares_are_told_by_the_figures_that_are_there():
    for value in (NAN, INF, -INF):
        assert is_share("accuracy", values=[0.5, value])
    assert not is_share("accuracy", values=[1.5, NAN])


def test_no_claim_rests_on_it():
    """Everything is below infinity, and a claim would hold by it."""
    for interval in ((INF, INF), (NAN, NAN), (0.5, INF), (-INF, 0.1), None):
        assert side_of_bound(interval, 0.2) == UNKNOWN
    assert (side_of_bound((0.3, 0.4), 0.2), side_of_bound((0.1, 0.15), 0.2)) == (HOLDS, FAILS)
    for value, interval in ((INF, (INF, INF)), (NAN, (NAN, NAN)), (NAN, (0.5, 0.6))):
        figure = ClaimFigure(what="the gain", value=value, interval=interval, n="1", unit="nats")
        for judge in (above, below):
            part = judge(figure, 0.2, yes="it gains", no="it does not gain")
            assert (part.verdict, part.reason) == (UNKNOWN, "the gain is not finite")
