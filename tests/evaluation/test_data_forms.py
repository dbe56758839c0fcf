"""Published files of benchmarks become the rows that the harness reads; what is broken is named by file and row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.errors import DataError
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.tasks.data_forms import FORMS, convert

ARC = {
    "id": "Q1",
    "query": "Question: Which of these melts?\n A. ice\n B. sand (it does not. Really.)\n C. air\nAnswer:",
    "choices": ["A", "B", "C"],
    "gold": 0,
}
TRUTHFUL = {
    "Question": "What is the moon made of?",
    "Best Answer": "Rock",
    "Correct Answers": "Rock; Mostly rock. ; ",
    "Incorrect Answers": "Cheese;Green cheese.",
}
QUALITY = {
    "article": "Once there was a ship.",
    "questions": [
        {
            "question": "What was there?",
            "options": ["a car", "a ship", "a cat", "a dog"],
            "gold_label": 2,
            "difficult": 1,
        },
        {"question": "Not answered?", "options": ["a", "b", "c", "d"], "gold_label": None, "difficult": 0},
        {"question": "When?", "options": ["once", "twice", "never", "now"], "gold_label": 1, "difficult": 0},
    ],
}
MBPP = {
    "task_id": 11,
    "prompt": "Write a function to add.",
    "code": "def f(): pass",
    "test_list": ["assert f() is None"],
}
MMLU = {"question": "What?", "choices": ["a", "b", "c", "d"], "answer": 2, "subject_dir": "anatomy"}
BOOLQ = {"question": "is it", "passage": "It is.", "answer": True}


def made(task: str, *rows: dict, place: str = "file.jsonl") -> tuple[list[dict], str | None]:
    import datasets

    found, form = convert(datasets.Dataset.from_list(list(rows)), task, place)
    return [dict(row) for row in found], form


TRUTHFUL_ROW = {
    "question": "What is the moon made of?",
    "mc1_targets": {"choices": ["Rock.", "Cheese.", "Green cheese."], "labels": [1, 0, 0]},
    "mc2_targets": {"choices": ["Rock.", "Mostly rock.", "Cheese.", "Green cheese."], "labels": [1, 1, 0, 0]},
}
QUALITY_ROWS = [  # a question without a published answer is left out
    {"article": QUALITY["article"], "question": q["question"], "options": q["options"], "answer": answer, "hard": hard}
    for q, answer, hard in ((QUALITY["questions"][0], 1, True), (QUALITY["questions"][2], 0, False))
]


@pytest.mark.parametrize(
    ("task", "row", "rows", "form"),
    [
        ("boolq", BOOLQ, [{**BOOLQ, "label": 1}], "the BoolQ release"),
        ("boolq", {**BOOLQ, "answer": False}, [{**BOOLQ, "answer": False, "label": 0}], "the BoolQ release"),
        *(
            ("boolq", {**BOOLQ, "answer": word}, [{**BOOLQ, "answer": word, "label": label}], "the BoolQ release")
            for word, label in (("true", 1), ("False", 0), (" Yes ", 1), ("no", 0))
        ),
        ("truthfulqa_mc1", TRUTHFUL, [TRUTHFUL_ROW], "the TruthfulQA release"),
        ("truthfulqa_mc2", TRUTHFUL, [TRUTHFUL_ROW], "the TruthfulQA release"),
        ("quality", QUALITY, QUALITY_ROWS, "the QuALITY release"),
        ("quality_open_book", QUALITY, QUALITY_ROWS, "the QuALITY release"),
        ("mmlu_anatomy", MMLU, [{**MMLU, "subject": "anatomy"}], "an export by folders"),
        ("mbpp", MBPP, [{**MBPP, "text": MBPP["prompt"]}], "sanitised MBPP"),
    ],
)
def test_published_forms_become_the_rows_of_the_hub(task, row, rows, form) -> None:
    assert made(task, row) == (rows, form)
    assert made(task, row, row) == (rows * 2, form)


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("boolq", {**BOOLQ, "label": 1}),
        ("lettered", ARC),
        ("my_boolq", BOOLQ),
    ],
)
def test_rows_in_the_hubs_form_and_other_tasks_are_left_alone(task: str, row: dict) -> None:
    assert made(task, row) == ([row], None)


@pytest.mark.parametrize(
    ("task", "good", "broken", "says"),
    [
        ("boolq", BOOLQ, {"answer": None}, "the answer is None, not true or false"),
        (
            "truthfulqa_mc1",
            TRUTHFUL,
            {"Incorrect Answers": " ; "},
            "it lacks correct answers, incorrect answers or both",
        ),
        ("quality", QUALITY, {"questions": None}, "NoneType"),
        ("quality", QUALITY, {"questions": [{**QUALITY["questions"][0], "options": None}]}, "NoneType"),
    ],
)
def test_a_broken_row_is_named_by_file_and_place(task: str, good: dict, broken: dict, says: str) -> None:
    with pytest.raises(DataError) as caught:
        made(task, good, {**good, **broken}, place="data/release.jsonl")
    text = str(caught.value)
    assert text.startswith("data/release.jsonl, row 1: expected a row of ")
    assert says in text


def test_a_file_without_one_published_answer() -> None:
    hidden = {**QUALITY, "questions": [{**question, "gold_label": None} for question in QUALITY["questions"]]}
    with pytest.raises(
        DataError, match=r"test\.jsonl: expected questions in the form of the QuALITY release, but none of its 2 rows"
    ):
        made("quality", hidden, hidden, place="test.jsonl")


def test_every_form_is_told_apart_from_the_hubs() -> None:
    for form in FORMS:
        assert not set(form.has) & set(form.lacks), form.name


@pytest.mark.parametrize(
    ("task", "row", "text", "choices", "target"),
    [
        ("mmlu_anatomy", MMLU, "What?\nA. a\nB. b\nC. c\nD. d\nAnswer:", ["A", "B", "C", "D"], 2),
        (
            "quality",
            QUALITY,
            "Question: What was there?\nA. a car\nB. a ship\nC. a cat\nD. a dog\nAnswer:",
            ["A", "B", "C", "D"],
            1,
        ),
        ("lettered", ARC, ARC["query"], ["A", "B", "C"], 0),
        ("overruling", {"sentence1": " We overrule. ", "label": 1}, None, ["no", "yes"], 1),
        (
            "case_hold",
            {"context": "See", "endings": ["v", "w", "x", "y", "z"], "label": 4},
            None,
            ["A", "B", "C", "D", "E"],
            4,
        ),
    ],
)
def test_the_task_asks_what_the_file_says(
    tmp_path: Path, task: str, row: dict, text: str | None, choices: list[str], target: int
) -> None:
    from holdfast.evaluation.tasks.tasks import load_tasks

    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    found = load_tasks(TaskEntry(suite="keep", name=task, task=task, data=str(tmp_path / "rows.jsonl")))
    [asked] = found.values()
    doc = next(iter(asked.eval_docs))
    if text is not None:
        assert asked.doc_to_text(doc) == text
    assert asked.doc_to_choice(doc) == choices
    assert asked.doc_to_target(doc) == target
