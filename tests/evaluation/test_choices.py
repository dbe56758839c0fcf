"""Multiple choice from a file: log-likelihoods against whole float64 logits, groups, and all that can be wrong with a file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from evaluation.conftest import SENTENCES, make_model, make_tokenizer
from holdfast.errors import DataError, ModelError
from holdfast.evaluation.entries import ChoicesEntry, EvaluationPlan
from holdfast.evaluation.measures import measure
from holdfast.evaluation.partial import Partial
from holdfast.evaluation.runner import check_plan, evaluate
from holdfast.evaluation.suite import parse_evaluation
from holdfast.evaluation.text.choices import read_choices, score_choices
from holdfast.records.evaluation import EvaluationFolder

OPTIONS = [[" red", " blue", " rather more green than one would think"], [" it is", " so"], [" a", " b", " c", " d"]]
ROWS = [
    {
        "prompt": f"{text} This is",
        "options": OPTIONS[i % 3],
        "answer": i % 2,
        "subject": "colours" if i % 3 == 0 else "letters",
    }
    for i, text in enumerate(SENTENCES)
]


def write(folder: Path, rows: list, name: str = "questions.jsonl") -> str:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


def an_entry(tmp_path: Path, rows: list = ROWS, **changes) -> ChoicesEntry:
    return ChoicesEntry(suite="target", name="questions", data=write(tmp_path, rows), **changes)


def log_likelihood(model, tokenizer, prompt: str, option: str, *, chat: bool = False) -> tuple[float, int]:
    """(log p(option | prompt), tokens), one text, float64."""
    begin = [] if chat or tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    given, whole = (
        begin + tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, prompt + option)
    )
    start = next(i for i in range(len(whole)) if i == len(given) or given[i] != whole[i])
    with torch.no_grad():
        logp = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
    return sum(float(logp[t - 1, whole[t]]) for t in range(start, len(whole))), len(whole) - start


@pytest.fixture(scope="module")
def roomy():
    return make_model(positions=128)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("bos", [True, False])
def test_scores_are_those_of_each_option_alone(roomy, tmp_path, bos, normalised) -> None:
    tokenizer = make_tokenizer(bos=bos)
    rows = score_choices(roomy, tokenizer, read_choices(an_entry(tmp_path), tokenizer), length_normalised=normalised)
    for given, row in zip(ROWS, rows, strict=True):
        found = [log_likelihood(roomy, tokenizer, given["prompt"], option) for option in given["options"]]
        assert row["loglikelihoods"] == pytest.approx([log for log, _ in found], abs=1e-4)
        scores = [log / count if normalised else log for log, count in found]
        total = math.log(sum(map(math.exp, scores)))
        assert row["probabilities"] == pytest.approx([math.exp(s - total) for s in scores], abs=1e-5)
        assert row["answer"] == scores.index(max(scores)) and row["acc"] == float(row["answer"] == given["answer"])
        assert (row["nats"], row["tokens"]) == (
            pytest.approx(-found[given["answer"]][0], abs=1e-4),
            found[given["answer"]][1],
        )
        assert (row["question"], row["choices"], row["gold"]) == (given["prompt"], given["options"], given["answer"])
        assert "task" not in row


def test_length_decides_where_it_is_not_divided_by(roomy, tiny_tokenizer, tmp_path) -> None:
    rows = [{"prompt": "Question:", "options": [" red", " red red red red red red"], "answer": 0}]
    plain, divided = (
        score_choices(
            roomy, tiny_tokenizer, read_choices(an_entry(tmp_path, rows), tiny_tokenizer), length_normalised=n
        )[0]
        for n in (False, True)
    )
    assert plain["loglikelihoods"] == divided["loglikelihoods"] and plain["probabilities"] != divided["probabilities"]
    assert plain["answer"] == 0


def test_the_chat_template_is_written_once_with_its_own_beginning(roomy, tmp_path) -> None:
    tokenizer = make_tokenizer(chat=True)
    [row] = score_choices(
        roomy, tokenizer, read_choices(an_entry(tmp_path, ROWS[:1], apply_chat_template=True), tokenizer)
    )
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": ROWS[0]["prompt"]}], tokenize=False, add_generation_prompt=True
    )
    alone = [log_likelihood(roomy, tokenizer, prompt, option, chat=True)[0] for option in ROWS[0]["options"]]
    assert row["loglikelihoods"] == pytest.approx(alone, abs=1e-4)
    assert row["question"] == ROWS[0]["prompt"]
    with pytest.raises(ModelError, match="chat template"):
        read_choices(an_entry(tmp_path, apply_chat_template=True), make_tokenizer())


def test_the_figures_and_groups(tiny_model, tiny_tokenizer, tmp_path) -> None:
    entry = an_entry(tmp_path, group="subject")
    rows, metrics, primary, found = measure(
        tiny_model, tiny_tokenizer, entry, EvaluationPlan(), report=lambda done, total: None, partial=Partial(None)
    )
    assert primary == "acc" and metrics["acc"].higher_is_better and metrics["acc"].interval is not None
    assert metrics["acc"].value == pytest.approx(sum(row["acc"] for row in rows) / len(rows))
    assert metrics["nats_per_token"].value == pytest.approx(
        sum(r["nats"] for r in rows) / sum(r["tokens"] for r in rows)
    )
    assert found["subtasks"] == ["colours", "letters"] and [r["task"] for r in rows] == [r["subject"] for r in ROWS]


def test_through_the_runner_once_and_compared(tiny_model, tiny_tokenizer, tmp_path) -> None:
    from holdfast.evaluation.compare.folders import compare_folders

    write(tmp_path, ROWS)
    plan, problems = parse_evaluation(
        {"target": [{"choices": "questions.jsonl", "group": "subject"}]}, base_dir=tmp_path
    )
    assert problems == [] and check_plan(plan, tiny_tokenizer) == []
    sides = []
    for name, model in (("before", tiny_model), ("after", make_model(seed=1))):
        folder = EvaluationFolder(tmp_path / name)
        evaluate(model, tiny_tokenizer, plan, folder=folder, model_identity={"name": name, "hash": name})
        sides.append(folder)
    comparisons, left_out = compare_folders(*sides, metrics="all")
    assert left_out == [] and {c.metric for c in comparisons} == {"acc", "nats_per_token"}
    assert next(c for c in comparisons if c.metric == "acc").flips_lost is not None
    before = sides[0].find("target", "questions")
    assert before is not None and before.kind == "choices"
    again = evaluate(None, tiny_tokenizer, plan, folder=sides[0], model_identity={"name": "before", "hash": "before"})
    assert again == [before], "nothing is computed twice"


def test_the_page_shows_groups_and_calibration(tiny_model, tiny_tokenizer, tmp_path) -> None:
    from holdfast.records.evaluation import EvaluationRecord
    from holdfast.reports.evaluation_report import write_evaluation_report

    write(tmp_path, ROWS)
    plan, _ = parse_evaluation({"target": [{"choices": "questions.jsonl", "group": "subject"}]}, base_dir=tmp_path)
    folder = EvaluationFolder(tmp_path / "model")
    evaluate(tiny_model, tiny_tokenizer, plan, folder=folder, model_identity={"name": "m", "hash": "h"})
    page = write_evaluation_report(
        tmp_path / "page.html", EvaluationRecord(models=[{"label": "model"}]), [folder]
    ).read_text()
    assert "questions, by subject" in page and "questions: calibration" in page


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"prompt": "a", "options": [" a", " b"]}], "lacks the column answer"),
        ([{"text": "a", "choices": ["x", "y"], "answer": 0}], "lacks the columns prompt, options"),
        (
            [{"prompt": "a", "options": [" a", " b"], "answer": 2}],
            r"an answer that is the index of one of the options, from 0, got 2 of 2 options in row 0",
        ),
        ([{"prompt": "a", "options": [" a", " b"], "answer": -1}], "got -1 of 2"),
        ([{"prompt": "a", "options": [" a", " b"], "answer": "b"}], "index of one of the options, from 0, got 'b'"),
        ([{"prompt": "a", "options": [" a", " b"], "answer": True}], "got True"),
        ([{"prompt": "a", "options": [" a"], "answer": 0}], "at least two different texts"),
        ([{"prompt": "a", "options": [" a", " a"], "answer": 0}], "at least two different texts"),
        ([{"prompt": "a", "options": [" a", ""], "answer": 0}], "none empty"),
        ([{"prompt": "a", "options": " a", "answer": 0}], "a list of at least two"),
        ([{"prompt": "", "options": [" a", " b"], "answer": 0}], "a prompt that is a text and not empty"),
    ],
)
def test_files_that_are_no_questions(tmp_path, tiny_tokenizer, rows, words) -> None:
    with pytest.raises(DataError, match=words):
        read_choices(an_entry(tmp_path, rows), tiny_tokenizer)


def test_all_mistakes_of_a_file_come_at_once(tmp_path, tiny_tokenizer) -> None:
    rows = [*ROWS, {**ROWS[0], "answer": 9}, {**ROWS[0], "options": [" a"]}, {**ROWS[0], "answer": 7}]
    plan = EvaluationPlan(entries=(an_entry(tmp_path, rows),))
    [problem] = check_plan(plan, tiny_tokenizer)
    assert "got 9 of 3 options in row 5 and 1 more" in problem and "in row 6" in problem


def test_an_empty_file_and_an_unknown_group(tmp_path, tiny_tokenizer) -> None:
    (tmp_path / "questions.jsonl").write_text("")
    with pytest.raises(DataError):
        read_choices(ChoicesEntry(suite="target", name="q", data=str(tmp_path / "questions.jsonl")), tiny_tokenizer)
    with pytest.raises(DataError, match=r"lacks the column subjekt .*Did you mean 'subject'"):
        read_choices(an_entry(tmp_path, group="subjekt"), tiny_tokenizer)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"choices": "questions.jsonl", "normalised": True}, "unknown key"),
        ({"choices": "questions.jsonl", "length_normalised": "maybe"}, "expected true or false"),
        ({"choices": "question.jsonl"}, "Did you mean 'questions.jsonl'"),
        ({"choices": "questions.jsonl", "classes": "questions.jsonl"}, "expected one of"),
    ],
)
def test_entries_that_cannot_be(tmp_path, entry, words) -> None:
    write(tmp_path, ROWS)
    _, problems = parse_evaluation({"target": [entry]}, base_dir=tmp_path)
    assert len(problems) == 1 and words in problems[0]


def test_what_was_scored_before_an_interruption_is_not_scored_again(
    roomy, tiny_tokenizer, tmp_path, monkeypatch
) -> None:
    from holdfast.evaluation.text import shared_prefix

    many = [
        {**row, "prompt": f"{i} {row['prompt']}"} for i in range(12) for row in ROWS
    ]  # more than one row of the model takes
    questions = read_choices(an_entry(tmp_path, many), tiny_tokenizer)
    expected = score_choices(roomy, tiny_tokenizer, questions)
    original, calls = shared_prefix.Scorer.score_row, []

    def breaks(self, row):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, row)

    monkeypatch.setattr(shared_prefix.Scorer, "score_row", breaks)
    partial = Partial(tmp_path / "partial.jsonl", seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        score_choices(roomy, tiny_tokenizer, questions, partial=partial)
    kept = Partial(tmp_path / "partial.jsonl")
    assert kept.found
    again = score_choices(roomy, tiny_tokenizer, questions, partial=kept)
    assert again == expected
    whole = len(calls) - 2
    calls.clear()
    monkeypatch.setattr(shared_prefix.Scorer, "score_row", lambda self, row: calls.append(1) or original(self, row))
    score_choices(roomy, tiny_tokenizer, questions)
    assert whole == len(calls) - 1, "one row was kept"
