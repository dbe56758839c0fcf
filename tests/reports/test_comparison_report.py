"""The page of a comparison: figures of the comparisons, questions that flipped, and gaps that are named."""

from __future__ import annotations

import dataclasses
import math
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from synthetic_evaluations import (
    ACCURACY,
    GATES,
    TEXT,
    Pair,
    doc_hash,
    multiple_choice,
    text,
)
from synthetic_runs import SOURCE_LOST, SOURCE_NOISE, comparison

from holdfast.evaluation.compare.gate import verdict_of
from holdfast.records.evaluation import EvaluationFolder
from holdfast.reports.blocks import plain_text
from holdfast.reports.charts import Chart, plotly_figure
from holdfast.reports.compared import ComparisonRow, gain_forest, gains
from holdfast.reports.comparison_report import comparison_page, comparison_verdict
from holdfast.reports.flips import MOST_FLIPS, answer_of, flips_of, flips_table
from holdfast.reports.html import write_page


def cells_of(chart: Chart) -> list[list[str]]:
    """The chart's table as text."""
    return [[plain_text(cell, below=" ") for cell in row] for row in chart.table.rows]


def write(pair: Pair, path: Path, **changes: Any) -> str:
    return write_page(comparison_page(pair.result(**changes)), path / "c.html").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """One section's markup, empty where the page has none of that title."""
    found = re.search(rf"<section><h2>{re.escape(title)}</h2>(.*?)</section>", page, re.S)
    return found[1] if found else ""


def titles(page: str) -> list[str]:
    return re.findall(r"<section><h2>(.*?)</h2>", page)


def questions(page: str) -> list[str]:
    """The lines of the table of questions that flipped."""
    return re.findall(r'<tr><th data-label="Entry".*?</tr>', section(page, "Questions whose answers flipped"), re.S)


def small(root: Path) -> Pair:
    """Two entries, quick to make."""
    pair = Pair(root)
    pair.add("knowledge", "arc", "task", multiple_choice("arc", 120, 0.6, 0.5), ACCURACY)
    return pair.add("keep", "prose", "perplexity", text("prose", 40, 2.9, 0.03), TEXT)


# --------------------------------------------------------------------------------------------------------- the sections


def test_nothing_is_drawn_for_what_is_not_there(tmp_path) -> None:
    quiet = Pair(tmp_path).add("keep", "prose", "perplexity", text("prose", 40, 2.9, 0.03), TEXT)
    assert titles(write(quiet, tmp_path)) == ["Before and after", "Documents that changed most", "What was compared"]
    empty = write(quiet, tmp_path, comparisons=[], unmatched=["keep/prose: only before."])
    assert titles(empty) == ["Before and after", "Not compared", "What was compared"]
    assert "Nothing was compared." in empty and 'id="figures"' not in empty
    pair = small(tmp_path / "a")
    pair.before = pair.after = EvaluationFolder(tmp_path / "nowhere")
    assert titles(write(pair, tmp_path)) == ["Before and after", "What was compared"]


def test_rules_come_with_outcome_and_numbers(tmp_path) -> None:
    page = write(small(tmp_path / "a"), tmp_path, gates=GATES)
    rows = re.findall(r"<tr>(.*?)</tr>", section(page, "Rules"), re.S)
    rows, numbers = rows[1:4], rows[5:]
    assert [re.search(r'class="chip \w+">(\w+)<', r)[1] for r in rows] == ["failed", "undecided", "passed"]
    for part in ("gsm8k drop &gt; 2pt", "+6.9 pt", "[+2.7, +11.1]", "the whole interval is above"):
        assert part in rows[0]
    assert ">2 pt<" in numbers[0], "folded below"
    assert '<span class="pill bad">HOLD</span>' in page


SHARES = {"unit": "accuracy", "metric": "acc", "higher_is_better": True, "flips_lost": 40, "flips_gained": 9}


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        (["passed", "undecided"], " SHIP: all requirements are met."),
        (
            ["passed", "failed"],
            " HOLD: knowledge/mmlu: drop 1.75 pt [-0.1, 3.6]: 1 pt is inside the interval; more samples would decide.",
        ),
        ([], ""),
    ],
)
def test_the_lead_says_what_the_gate_says_and_what_changed(outcomes, words) -> None:
    gates = [dataclasses.replace(GATES[0], outcome=o) for o in outcomes]
    arc = comparison(**SHARES, name="arc", before=0.6, after=0.55, difference=-0.05, interval=(-0.07, -0.03))
    lead = comparison_verdict([arc], verdict_of(gates) if gates else None)
    assert lead == f"Worse on 1 of 1: arc, by 5 pt.{words}"


# ------------------------------------------------------------------------------------------------------------- figures


def test_a_forest_is_sorted_in_points_and_says_what_it_leaves_out() -> None:
    rows = [
        ComparisonRow(
            comparison(**SHARES, name=n, before=0.5, after=0.5 + g, difference=g, interval=(g - 0.01, g + 0.01))
        )
        for n, g in {"a": 0.02, "b": -0.05, "c": math.nan}.items()
    ]
    chart = gain_forest(rows, "t")
    assert [cells[:3] for cells in cells_of(chart)] == [
        ["b", "lost", "−5.0 pt [−6.0, −4.0]"],
        ["a", "gained", "+2.0 pt [+1.0, +3.0]"],
    ]
    assert chart.caption.endswith("Not drawn, because the difference is not a number: c.")
    drawn = {d["marker"]["line"]["color"]: d for d in plotly_figure(chart)["data"]}
    bad, good = drawn["var(--bad)"], drawn["var(--good)"]
    assert (bad["x"], bad["y"], good["error_x"]["array"]) == ([-5.0], [0], [1.0])
    assert gain_forest([rows[2]], "t") is None


def test_each_unit_has_a_forest() -> None:
    rows = [comparison(), comparison(**SOURCE_NOISE), comparison(**SOURCE_LOST), comparison(unit="bits/byte")]
    forests = gains(list(map(ComparisonRow, rows)))
    assert [c.title for c in forests] == ["Gains in nats/token", "Gains in points", "Gains in bits/byte"]
    assert forests[0].x.title == "gain, nats/token → better"
    [noise] = plotly_figure(forests[1])["data"]
    assert noise["x"] == pytest.approx([-0.52]) and noise["marker"]["color"] == "var(--surface)"  # hollow
    assert [d["x"] for d in plotly_figure(forests[0])["data"]] == [[-0.0863], [0.4124]]


def test_where_it_changed_has_counts_of_each_group(tmp_path) -> None:
    sides = multiple_choice("arc", 120, 0.9, 0.5)
    for rows in sides:
        for i, row in enumerate(rows):
            row["category"] = "law" if i < 60 else "art"
            row["question"] = "x" * (i + 1)
    pair = Pair(tmp_path / "a").add("knowledge", "arc", "task", sides, ACCURACY)
    markup = section(write(pair, tmp_path), "Where it changed")
    assert re.findall(r"<h3>(.*?)</h3>", markup) == ["arc, by category", "arc, by length of the question"]
    assert "2 groups, of which 2 changed significantly. The p values are adjusted for all groups (Holm" in markup
    lines = re.findall(r"<tr>(<th data-label.*?)</tr>", markup, re.S)
    cells = [[re.sub(r"<.*?>", " ", cell).split() for cell in re.findall(r"<t[hd].*?</t[hd]>", line)] for line in lines]
    for number, (name, places) in enumerate({"law": range(60), "art": range(60, 120)}.items()):
        flips = [(sides[0][i]["acc"], sides[1][i]["acc"]) for i in places]
        [line] = [c for c in cells[:2] if c[0] == [name]]
        assert line[1:4] == [[str(flips.count((1, 0)))], [str(flips.count((0, 1)))], ["60"]], number
    assert [c[0] for c in cells[2:]] == [
        ["up", "to", "30", "characters"], ["31", "to", "60"], ["61", "to", "90"], ["91", "and", "more"]
    ]  # fmt: skip
    unchanged = Pair(tmp_path / "b").add("knowledge", "arc", "task", (sides[0], sides[0]), ACCURACY)
    markup = section(write(unchanged, tmp_path), "Where it changed")
    assert "arc, by category" in markup and "by length" not in markup, "lengths only of what changed"


# --------------------------------------------------------------------------------------------------------------- flips


def test_flips_are_the_questions_that_changed(tmp_path) -> None:
    pair = small(tmp_path / "a")
    page = write(pair, tmp_path)
    c = next(c for c in pair.comparisons if c.name == "arc")
    shown = questions(page)
    assert len(shown) == c.flips_lost + c.flips_gained > 10
    assert sum('"chip bad">lost' in s for s in shown) == c.flips_lost
    sides = [list(side.samples("knowledge", "arc")) for side in (pair.before, pair.after)]
    assert flips_of("arc", "", "acc", *sides).lost == c.flips_lost != c.flips_gained
    rows = {r["doc"][:12]: (r, s) for r, s in zip(*sides, strict=True)}
    for line in shown:
        before, after = rows[re.search(r"doc ([0-9a-f]{12})", line)[1]]
        assert ("lost" in line[:200]) == (before["acc"] == 1)
        assert before["question"] in unescape(line)
        cells = [unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<td.*?</td>", line, re.S)]
        places = before["gold"], before["answer"], after["answer"]
        assert cells[1:] == [f"{'ABCD'[place]}. {before['choices'][place]}" for place in places]


def test_length_normalised_answers_are_those_of_the_metric() -> None:
    found = {"choices": ["a", "a much longer option"], "loglikelihoods": [-3.0, -6.0], "answer": 0}
    assert [answer_of(found, m) for m in ("acc", "acc_norm", "acc_norm,none")] == [0, 1, 1]
    assert answer_of({"choices": ["é", "ab"], "loglikelihoods": [-3.0, -4.0], "answer": 0}, "acc_norm") == 1
    assert answer_of({"choices": ["éé", "abc"], "loglikelihoods": [-3.0, -4.0], "answer": 1}, "acc_bytes") == 0
    assert answer_of({}, "acc") is None and answer_of({"answer": math.nan}, "acc") is None


def test_gold_may_be_several_and_fields_may_lack() -> None:
    rows = [{"doc": "1", "acc": 1.0, "choices": ["x", "y", "z"], "gold": [0, 2], "answer": 2}, {"doc": "2", "acc": 0.0}]
    after = [{**rows[0], "acc": 0.0, "answer": 1}, {"doc": "2", "acc": 1.0}]
    found = flips_of("e", "f", "acc", rows, after)
    [table] = flips_table([found])
    texts = [[plain_text(cell) for cell in row] for row in table.rows]
    assert found.lost == 1 and len(found.questions) == 2
    assert texts[0][2:] == ["A. x, C. z", "C. z", "B. y"]
    assert "The question was not recorded." in texts[0][1] and texts[1][2:] == ["", "", ""]
    assert flips_table([]) == flips_table([flips_of("e", "f", "acc", rows, rows)]) == []


def test_generated_answers_stand_side_by_side_and_the_middle_of_long_ones_is_left_out() -> None:
    row = {"doc": "1", "pass@1": 1.0, "question": "q", "outputs": ["return 1"], "reasons": ["passed"]}
    other = {**row, "pass@1": 0.0, "outputs": [f"begin {'x' * 2000} end"], "reasons": ["AssertionError"]}
    [table] = flips_table([flips_of("code", "f", "pass@1", [row], [other])])
    *_, gold, before, after = [plain_text(cell) for cell in table.rows[0]]
    assert (gold, before) == ("", "return 1\n(passed)")
    assert after.startswith("begin x") and after.endswith("end\n(AssertionError)") and "characters left out" in after


def test_the_page_holds_some_hundred_questions_and_says_where_the_rest_is(tmp_path) -> None:
    pair = Pair(tmp_path)
    pair.add("knowledge", "big", "task", multiple_choice("big", 2000, 0.6, 0.45), ACCURACY)
    pair.add("knowledge", "little", "task", multiple_choice("little", 100, 0.6, 0.5), ACCURACY)
    page = write(pair, tmp_path)
    flips = {c.name: c.flips_lost + c.flips_gained for c in pair.comparisons}
    assert sum(flips.values()) > MOST_FLIPS > flips["little"]
    shown = questions(page)
    assert len(shown) == MOST_FLIPS // 2 + flips["little"]
    assert sum("</span> little<span" in s for s in shown) == flips["little"]  # a small entry is not crowded out
    more = flips["big"] - MOST_FLIPS // 2
    assert f"big: {more:,} more in knowledge.big.samples.jsonl. These files have the rows of both models" in page


# ----------------------------------------------------------------------------------------------------------- documents


def test_documents_that_changed_most_are_named(tmp_path) -> None:
    sides = text("prose", 60, 2.9, 0.0)
    sides[1][17]["nats"] = sides[0][17]["nats"] + 900.5
    sides[1][23]["nats"] = sides[0][23]["nats"] - 800.25
    words = section(
        write(Pair(tmp_path).add("keep", "prose", "perplexity", sides, TEXT), tmp_path), "Documents that changed most"
    )
    rows = re.findall(r'<tr><th data-label="Document".*?</tr>', words, re.S)
    assert len(rows) == 16
    assert rows[0].startswith('<tr><th data-label="Document" scope="row">row 18<') and "+900.5" in rows[0]
    assert ">row 24<" in rows[8] and "−800.2" in rows[8]
    assert doc_hash("prose", 17)[:12] in rows[0]
    assert "The 8 documents that lost most and the 8 that gained most, of 60 documents." in words


# --------------------------------------------------------------------------------------------------- what goes wrong


def test_files_that_cannot_be_used_are_named_first(tmp_path) -> None:
    pair = small(tmp_path / "a")
    for name, content in (("bad", "{not json"), ("odd", '{"suite": "knowledge"}')):
        (pair.before.path / f"knowledge.{name}.json").write_text(content)
    (pair.after.path / "knowledge.arc.samples.jsonl").unlink()
    page = write(pair, tmp_path)
    head, _, _ = page.partition("<section>")
    for part in (
        "base: knowledge.bad.json could not be read",
        "base: knowledge.odd.json could not be read",
        "tuned: knowledge.arc.samples.jsonl could not be read: the per-sample rows knowledge.arc.samples.jsonl",
    ):
        assert part in head.partition("banner warn")[2]
    assert str(tmp_path) not in page
    assert "Questions whose answers flipped" not in titles(page) and "Before and after" in titles(page)


def test_rows_that_do_not_fit_are_said_and_not_shown(tmp_path) -> None:
    pair = small(tmp_path / "a")
    rows = pair.after.samples("knowledge", "arc")
    found = pair.after.find("knowledge", "arc")
    assert found is not None
    pair.after.write(found, [{**r, "prompt": "another"} for r in rows])
    page = write(pair, tmp_path)
    assert "arc: 120 of 120 samples changed between the evaluations (now with another prompt)" in page
    assert questions(page) == []
    pair.after.write(found, [{k: v for k, v in r.items() if k != "doc"} for r in rows])
    assert "because samples are paired by it" in write(pair, tmp_path)


def test_folders_of_models_are_named_by_their_last_part(tmp_path) -> None:
    sides = text("prose", 20, 2.9, 0.0)
    pair = Pair(tmp_path).add(
        "s", "prose", "perplexity", sides, TEXT, model={"name": "/data/someone/run-7", "hash": "ab" * 32}
    )
    words = section(write(pair, tmp_path), "What was compared")
    assert "run-7 · ababababababababa" in words.replace("…", "a") and "someone" not in words
