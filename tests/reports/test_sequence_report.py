"""The page of a sequence study: the answer first, the paper's plane, what is missing said."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_sequences import about, sequence

from holdfast.records.sequence import TaskScore, read_sequence
from holdfast.reports import blocks
from holdfast.reports.charts import Chart, plotly_figure
from holdfast.reports.sequence_report import lead, print_sequence, sequence_page


def charts(record) -> dict[str, Chart]:
    sections = [x for x in sequence_page(record).blocks if isinstance(x, blocks.Section)]
    return {c.title: c for s in sections for c in s.blocks if isinstance(c, Chart)}


def test_the_answer_names_what_was_lost_and_the_arm_that_keeps_most():
    text = lead(sequence())
    assert "sequential fine-tuning scores 0.0 % [−2.0, 2.0] on math (38.0 % [36.0, 40.0] trained alone)" in text
    assert "without old data, 3 learn law nearly as well; of these SFA, p 0.25 keeps most: 31.0 %" in text
    record = sequence()
    lazy = dataclasses.replace(record.arms[-2], scores={**record.arms[-2].scores, "law": about(0.3)})
    lazy = dataclasses.replace(lazy, against={**lazy.against, "law": about(-0.46)})
    arms = [*record.arms[:-2], lazy, record.arms[-1]]
    found = lead(dataclasses.replace(record, arms=arms))
    assert "2 learn law nearly as well; of these SFA, p 0.5 keeps most" in found, "who learns nothing forgets nothing"
    assert "replay" not in text, "it needs old data"


def test_the_answer_says_what_is_left_of_the_source():
    record = sequence()
    kept = {"sequential fine-tuning": 0.1, "SFA, p 0.5": 0.5, "replay, fraction 0.1": 0.8}
    source = TaskScore(
        suite="source", name="following", metric="acc", unit="accuracy", higher_is_better=True, before=0.9
    )
    arms = [
        dataclasses.replace(a, source={"following": [about(0.85), about(kept.get(a.arm, 0.3))]}) for a in record.arms
    ]
    text = lead(dataclasses.replace(record, source={"following": source}, arms=arms))
    assert "Of following, 90.00 % at the start, sequential fine-tuning leaves 10.0 % [8.0, 12.0]; the best of" in text
    assert "such arms, SFA, p 0.5, 50.0 % [48.0, 52.0]." in text, "replay needs old data"


def test_the_plane_joins_the_arms_of_a_method_along_its_strength():
    chart = charts(sequence())["math kept against law learnt"]
    drawn = {trace["name"]: trace for trace in plotly_figure(chart)["data"]}
    assert drawn["SFA"]["mode"].startswith("lines") and list(drawn["SFA"]["x"]) == [59, 69, 74]
    assert "lines" not in drawn["sequential"]["mode"]
    assert drawn["multitask training"]["marker"]["symbol"] == "star"
    assert {(r.x, r.y) for r in chart.rules} == {(75.0, None), (None, 38.0)}


def test_a_curve_for_each_value_of_the_other_parameter():
    """Figure 1: along p, one curve a beta."""
    record = sequence()
    once = next(a for a in record.arms if a.arm == "SFA, p 1")
    more = [
        dataclasses.replace(once, arm=f"SFA, p {p}, beta 0.2", retention=[{"sfa": {"p": p, "beta": 0.2}}])
        for p in (0.5, 0.1, 1)
    ]
    chart = charts(dataclasses.replace(record, arms=[*record.arms, *more]))["math kept against law learnt"]
    curves = {m.name: [r["arm"] for r in m.rows or []] for m in chart.marks if m.name.startswith("SFA")}
    assert curves == {
        "SFA": ["SFA, p 0.25", "SFA, p 0.5", "SFA, p 1"],
        "SFA, beta 0.2": ["SFA, p 0.1, beta 0.2", "SFA, p 0.5, beta 0.2", "SFA, p 1, beta 0.2"],
    }


def test_many_arms_leave_the_best_of_each_kind_along_training():
    record = sequence()
    best = next(a for a in record.arms if a.arm == "SFA, p 0.25")
    worse = [dataclasses.replace(best, arm=f"SFA {i}", scores={t: about(0.1) for t in best.scores}) for i in range(12)]
    chart = charts(dataclasses.replace(record, arms=[*record.arms, *worse]))["math while later tasks are trained"]
    shown = [row["arm"] for row in chart.rows]
    assert "SFA, p 0.25" in shown and not any(name.startswith("SFA ") for name in shown) and "never saw math" in shown


def test_a_long_chain_shows_some_tasks_and_all_stages():
    record = sequence(tuple(f"month_{i}" for i in range(1, 8)))
    known = TaskScore(
        suite="source", name="following", metric="acc", unit="accuracy", higher_is_better=True, before=0.8
    )
    arms = [
        dataclasses.replace(a, source={"following": [about(0.8 - 0.05 * k) for k in range(7)]})
        if len(a.models) == 7
        else a
        for a in record.arms
    ]
    found = charts(dataclasses.replace(record, arms=arms, source={"following": known}))
    planes = [title for title in found if "kept against" in title]
    assert planes == [f"month_{i} kept against month_7 learnt" for i in (1, 3, 6)]
    along = found["following along the tasks"]
    assert along.rows[0]["x"] == list(range(8)) and along.rows[0]["y"][:3] == pytest.approx([80.0, 80.0, 75.0])
    assert not any(row["arm"] == "single task" for row in along.rows)
    assert [text for _, text in along.x.ticks] == ["base", *(f"month_{i}" for i in range(1, 8))]
    left = found["All tasks before"].rows[0]
    assert left["x"] == [2, 3, 4, 5, 6, 7] and left["y"][0] == pytest.approx(38.0)


def test_an_arm_that_diverged_does_not_hide_the_others():
    record = sequence()
    assert not charts(record)["Distance and memory"].x.log
    far = dataclasses.replace(record.arms[0], distance=about(6e23, 1e23))
    assert charts(dataclasses.replace(record, arms=[far, *record.arms[1:]]))["Distance and memory"].x.log


def test_losses_run_downwards():
    record = sequence()
    tasks = {t: dataclasses.replace(s, unit="nats/token", higher_is_better=False) for t, s in record.tasks.items()}
    lossy = dataclasses.replace(record, tasks=tasks)
    chart = charts(lossy)["math kept against law learnt"]
    assert chart.x.more == chart.y.more == {"autorange": "reversed"}
    assert charts(record)["math kept against law learnt"].x.more == {}


def test_three_tasks_have_a_plane_for_each_earlier_one():
    found = charts(sequence(("math", "law", "code")))
    assert {"math kept against code learnt", "law kept against code learnt"} <= set(found)
    assert {"math while later tasks are trained", "law while later tasks are trained"} <= set(found)
    assert any(r["arm"] == "never saw law" for r in found["law while later tasks are trained"].rows)


def test_what_is_not_there_is_said():
    record = sequence(status="running")
    waiting = [dataclasses.replace(m, state="waiting", distance=None, curves={}) for m in record.models]
    arms = [dataclasses.replace(a, scores={}, against={}, distance=None, matrix=[], measures={}) for a in record.arms]
    nothing = dataclasses.replace(record, models=waiting, arms=arms, tasks={}, finished=None)
    assert "Not measured yet" in lead(nothing) and not charts(nothing)
    failed = dataclasses.replace(record.models[0], state="failed", reason="no memory")
    page = sequence_page(dataclasses.replace(record, models=[failed, *record.models[1:]]))
    assert any(isinstance(x, blocks.Banner) and "failed" in blocks.words(x.content) for x in page.blocks)


def test_the_terminal_prints_the_scores(tmp_path):
    console = Console(file=io.StringIO(), width=160)
    print_sequence(sequence(), tmp_path, console)
    shown = console.file.getvalue()
    assert "math → law" in shown and "SFA, p 0.25" in shown and "report.html" in shown


def test_tasks_of_a_long_chain_that_are_not_shown_are_named(capsys):
    record = read_sequence(Path(__file__).parents[2] / "docs" / "examples" / "months")
    order = record.orders[0]
    assert len(order) == 12
    said = f"Not shown here: {', '.join([*order[1:5], *order[6:9]])} and {order[9]}; see the page's tables"
    print_sequence(record, "runs/months", Console(width=400))
    assert said in capsys.readouterr().out
    assert said in str(sequence_page(record))
    assert "Not shown" not in str(sequence_page(sequence()))


def test_a_headline_of_mixed_units_says_which_arms_it_means():
    record = read_sequence(Path(__file__).parents[2] / "docs" / "examples" / "months")
    assert "such arms" in lead(record)
    first, *rest = record.orders[0]
    tasks = {**record.tasks, first: dataclasses.replace(record.tasks[first], unit="nats/token")}
    text = lead(dataclasses.replace(record, tasks=tasks))
    assert "such arms" not in text and f"arms without old data that learn {rest[-1]} nearly as well" in text
