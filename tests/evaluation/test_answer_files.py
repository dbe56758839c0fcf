"""Prompts and answers of a judge, as files have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import DataError
from holdfast.evaluation.judge.answers import answer_of, answers_to, prompt_of, read_answers, read_prompts
from holdfast.support.files import write_jsonl


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"instruction": " Do it. ", "output": " Done. ", "generator": "x"}, "Do it.", "Done."),
        ({"instruction": "Sum.", "input": "1 2", "output": "3"}, "Sum.\n\n1 2", "3"),
        ({"instruction": "Sum.", "instances": [{"input": "1 2", "output": "3"}]}, "Sum.\n\n1 2", None),
        ({"instruction": "Greet.", "instances": [{"input": "", "output": "Hello."}]}, "Greet.", None),
        ({"prompt": "Q", "completion": "A"}, "Q", "A"),
        ({"turns": ["one", "two"]}, "one", None),
        (
            {"prompt": [{"role": "user", "content": "Q"}], "completion": [{"role": "assistant", "content": "A"}]},
            "Q",
            "A",
        ),
        ({"id": 1}, None, None),
        ({"prompt": None}, None, None),
        ({"prompt": 3, "answer": 4}, None, None),
    ],
)
def test_rows(row, prompt, answer):
    assert (prompt_of(row), answer_of(row)) == (prompt, answer)


def test_files_that_do_not_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl("no_answer.jsonl", [{"prompt": "a", "answer": "b"}, {"prompt": "c"}])
    with pytest.raises(DataError, match=r"1 rows\s+are incomplete \(first: row 2\)"):
        read_answers("no_answer.jsonl")
    write_jsonl("no_prompt.jsonl", [{"id": 1}])
    with pytest.raises(DataError, match="expected a prompt in every row"):
        read_prompts("no_prompt.jsonl")
    Path("x.txt").write_text("hello\nagain\n")
    assert read_prompts("x.txt") == ["hello", "again"]
    with pytest.raises(DataError, match=r"x\.txt: expected a prompt .* and an answer"):
        read_answers("x.txt")
    write_jsonl("twice.jsonl", [{"prompt": "a", "answer": "1"}, {"prompt": "a", "answer": "2"}])
    assert read_answers("twice.jsonl") == {"a": "1"}
    assert read_prompts("twice.jsonl") == ["a"]


def test_every_prompt_needs_an_answer():
    assert answers_to(["b", "a"], {"a": "1", "b": "2"}, "x.jsonl") == ["2", "1"]
    with pytest.raises(DataError, match=r"x\.jsonl has no answer to 1 of 2 prompts \(such as 'Sing\.'\)"):
        answers_to(["a", "Sing."], {"a": "1"}, "x.jsonl")
