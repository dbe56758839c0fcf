"""Shares of a gain: Fieller's interval against its definition, and how often it covers the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.records.figure import Figure
from holdfast.statistics.shares import fieller, share_over_seeds, shares
from reports.synthetic_studies import points_study


def test_shares_of_direct():
    study = points_study([[(0.5, -0.4), (0.52, -0.38)], [(0.4, -0.1), (0.42, -0.12)]], halves=0.01, direct=0)
    kept, avoided = shares(study.trials[1], study)
    assert kept.value == pytest.approx(0.41 / 0.51)
    assert avoided.value == pytest.approx(1 - 0.11 / 0.39)
    for share in (kept, avoided):
        assert share.reason is None
        assert share.interval[0] < share.value < share.interval[1]
    itself = shares(study.trials[0], study)[0]
    assert (itself.value, itself.reason) == (None, "the trial is direct fine-tuning, which all shares are relative to")


def test_fieller_s_set_is_where_the_difference_cannot_be_told_from_zero():
    """An end of the interval is a ratio r for which a - r b is just not told from zero by the same seeds and
    samples."""
    ours, theirs = np.array([0.40, 0.46, 0.41]), np.array([0.50, 0.55, 0.54])
    study = points_study([[(g, -0.1) for g in theirs], [(g, -0.1) for g in ours]], halves=0.02, direct=0)
    turned = points_study([[(0.5, -g) for g in theirs], [(0.5, -g) for g in ours]], halves=0.02, direct=0)
    avoided = shares(turned.trials[1], turned)[1]
    interval = shares(study.trials[1], study)[0].interval
    assert avoided.interval == pytest.approx((1 - interval[1], 1 - interval[0]))  # the same losses as those gains
    for r in interval:
        d = ours - r * theirs
        half = math.hypot(4.302652729749464 * d.std(ddof=1) / math.sqrt(3), 0.02 * math.sqrt(1 + r * r))
        assert abs(d.mean()) == pytest.approx(half, rel=1e-6)


def test_no_share_where_direct_did_nothing_and_no_interval_where_that_is_open():
    study = points_study([[(-0.1, 0.2), (-0.12, 0.1)], [(0.4, 0.1), (0.4, 0.2)]], halves=0.01, direct=0)
    kept, avoided = shares(study.trials[1], study)
    assert (kept.value, kept.reason) == (None, "direct fine-tuning gained nothing on learn")
    assert (avoided.value, avoided.reason) == (None, "direct fine-tuning lost nothing on keep")
    noisy = points_study([[(0.9, -0.1), (0.01, -0.1)], [(0.4, -0.1), (0.3, -0.1)]], halves=0.01, direct=0)
    kept, _ = shares(noisy.trials[1], noisy)
    assert kept.value == pytest.approx(0.35 / 0.455)
    assert (kept.interval, kept.reason) == (
        None,
        "direct fine-tuning's own gain is not significantly different from zero",
    )
    assert kept.open and kept.taken_from(1.0).open
    without = points_study([[(0.5, -0.1)], [(0.4, -0.1)]])
    assert shares(without.trials[1], without)[0].reason == "direct fine-tuning is not finished"


@pytest.mark.parametrize(
    ("a", "b", "v"), [(0.3, 0.5, (0.01, 0.004, 0.02)), (-0.2, -0.9, (0.3, 0.0, 0.1)), (0.0, 1.0, (0, 0, 0))]
)
def test_fieller_s_ends_solve_its_equation(a, b, v):
    aa, ab, bb = v
    found = fieller(a, b, v_aa=aa, v_ab=ab, v_bb=bb)
    assert found[0] <= a / b <= found[1]
    for r in found:
        assert (a - r * b) ** 2 == pytest.approx(aa - 2 * r * ab + r * r * bb, rel=1e-9, abs=1e-15)
    assert fieller(a, b, v_aa=aa, v_ab=ab, v_bb=b * b) is None
    for wrong in (math.nan, math.inf):
        for given in ((wrong, b, aa, ab, bb), (a, wrong, aa, ab, bb), (a, b, wrong, ab, bb), (a, b, aa, ab, wrong)):
            assert fieller(*given[:2], **dict(zip(("v_aa", "v_ab", "v_bb"), given[2:], strict=True))) is None


def test_another_level_widens_seeds_and_samples():
    ours = Figure(value=0.4, by_seed={0: 0.39, 1: 0.41}, samples_half=0.01)
    direct = Figure(value=0.9, by_seed={0: 0.9, 1: 0.9}, samples_half=0.02)
    narrow, wide = (share_over_seeds(ours, direct, confidence=c).interval for c in (0.95, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
