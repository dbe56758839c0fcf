"""The page of a study: the paper's layout, its figures beside ours, the two charts, what is missing."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from pathlib import Path

import pytest

import synthetic_residuals as make
from holdfast.papers.residual.page import (
    Column,
    StudyResults,
    compute_charts,
    figures_table,
    over_seeds,
    token_charts,
    write_study_report,
)
from holdfast.records.residual import ModelPair, ResidualRecord
from holdfast.reports.blocks import plain_text
from holdfast.reports.charts import plotly_figure
from holdfast.reports.update_report import ResultRow
from holdfast.support.quantiles import t_quantile


@pytest.fixture
def studied(tmp_path: Path) -> ResidualRecord:
    return make.study(tmp_path)


def page_text(folder: Path, record: ResidualRecord) -> str:
    return make.text_of(write_study_report(folder, record))


def headers(columns: list[Column]) -> list[list[str]]:
    blocks = dict.fromkeys(c.block for c in columns)
    return [[c.header for c in columns if c.block == block] for block in blocks]


def row(results: StudyResults, title: str) -> ResultRow:
    return next(r for r in results.rows if r.title == title)


def printed(results: StudyResults, columns: list[Column], title: str) -> list[float | None]:
    return [c.printed(row(results, title)) for c in columns]


def test_a_study_leads_with_its_pairs(tmp_path, studied) -> None:
    bring, instruct = "What does another family's residual change in the base?", "Is it as good as the instruct model?"
    gained, lost = (make.compared("ifeval", 0.3, after, suite="learn") for after in (0.5, 0.1))
    besides = dataclasses.replace(lost, metric="inst_level_loose_acc", primary=False)
    mean = dataclasses.replace(gained, suite="average", name="average")
    pairs = [
        ModelPair(before="l3-base", after="l3-base-31", question=bring, comparisons=[gained, besides, mean]),
        ModelPair(before="l31-base", after="l31-base-3", question=bring, comparisons=[gained, lost]),
        ModelPair(before="l3-instruct", after="l3-base-31", question=instruct, comparisons=[lost]),
    ]
    record = make.with_state(dataclasses.replace(studied, pairs=pairs), "l31-base-3", state="waiting")
    text = page_text(tmp_path, record)
    answer = f"{bring} 3 paired comparisons: 1 lost, 2 gained. {instruct} 1 paired comparison: 1 lost."
    assert f"17 of 18 models are complete. {answer}" in text and "Llama 3 base → Llama 3 base + 3.1 residual" in text
    without = page_text(tmp_path, dataclasses.replace(studied, pairs=[]))
    assert "The study is finished, and models were measured but not compared." in without


def test_the_papers_layout_has_its_rows_and_figures_in_its_order(tmp_path, studied) -> None:
    r = StudyResults(tmp_path, studied)
    continued, siblings, derived = r.tables.values()
    assert [m.title for m in r.rows] == [
        *["IFEval"] * 4,
        "MMLU",
        "MMLU-Pro",
        "GSM8K",
        "GSM8K",
        "Sub-average 1",
        "WinoGrande",
        "HellaSwag",
        "HellaSwag",
        "ARC-easy",
        "ARC-easy",
        "PIQA",
        "PIQA",
        "Sub-average 2",
        "TruthfulQA mc2",
        "Average",
    ]
    budgets = ["+100 M", "+500 M", "+1 B"]
    assert headers(continued) == [["original", *budgets], ["original", *budgets], budgets]
    assert headers(siblings) == [["base", "instruct", f"+ {name} residual"] for name in ("llama-3.1", "llama-3")]
    assert headers(derived) == [["original", "+ llama-3 residual", "+ llama-3.1 residual"]]
    assert printed(r, continued, "Average") == [
        51.64,
        50.93,
        51.20,
        51.41,
        62.94,
        60.28,
        59.36,
        58.00,
        63.07,
        63.34,
        63.12,
    ]
    assert printed(r, siblings, "Average") == [51.64, 62.94, 64.25, 51.57, 64.42, 62.01]
    assert printed(r, derived, "Average") == [57.47, 62.14, 63.80]
    assert printed(r, derived, "Sub-average 1") == [None] * 3, "table 4 prints none"
    first = r.rows[0]
    assert all(abs(100 * c.metric(first).value - c.printed(first)) <= 1.0001 for c in continued)
    text = page_text(tmp_path, studied)
    assert "paper 63.34" in text and "Table 3 prints 65.48 as sub-average 2" in text
    assert "At 1.5B the paper's own gain is small" not in text


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("l3-base-500M-residual", {"scale": 0.8}),
        ("l3-base-500M-residual", {"budget": 600_000_000, "tokens": 600_000_000}),
        ("l3-base", {"path": "models/my-own-base"}),
    ],
)
def test_a_model_made_otherwise_has_no_figures_of_the_paper(tmp_path, studied, name, changes) -> None:
    r = StudyResults(tmp_path, make.with_state(studied, name, **changes))
    assert {c.paper for columns in r.tables.values() for c in columns if c.model.name == name} == {None}


def test_a_part_of_the_suite_leaves_cells_empty_and_forms_no_average(tmp_path, studied) -> None:
    for file in tmp_path.glob("evaluations/*/*"):
        if not re.search(r"\.(ifeval|mmlu|piqa)\.", file.name):
            file.unlink()
    r = StudyResults(tmp_path, studied)
    assert len(r.rows) == 19 and len(row(r, "MMLU").values) == len(studied.models) and row(r, "Average").values == {}
    assert "An empty cell was not measured." in page_text(tmp_path, studied)


def test_what_was_measured_besides_follows_the_papers_rows(tmp_path, studied) -> None:
    news = make.evaluation("learn", "held_out_news", {"nats_per_token": make.nats(2.2)}, kind="perplexity")
    make.write_evaluation(tmp_path / "evaluations" / "l3-base", news)
    r = StudyResults(tmp_path, studied)
    assert r.rows[-1].title == "held_out_news" and set(r.rows[-1].values) == {"l3-base"}
    assert r.drawn_scores[-1].score == "held out news"


def test_without_the_papers_suite_a_row_is_a_metric_of_an_entry(tmp_path, studied) -> None:
    for file in tmp_path.glob("evaluations/*/*"):
        file.unlink()
    for name, following in (("l3-base", 0.02), ("l3-instruct", 0.8), ("l3-base-31", 0.7)):
        figures = {**make.WORLD, "following": following}
        make.write_world(tmp_path / "evaluations" / name, **figures)
        both = {key: make.share(0.5, 200) for key in ("exact_match,flexible-extract", "exact_match,strict-match")}
        make.write_evaluation(tmp_path / "evaluations" / name, make.evaluation("problems", "word_problems", both))
    r = StudyResults(tmp_path, studied)
    both_lead = [s.score for s in r.drawn_scores if s.name == "word_problems"]
    assert both_lead == ["problems: word problems, flexible-extract", "problems: word problems, strict-match"]
    table = figures_table(r.tables["Residuals of siblings"], [row(r, "instructions")], paper=False)
    assert [plain_text(cell).split("\n")[0] for cell in table.rows[0][1:4]] == ["2.0 %", "80.0 %", "70.0 %"]


def test_seeds_are_one_column_with_the_interval_of_both(tmp_path) -> None:
    record = make.study(tmp_path, seeds=(0, 1, 2))
    r = StudyResults(tmp_path, record)
    columns = next(iter(r.tables.values()))
    assert [len(c.members) for c in columns] == [1, 3, 3, 3, 1, *[3] * 6]
    first, column = r.rows[0], columns[1]
    metrics = [first.values[m.name] for m in column.members]
    samples = statistics.fmean((m.interval[1] - m.interval[0]) / 2 for m in metrics)
    half = math.hypot(samples, t_quantile(2, 0.975) * statistics.stdev(m.value for m in metrics) / 3**0.5)
    mean = column.metric(first)
    assert mean.value == pytest.approx(statistics.fmean(m.value for m in metrics))
    assert mean.interval == pytest.approx((mean.value - half, mean.value + half))
    assert "+100 M 3 seeds" in page_text(tmp_path, record)
    assert over_seeds(metrics[:1]) is metrics[0] and over_seeds([]) is None
    assert over_seeds([metrics[0], dataclasses.replace(metrics[1], interval=None)]).interval is None


def test_worlds_are_told_by_their_width(tmp_path, studied) -> None:
    models = [dataclasses.replace(m, width=64 if m.start == "instruct" else 128) for m in studied.models]
    r = StudyResults(tmp_path, dataclasses.replace(studied, models=models))
    assert {c.model.start for columns in r.tables.values() for c in columns} == {"base", "derived"}


def test_figure_1_has_a_panel_a_group_with_three_lines(tmp_path, studied) -> None:
    charts = token_charts(StudyResults(tmp_path, studied))
    assert [c.title for c in charts] == ["Instruction following", "Reasoning", "Truthfulness", "Average"]
    lines = [t for t in plotly_figure(charts[0])["data"] if t["mode"] == "lines+markers"]
    assert [(t["name"], len(t["x"])) for t in lines] == [("Base", 4), ("Instruct", 4), ("Base + residual", 3)]
    xs = lines[1]["x"]
    assert [round(x - xs[0], 2) for x in xs] == [0.0, 1.0, 1.7, 2.0], "0, then logarithmic"
    assert plotly_figure(charts[0])["layout"]["xaxis"]["ticktext"] == ["original", "100 M", "500 M", "1 B"]
    paper = next(t for t in plotly_figure(charts[3])["data"] if t["name"] == "paper")
    assert paper["y"][:4] == [51.64, 50.93, 51.20, 51.41]
    scaled = make.with_state(studied, "l3-base-500M-residual", scale=0.8)
    [residual] = [
        t
        for t in plotly_figure(token_charts(StudyResults(tmp_path, scaled))[0])["data"]
        if t["name"] == lines[2]["name"]
    ]
    assert len(residual["x"]) == 2, "scale 1 alone"


def repeated(record: ResidualRecord, epochs: int) -> ResidualRecord:
    """The study as if every token had been read several times."""
    models = []
    for m in record.models:
        read = epochs * m.tokens
        models.append(dataclasses.replace(m, tokens=read, parameters=8 * 10**9, flops=6.0 * 8e9 * max(0, read)))
    return dataclasses.replace(record, models=models, config={**record.config, "epochs": epochs})


def test_a_repeated_token_is_no_new_one_and_counts_in_compute(tmp_path, studied) -> None:
    """Five epochs of 100M tokens stand at 100 M beside the paper's points, and at five times the compute."""
    once, five = (StudyResults(tmp_path, repeated(studied, epochs)) for epochs in (1, 5))
    for results in (once, five):
        axis = plotly_figure(token_charts(results)[0])["layout"]["xaxis"]
        assert axis["ticktext"] == ["original", "100 M", "500 M", "1 B"]
    [mmlu] = compute_charts(five)
    axis = plotly_figure(mmlu)["layout"]["xaxis"]
    assert mmlu.title == "MMLU" and axis["ticktext"] == ["original", "2.4e19 FLOPs", "1.2e20 FLOPs", "2.4e20 FLOPs"]
    assert plotly_figure(compute_charts(once)[0])["layout"]["xaxis"]["ticktext"][1] == "4.8e18 FLOPs"
    assert "read 5 times" in page_text(tmp_path, repeated(studied, 5))
    whole = [dataclasses.replace(m, budget=None) for m in repeated(studied, 5).models]
    counted = StudyResults(tmp_path, dataclasses.replace(repeated(studied, 5), models=whole))
    assert {c.tokens for c in counted.columns(2)} == {0, *(m.tokens for m in studied.models if m.continued)}


def test_what_is_missing_is_named(tmp_path, studied) -> None:
    record = make.with_state(studied, "l3-base-500M", state="failed", reason="CUDA out of memory", evaluations="")
    record = make.with_state(record, "l3-instruct-1000M", state="running", evaluations="", tokens=-1, budget=None)
    headers_of = [c.header for columns in StudyResults(tmp_path, record).tables.values() for c in columns]
    assert "+ new text" in headers_of, "not counted yet, and no original"
    assert "16 of 18 models are complete" in page_text(tmp_path, record)
    nothing = page_text(tmp_path, ResidualRecord(name="u", kind="study", status="running", created="", config={}))
    assert "The study is running, and nothing was measured yet." in nothing
    small = dataclasses.replace(studied, models=[dataclasses.replace(m, parameters=10**9) for m in studied.models])
    assert "At 1.5B the paper's own gain is small" in page_text(tmp_path, small)
