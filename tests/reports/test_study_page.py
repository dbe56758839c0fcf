"""The frame of studies' pages: one form of a figure, one tone of a state, and charts of lines and points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from holdfast.records.figure import Figure
from holdfast.records.measure import Measure
from holdfast.reports import blocks
from holdfast.reports.blocks import Page, plain_text
from holdfast.reports.charts import Axis, Value
from holdfast.reports.study_page import (
    cell,
    grid,
    lines,
    measure_axis,
    print_study,
    scatter,
    section,
    steps_axis,
    study_page,
)

SHARE = Measure(name="answers", share=True)
LOSS = Measure(name="loss", unit="nats", higher_is_better=False)
HALF = Figure(value=0.5, over_samples=(0.4, 0.6))


@dataclass
class Job:
    label: str
    state: str = "complete"
    reason: str | None = None
    tokens: int = 0
    seconds: float = 0.0


@dataclass
class Record:
    name: str = "toy"
    status: str = "running"
    created: str = "2026-01-02"
    finished: str | None = None
    notes: list[str] = field(default_factory=lambda: ["One seed."])
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=lambda: {"torch": "2.9"})
    hardware: dict[str, Any] = field(default_factory=lambda: {"cpu": "toy"})


def page(**parts: Any) -> Page:
    return study_page(Record(), "study", "It learns.", [section("Scores", None)], reading=["Read."], **parts)


def test_a_figure_reads_the_same_in_a_table_and_in_a_chart() -> None:
    assert plain_text(cell(SHARE, HALF)) == "50.0 %\n[40.0, 60.0]"
    assert plain_text(cell(LOSS, HALF, sign=True)) == "+0.500 nats\n[+0.400, +0.600]"
    assert (cell(LOSS, None), cell(LOSS, None, missing="–")) == ("", "–")
    drawn = Value.of(HALF, SHARE)
    assert (drawn.value, drawn.low, drawn.high) == pytest.approx((50, 40, 60))
    assert (drawn.text, drawn.interval) == ("50.0 %", "[40.0, 60.0]")
    ratio = Measure(share=True, bounded=False)
    assert plain_text(cell(ratio, Figure(value=0.9, over_samples=(0.6, 1.2)))) == "90.0 %\n[60.0, 120.0]"
    assert plain_text(cell(SHARE, Figure(value=0.9, over_samples=(0.6, 1.2)))) == "90.0 %\n[60.0, 100.0]"
    assert (Value.of(Figure(value=2.0), LOSS).low, Value.of(Figure(value=2.0), LOSS).high) == (None, None)


def test_an_axis_of_a_loss_runs_downwards() -> None:
    assert measure_axis(LOSS).more == {"autorange": "reversed"} and not measure_axis(SHARE).more
    assert (measure_axis(LOSS).title, measure_axis(LOSS, "kept").title) == ("loss (nats, lower is better)", "kept")
    assert steps_axis("epoch", ["one", "two"], first=1).range == (0.5, 2.5)


def test_lines_have_a_mark_each_and_levels_go_across() -> None:
    rows = [{"line": name, "x": x, "y": Value.of(Figure(value=x), LOSS), "size": "S"} for name in "ab" for x in (1, 2)]
    axis = steps_axis("step", ["1", "2"], first=1)
    levels = {"base": Value.of(HALF, SHARE)}
    chart = lines("Loss", rows, axis, Axis(), columns={"line": "Arm", "y": "Loss"}, levels=levels, caption="Bars.")
    assert chart is not None and chart.caption == "Bars. Base: 50.0 %."
    assert [(m.name, m.kind) for m in chart.marks] == [("base", "curves"), ("a", "line"), ("b", "line")]
    assert [c.numeric for c in chart.columns] == [False, True] and len(chart.table.rows) == 4
    points = scatter("Loss", rows, axis, Axis(), columns={"line": "Arm"})
    assert points is not None and {m.kind for m in points.marks} == {"points"}
    assert lines("Loss", [], axis, Axis(), columns={}) is None


def test_a_page_names_what_failed_and_what_it_took() -> None:
    jobs = [Job("base", seconds=60.0), Job("tuned", "failed", "no memory", seconds=5.0)]
    made = page(jobs=jobs, details=["two jobs"], facts=[("Seeds", "0"), ("Empty", "")])
    assert (made.status, made.details, made.lead) == (("running", "warn"), "two jobs · 2026-01-02", "It learns.")
    banner, notes, reading, about = [x for x in made.blocks if x is not None]
    assert plain_text(banner.content) == "1 job failed." and list(banner.items) == ["tuned: no memory"]
    assert [s.title for s in (notes, reading, about)] == ["Notes", "How to read this page", "The study"]
    facts = dict(about.blocks[0].blocks[0].items)
    assert facts == {"Begun": "2026-01-02", "Computing": "1 min 5 s", "Seeds": "0", "cpu": "toy", "torch": "2.9"}
    assert not any(isinstance(x, blocks.Banner) for x in page().blocks)


def test_the_terminal_has_the_answer_the_notes_and_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    print_study(Record(), "It learns.", [grid([{"a": "x"}], {"A": "a"})], "runs/toy", Console(width=100))
    lines_ = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines_ == ["toy (running)", "It learns.", "A", "x", "Note: One seed.", "Page: runs/toy/report.html"]
