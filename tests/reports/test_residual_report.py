"""The page and the terminal of an update and of a residual study: the answer, the paper's layout, what is missing, plots that say what was measured."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import statistics
from pathlib import Path

import pytest
import synthetic_residuals as make
from rich.console import Console
from synthetic_runs import browse, chromium

from holdfast.records.comparison import Comparison
from holdfast.records.residual import Pair, ResidualRecord, ScaleChoice, StudiedModel, read_update, write_update
from holdfast.reports import paper_004
from holdfast.reports.blocks import words as text_of
from holdfast.reports.charts import plotly_figure
from holdfast.reports.residual_charts import (
    against_one,
    carried_charts,
    compute_charts,
    kept_charts,
    scale_chart,
    token_charts,
)
from holdfast.reports.residual_figures import marks_of, over_seeds, read_models, spent_in_all, tables
from holdfast.reports.residual_report import cost_lines, pair_groups, write_residual_report
from holdfast.reports.residual_scores import role_of, scores_of
from holdfast.reports.residual_text import clause, lead, print_update
from holdfast.statistics.intervals import t_quantile


@pytest.fixture
def updated(tmp_path: Path) -> ResidualRecord:
    return make.update(tmp_path)


@pytest.fixture
def studied(tmp_path: Path) -> ResidualRecord:
    return make.study(tmp_path)


def write(folder: Path, record: ResidualRecord) -> str:
    return write_residual_report(folder, record).read_text(encoding="utf-8")


def words(html: str) -> str:
    """The page's text without scripts, styles and tags."""
    html = re.sub(r"<(script|style).*?</\1>", " ", html, flags=re.S)
    text = re.sub(r"<[^>]+>", " ", html)
    for code, mark in (("&lt;", "<"), ("&gt;", ">"), ("&#x27;", "'"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(code, mark)
    return re.sub(r"\s+", " ", text)


def figures(html: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.S)
    return json.loads(found[1]) if found else []


def printed(record: ResidualRecord, folder: Path, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    print_update(record, folder, Console(width=width, file=file))
    return raw.getvalue().decode(encoding)


# -------------------------------------------------------------------------------------------------------------- answer


def test_the_lead_says_what_was_gained_and_what_was_kept(tmp_path, updated) -> None:
    html = write(tmp_path, updated)
    found = re.search(r'<p class="lead">(.*?)</p>', html, re.S)
    assert found is not None
    assert found[1] == (
        "Against the instruct model: on new text it gained on 2 of 2 measures; on instruction following it shows no change beyond noise (91.0 → 90.0 %;"
        " −1.0 pt [−5.0, +3.0]); elsewhere it lost on 1 and did not change beyond noise on 1 of 2 measures. Against the instruct model continued on"
        " the same text: on instruction following it gained (34.0 → 90.0 %; +56.0 pt [+52.0, +60.0]); on new text it lost on 1 and did not change"
        " beyond noise on 1 of 2 measures."
    )


def test_without_the_optional_arm_the_lead_speaks_of_the_instruct_model_alone(tmp_path, updated) -> None:
    record = dataclasses.replace(
        updated,
        models=[m for m in updated.models if m.name != "instruct-new"],
        pairs=[p for p in updated.pairs if p.before != "instruct-new"],
    )
    text = words(write(tmp_path, record))
    assert "Against the instruct model: on new text it gained" in text
    assert "Against the instruct model continued" not in text


def test_a_loss_is_called_a_loss(tmp_path) -> None:
    lower = make.compared("prose", 2.1, 2.2, metric="nats_per_token", unit="nats/token", higher=False, half=0.01)
    assert clause([lower], "") == "elsewhere it lost (2.100 → 2.200 nats/token; +0.100 nats/token [+0.090, +0.110])"
    assert clause([make.compared("ifeval", 0.5, 0.4)], "instruction following").startswith(
        "on instruction following it lost (50.0 → 40.0 %; −10.0 pt"
    )


def test_pairs_with_the_base_answer_where_there_is_none_with_the_instruct_model(tmp_path, updated) -> None:
    pairs = [dataclasses.replace(updated.pairs[0], before="base")]
    text = lead(read_models(tmp_path, updated), dataclasses.replace(updated, pairs=pairs))
    assert text.startswith("Against the base: on new text")


def test_questions_verdicts_and_labels_stand_on_the_page(tmp_path, updated) -> None:
    html = write(tmp_path, updated)
    text = words(html)
    for pair in updated.pairs:
        assert pair.question in text
    assert "from instruct to base + new text + residual" in text.replace("From", "from")
    for note in updated.notes:
        assert note in text


def test_roles_follow_names_and_metrics() -> None:
    assert role_of("target", "new_text", "nats/token") == "new"
    assert role_of("new", "prose", "nats/token") == role_of("new_text", "held_out", "nats/token") == "new"
    assert role_of("target", "corpus", "nats/token") == "new"
    assert role_of("target", "ifeval", "accuracy") == "instruction"
    assert role_of("source", "world", "accuracy", "prompt_level_strict_acc") == "instruction"
    assert role_of("target", "mmlu", "accuracy") == "kept"
    assert role_of("source", "renewal", "accuracy") == "kept"
    assert [role_of("average", n) for n in ("sub_average_1", "average")] == ["instruction", "kept"]


# -------------------------------------------------------------------------------------------------------------- tables


def test_the_papers_layout_has_its_rows_in_its_order(tmp_path, studied) -> None:
    made = tables(read_models(tmp_path, studied), studied)
    assert [t.kind for t in made] == ["continued", "siblings", "derived"]
    titles = [r.title for r in made[0].rows]
    assert titles == [
        *["IFEval"] * 4, "MMLU", "MMLU-Pro", "GSM8K", "GSM8K", "Sub-average 1", "WinoGrande", "HellaSwag", "HellaSwag", "ARC-easy", "ARC-easy",
        "PIQA", "PIQA", "Sub-average 2", "TruthfulQA mc2", "Average",
    ]  # fmt: skip
    assert [b.kind for b in made[0].blocks] == ["base", "instruct", "residual"]
    assert [c.header for c in made[0].columns] == ["original", "+100 M", "+500 M", "+1 B"] * 2 + [
        "+100 M",
        "+500 M",
        "+1 B",
    ]
    assert [c.header for b in made[1].blocks for c in b.columns] == [
        "base", "instruct", "+ llama-3.1 residual", "base", "instruct", "+ llama-3 residual"
    ]  # fmt: skip
    assert [c.header for c in made[2].columns] == ["original", "+ llama-3 residual", "+ llama-3.1 residual"]


def test_the_papers_figures_stand_beside_those_of_models_made_alike(tmp_path, studied) -> None:
    made = tables(read_models(tmp_path, studied), studied)
    average = next(r for r in made[0].rows if r.title == "Average")
    assert average.paper == (51.64, 50.93, 51.20, 51.41, 62.94, 60.28, 59.36, 58.00, 63.07, 63.34, 63.12)
    first = made[0].rows[0]
    for metric, paper in zip(first.metrics, first.paper, strict=True):
        assert metric is not None
        assert paper is not None
        assert abs(100 * metric.value - paper) <= 1.0001
    siblings = next(r for r in made[1].rows if r.title == "Average")
    assert siblings.paper == (51.64, 62.94, 64.25, 51.57, 64.42, 62.01)
    derived = made[2].rows
    assert next(r for r in derived if r.title == "Average").paper == (57.47, 62.14, 63.80)
    assert next(r for r in derived if r.title == "Sub-average 1").paper == (None, None, None)  # table 4 prints none
    html = write(tmp_path, studied)
    assert "paper 63.34" in html
    assert "Table 3 prints 65.48 as sub-average 2" in words(html)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("l3-base-500M-residual", {"scale": 0.8}),
        ("l3-base-500M-residual", {"budget": 600_000_000, "tokens": 600_000_000}),
        ("l3-base", {"path": "models/my-own-base"}),
    ],
)
def test_a_model_made_otherwise_has_no_figures_of_the_paper(tmp_path, studied, name, changes) -> None:
    for folder in (tmp_path / "evaluations").iterdir():  # the evaluations carry the model's name too
        for file in folder.glob("*.json"):
            file.write_text(
                file.read_text().replace('meta-llama/Meta-Llama-3-8B"', 'unknown"')
                if "path" in changes
                else file.read_text()
            )
    record = make.with_state(studied, name, **changes)
    made = tables(read_models(tmp_path, record), record)
    found = [c for c in made[0].columns if any(m.model.name == name for m in c.members)]
    assert [c.paper for c in found] == [None]


def test_best_and_second_are_marked_by_block(tmp_path, studied) -> None:
    made = tables(read_models(tmp_path, studied), studied)[0]
    row = next(r for r in made.rows if r.title == "Sub-average 1")
    start = 0
    for b in made.blocks:
        part = slice(start, start + len(b.columns))
        values = [m.value for m in row.metrics[part] if m is not None]
        ranked = sorted(values, reverse=True)
        assert [row.marks[part][values.index(v)] for v in ranked[:2]] == ["best", "second"]
        assert row.marks[part].count("") == len(values) - 2
        start += len(b.columns)


def test_marks_turn_where_less_is_better_and_are_shared_by_equals() -> None:
    assert marks_of([make.nats(2.0), make.nats(1.0), None, make.nats(1.5)]) == ["", "best", "", "second"]
    assert marks_of([make.share(0.50001, 100), make.share(0.50002, 100), make.share(0.4, 100)]) == [
        "best",
        "best",
        "second",
    ]
    assert marks_of([make.share(0.5, 100)]) == [""]
    assert marks_of([None, None]) == ["", ""]


def test_a_part_of_the_suite_leaves_cells_empty_and_forms_no_average(tmp_path) -> None:
    record = make.study(tmp_path)
    for folder in (tmp_path / "evaluations").iterdir():
        for file in folder.iterdir():
            if not re.search(r"\.(ifeval|mmlu|piqa)\.", file.name):
                file.unlink()
    made = tables(read_models(tmp_path, record), record)
    rows = {(r.title, r.words): r for r in made[0].rows}
    assert len(rows) == 19
    assert all(m is not None for m in rows["MMLU", "acc: accuracy, 5-shot"].metrics)
    assert all(m is None for m in rows["Average", "mean of all sixteen"].metrics)
    assert "no interval" not in words(write(tmp_path, record)).split("What was measured")[1].split("Models and how")[0]


def test_averages_that_were_not_measured_are_means_without_an_interval(tmp_path) -> None:
    record = make.study(tmp_path)
    for file in tmp_path.glob("evaluations/*/average.*"):
        file.unlink()
    made = tables(read_models(tmp_path, record), record)[0]
    cells = [
        [m.value for r in made.rows if not r.average and (m := r.metrics[0]) is not None],
        next(r for r in made.rows if r.title == "Average"),
    ]
    assert cells[1].metrics[0].value == pytest.approx(statistics.fmean(cells[0]))
    assert cells[1].metrics[0].interval is None


def test_what_was_measured_besides_follows_the_papers_rows(tmp_path, studied) -> None:
    news = make.evaluation("target", "held_out_news", {"nats_per_token": make.nats(2.2)}, kind="perplexity")
    make.write_evaluation(tmp_path / "evaluations" / "l3-base", news)
    made = tables(read_models(tmp_path, studied), studied)[0]
    assert [r.title for r in made.rows][-1] == "held_out_news"
    assert made.rows[-1].metrics[1:] == (None,) * 10


def test_other_worlds_have_a_row_an_entry_and_their_other_metrics_behind_a_heading(tmp_path, updated) -> None:
    [made] = tables(read_models(tmp_path, updated), updated)
    assert not made.in_paper
    assert [(r.title, r.leads) for r in made.rows] == [
        ("new_knowledge", True), ("new_text", True), ("instructions", True), ("instructions", False), ("old_knowledge", True),
        ("old_knowledge", False), ("prose", True),
    ]  # fmt: skip
    assert [c.header for c in made.columns] == ["original", "+2 M", "original", "+2 M", "+2 M"]
    html = write(tmp_path, updated)
    assert "Other metrics (2)" in html
    assert "paper" not in words(html).split("What was measured")[1].split("Scale of the residual")[0].lower()


def test_seeds_are_one_column_with_the_interval_of_both(tmp_path) -> None:
    record = make.study(tmp_path, seeds=(0, 1, 2))
    made = tables(read_models(tmp_path, record), record)[0]
    assert len(made.columns) == 11
    assert [len(c.members) for c in made.columns[:2]] == [1, 3]
    row = made.rows[0]
    metrics = [m.measured.find("target", "ifeval").metrics["inst_level_loose_acc"] for m in made.columns[1].members]
    values = [m.value for m in metrics]
    samples = statistics.fmean((m.interval[1] - m.interval[0]) / 2 for m in metrics)
    seeds = t_quantile(2, 0.975) * statistics.stdev(values) / 3**0.5
    assert row.metrics[1].value == pytest.approx(statistics.fmean(values))
    assert (row.metrics[1].interval[1] - row.metrics[1].interval[0]) / 2 == pytest.approx(
        (samples**2 + seeds**2) ** 0.5
    )
    assert "3 seeds" in words(write(tmp_path, record))


def test_one_seed_twice_stays_apart_under_its_labels(tmp_path, studied) -> None:
    again = dataclasses.replace(
        next(m for m in studied.models if m.name == "l3-base-100M"), name="again", label="the same once more"
    )
    record = dataclasses.replace(studied, models=[*studied.models, again])
    headers = [c.header for c in tables(read_models(tmp_path, record), record)[0].blocks[0].columns]
    assert sorted(headers) == sorted(["original", "Llama 3 base + 100M", "the same once more", "+500 M", "+1 B"])


def test_every_model_is_in_a_table(tmp_path, studied) -> None:
    odd = [
        StudiedModel(
            name="x",
            label="instruct + residual",
            start="instruct",
            family="llama-3",
            residual="llama-3",
            state="complete",
        ),
        StudiedModel(
            name="y", label="derived, continued", start="derived", family="llama-3", tokens=5, state="complete"
        ),
        StudiedModel(name="z", label="of no kind", start="merged", family="else", state="complete"),
    ]
    record = dataclasses.replace(studied, models=[*studied.models, *odd])
    made = tables(read_models(tmp_path, record), record)
    placed = {m.model.name for t in made for c in t.columns for m in c.members}
    assert placed == {m.name for m in record.models}


# --------------------------------------------------------------------------------------------------------------- plots


def test_figure_1_has_a_panel_a_group_with_three_lines(tmp_path, studied) -> None:
    models = read_models(tmp_path, studied)
    charts = token_charts(tables(models, studied), scores_of(models))
    assert [c.title for c in charts] == ["Instruction following", "Reasoning", "Truthfulness", "Average"]
    lines = [t for t in plotly_figure(charts[0])["data"] if t["mode"] == "lines+markers"]
    assert [(t["name"], len(t["x"])) for t in lines][:3] == [("Base", 4), ("Instruct", 4), ("Base + residual", 3)]
    xs = lines[1]["x"]
    assert xs == sorted(xs)
    assert [round(x - xs[0], 2) for x in xs] == [0.0, 1.0, 1.7, 2.0]  # 0, then logarithmic
    assert plotly_figure(charts[0])["layout"]["xaxis"]["ticktext"] == ["original", "100 M", "500 M", "1 B"]
    assert all(v > 0 for v in lines[0]["error_y"]["array"])
    paper = next(t for t in plotly_figure(charts[3])["data"] if t["name"] == "paper")
    assert paper["y"] == [51.64, 50.93, 51.20, 51.41]


def test_an_update_has_no_line_over_tokens(tmp_path, updated) -> None:
    models = read_models(tmp_path, updated)
    assert token_charts(tables(models, updated), scores_of(models)) == []


def test_compute_has_a_point_a_made_model_and_the_papers_estimate_for_8b_alone(tmp_path, studied) -> None:
    models = read_models(tmp_path, studied)
    [chart] = compute_charts(tables(models, studied), scores_of(models), most=1)
    names = [t["name"] for t in plotly_figure(chart)["data"]]
    assert "paper: instruction tuning" in names
    made = [t for t in plotly_figure(chart)["data"] if t["mode"] == "markers"]
    assert sum(len(t["x"]) for t in made) == 9
    assert all(x > 0 for t in made for x in t["x"])
    small = dataclasses.replace(
        studied, models=[dataclasses.replace(m, parameters=1_500_000_000) for m in studied.models]
    )
    models = read_models(tmp_path, small)
    [chart] = compute_charts(tables(models, small), scores_of(models), most=1)
    assert "paper: instruction tuning" not in [t["name"] for t in plotly_figure(chart)["data"]]
    assert "At 1.5B the paper's own gain is small" in words(write(tmp_path, small))
    assert "mmlu against compute" in words(write(tmp_path, small))  # the paper's figure 2
    assert "At 1.5B the paper's own gain is small" not in words(write(tmp_path, studied))


def test_models_of_one_cost_are_not_drawn_against_cost(tmp_path, updated) -> None:
    models = read_models(tmp_path, updated)
    assert compute_charts(tables(models, updated), scores_of(models)) == []
    record = make.with_state(updated, "instruct-new", flops=9e13)
    models = read_models(tmp_path, record)
    [chart, *_] = compute_charts(tables(models, record), scores_of(models))
    made = {t["name"]: t["x"] for t in plotly_figure(chart)["data"] if t["mode"] == "markers"}
    assert made["instruct, continued"][0] == pytest.approx(9e13, rel=0.1)
    assert made["base, continued"] != made["with residual"]  # drawn a little apart


def test_siblings_and_derived_models_are_points_with_the_papers_beside(tmp_path, studied) -> None:
    models = read_models(tmp_path, studied)
    charts = carried_charts(tables(models, studied), scores_of(models))
    average = next(c for c in charts if c.title == "Average")
    assert [r[0] for r in average.table.rows] == [
        "llama-3: base", "llama-3: instruct", "llama-3: + llama-3.1 residual", "llama-3.1: base", "llama-3.1: instruct",
        "llama-3.1: + llama-3 residual", "Llama3-DocChat-1.0-8B: original", "Llama3-DocChat-1.0-8B: + llama-3 residual",
        "Llama3-DocChat-1.0-8B: + llama-3.1 residual",
    ]  # fmt: skip
    paper = next(t for t in plotly_figure(average)["data"] if t["name"] == "paper")
    assert paper["x"] == [51.64, 62.94, 64.25, 51.57, 64.42, 62.01, 57.47, 62.14, 63.80]


def test_before_and_after_has_four_models_a_measure(tmp_path, updated) -> None:
    models = read_models(tmp_path, updated)
    shares, texts = kept_charts(models, scores_of(models), updated)
    assert [t["name"] for t in plotly_figure(shares)["data"]] == ["base", "instruct", "instruct, continued", "result"]
    assert [r[0] for r in shares.table.rows] == ["new knowledge", "instructions", "old knowledge"]
    assert [r[0] for r in texts.table.rows] == ["new text", "prose"]
    assert "lower is better" in plotly_figure(texts)["layout"]["xaxis"]["title"]["text"]
    assert plotly_figure(shares)["data"][3]["x"] == [70.0, 90.0, 92.0]


def test_the_chosen_scale_is_marked(updated) -> None:
    assert updated.scale is not None
    chart = scale_chart(updated.scale)
    assert chart is not None
    line, ring = plotly_figure(chart)["data"]
    assert line["x"] == [0.6, 0.8, 1.0, 1.2]
    assert (ring["name"], ring["x"]) == ("chosen", [1.0])
    assert [r[0] for r in chart.table.rows] == ["0.6", "0.8", "1 (chosen)", "1.2"]
    assert text_of(chart.table.rows[0][2]) == "−0.200 [−0.230, −0.170]"
    assert scale_chart(ScaleChoice(candidates=[], chosen=1.0, entries=[], reason="")) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gain": 0.1, "interval": [0.0, 0.2]}, (0.1, (0.0, 0.2))),
        ({"difference": 0.1, "interval": [0.0, 0.2]}, (0.1, (0.0, 0.2))),
        ([0.1, 0.0, 0.2], (0.1, (0.0, 0.2))),
        (0.1, (0.1, None)),
        (None, (None, None)),
        ("x", (None, None)),
    ],
)
def test_differences_to_scale_1_are_read_as_they_come(given, expected) -> None:
    assert against_one({"against_one": given}) == expected


# ----------------------------------------------------------------------------------------------- how it came about


def test_the_page_says_how_models_were_made_and_links_their_runs(tmp_path, updated) -> None:
    html = write(tmp_path, updated)
    text = words(html)
    assert "base, continued on 2 M new tokens, + 1 × (instruct − base)" in text
    assert 'href="runs/base-new/report.html"' in html
    assert (
        "holdfast residual apply --instruct instruct --old_base base --base runs/base-new --output_dir runs/result"
        in text
    )
    assert "/data/world" not in html  # whose folder it was says nothing


def test_corpus_ancestry_and_cost_are_told(tmp_path, updated) -> None:
    text = words(write(tmp_path, updated))
    for said in (
        "3,120",
        "2024-01-03",
        "312 documents",
        "0.31 % of the windows' tokens",
        "Documents left out (153)",
        "before the first date",
    ):
        assert said in text
    assert "over all weights the difference has" in text
    assert "the estimate in full" in text.lower()
    lines = {(c.what, c.unit): c for c in cost_lines(read_models(tmp_path, updated), updated)}
    assert lines["all models together", "FLOPs"].measured == pytest.approx(
        4.8e13
    )  # the result's training is the base's
    assert lines["base + new text", "s"].measured == 180.0


def test_training_is_counted_once(tmp_path, updated) -> None:
    flops, seconds = spent_in_all(read_models(tmp_path, updated))
    assert (flops, seconds) == (pytest.approx(4.8e13), pytest.approx(360.0))


def test_a_pair_that_is_no_pair_is_warned_about(tmp_path, updated) -> None:
    warned = dataclasses.replace(
        updated, ancestry=[{**updated.ancestry[0], "warnings": ["instruct does not look like a fine-tune of base <b>"]}]
    )
    html = write(tmp_path, warned)
    assert "instruct does not look like a fine-tune of base &lt;b&gt;" in html
    assert "A pair does not look like a base and its child." in html
    assert "That is what a fine-tune of a base looks like" not in html


def test_a_corpus_without_dates_says_so(tmp_path, updated) -> None:
    record = dataclasses.replace(updated, corpus={"documents": 12, "tokens": 900})
    assert "whether the text is new to the models is not known" in words(write(tmp_path, record))


# ------------------------------------------------------------------------------------------------------ what is missing


def test_failed_and_waiting_models_are_named(tmp_path, studied) -> None:
    record = make.with_state(studied, "l3-base-500M", state="failed", reason="CUDA out of memory", evaluations="")
    record = make.with_state(
        record, "l3-instruct-1000M", state="waiting", evaluations="evaluations/not-there", tokens=0
    )
    record = dataclasses.replace(record, status="interrupted")
    text = words(write(tmp_path, record))
    assert "Llama 3 base + 500M: CUDA out of memory" in text
    assert "1 model could not be made" in text
    assert "continues with what is missing" in text
    assert "16 of 18 models are complete" in text
    shown = printed(record, tmp_path)
    assert "failed: CUDA" in shown  # the rest is on the next line of a narrow column
    assert "waiting" in shown


def test_a_continuation_whose_tokens_are_not_counted_yet_is_no_original(tmp_path, updated) -> None:
    record = make.with_state(updated, "base-new", tokens=-1, state="running", evaluations="")
    [made] = tables(read_models(tmp_path, record), record)
    assert [(c.header, c.state) for c in made.blocks[0].columns] == [
        ("original", "complete"),
        ("+ new text", "running"),
    ]
    assert "base, continued on the new text" in words(write(tmp_path, record))


def test_the_average_that_chose_a_scale_is_no_measure(tmp_path, updated) -> None:
    average = make.evaluation("average", "scale_choice", {"average": make.share(0.5, 10, "share")}, kind="average")
    make.write_evaluation(tmp_path / "evaluations" / "result", average)
    assert "scale_choice" not in words(write(tmp_path, updated))


def test_a_warning_among_the_notes_is_seen_first(tmp_path, updated) -> None:
    warned = dataclasses.replace(updated, notes=["WARNING: instruct does not look like a fine-tune of base everywhere"])
    text = words(write(tmp_path, warned))
    assert text.index("A pair does not look like a base and its child.") < text.index("Before and after")
    assert "That is what a fine-tune of a base looks like" not in text


def seeds_of_a_study() -> ResidualRecord:
    def model(name: str, label: str, seed: int = 0) -> StudiedModel:
        return StudiedModel(name=name, label=label, start="base", family="", seed=seed, state="complete")

    def compared(seed: int) -> list[Comparison]:
        after = (0.30, 0.34, 0.45)[seed]
        return [
            comparison("following", "asked", "acc", before=0.5, after=after),
            comparison("new_text", "text", "nats_per_token", before=3.0, after=2.0 + 0.1 * seed),
        ]

    made = [model(f"b{s}", f"base + 10k tokens, seed {s}", s) for s in range(3)]
    pairs = [Pair(before="base", after=m.name, question="What is lost?", comparisons=compared(m.seed)) for m in made]
    others = [Pair(before="base", after="b0", question="And now?", comparisons=compared(0)[:1])]
    return ResidualRecord(
        name="seeds", kind="study", status="finished", models=[model("base", "base"), *made], pairs=[*pairs, *others]
    )


def comparison(suite: str, name: str, metric: str, *, before: float, after: float, half: float = 0.02) -> Comparison:
    share = metric == "acc"
    return Comparison(
        suite=suite, name=name, metric=metric, unit="accuracy" if share else "nats/token", higher_is_better=share, before=before, after=after,
        difference=after - before, interval=(after - before - half, after - before + half), confidence=0.95, p_value=0.01, n=100,
        primary=True, flips_lost=3 if share else None, flips_gained=1 if share else None, test="test",
    )  # fmt: skip


def test_pairs_of_a_study_are_means_over_seeds_by_question(tmp_path) -> None:
    record = seeds_of_a_study()
    groups = pair_groups(record)
    assert [(g.question, g.before, g.after, sorted(g.pairs)) for g in groups] == [
        ("What is lost?", "base", "base + 10k tokens", [0, 1, 2]),
        ("And now?", "base", "base + 10k tokens", [0]),
    ]
    gain = groups[0].gain(("following", "asked", "acc"))
    assert gain is not None and gain.value == pytest.approx(-0.41 / 3)
    spread = t_quantile(2, 0.975) * statistics.stdev([-0.2, -0.16, -0.05]) / 3**0.5
    assert gain.interval == pytest.approx(
        (gain.value - math.hypot(spread, 0.02), gain.value + math.hypot(spread, 0.02))
    )
    assert groups[0].gain(("following", "other", "acc")) is None
    html = write(tmp_path, record)
    text = words(html)
    assert text.index("What was measured") < text.index("Compared pairs"), "figures first"
    assert text.count("What is lost?") == 1 and "3 seeds; against base" in text and "3 pairs one by one" in text
    assert "\u221213.7 pt" in text and "\u22120.900" in text, "after - before in the metric's own direction"
    table = re.search(r"<h3>What is lost\?</h3>(.*?)</table>", html, re.S)
    assert table is not None
    cells = re.findall(r'class="tone ?(\w*)"', table[1])
    assert cells == ["flat", "good"], "the share's interval over three seeds contains 0, less loss is better"


def test_empty_pairs_are_said(tmp_path, studied) -> None:
    assert (
        "What does new text cost the instruct model? (Llama 3 instruct → Llama 3 instruct + 1000M): nothing was compared."
        in words(write(tmp_path, studied))
    )
    none = dataclasses.replace(studied, pairs=[])
    assert "Compared pairs" not in words(write(tmp_path, none))
    assert "of models" in printed(studied, tmp_path), "a study's are on its page"


def test_without_evaluations_there_is_a_page_without_figures(tmp_path) -> None:
    record = dataclasses.replace(
        make.update(tmp_path / "other"), pairs=[], scale=None, ancestry=[], cost={}, corpus={}, notes=[], config={}
    )
    html = write(tmp_path, record)
    text = words(html)
    assert "nothing was measured, so what was gained and what was lost is not known" in text
    assert "No evaluation of any model is there yet." in text
    assert figures(html) == []
    assert "not measured" in printed(record, tmp_path) or "Models" in printed(record, tmp_path)


@pytest.mark.parametrize(
    ("status", "said"), [("running", "is not finished"), ("interrupted", "was interrupted"), ("failed", "failed")]
)
def test_an_update_that_has_not_ended_says_so(tmp_path, status, said) -> None:
    html = write(tmp_path, ResidualRecord(name="u", status=status))
    assert f"The update {said}, so there is nothing to compare yet." in words(html)
    assert printed(ResidualRecord(name="u", status=status), tmp_path).startswith(f"u ({status})")


def test_a_pair_of_models_that_the_record_lacks_is_shown_by_name(tmp_path, updated) -> None:
    record = dataclasses.replace(
        updated, pairs=[Pair(before="gone", after="result", question="", comparisons=updated.pairs[0].comparisons)]
    )
    assert "gone → base + new text + residual" in words(write(tmp_path, record))


def test_an_unreadable_evaluation_is_named_and_the_rest_shown(tmp_path, updated) -> None:
    (tmp_path / "evaluations" / "base" / "source.prose.json").write_text("{")
    text = words(write(tmp_path, updated))
    assert "source.prose.json could not be read" in text
    assert "What was measured" in text


@pytest.mark.parametrize("kind", ["update", "study"])
def test_ids_are_unique(tmp_path, kind) -> None:
    """A section called like the script that holds the figures would keep every plot from being drawn."""
    html = write(tmp_path, getattr(make, kind)(tmp_path))
    ids = re.findall(r'<[a-z]+[^>]*? id="([^"]+)"', html)
    assert "figures" in ids
    assert len(ids) == len(set(ids))


def test_names_cannot_become_markup(tmp_path, updated) -> None:
    evil = "<img src=x onerror=alert(1)> $x$ %{y}"
    record = make.with_state(dataclasses.replace(updated, name=evil, notes=[evil]), "result", label=evil)
    html = write(tmp_path, record)
    assert "<img" not in re.sub(r"<script.*?</script>", "", html, flags=re.S)
    hovers = json.dumps(figures(html))
    assert "<img" not in hovers
    assert "%{y}" not in hovers


# ------------------------------------------------------------------------------------------------- terminal and record


def test_the_terminal_has_the_answer_the_models_and_the_page(tmp_path, updated) -> None:
    write(tmp_path, updated)
    text = printed(updated, tmp_path)
    assert max(map(len, text.splitlines())) <= 80 or all(
        str(tmp_path) in line for line in text.splitlines() if len(line) > 80
    )
    for said in (
        "Against the instruct model",
        "instructions",
        "91.0",
        "Scale     1:",
        "New text  3,120 documents",
        "Cost      4.8e13 FLOPs, 6 min",
    ):
        assert said in text
    assert "report.html" in text.replace("\n", "")


def test_the_terminal_speaks_ascii_where_it_must(tmp_path, updated) -> None:
    assert "-1.0 pt [-5.0, +3.0]" in printed(updated, tmp_path, encoding="ascii")


def test_the_record_comes_back_from_disk_and_gives_the_same_page(tmp_path, studied) -> None:
    write_update(tmp_path, studied)
    assert write(tmp_path, read_update(tmp_path)) == write(tmp_path, studied)


def test_over_seeds_of_one_is_itself_and_of_none_is_none() -> None:
    one = make.share(0.5, 100)
    assert over_seeds([one]) is one
    assert over_seeds([]) is None
    unknown = dataclasses.replace(one, interval=None)
    mean = over_seeds([one, unknown])
    assert mean is not None
    assert mean.interval is None


def test_the_page_stays_light(tmp_path, studied) -> None:
    html = write(tmp_path, studied)
    assert len(html) < 2_600_000
    assert "https://" not in re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S)
    assert len(paper_004.columns()) == 26


@pytest.mark.skipif(chromium() is None, reason="needs Chromium (Debian: apt-get install chromium)")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["update", "study"])
def test_the_page_draws_every_figure_without_a_message_and_fits_a_phone(tmp_path, kind) -> None:
    from test_report_browser import console_of, look_on_phone

    record = getattr(make, kind)(tmp_path)
    page = write_residual_report(tmp_path, record)
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert console_of(done.stderr) == []
    drawn = len(figures(page.read_text(encoding="utf-8")))
    assert done.stdout.count("js-plotly-plot") >= drawn > 3
    assert look_on_phone(page, tmp_path / "profile", 360) == {"scroll": 360, "outside": [], "drawn": drawn, "wide": 0}
