"""Published files of benchmarks in other forms than the hub's data sets, turned into the columns
that the harness's tasks read.

| tasks | form | where from |
|---|---|---|
| boolq | `answer` true / false | the BoolQ release |
| truthfulqa_mc1, truthfulqa_mc2 | CSV with Best Answer, Correct Answers, Incorrect Answers | the TruthfulQA release |
| mmlu and its subjects | `subject_dir` in place of `subject` | hub exports |
| mbpp | `prompt` in place of `text` | the sanitised MBPP release |
| minerva_math, hendrycks_math and their subjects | `type` in place of a data set a subject | the MATH release |
| quality | one article a line with its `questions` | the QuALITY release |

A form is recognised by its columns and converted row by row; nothing that a row does not say is
made up. Rows in the hub's own form stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.data.layouts import Row
from holdfast.errors import DataError

Questions = list[dict[str, Any]]
"""Rows as the harness reads them."""


@dataclass(frozen=True)
class Form:
    """One form of a benchmark's rows."""

    name: str
    tasks: str
    """Regular expression that task names match whole."""
    convert: Callable[[Row], Questions]
    """One row as the rows that the harness reads; raises ValueError with the reason where it
    cannot."""
    has: tuple[str, ...]
    """Columns that are there."""
    lacks: tuple[str, ...]
    """Columns of the hub's form, of which none is there."""


def convert(rows: Any, task: str, place: str) -> tuple[Any, str | None]:
    """(rows in the form that the task reads, the name of the form they came in); (rows, None) where
    there is nothing to convert.

    Args:
        rows: a `datasets.Dataset`.
        task: the harness task's name.
        place: of the file, for messages.

    Raises:
        DataError: the form is known, but rows are not in it.
    """
    columns = list(rows.column_names)
    forms = [form for form in FORMS if re.fullmatch(form.tasks, task) and _fits(form, columns)]
    if not forms:
        return rows, None
    form = forms[0]
    import datasets

    converted: Questions = []
    for number, row in enumerate(rows):
        try:
            converted += form.convert(row)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"{place}, row {number}: expected a row of {form.name}, but {reason}."
            ) from error
    if not converted:
        raise DataError(
            f"{place}: expected questions in the form of {form.name}, but none of its {len(rows)} "
            "rows has a published answer."
        )
    return datasets.Dataset.from_list(converted), form.name


def require_columns(
    what: str, needed: Iterable[str], columns: Sequence[str], *, place: str | None, form: str
) -> None:
    """Names the columns that a task reads and a file lacks.

    Args:
        what: the task, for the message.
        needed: the columns that it reads.
        columns: those of the file.
        place: of the file.
        form: the data set whose form is expected.

    Raises:
        DataError: some are missing.
    """
    needed = list(needed)
    missing = [column for column in needed if column not in columns]
    if missing:
        raise DataError(
            f"{what} reads the columns {', '.join(needed)}, but {place} lacks {', '.join(missing)} "
            f"(it has {', '.join(columns)}). Rename or add them. The expected columns are "
            f"those of {form}."
        )


def _fits(form: Form, columns: Sequence[str]) -> bool:
    return all(name in columns for name in form.has) and not any(
        name in columns for name in form.lacks
    )


def _boolq(row: Row) -> Questions:
    answer = row["answer"]
    if isinstance(answer, str):
        answer = {"true": True, "false": False, "yes": True, "no": False}.get(
            answer.strip().lower()
        )
    if answer not in (True, False):
        raise ValueError(f"the answer is {row['answer']!r}, not true or false")
    return [{**row, "label": int(answer)}]


def _truthfulqa(row: Row) -> Questions:
    """The multiple-choice targets as the release's own evaluation forms them: MC1 the best answer
    against all wrong ones, MC2 all against all."""
    right, wrong = (_split_answers(row[name]) for name in ("Correct Answers", "Incorrect Answers"))
    best = _sentence(row["Best Answer"])
    if not right or not wrong:
        raise ValueError("it lacks correct answers, incorrect answers or both")
    mc1 = {"choices": [best, *wrong], "labels": [1] + [0] * len(wrong)}
    mc2 = {"choices": right + wrong, "labels": [1] * len(right) + [0] * len(wrong)}
    return [{"question": row["Question"], "mc1_targets": mc1, "mc2_targets": mc2}]


def _split_answers(text: str) -> list[str]:
    return [_sentence(answer) for answer in str(text or "").split(";") if answer.strip()]


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith(".") else f"{text}."


def _math(row: Row) -> Questions:
    """The seven data sets of the hub are the release's types: "Counting & Probability" is
    counting_and_probability."""
    return [{**row, "subject": str(row["type"]).lower().replace("&", "and").replace(" ", "_")}]


def _quality(row: Row) -> Questions:
    """Questions of one article; the release counts options from 1. Questions without a published
    answer are left out."""
    questions = []
    for question in row["questions"]:
        if question.get("gold_label") is not None:
            questions.append(
                {
                    "article": row["article"],
                    "question": question["question"],
                    "options": list(question["options"]),
                    "answer": int(question["gold_label"]) - 1,
                    "hard": bool(question.get("difficult", 0)),
                }
            )
    return questions


def _mmlu(row: Row) -> Questions:
    return [{**row, "subject": row["subject_dir"]}]


def _mbpp(row: Row) -> Questions:
    return [{**row, "text": row["prompt"]}]


FORMS = (
    Form(
        "the MATH release",
        "(minerva|hendrycks)_math.*",
        _math,
        ("problem", "solution", "type"),
        ("subject",),
    ),
    Form("the BoolQ release", "boolq", _boolq, ("question", "passage", "answer"), ("label",)),
    Form(
        "the TruthfulQA release",
        "truthfulqa_mc[12]",
        _truthfulqa,
        ("Question", "Best Answer", "Correct Answers", "Incorrect Answers"),
        ("mc1_targets", "mc2_targets"),
    ),
    Form(
        "an export by folders",
        "mmlu.*",
        _mmlu,
        ("question", "choices", "answer", "subject_dir"),
        ("subject",),
    ),
    Form("sanitised MBPP", "mbpp.*", _mbpp, ("prompt", "code", "test_list"), ("text",)),
    Form("the QuALITY release", "quality.*", _quality, ("article", "questions"), ("question",)),
)
"""The forms that are recognised, in the order they are tried."""
