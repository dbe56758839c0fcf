"""The page of a probe: costs are signed, overflows are named, a ladder's verdicts lead."""

from __future__ import annotations

import dataclasses

from holdfast.records.probe import ProbeRecord
from holdfast.reports.probe_report import (
    ladder_charts,
    line_charts,
    probe_page,
    summary,
)
from recorded import probe


def test_what_overflows_is_not_drawn_and_said() -> None:
    changed, cost = ladder_charts(probe())
    assert {r["line"] for r in cost.rows if r["x"] == 16e6} == {
        "noise 0.01",
        "noise 0.1",
        "int4",
        "30 % pruned",
        "all the way to step",
    }
    assert "Not finite, so not drawn: noise 1 of step2" in cost.caption
    assert [r["y"] for r in changed.rows if r["line"] == "as it is"] == [3.0, 2.0, 1.0]


def test_the_lead_of_a_ladder_and_of_one_model() -> None:
    told = summary(probe())
    assert "from 1 M to 16 M tokens of pre-training: grows: noise 0.1; cannot tell: int4 and 30 % pruned;" in told
    first = [change for change in probe().sensitivities if change.model == "step0"]
    alone = dataclasses.replace(probe(), ladder=False, models=probe().models[:1], sensitivities=first)
    assert summary(alone).startswith(
        "What it costs on prose, in nats/token. step0: noise 0.1 +0.010 [−0.010, +0.030], int4"
    )
    assert summary(ProbeRecord(models=[])) == "Nothing was measured yet."


def test_the_quadratic_passes_through_the_loss_at_zero() -> None:
    [noise, _] = line_charts(probe().sharpness[0], many=False)
    assert [r["y"] for r in noise.rows if r["line"] == "quadratic"] == [3.0, 3.0 + 0.05 + 0.0625, 3.0 + 0.1 + 0.25]


def test_a_probe_that_was_interrupted_at_once_has_a_page() -> None:
    page = probe_page(ProbeRecord(models=[], status="interrupted"))
    assert page.lead == "Nothing was measured yet." and page.title == "How fragile are they?"
