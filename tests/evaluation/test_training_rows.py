"""Held-out rows that are training rows are known by what they say."""

from __future__ import annotations

from pathlib import Path

from data_files import jsonl
from evaluation.conftest import make_tokenizer
from holdfast.evaluation.kinds.multiple_choice import MultipleChoiceEntry
from holdfast.evaluation.kinds.perplexity import PerplexityEntry
from holdfast.evaluation.training_rows import remarks_on_training_rows

PAIRS = [{"prompt": f"What is {n}?", "completion": f" It is number {n}."} for n in range(12)]


def text_entry(tmp_path: Path, name: str, rows: list[dict], suite: str = "learn") -> PerplexityEntry:
    jsonl(tmp_path / f"{name}.jsonl", rows)
    return PerplexityEntry(suite=suite, name=name, data=str(tmp_path / f"{name}.jsonl"))


def said(entries, training) -> list[str]:
    return remarks_on_training_rows(entries, make_tokenizer(chat=True), {"training rows": training})


def test_rows_are_found_in_any_layout(tmp_path):
    held_out = [text_entry(tmp_path, "pairs", PAIRS)]
    messages = [
        {"messages": [{"role": "user", "content": p["prompt"]}, {"role": "assistant", "content": p["completion"]}]}
        for p in PAIRS
    ]
    texts = [{"text": f"{p['prompt']}\n{p['completion']}"} for p in PAIRS]
    for training in (PAIRS, messages, texts):
        assert said(held_out, training) == [
            "learn/pairs: 12 of 12 rows are training rows, so this entry is not held-out data."
        ]
    assert said(held_out, PAIRS[:5])[0].startswith("learn/pairs: 5 of 12 rows are training rows")
    assert said(held_out, [{"text": "What is 3?"}]) == []
    assert said(held_out, [{"prompt": p["prompt"], "completion": " Nothing."} for p in PAIRS]) == []


def test_questions_are_found_by_prompt_and_answer(tmp_path):
    rows = [{"prompt": f"What is {n}?", "options": [" one", f" It is number {n}."], "answer": 1} for n in range(12)]
    text_entry(tmp_path, "q", rows)
    entry = MultipleChoiceEntry(suite="learn", name="q", data=str(tmp_path / "q.jsonl"))
    for training in (PAIRS, [{"text": f"What is {n}? It is number {n}."} for n in range(12)]):
        assert said([entry], training)[0].startswith("learn/q: 12 of 12 rows")


def test_what_is_kept_and_learnt_at_once_is_named(tmp_path):
    kept = text_entry(tmp_path, "kept", PAIRS[:6], suite="keep")
    assert said([kept, text_entry(tmp_path, "learnt", PAIRS)], []) == [
        "learn/learnt: 6 of 12 rows are also in keep/kept, so learn and keep entries measure the same data."
    ]
