"""Where a difference lies: groups of samples with the counts of answers that flipped, and losses of form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from evaluated_folders import both, write
from holdfast.evaluation.compare.breakdown import LENGTH, NOT_SAID, breakdowns
from holdfast.evaluation.compare.folders import compare_entries, match_entries, read_evaluations
from holdfast.evaluation.groups import group_columns
from holdfast.records.comparison import Breakdown, Comparison

STRICT, FLEXIBLE = "exact_match,strict-match", "exact_match,flexible-extract"


def rows(scores: list[int], metric: str = "acc", **columns: list[Any]) -> list[dict[str, Any]]:
    found = []
    for i, score in enumerate(scores):
        row: dict[str, Any] = {"doc": f"d{i}", "prompt": f"p{i}", metric: float(score)}
        row |= {name: values[i] for name, values in columns.items() if values[i] is not None}
        found.append(row)
    return found


def compared(tmp_path: Path) -> tuple[list[Comparison], list[str]]:
    before, after = both(tmp_path)
    matching = match_entries(read_evaluations(before), read_evaluations(after))
    done = compare_entries(before, after, matching)
    return done.comparisons, done.notes


def broken_down(tmp_path: Path) -> dict[str, Breakdown]:
    comparisons, _ = compared(tmp_path)
    return {b.by: b for b in breakdowns(*both(tmp_path), comparisons)}


def counts(breakdown: Breakdown) -> dict[str, tuple[int | None, int | None, int]]:
    return {g.name: (g.flips_lost, g.flips_gained, g.n) for g in breakdown.groups}


def test_groups_have_their_own_counts_test_and_adjusted_p(tmp_path: Path) -> None:
    category = ["algebra"] * 20 + ["prose"] * 20
    source = ["exam", "web"] * 20
    questions = ["x" * (10 + i) for i in range(40)]
    for folder, scores in (("before", [1] * 40), ("after", [0] * 10 + [1] * 30)):
        columns = {"category": category, "source": source, "question": questions}
        write(tmp_path / folder, "keep", "quiz", rows(scores, **columns))
    found = broken_down(tmp_path)
    assert list(found) == ["category", "source", LENGTH]
    assert counts(found["category"]) == {"algebra": (10, 0, 20), "prose": (0, 0, 20)}
    assert counts(found["source"]) == {"exam": (5, 0, 20), "web": (5, 0, 20)}
    assert counts(found[LENGTH]) == {
        "up to 19 characters": (10, 0, 10),
        "20 to 29": (0, 0, 10),
        "30 to 39": (0, 0, 10),
        "40 and more": (0, 0, 10),
    }
    p = binomtest(10, 10).pvalue
    assert found["category"].groups[0].p_value == pytest.approx(p)
    assert found["category"].p_adjusted == pytest.approx([2 * p, 1.0]), "Holm, two groups"
    assert found[LENGTH].p_adjusted[0] == pytest.approx(4 * p), "Holm, four groups"


def test_what_sorts_nothing_is_no_group(tmp_path: Path) -> None:
    columns = {"category": ["one"] * 40, "source": [f"text {i}" for i in range(40)], "question": ["same"] * 40}
    for folder, scores in (("before", [1] * 40), ("after", [0] * 10 + [1] * 30)):
        write(tmp_path / folder, "keep", "quiz", rows(scores, **columns))
    assert broken_down(tmp_path) == {}


def test_samples_that_say_nothing_are_a_group_of_their_own(tmp_path: Path) -> None:
    columns = {"category": ["law"] * 10 + [None] * 10}
    for folder, scores in (("before", [1] * 20), ("after", [0, 0] + [1] * 18)):
        write(tmp_path / folder, "keep", "quiz", rows(scores, **columns))
    assert counts(broken_down(tmp_path)["category"]) == {"law": (2, 0, 10), NOT_SAID: (0, 0, 10)}


def test_columns_of_documents_that_sort_them() -> None:
    assert group_columns({"category": "law", "source": "ori_mmlu", "subject": "", "task": "x", "other": "y"}) == {
        "category": "law",
        "source": "ori_mmlu",
    }
    assert group_columns({"source": "a sentence to be translated, which is no source " * 3, "category": 3}) == {}
    assert group_columns(None) == {}


# ---------------------------------------------------------------------------------------------------- losses of form


def gsm8k(tmp_path: Path, strict: list[int], flexible: list[int]) -> list[str]:
    """Notes of a comparison of answers that were all right before, by both readings."""
    right = [1] * len(strict)
    for folder, sides in (("before", (right, right)), ("after", (strict, flexible))):
        made = rows(sides[0], STRICT)
        for row, value in zip(made, sides[1], strict=True):
            row[FLEXIBLE] = float(value)
        write(tmp_path / folder, "keep", "gsm8k", made, metrics=(STRICT, FLEXIBLE))
    return [note for note in compared(tmp_path)[1] if note.startswith("keep/gsm8k: ")]


def test_a_loss_of_form_is_said_to_be_one(tmp_path: Path) -> None:
    [note] = gsm8k(tmp_path, [0] * 20 + [1] * 180, [0] * 2 + [1] * 198)
    assert f"The first, {STRICT}, went from 1 to 0.9 (lost)" in note
    assert f"Loss of format: 20 answers became wrong according to {STRICT}, but 18 of them" in note
    assert f"of them are still right according to {FLEXIBLE}." in note


def test_a_loss_of_answers_is_not_said_to_be_one_of_form(tmp_path: Path) -> None:
    assert gsm8k(tmp_path, [0] * 20 + [1] * 180, [0] * 18 + [1] * 182) == []


def test_two_readings_that_part_without_a_shown_loss(tmp_path: Path) -> None:
    [note] = gsm8k(tmp_path, [0] * 3 + [1] * 597, [1] * 600)
    assert "Loss of format" not in note and "Perhaps only the format of the answers changed." in note
