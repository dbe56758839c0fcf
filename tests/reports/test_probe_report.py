"""The page of a probe: costs are signed, overflows are named, a ladder's verdicts lead."""

from __future__ import annotations

import dataclasses

from synthetic_probes import probe

from holdfast.records.probe import ProbeRecord
from holdfast.reports.blocks import words
from holdfast.reports.probe_report import (
    cost_tables,
    ladder_charts,
    lead,
    line_charts,
    probe_page,
    trend_table,
    turn_tables,
)
from holdfast.support.files import to_jsonable


def test_a_loss_is_positive_whichever_way_a_figure_points() -> None:
    prose, arc = cost_tables(probe())
    assert "nats/token (lower figures are better)" in words(prose.title) and "accuracy (higher" in words(arc.title)
    for table in (prose, arc):
        by_change = {words(row[0]): [words(cell, below=" ") for cell in row[1:]] for row in table.rows}
        assert by_change["noise 0.1"] == [
            "+0.010 [−0.010, +0.030]",
            "+0.020 [0.000, +0.040]",
            "+0.030 [+0.010, +0.050]",
        ]
        assert by_change["noise 1"][-1] == "∞ not finite with 1 of 3 seeds"
    assert words(prose.columns[1].title) == "step0 (1 M tokens)"


def test_what_overflows_is_not_drawn_and_said() -> None:
    changed, cost = ladder_charts(probe())
    assert {r["change"] for r in cost.rows if r["x"] == 16e6} == {
        "noise 0.01",
        "noise 0.1",
        "int4",
        "30 % pruned",
        "all the way to step",
    }
    assert "Not finite, so not drawn: noise 1 of step2" in cost.caption
    assert [r["y"] for r in changed.rows if r["change"] == "as it is"] == [3.0, 2.0, 1.0]


def test_the_lead_of_a_ladder_and_of_one_model() -> None:
    told = lead(probe())
    assert "from 1 M to 16 M tokens of pre-training: grows: noise 0.1; cannot tell: int4 and 30 % pruned;" in told
    alone = lead(probe(ladder=False))
    assert alone.startswith("What it costs on prose, in nats/token. step0: noise 0.1 +0.010 [−0.010, +0.030], int4")
    assert lead(ProbeRecord(models=[])) == "Nothing was measured yet."


def test_trends_have_their_verdicts() -> None:
    assert [words(row[-1]) for row in trend_table(probe()).rows] == ["grows", "cannot tell", "cannot tell"]


def test_where_the_ladder_turns() -> None:
    [_, table] = turn_tables(probe())
    rows = [[words(cell) for cell in row] for row in table.rows]
    assert rows[0][0] == "as it is" and rows[0][-1] == "still helps it"
    assert rows[1][0] == "noise 0.1" and rows[1][1].startswith("4 M") and rows[1][-1] == "harms it from there on"
    assert rows[2][2] == "∞" and rows[3][-1] == "cannot tell"
    assert "more pre-training harms the model under noise 0.1 beyond 4 M and noise 1 beyond 4 M." in lead(probe())


def test_the_quadratic_passes_through_the_loss_at_zero() -> None:
    [noise, _] = line_charts(probe().sharpness[0], many=False)
    assert [r["quadratic"] for r in noise.rows] == [3.0, 3.0 + 0.05 + 0.0625, 3.0 + 0.1 + 0.25]


def test_a_record_reads_back_from_json() -> None:
    record = probe()
    assert ProbeRecord.from_json(to_jsonable(record)) == record
    assert probe_page(dataclasses.replace(record, status="interrupted")).status == ("interrupted", "warn")


def test_a_probe_that_was_interrupted_at_once_has_a_page() -> None:
    page = probe_page(ProbeRecord(models=[], status="interrupted"))
    assert page.lead == "Nothing was measured yet." and page.title == "How fragile are they?"
