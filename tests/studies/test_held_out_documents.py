"""What a study measures is looked for in its training data, also where a task of the harness asks about a file here."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_files import jsonl
from holdfast.evaluation.suite import parse_evaluation
from holdfast.studies.engine.held_out import HeldOut
from holdfast.studies.engine.study import CannotJudge

QUESTION = (
    "Which of these four things would most likely melt first if it were left on a stone in the sun for a whole day?"
)


def test_the_questions_of_a_task_are_looked_for(tmp_path: Path) -> None:
    rows = [
        {"question": q, "choices": {"text": ["ice", "iron", "salt", "wood"], "label": list("ABCD")}, "answerKey": "A"}
        for q in (QUESTION, QUESTION.replace("melt", "burn").replace("stone in the sun", "fire of dry leaves"))
    ]
    file = tmp_path / "arc_easy.jsonl"
    jsonl(file, rows)
    entries = parse_evaluation({"keep": [{"task": "arc_easy", "data": str(file), "num_fewshot": 0}]})[0].entries
    held = HeldOut(entries)
    assert held.stands_in([f"Somebody asked: {QUESTION} Nobody knew."], what="the training data") == [
        "1 of 2 documents of keep/arc_easy (arc_easy.jsonl) also occur in the training data "
        "('Which of these four things would most likely melt first if i')."
    ]
    assert held.judged([], overlap="refuse", what="the training data") == []
    with pytest.raises(CannotJudge):
        held.judged(["1 of 2"], overlap="refuse", what="the training data")


def test_what_lies_in_no_file_is_named() -> None:
    held = HeldOut(parse_evaluation({"keep": [{"task": "arc_easy"}]})[0].entries)
    assert held.judged([], overlap="refuse", what="the training data") == [
        "the training data was not checked for keep/arc_easy: no local file has their text."
    ]
