"""The page of an evaluation: every model's figures, what is missing, and the comparison with the first model."""

from __future__ import annotations

import dataclasses
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from synthetic_evaluations import ACCURACY, TEXT, Pair, answers, evaluation_record, multiple_choice, text
from test_comparison_report import section, titles

from holdfast.records.evaluation import EvaluationFolder, EvaluationRecord
from holdfast.reports.evaluation_report import evaluation_page
from holdfast.reports.html import write_page


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    """Two models on a group of subjects, a text and questions about the answer's position."""
    pair = Pair(tmp_path_factory.mktemp("pair"))
    subjects = multiple_choice("mmlu", 120, 0.47, 0.45, tasks=("mmlu_anatomy", "mmlu_law"))
    pair.add("knowledge", "mmlu", "task", subjects, ACCURACY)
    pair.add("keep", "prose", "perplexity", text("prose", 40, 2.9, 0.03), TEXT)
    return pair.add("learn", "medqa", "answers", answers("medqa", 50, 0.42, 0.55), ACCURACY)


def write(pair: Pair, path: Path, record: EvaluationRecord | None = None, **changes: Any) -> str:
    record = evaluation_record(pair.labels) if record is None else record
    folders = [pair.before, pair.after][: len(record.models)]
    return write_page(evaluation_page(record, folders, **changes), path / "e.html").read_text(encoding="utf-8")


def cells_of(page: str, entry: str) -> list[str]:
    """The cells of an entry's line in the table of scores, as text."""
    found = re.search(
        rf'<tr><th data-label="Entry" scope="row">{re.escape(entry)}<.*?</tr>', section(page, "Scores"), re.S
    )
    assert found is not None, entry
    return [unescape(re.sub(r"<[^>]+>", " ", c)).strip() for c in re.findall(r"<td.*?</td>", found[0], re.S)]


def test_figures_in_the_page_are_those_of_the_evaluations(pair, tmp_path) -> None:
    page = write(pair, tmp_path)
    for suite, name in (("knowledge", "mmlu"), ("keep", "prose")):
        shown = cells_of(page, name)
        for folder, cell in zip((pair.before, pair.after), shown, strict=True):
            found = folder.find(suite, name)
            assert found is not None
            metric = found.metrics[found.primary]
            factor = 1 if suite == "keep" else 100
            assert float(cell.split()[0]) == pytest.approx(
                factor * metric.value, abs=0.051 if factor == 100 else 0.0006
            )
            low, high = (float(v) for v in re.findall(r"[\d.]+", cell.split("[")[1]))
            assert (low, high) == pytest.approx(
                [factor * v for v in metric.interval], abs=0.051 if factor == 100 else 0.0006
            )


def test_what_is_missing_is_said(pair, tmp_path) -> None:
    plan = {"entries": [{"suite": "knowledge", "name": "hellaswag"}, {"suite": "knowledge", "name": "mmlu"}]}
    page = write(pair, tmp_path, evaluation_record(pair.labels, status="interrupted", plan=plan))
    assert "2 of 8 evaluations are missing, because the evaluation was stopped." in page
    assert "Run the same command to continue." in page
    assert cells_of(page, "hellaswag") == ["not finished", "not finished"]
    finished = write(pair, tmp_path, evaluation_record(pair.labels, plan=plan))
    assert cells_of(finished, "hellaswag") == ["not measured", "not measured"]


def test_an_entry_of_one_model_only_leaves_a_gap_of_the_other(tmp_path) -> None:
    pair = Pair(tmp_path / "p").add("k", "arc", "task", multiple_choice("arc", 60, 0.5, 0.5), ACCURACY)
    found = pair.before.find("k", "arc")
    assert found is not None
    pair.before.write(dataclasses.replace(found, name="extra"), [])
    page = write(pair, tmp_path)
    assert cells_of(page, "extra")[1] == "not measured"
    assert "1 of 4 evaluations are missing." in page


@pytest.mark.parametrize("status", ["running", "failed"])
def test_nothing_measured_yet_is_a_page_too(tmp_path, status) -> None:
    record = evaluation_record(["a"], status=status)
    page = write_page(evaluation_page(record, [EvaluationFolder(tmp_path / "none")]), tmp_path / "e.html").read_text()
    assert titles(page) == ["Scores", "What was run"]
    assert "There is no evaluation yet." in page and f">{status}</span>" in page
    assert "The evaluation failed." in page or "was still running" in page
    assert write_page(evaluation_page(EvaluationRecord(), []), tmp_path / "f.html").is_file()


def test_unreadable_files_are_said_first(tmp_path) -> None:
    pair = Pair(tmp_path / "p").add("k", "qa", "task", multiple_choice("qa", 60, 0.5, 0.5), ACCURACY)
    (pair.after.path / "k.bad.json").write_text("[1, 2]")
    page = write(pair, tmp_path)
    assert page.index("tuned: k.bad.json could not be read") < page.index("<section>")
    assert str(tmp_path) not in page
    assert cells_of(page, "qa")
