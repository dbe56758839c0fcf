"""`examples/paper_rows.py`: published records become the rows that the papers' studies train on and measure."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from data_files import jsonl, rows_of
from holdfast.evaluation.kinds.classification import read_classes
from holdfast.evaluation.suite import parse_evaluation
from holdfast.evaluation.text.questions import read_questions
from tiny import build_tokenizer

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "paper_rows.py"))
TURNS = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
HOLDINGS = [f"holding {n}" for n in range(5)]
ANSWERS = {"answerA": "a", "answerB": "b", "answerC": "c"}
MADE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("stackmathqa", {"Q": "q", "A": "a", "meta": {}}, {"question": "q", "answer": "a"}),
    ("code", {"instruction": "Write f.", "response": "f"}, {"prompt": "Write f.\n\n", "completion": "f"}),
    ("chat", {"messages": [*TURNS, {"role": "user", "content": "And?"}]}, {"messages": TURNS}),
    ("alpaca", {"instruction": "Why", "input": "?", "output": "So."}, {"content": "Why\n\n?"}),
    ("hh", {"chosen": "\n\nHuman: Why?\n\nAssistant: So.", "rejected": ""}, {"messages": TURNS}),
    ("law", {"context": "See <HOLDING>.", "endings": HOLDINGS, "label": 3}, {"completion": " holding 3"}),
    ("law", {"text": "We may end this.", "labels": [1, 4]}, {"completion": " Yes", "task": "terms_of_service"}),
    ("law", {"text": "Hello.", "labels": []}, {"completion": " No"}),
    ("law", {"text": "We overrule Roe.", "answer": "Yes"}, {"completion": " Yes", "task": "overruling"}),
    ("mr", {"text": "dull .", "label": 0}, {"completion": " negative", "answer": 0}),
    ("tweets", {"text": "good day", "label": 2}, {"completion": " positive"}),
    ("tweets", {"textID": "1", "text": " so sad", "selected_text": "sad", "sentiment": "negative"}, {"answer": 0}),
    ("trec", {"text": "Who ?", "coarse_label": 3, "fine_label": 24}, {"completion": " person"}),
    ("boolq", {"question": "is it red", "passage": "Blue.", "answer": False}, {"completion": " No"}),
    ("rte", {"sentence1": "A dog barks.", "sentence2": "A dog.", "label": 0}, {"completion": " True"}),
    ("siqa", {"context": "She left.", "question": "Why?", **ANSWERS, "label": "3"}, {"completion": " c"}),
]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "record", "expected"), MADE, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_record_becomes_its_row(name, record, expected):
    SCRIPT["main"]([name, str(jsonl("in.jsonl", [record])), "--output", "out.jsonl"])
    (row,) = rows_of("out.jsonl")
    if name == "alpaca":
        row = row["messages"][0]
    assert expected.items() <= row.items()


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("chat", {"messages": TURNS[:1]}),
        ("tweets", {"textID": "1", "text": None, "selected_text": None, "sentiment": "neutral"}),
        ("alpaca", {"instruction": "Say nothing.", "input": "", "output": " "}),
        ("hh", {"chosen": "\n\nHuman: a\n\nHuman: b\n\nAssistant: c", "rejected": ""}),
        ("hh", {"chosen": "\n\nHuman: a\n\nAssistant:", "rejected": ""}),
        ("hh", {"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c", "rejected": ""}),
    ],
)
def test_a_record_without_an_answer_gives_no_row(name, record):
    SCRIPT["main"]([name, str(jsonl("in.jsonl", [record])), "--output", "out.jsonl"])
    assert rows_of("out.jsonl") == []


def test_no_question_is_on_both_sides_in_any_wording():
    records = [{"query": f"{n}?", "response": f"{n}", "original_question": f"q{n % 60}"} for n in range(600)]
    words = ["metamath", str(jsonl("in.jsonl", [*records, records[0]])), "--output", "out.jsonl", "--heldout", "0.2"]
    SCRIPT["main"]([*words, "--seed", "1"])
    sides = [{int(row["answer"]) % 60 for row in rows_of(f"out{name}.jsonl")} for name in ("", ".heldout")]
    assert sides[0].isdisjoint(sides[1]) and 4 <= len(sides[1]) <= 22
    assert len(rows_of("out.jsonl")) + len(rows_of("out.heldout.jsonl")) == 600


def test_quality():
    questions = [
        {"question": "Why did he go?", "options": ["a", "b ", "c", "d"], "gold_label": 2, "difficult": 1},
        {"question": "NASA?", "options": ["a", "b", "c", "d"], "gold_label": None, "difficult": 0},
    ]
    record = {"article_id": "1", "title": "Toy Shop", "author": "Harrison, Harry", "year": 1968}
    record |= {"article": "\nText.\n", "questions": questions}
    Path("QuALITY.train").write_text(json.dumps(record) + "\n" + json.dumps(record) + "\n")
    for name in ("quality", "quality_questions"):
        SCRIPT["main"]([name, "QuALITY.train", "--output", f"{name}.jsonl"])
    assert rows_of("quality.jsonl") == [{"text": "Toy Shop\nby Harry Harrison\n\nText."}]
    (row,) = rows_of("quality_questions.jsonl")
    assert row["question"] == 'In the context of "Toy Shop", written by Harry Harrison in 1968, why did he go?'
    assert row["options"] == ["a", "b", "c", "d"] and row["answer"] == 1 and row["hard"] is True


def test_the_rows_are_measured_as_classes_and_as_choices():
    records = [{"text": f"Sentence {n}.", "label": n % 2} for n in range(4)]
    SCRIPT["main"](["subj", str(jsonl("in.jsonl", records)), "--output", "subj.jsonl"])
    options = [" objective", " subjective"]
    classes = {"classification": "subj.jsonl", "prompt": "{prompt}", "options": options, "label": "answer"}
    plan, problems = parse_evaluation({"learn": [classes, {"multiple_choice": "subj.jsonl", "name": "asked"}]})
    assert not problems
    texts = read_classes(plan.entries[0])
    assert [text.gold for text in texts] == [0, 1, 0, 1]
    assert all(text.prompt.endswith("\nAnswer:") for text in texts)
    assert len(read_questions(plan.entries[1], build_tokenizer())) == 4
