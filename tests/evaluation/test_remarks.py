"""What notes say of samples: copies, few of them, the first rows of a sorted file, prompts that were cut, examples."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from data_files import jsonl
from evaluation.conftest import make_model, measured
from holdfast.evaluation.compare.samples import compare_samples
from holdfast.evaluation.kinds.multiple_choice import MultipleChoiceEntry
from holdfast.evaluation.kinds.multiple_choice_letters import LettersEntry
from holdfast.evaluation.kinds.perplexity import PerplexityEntry
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.remarks import FEW, mark_copies, remarks_on_examples, remarks_on_part, remarks_on_samples
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio, estimate

ACC = Ratio(numerator="acc", unit="accuracy", higher_is_better=True)


def write_rows(path: Path, rows: list[dict]) -> str:
    jsonl(path, rows)
    return str(path)


def answered(values, docs) -> list[dict]:
    return [{"doc": str(doc), "prompt": "p", "acc": float(v)} for v, doc in zip(values, docs, strict=True)]


def of(rows) -> Evaluation:
    metric = Metric(value=0.5, n=len(rows), unit="accuracy", higher_is_better=True)
    return Evaluation(
        suite="s",
        name="n",
        kind="multiple_choice",
        primary="acc",
        metrics={"acc": metric},
        settings={},
        model={},
        key="k",
    )


# ------------------------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("times", [2, 10])
def test_a_file_written_several_times_says_what_it_says_once(times):
    values = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    once, often = answered(values, range(12)), answered(values * times, list(range(12)) * times)
    assert estimate(ACC, often) == (pytest.approx(8 / 12), pytest.approx(estimate(ACC, once)[1]))
    after = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    once_after, often_after = answered(after, range(12)), answered(after * times, list(range(12)) * times)
    [single] = compare_samples(once, once_after, of(once), of(once_after))
    [several] = compare_samples(often, often_after, of(often), of(often_after))
    assert (several.p_value, several.interval) == (single.p_value, single.interval)
    assert (several.flips_lost, several.flips_gained, several.n) == (7, 1, 12)


def test_text_that_stands_in_a_file_again_and_again_is_one_sample():
    rows = [{"doc": "a", "prompt": "p", "nats": 3.0, "tokens": 2, "bytes": 8}] * 30
    value, interval = estimate(TEXT_FIGURES["nats_per_token"], rows)
    assert (value, interval) == (1.5, None)


def test_a_question_with_ten_copies_flips_once():
    docs = [0] * 10 + [1, 2, 3, 4, 5]
    before, after = answered([1.0] * 15, docs), answered([0.0] * 10 + [1.0] * 5, docs)
    [found] = compare_samples(before, after, of(before), of(after))
    assert (found.difference, found.n, found.flips_lost) == (pytest.approx(-1 / 6), 6, 1) and found.p_value == 1.0
    assert found.interval[0] <= found.difference <= found.interval[1]


def test_uneven_copies_are_judged_as_often_wrongly_as_asked():
    """No difference: a third of the questions has four copies, and 5 % of the studies see one."""
    rng = np.random.default_rng(0)
    docs = np.repeat(np.arange(90), np.where(np.arange(90) % 3 == 0, 4, 1))
    seen = 0
    for _ in range(200):
        before, after = (rng.random((2, 90)) < 0.6).astype(float)
        rows = answered(before[docs], docs), answered(after[docs], docs)
        [found] = compare_samples(*rows, of(rows[0]), of(rows[1]))
        seen += found.p_value < 0.05
    assert seen <= 20  # counted row by row it is 46


def test_copies_with_other_ids_and_spaces_are_found_by_their_content():
    rows = [
        {"doc": "a", "content": "one two"},
        {"doc": "b", "content": "one  two\n"},
        {"doc": "c", "content": "three"},
        {"doc": "d"},
    ]
    mark_copies(rows)
    assert rows == [{"doc": "a"}, {"doc": "b", "copy_of": "a"}, {"doc": "c"}, {"doc": "d"}]
    assert remarks_on_samples(rows)[0].startswith("1 of 4 samples are duplicates of others")


def test_few_samples_are_too_few_for_a_verdict():
    assert remarks_on_samples([{"doc": str(n)} for n in range(FEW)]) == []
    assert remarks_on_samples([{"doc": "1"}, {"doc": "1"}])[-1] == "Only 1 distinct sample: too few for a verdict."
    assert "Only 3 distinct samples" in remarks_on_samples([{"doc": str(n)} for n in range(3)])[0]


def test_a_task_knows_copies_by_what_is_asked(tiny_model, tiny_tokenizer, tmp_path):
    rows = [
        {
            "id": f"q{i}",
            "question": f"Which thing number {i % 4} is a dog?",
            "choices": {"text": ["the fox", "the lazy dog"], "label": ["A", "B"]},
            "answerKey": "AB"[i % 2],
        }
        for i in range(12)
    ]
    entry = TaskEntry(suite="keep", name="it", task="arc_easy", data=write_rows(tmp_path / "arc.jsonl", rows))
    found = measured(tiny_model, tiny_tokenizer, entry)
    assert len(found.rows) == 12 and len({row.get("copy_of", row["doc"]) for row in found.rows}) == 4
    assert "8 of 12 samples are duplicates" in found.settings["notes"][0]


# --------------------------------------------------------------------------------------------------------------- part


def test_the_first_rows_of_a_sorted_file_are_no_part_of_the_whole():
    rows = [{"prompt": f"Is {i} odd?", "answer": int(i >= 30), "meta": {"subject": "ab"[i >= 30]}} for i in range(60)]
    [note] = remarks_on_part(rows, 20, setting="limit")
    assert note.startswith("The first 20 of 60 rows (limit).") and "differ in answer, meta.subject" in note
    random.Random(0).shuffle(rows)
    assert remarks_on_part(rows, 20, setting="limit") == ["The first 20 of 60 rows (limit)."]
    assert remarks_on_part(rows, 60, setting="limit") == remarks_on_part(rows, None, setting="limit") == []


def test_a_file_sorted_by_length_or_kind_of_instruction_is_found():
    texts = [{"text": "word " * (10 + n)} for n in range(200)]
    assert "differ in length" in remarks_on_part(texts, 40, setting="max_documents")[0]
    instructions = [{"prompt": "x", "instruction_id_list": [f"kind:{n // 20}"]} for n in range(100)]
    assert "differ in instruction_id_list" in remarks_on_part(instructions, 30, setting="limit")[0]


def test_numbers_and_names_of_rows_do_not_count():
    rng = random.Random(1)
    rows = [{"id": n, "name": f"row-{n}", "text": "word " * rng.randint(5, 50)} for n in range(300)]
    assert remarks_on_part(rows, 100, setting="limit") == ["The first 100 of 300 rows (limit)."]


# --------------------------------------------------------------------------------------------------- cut, and examples


def test_prompts_that_lost_their_beginning_are_counted(tiny_tokenizer, tmp_path):
    rows = [
        {"prompt": "the dog sat. " * (1 + 9 * (n < 3)) + f"{n}?", "options": [" A", " B"], "answer": 0}
        for n in range(12)
    ]
    data = write_rows(tmp_path / "q.jsonl", rows)
    for entry in (MultipleChoiceEntry(suite="s", name="c", data=data), LettersEntry(suite="s", name="l", data=data)):
        found = measured(make_model(), tiny_tokenizer, entry)
        assert [note for note in found.settings["notes"] if "were cut at the beginning" in note] == [
            "3 of 12 prompts are longer than the 64 tokens that fit into the model's context. They were cut at the "
            "beginning."
        ]
        assert found.settings["notes"] == [note for note in found.settings["notes"] if "cut at" in note]
    assert measured(make_model(positions=512), tiny_tokenizer, entry).settings["notes"] == []


def test_examples_that_answer_the_question_are_counted():
    question = "What is the capital of Norway?"
    asked = [(f"{question} Oslo\n\n{question}", question), (f"Other?\n\n{question}", question), ("Yes? Yes?", "Yes?")]
    assert remarks_on_examples(asked, ["a", "a ", "b"]) == [
        "1 of 3 questions appear among their own few-shot examples, with their answers.",
        "1 of 3 available few-shot examples are duplicates of others.",
    ]


def test_notes_of_a_text_entry(tiny_model, tiny_tokenizer, tmp_path):
    data = write_rows(tmp_path / "t.jsonl", [{"text": "Seven ships sailed south."}] * 5 + [{"text": "None came back."}])
    found = measured(tiny_model, tiny_tokenizer, PerplexityEntry(suite="s", name="t", data=data, max_documents=5))
    assert found.settings["notes"] == [
        "4 of 5 samples are duplicates of others: intervals and comparisons count each of the 1 distinct samples once.",
        "Only 1 distinct sample: too few for a verdict.",
        "The first 5 of 6 rows (max_documents).",
    ]
    assert found.metrics["nats_per_token"].interval is None and math.isfinite(found.metrics["nats_per_token"].value)
