"""The page and the terminal of an update and of a residual study: the answer, the paper's layout, what is missing,
plots of what was measured. What every page has to satisfy is in `test_every_page`."""

from __future__ import annotations

import dataclasses
import io
import math
import re
import statistics
from pathlib import Path

import pytest
import synthetic_residuals as make
from rich.console import Console

from holdfast.records.comparison import Comparison
from holdfast.records.residual import ModelPair, ResidualRecord, ScaleChoice, StudiedModel
from holdfast.reports.blocks import words as text_of
from holdfast.reports.charts import Chart, plotly_figure
from holdfast.reports.residual_charts import (
    added_charts,
    carried_charts,
    compute_charts,
    kept_charts,
    scale_chart,
    token_charts,
    width_charts,
)
from holdfast.reports.residual_report import clause, figures_table, marks_of, print_update, write_residual_report
from holdfast.reports.residual_table import FigureTable, Measure, Results, over_seeds, role_of
from holdfast.statistics.intervals import t_quantile


@pytest.fixture
def updated(tmp_path: Path) -> ResidualRecord:
    return make.update(tmp_path)


@pytest.fixture
def studied(tmp_path: Path) -> ResidualRecord:
    return make.study(tmp_path)


def page_text(folder: Path, record: ResidualRecord) -> str:
    """The page's text without scripts, styles and tags."""
    html = write_residual_report(folder, record).read_text(encoding="utf-8")
    html = re.sub(r"<(script|style).*?</\1>", " ", html, flags=re.S)
    text = re.sub(r"<[^>]+>", " ", html)
    for code, mark in (("&lt;", "<"), ("&gt;", ">"), ("&#x27;", "'"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(code, mark)
    return re.sub(r"\s+", " ", text.replace("\u200b", ""))


def terminal_text(record: ResidualRecord, folder: Path, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    print_update(record, folder, Console(width=80, file=file, force_terminal=True, color_system=None))
    return raw.getvalue().decode(encoding)


def without(record: ResidualRecord, name: str) -> ResidualRecord:
    models = [m for m in record.models if m.name != name]
    return dataclasses.replace(record, models=models, pairs=[p for p in record.pairs if p.before != name])


def headers(table: FigureTable) -> list[list[str]]:
    return [[g.header for g in block.groups] for block in table.blocks]


def row(results: Results, title: str) -> Measure:
    return next(r for r in results.rows if r.title == title)


def printed(results: Results, table: FigureTable, title: str) -> list[float | None]:
    return [row(results, title).printed(g.paper) for g in table.groups]


# -------------------------------------------------------------------------------------------------------------- answer


def test_the_lead_says_what_was_gained_and_what_was_kept(tmp_path, updated) -> None:
    first = (
        "Against the instruct model: on new text it gained on 2 of 2 measures; on instruction following it shows no "
        "change (91.0 → 90.0 %; −1.0 pt [−5.0, +3.0]); elsewhere it lost on 1 and shows no "
        "change on 1 of 2 measures."
    )
    second = (
        " Against the instruct model continued on the same text: on instruction following it gained (34.0 → 90.0 %; "
        "+56.0 pt [+52.0, +60.0]); on new text it lost on 1 and shows no change on 1 of 2 measures."
    )
    text = page_text(tmp_path, updated)
    assert first + second in text
    for pair in updated.pairs:
        assert pair.question in text
    without_arm = page_text(tmp_path, without(updated, "instruct-new"))
    assert first in without_arm and "model continued on the same" not in without_arm


def test_a_study_that_continued_no_model_leads_with_its_pairs(tmp_path, studied) -> None:
    bring, instruct = "What does a sibling's residual bring to the base?", "Is it as good as the instruct model?"
    names = {"l3-base", "l3-instruct", "l31-base", "l31-instruct", "l3-base-31", "l31-base-3"}
    gained, lost = (make.compared("ifeval", 0.3, after, suite="target") for after in (0.5, 0.1))
    besides = dataclasses.replace(lost, metric="inst_level_loose_acc", primary=False)
    pairs = [
        ModelPair(before="l3-base", after="l3-base-31", question=bring, comparisons=[gained, besides]),
        ModelPair(before="l31-base", after="l31-base-3", question=bring, comparisons=[gained, lost]),
        ModelPair(before="l3-instruct", after="l3-base-31", question=instruct, comparisons=[lost]),
    ]
    siblings = dataclasses.replace(studied, models=[m for m in studied.models if m.name in names], pairs=pairs)
    answer = f"{bring} 3 paired comparisons: 2 gained, 1 lost. {instruct} 1 paired comparison: 1 lost."
    for record, done in (
        (siblings, "6 models."),
        (make.with_state(siblings, "l31-base-3", state="waiting"), "5 of 6 models are complete."),
    ):
        for text in (page_text(tmp_path, record), re.sub(r"\s+", " ", terminal_text(record, tmp_path))):
            assert f"{done} {answer}" in text and "not compared with each other" not in text
    text = page_text(tmp_path, dataclasses.replace(siblings, pairs=[]))
    assert "Models were measured and not compared with each other" in text


def test_a_loss_is_called_a_loss() -> None:
    lower = make.compared("prose", 2.1, 2.2, metric="nats_per_token", unit="nats/token", higher=False, half=0.01)
    assert clause([lower], "") == "elsewhere it lost (2.100 → 2.200 nats/token; +0.100 nats/token [+0.090, +0.110])"


@pytest.mark.parametrize(
    ("role", "suite", "name", "unit", "metric"),
    [
        ("new", "target", "new_text", "nats/token", ""),
        ("new", "new", "prose", "nats/token", ""),
        ("new", "target", "corpus", "nats/token", ""),
        ("instruction", "target", "ifeval", "accuracy", ""),
        ("instruction", "source", "world", "accuracy", "prompt_level_strict_acc"),
        ("instruction", "average", "sub_average_1", "", ""),
        ("kept", "average", "average", "", ""),
        ("kept", "target", "mmlu", "accuracy", ""),
        ("kept", "source", "renewal", "accuracy", ""),
    ],
)
def test_roles_follow_names_and_metrics(role, suite, name, unit, metric) -> None:
    assert role_of(suite, name, unit, metric) == role


# -------------------------------------------------------------------------------------------------------------- tables


def test_the_papers_layout_has_its_rows_and_figures_in_its_order(tmp_path, studied) -> None:
    r = Results(tmp_path, studied)
    continued, siblings, derived = r.tables
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
    assert [b.kind for b in continued.blocks] == ["base", "instruct", "residual"]
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
    assert all(abs(100 * g.metric(first).value - first.printed(g.paper)) <= 1.0001 for g in continued.groups)
    text = page_text(tmp_path, studied)
    assert re.search(
        r"Instruction following, llama-3: base [\d.]+ % \(original\) and .*; base with residual [\d.]+ %", text
    )
    assert "paper 63.34" in text and "Table 3 prints 65.48 as sub-average 2" in text


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("l3-base-500M-residual", {"scale": 0.8}),
        ("l3-base-500M-residual", {"budget": 600_000_000, "tokens": 600_000_000}),
        ("l3-base", {"path": "models/my-own-base"}),
    ],
)
def test_a_model_made_otherwise_has_no_figures_of_the_paper(tmp_path, studied, name, changes) -> None:
    for file in tmp_path.glob("evaluations/*/*.json") if "path" in changes else ():  # they carry the model's name too
        file.write_text(file.read_text().replace('meta-llama/Meta-Llama-3-8B"', 'unknown"'))
    r = Results(tmp_path, make.with_state(studied, name, **changes))
    assert [g.paper for g in r.tables[0].groups if g.model.name == name] == [None]


def test_best_and_second_are_marked_by_block(tmp_path, studied) -> None:
    r = Results(tmp_path, studied)
    table, average = r.tables[0], row(r, "Sub-average 1")
    cells = figures_table(table, [average], paper=True).rows[0][1:]
    for block in table.blocks:
        values = [g.metric(average).value for g in block.groups]
        ranked, shown = sorted(values, reverse=True), [cells.pop(0)[0] for _ in values]
        assert [s.content for s in shown] == [f"{100 * v:.2f}" for v in values]
        assert [shown[values.index(v)].tone for v in ranked] == ["best", "second", *[""] * (len(values) - 2)]


@pytest.mark.parametrize(
    ("metrics", "marks"),
    [
        ([make.nats(2.0), make.nats(1.0), None, make.nats(1.5)], ["", "best", "", "second"]),
        ([make.share(v, 100) for v in (0.50001, 0.50002, 0.4)], ["best", "best", "second"]),
        ([make.share(0.5, 100)], [""]),
        ([make.nats(math.nan), make.nats(2.0), make.nats(1.0)], ["", "second", "best"]),
        ([None, None], ["", ""]),
    ],
)
def test_marks_turn_where_less_is_better_and_are_shared_by_equals(metrics, marks) -> None:
    assert marks_of(metrics) == marks


def test_a_part_of_the_suite_leaves_cells_empty_and_forms_no_average(tmp_path, studied) -> None:
    for file in tmp_path.glob("evaluations/*/*"):
        if not re.search(r"\.(ifeval|mmlu|piqa)\.", file.name):
            file.unlink()
    r = Results(tmp_path, studied)
    assert len(r.rows) == 19 and len(row(r, "MMLU").values) == len(studied.models) and row(r, "Average").values == {}
    assert "An empty cell was not measured." in page_text(tmp_path, studied)


def test_averages_that_were_not_measured_are_means_without_an_interval(tmp_path, studied) -> None:
    for file in tmp_path.glob("evaluations/*/average.*"):
        file.unlink()
    r = Results(tmp_path, studied)
    figures = [m.values["l3-base"].value for m in r.rows if not m.average]
    mean = row(r, "Average").values["l3-base"]
    assert mean.value == pytest.approx(statistics.fmean(figures)) and mean.interval is None
    first = row(r, "Sub-average 1").values["l3-base"]
    assert first.value == pytest.approx(statistics.fmean(figures[:8]))


def test_what_was_measured_besides_follows_the_papers_rows(tmp_path, studied) -> None:
    news = make.evaluation("target", "held_out_news", {"nats_per_token": make.nats(2.2)}, kind="perplexity")
    make.write_evaluation(tmp_path / "evaluations" / "l3-base", news)
    r = Results(tmp_path, studied)
    assert r.rows[-1].title == "held_out_news" and set(r.rows[-1].values) == {"l3-base"}
    assert r.scores[-1].score == "held out news"


def test_other_worlds_have_a_row_an_entry_and_their_other_metrics_behind_a_heading(tmp_path, updated) -> None:
    r = Results(tmp_path, updated)
    assert [(m.title, m.leads) for m in r.rows] == [
        ("new_knowledge", True),
        ("new_text", True),
        ("instructions", True),
        ("instructions", False),
        ("old_knowledge", True),
        ("old_knowledge", False),
        ("prose", True),
    ]
    [table] = r.tables
    assert not r.in_paper and headers(table) == [["original", "+2 M"], ["original", "+2 M"], ["+2 M"]]
    text = page_text(tmp_path, updated)
    assert "Other metrics (2)" in text and "Target, nats_per_token, nats/token, lower is better" in text
    assert "paper" not in text.split("What was measured")[1].split("Scale of the residual")[0].lower()


def test_many_entries_are_drawn_as_the_means_of_their_suites(tmp_path, updated) -> None:
    for model in updated.models:
        for k in range(10):
            found = make.evaluation("source", f"task_{k}", {"acc": make.share(0.05 * k + 0.2, 100)})
            make.write_evaluation(tmp_path / "evaluations" / model.name, found)
        mean = make.evaluation("average", "knowledge", {"average": make.share(0.5, 10, "share")}, kind="average")
        make.write_evaluation(tmp_path / "evaluations" / model.name, mean)
    r = Results(tmp_path, updated)
    assert r.rows[-1].title == r.scores[0].score == "knowledge", (
        "means stand below what they are of, and are drawn first"
    )
    [source] = [s for s in r.scores if s.score.startswith("Source: mean of 12 entries")]
    values = [m.values["base"] for m in r.entries if m.leads and m.suite == "source" and m.share]
    half = math.hypot(*((v.interval[1] - v.interval[0]) / 2 for v in values)) / 12
    mean = source.values["base"]
    assert mean.value == pytest.approx(statistics.fmean(v.value for v in values))
    assert mean.interval == pytest.approx((mean.value - half, mean.value + half))
    assert [s.score for s in r.scores if not s.share] == ["new text", "prose"]


def test_seeds_are_one_column_with_the_interval_of_both(tmp_path) -> None:
    record = make.study(tmp_path, seeds=(0, 1, 2))
    r = Results(tmp_path, record)
    assert [len(g.members) for g in r.tables[0].groups] == [1, 3, 3, 3, 1, *[3] * 6]
    first, group = r.rows[0], r.tables[0].groups[1]
    metrics = [first.values[m.name] for m in group.members]
    samples = statistics.fmean((m.interval[1] - m.interval[0]) / 2 for m in metrics)
    half = math.hypot(samples, t_quantile(2, 0.975) * statistics.stdev(m.value for m in metrics) / 3**0.5)
    mean = group.metric(first)
    assert mean.value == pytest.approx(statistics.fmean(m.value for m in metrics))
    assert mean.interval == pytest.approx((mean.value - half, mean.value + half))
    assert "+100 M 3 seeds" in page_text(tmp_path, record)
    assert over_seeds(metrics[:1]) is metrics[0] and over_seeds([]) is None
    assert over_seeds([metrics[0], dataclasses.replace(metrics[1], interval=None)]).interval is None


# --------------------------------------------------------------------------------------------------------------- plots


def traces(chart: Chart) -> dict[str, dict]:
    return {t["name"]: t for t in reversed(plotly_figure(chart)["data"])}


def test_figure_1_has_a_panel_a_group_with_three_lines(tmp_path, studied) -> None:
    charts = token_charts(Results(tmp_path, studied))
    assert [c.title for c in charts] == ["Instruction following", "Reasoning", "Truthfulness", "Average"]
    lines = [t for t in plotly_figure(charts[0])["data"] if t["mode"] == "lines+markers"]
    assert [(t["name"], len(t["x"])) for t in lines] == [("Base", 4), ("Instruct", 4), ("Base + residual", 3)]
    xs = lines[1]["x"]
    assert [round(x - xs[0], 2) for x in xs] == [0.0, 1.0, 1.7, 2.0], "0, then logarithmic"
    assert plotly_figure(charts[0])["layout"]["xaxis"]["ticktext"] == ["original", "100 M", "500 M", "1 B"]
    assert all(v > 0 for v in lines[0]["error_y"]["array"])
    assert traces(charts[3])["paper"]["y"] == [51.64, 50.93, 51.20, 51.41]


def test_compute_has_a_point_a_made_model_and_the_papers_estimate_for_8b_alone(tmp_path, studied) -> None:
    r = Results(tmp_path, studied)
    [chart] = compute_charts(r, r.scores, most=1)
    assert "paper: instruction tuning" in traces(chart)
    made = [t for t in plotly_figure(chart)["data"] if t["mode"] == "markers"]
    assert sum(len(t["x"]) for t in made) == 9 and all(x > 0 for t in made for x in t["x"])
    parameters = [dataclasses.replace(m, parameters=1_500_000_000) for m in studied.models]
    small = dataclasses.replace(studied, models=parameters)
    [chart] = compute_charts(Results(tmp_path, small), r.scores, most=1)
    assert "paper: instruction tuning" not in traces(chart)
    said = "At 1.5B the paper's own gain is small"
    text = page_text(tmp_path, small)
    assert said in text and "mmlu against compute" in text and said not in page_text(tmp_path, studied)


def test_an_update_has_no_line_over_tokens_and_a_plot_of_cost_where_costs_differ(tmp_path, updated) -> None:
    r = Results(tmp_path, updated)
    assert token_charts(r) == compute_charts(r, r.scores) == []
    dearer = Results(tmp_path, make.with_state(updated, "instruct-new", flops=9e13))
    made = traces(compute_charts(dearer, r.scores)[0])
    assert made["instruct, continued"]["x"][0] == pytest.approx(9e13, rel=0.1)
    assert made["base, continued"]["x"] != made["with residual"]["x"], "drawn a little apart"
    assert len(made["base, as given"]["x"]) == 2


def test_siblings_and_derived_models_are_points_with_the_papers_beside(tmp_path, studied) -> None:
    r = Results(tmp_path, studied)
    average = next(c for c in carried_charts(r, r.scores) if c.title == "Average")
    assert [cells[0] for cells in average.table.rows] == [
        "llama-3: base",
        "llama-3: instruct",
        "llama-3: + llama-3.1 residual",
        "llama-3.1: base",
        "llama-3.1: instruct",
        "llama-3.1: + llama-3 residual",
        "Llama3-DocChat-1.0-8B: original",
        "Llama3-DocChat-1.0-8B: + llama-3 residual",
        "Llama3-DocChat-1.0-8B: + llama-3.1 residual",
    ]
    assert traces(average)["paper"]["x"] == [51.64, 62.94, 64.25, 51.57, 64.42, 62.01, 57.47, 62.14, 63.80]


def test_before_and_after_has_four_models_a_measure(tmp_path, updated) -> None:
    shares, texts = kept_charts(Results(tmp_path, updated))
    assert [t["name"] for t in plotly_figure(shares)["data"]] == ["base", "instruct", "instruct, continued", "result"]
    assert [cells[0] for cells in shares.table.rows] == ["new knowledge", "instructions", "old knowledge"]
    assert [cells[0] for cells in texts.table.rows] == ["new text", "prose"]
    assert "lower is better" in plotly_figure(texts)["layout"]["xaxis"]["title"]["text"]
    assert traces(shares)["result"]["x"] == [70.0, 90.0, 92.0]


def test_the_chosen_scale_is_marked(updated) -> None:
    chart = scale_chart(updated.scale)
    line, ring = plotly_figure(chart)["data"]
    assert line["x"] == [0.6, 0.8, 1.0, 1.2] and (ring["name"], ring["x"]) == ("chosen", [1.0])
    assert [cells[0] for cells in chart.table.rows] == ["0.6", "0.8", "1 (chosen)", "1.2"]
    assert text_of(chart.table.rows[0][2]) == "−0.200 [−0.230, −0.170]"
    assert scale_chart(ScaleChoice(candidates=[], chosen=1.0, entries=[], reason="")) is None


# --------------------------------------------------------------------------------------------------- how it came about


def test_the_page_says_how_models_were_made_and_what_of(tmp_path, updated) -> None:
    text = page_text(tmp_path, updated)
    for said in (
        "base, continued on 2 M new tokens, + 1 × (instruct − base)",
        "holdfast residual apply --instruct instruct --old_base base --base runs/base-new --output_dir runs/result",
        "3,120",
        "2024-01-03",
        "312 documents",
        "0.31 % of the windows' tokens",
        "Documents left out (153)",
        "before the first date",
        "over all weights the difference has",
    ):
        assert said in text, said
    html = (tmp_path / "report.html").read_text()
    assert 'href="runs/base-new/report.html"' in html
    assert "/data/world" not in html, "whose folder it was says nothing"
    assert Results(tmp_path, updated).spent() == (pytest.approx(4.8e13), pytest.approx(360.0))


@pytest.mark.parametrize("among", ["evidence", "notes"])
def test_a_pair_that_is_no_pair_is_warned_about_first(tmp_path, updated, among) -> None:
    warning = "WARNING: instruct does not look like a fine-tune of base <b>"
    evidence = [{**updated.ancestry[0], "warnings": [warning]}]
    changes = {"ancestry": evidence} if among == "evidence" else {"notes": [warning]}
    text = page_text(tmp_path, dataclasses.replace(updated, **changes))
    assert warning in text
    assert text.index("A pair does not look like a base and its child.") < text.index("Before and after")
    assert "That is what a fine-tune of a base looks like" not in text
    assert "That is what a fine-tune of a base looks like" in page_text(tmp_path, updated)


def test_a_corpus_without_dates_says_so(tmp_path, updated) -> None:
    record = dataclasses.replace(updated, corpus={"documents": 12, "tokens": 900})
    assert "whether the text is new to the models is not known" in page_text(tmp_path, record)


# ------------------------------------------------------------------------------------------------------ what is missing


def test_failed_and_waiting_models_are_named(tmp_path, studied) -> None:
    record = make.with_state(studied, "l3-base-500M", state="failed", reason="CUDA out of memory", evaluations="")
    lost = {"state": "waiting", "evaluations": "evaluations/not-there", "tokens": 0}
    record = dataclasses.replace(make.with_state(record, "l3-instruct-1000M", **lost), status="interrupted")
    text = page_text(tmp_path, record)
    for said in (
        "Llama 3 base + 500M: CUDA out of memory",
        "1 model could not be made",
        "continues with what is missing",
        "16 of 18 models are complete",
    ):
        assert said in text, said
    shown = terminal_text(record, tmp_path)
    assert "failed: CUDA" in shown and "waiting" in shown


def test_a_continuation_whose_tokens_are_not_counted_yet_is_no_original(tmp_path, updated) -> None:
    record = make.with_state(updated, "base-new", tokens=-1, state="running", evaluations="")
    [table] = Results(tmp_path, record).tables
    assert [(g.header, g.state) for g in table.blocks[0].groups] == [
        ("original", "complete"),
        ("+ new text", "running"),
    ]
    assert "base, continued on the new text" in page_text(tmp_path, record)


def test_what_is_no_measure_or_cannot_be_read_is_left_out(tmp_path, updated) -> None:
    average = make.evaluation("average", "scale_choice", {"average": make.share(0.5, 10, "share")}, kind="average")
    make.write_evaluation(tmp_path / "evaluations" / "result", average)
    (tmp_path / "evaluations" / "base" / "source.prose.json").write_text("{")
    text = page_text(tmp_path, updated)
    assert "scale_choice" not in text
    assert "source.prose.json could not be read" in text and "What was measured" in text


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("running", "is not finished, so there is nothing to compare yet"),
        ("interrupted", "was interrupted, so there is nothing to compare yet"),
        ("failed", "failed, so there is nothing to compare yet"),
        ("finished", "is finished and nothing was measured, so what was gained and what was lost is not known"),
    ],
)
def test_without_evaluations_there_is_a_page_without_figures(tmp_path, status, said) -> None:
    record = ResidualRecord(name="u", status=status)
    text = page_text(tmp_path, record)
    assert f"The update {said}." in text and "No evaluation of any model is there yet." in text
    assert terminal_text(record, tmp_path).startswith(f"u ({status})")


def test_pairs_of_a_study_are_means_over_seeds_by_question(tmp_path) -> None:
    def change(suite: str, name: str, metric: str, before: float, after: float) -> Comparison:
        text = {"unit": "nats/token", "higher": False} if metric != "acc" else {}
        return make.compared(name, before, after, suite=suite, metric=metric, half=0.02, **text)

    def pair(question: str, seed: int, after: float) -> ModelPair:
        found = [change("following", "asked", "acc", 0.5, after)]
        found += [change("new_text", "text", "nats_per_token", 3.0, 2.0 + 0.1 * seed)] if "lost" in question else []
        return ModelPair(before="base", after=f"b{seed}", question=question, comparisons=found)

    made = [
        StudiedModel(
            name=f"b{s}", label=f"base + 10k tokens, seed {s}", start="base", family="", seed=s, tokens=5, budget=5
        )
        for s in range(3)
    ]
    pairs = [pair("What is lost?", seed, after) for seed, after in enumerate((0.30, 0.34, 0.45))]
    models = [StudiedModel(name="base", label="base", start="base", family=""), *made]
    record = ResidualRecord(
        name="seeds", kind="study", status="finished", models=models, pairs=[*pairs, pair("And now?", 0, 0.3)]
    )
    text = page_text(tmp_path, record)
    assert text.index("What was measured") < text.index("Compared pairs"), "figures first"
    assert text.partition("Compared pairs")[2].count("What is lost?") == 1, "one table for the three seeds"
    assert "3 seeds; against base" in text and "3 pairs one by one" in text
    half = 100 * math.hypot(t_quantile(2, 0.975) * statistics.stdev([-0.2, -0.16, -0.05]) / 3**0.5, 0.02)
    low, high = (f"{v:+.1f}".replace("-", "−") for v in (-41 / 3 - half, -41 / 3 + half))
    assert f"−13.7 pt [{low}, {high}]" in text, "after - before, over seeds and samples"
    assert "−0.900" in text, "in the metric's own direction"
    html = (tmp_path / "report.html").read_text()
    cells = re.findall(r'class="tone ?(\w*)"', re.search(r"<h3>What is lost\?</h3>(.*?)</table>", html, re.S)[1])
    assert cells == ["flat", "good"], "the share's interval over three seeds contains 0, less loss is better"


def test_the_terminal_has_the_answer_the_models_and_the_page(tmp_path, updated) -> None:
    write_residual_report(tmp_path, updated)
    text = terminal_text(updated, tmp_path)
    assert all(len(line) <= 80 or str(tmp_path) in line for line in text.splitlines())
    for said in (
        "Against the instruct model",
        "instructions",
        "91.0",
        "Scale     1:",
        "New text  3,120 documents",
        "Cost      4.8e13 FLOPs, 6 min",
        "1 more pair of models is on the page.",
    ):
        assert said in text, said
    assert "report.html" in text.replace("\n", "")
    assert "-1.0 pt [-5.0, +3.0]" in terminal_text(updated, tmp_path, encoding="ascii")


# -------------------------------------------------------------------------------------------------------- small worlds


@pytest.fixture
def small(tmp_path: Path) -> ResidualRecord:
    return make.worlds(tmp_path)


def test_worlds_are_seeds_and_other_widths_have_a_table(tmp_path, small) -> None:
    r = Results(tmp_path, small)
    assert [t.kind for t in r.tables] == ["continued", "siblings", "derived", "widths"]
    assert {len(g.members) for t in r.tables for g in t.groups} == {2}
    titles = [block.title for block in r.tables[0].blocks]
    assert "Base + tuning" in titles and "Base + residual" in titles and "Base + 0.25 × residual" in titles
    [narrow] = r.tables[-1].blocks
    held = ["base", "instruct", "base + 100,000", "instruct + 100,000", "base + 100,000 + residual"]
    assert narrow.title == "Width 64" and sorted(g.header for g in narrow.groups) == sorted(held)
    assert all(g.model.width == 128 for t in r.tables[:-1] for g in t.groups)


def test_both_figures_of_worked_problems_lead(tmp_path, small) -> None:
    r = Results(tmp_path, small)
    scores = [s.score for s in r.scores if s.name == "word_problems"]
    assert scores == ["problems: word problems, flexible", "problems: word problems, strict"]
    text = page_text(tmp_path, small)
    assert "exact_match,flexible-extract" in text and "exact_match,strict-match" in text


def test_what_was_added_stands_beside_what_comes_back(tmp_path, small) -> None:
    r = Results(tmp_path, small)
    charts = added_charts(r, [next(s for s in r.scores if s.role == "instruction")])
    assert [m.name for m in charts[0].marks] == [
        "first base + 30k tokens + residual",
        "first base + 100k tokens + residual",
        "first base + sibling residual",
        "sibling base + first residual",
        "derived + first residual",
    ]
    _, own, swapped, *_ = plotly_figure(charts[0])["data"]
    assert [round(x, 6) for x in own["x"]] == [0, 3, 6, 9, 12], "percent of the base's norm, the bare model first"
    assert own["y"] == sorted(own["y"])
    assert [round(x, 6) for x in swapped["x"]] == [0, 6.5, 13]
    assert "Norm of what was added" in page_text(tmp_path, small)
    ones = [m for m in small.models if m.scale in (None, 1)]
    assert added_charts(Results(tmp_path, dataclasses.replace(small, models=ones)), r.scores) == []


def test_only_scale_1_is_drawn_over_tokens(tmp_path, small) -> None:
    for chart in token_charts(Results(tmp_path, small)):
        names = [t["name"] for t in plotly_figure(chart)["data"] if t["name"] != "paper"]
        assert names == ["Base", "Instruct", "Base + residual", "Base + tuning"]


def test_widths_are_an_axis_at_the_largest_budget(tmp_path, small) -> None:
    r = Results(tmp_path, small)
    [chart] = width_charts(r, [next(s for s in r.scores if s.role == "instruction")])
    data = plotly_figure(chart)
    assert data["layout"]["xaxis"]["ticktext"] == ["64", "128"]
    assert {t["name"]: list(t["x"]) for t in data["data"]} == {
        name: [6.0, 7.0]
        for name in ("base", "instruct", "base, continued", "instruct, continued", "base, continued, with residual")
    }
    one = [m for m in small.models if m.width == 128]
    assert width_charts(Results(tmp_path, dataclasses.replace(small, models=one)), r.scores) == []


def test_worlds_are_one_row_of_the_pairs(tmp_path, small) -> None:
    text = page_text(tmp_path, small)
    assert "first instruct 2 seeds; against first base" in text
    assert "width 64, world 1" in text, "the models one by one"
