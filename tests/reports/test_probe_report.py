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
    assert "Not drawn, because not finite: noise 1 of step2" in cost.caption
    assert [r["y"] for r in changed.rows if r["line"] == "as it is"] == [3.0, 2.0, 1.0]


def test_the_lead_of_a_ladder_and_of_one_model() -> None:
    told = summary(probe())
    assert "from 1 M to 16 M tokens of pre-training: grows: noise 0.1; cannot tell: int4 and 30 % pruned;" in told
    first = [change for change in probe().sensitivities if change.model == "step0"]
    alone = dataclasses.replace(probe(), ladder=False, models=probe().models[:1], sensitivities=first)
    costs = "step0: noise 1 costs 0.1, int4 +0.400 [+0.380, +0.420], up to 30 % pruned"
    assert summary(alone).startswith(f"Cost of each change on prose, in nats/token. {costs}")
    assert summary(alone).endswith("The model's weights are remark: the costs apply to these weights.")


def test_a_size_is_named_by_what_it_costs() -> None:
    """Not by its place among those that were asked for: more of them change nothing."""
    [noise, *_] = (change for change in probe().sensitivities if change.model == "step0" and change.kind == "noise")

    def told(*costs: tuple[float, float]) -> str:
        changes = [dataclasses.replace(noise, size=size, difference=cost, interval=None) for size, cost in costs]
        alone = dataclasses.replace(probe(), ladder=False, models=probe().models[:1], sensitivities=changes)
        return summary(alone).split("step0: ")[1].split(". The model")[0]

    assert told((0.1, 0.0), (0.4, 0.2)) == "noise 0.2 costs 0.1"
    assert told((0.01, 0.0), (0.1, 0.0), (0.4, 0.2), (1.0, 9.0), (2.0, 20.0)) == "noise 0.2 costs 0.1"
    assert told((0.1, 0.01), (0.4, 0.05)) == "up to noise 0.4 +0.0500 no interval"
    assert told((0.1, 0.3), (0.4, 0.9)) == "already noise 0.1 +0.3000 no interval"
    assert summary(ProbeRecord(models=[])) == "Nothing was measured yet."


def test_the_quadratic_passes_through_the_loss_at_zero() -> None:
    [noise, _] = line_charts(probe().sharpness[0], many=False)
    assert [r["y"] for r in noise.rows if r["line"] == "quadratic"] == [3.0, 3.0 + 0.05 + 0.0625, 3.0 + 0.1 + 0.25]


def test_a_probe_that_was_interrupted_at_once_has_a_page() -> None:
    page = probe_page(ProbeRecord(models=[], status="interrupted"))
    assert page.lead == "Nothing was measured yet." and page.title == "How fragile are they?"
