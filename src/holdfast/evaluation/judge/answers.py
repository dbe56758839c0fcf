"""Prompts, and what a model answered to them, read from a file.

Prompts and answers are rows of a file (JSON Lines, CSV, Parquet; of a text file its lines are
prompts). The prompt is the first of the columns `PROMPT_COLUMNS` that a row has, with an Alpaca
row's `input` (or that of a Self-Instruct row's first instance) below it; of several turns the first
counts. The answer is the first of `ANSWER_COLUMNS`. AlpacaEval's own form, {"instruction",
"output", "generator"}, is one of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.data.layouts import Row
from holdfast.data.sources import load_rows
from holdfast.errors import DataError

PROMPT_COLUMNS = ("instruction", "prompt", "question", "turns", "text")
ANSWER_COLUMNS = ("output", "answer", "response", "completion", "generation")


def prompt_of(row: Row) -> str | None:
    """The prompt of a row; None where it has none."""
    for column in PROMPT_COLUMNS:
        text = _turn(row.get(column), role="user")
        if text:
            extra = row.get("input")
            instances = row.get("instances")
            if (
                extra is None
                and isinstance(instances, list)
                and instances
                and isinstance(instances[0], Mapping)
            ):
                extra = instances[0].get("input")
            return (
                f"{text}\n\n{extra.strip()}" if isinstance(extra, str) and extra.strip() else text
            )
    return None


def answer_of(row: Row) -> str | None:
    """The answer of a row, which may be empty text; None where it has none."""
    for column in ANSWER_COLUMNS:
        text = _turn(row.get(column), role="assistant")
        if text is not None:
            return text
    return None


def read_prompts(path: str | Path, *, limit: int | None = None) -> list[str]:
    """The prompts of a file in order, each once.

    Args:
        path: rows with one of `PROMPT_COLUMNS`.
        limit: only the first so many.

    Raises:
        DataError: no such file, no rows, or rows without a prompt.
    """
    expected = f"a prompt in every row, in one of the columns {', '.join(PROMPT_COLUMNS)}"
    rows = [(prompt_of(row),) for row in load_rows(path, documents="line")]
    _check_rows(path, rows, expected)
    return list(dict.fromkeys(str(prompt) for (prompt,) in rows))[:limit]


def read_answers(path: str | Path) -> dict[str, str]:
    """The answers of a file by prompt, white space around both taken off. Of several to the same
    prompt the first counts.

    Raises:
        DataError: no such file, no rows, or rows without a prompt or an answer.
    """
    expected = (
        f"a prompt ({', '.join(PROMPT_COLUMNS)}) and an answer ({', '.join(ANSWER_COLUMNS)}) in "
        "every row"
    )
    rows = [(prompt_of(row), answer_of(row)) for row in load_rows(path, documents="line")]
    _check_rows(path, rows, expected)
    answers: dict[str, str] = {}
    for prompt, answer in rows:
        answers.setdefault(str(prompt), str(answer))
    return answers


def _check_rows(path: str | Path, rows: Sequence[tuple[str | None, ...]], expected: str) -> None:
    bad = [number for number, row in enumerate(rows, 1) if None in row]
    if bad:
        raise DataError(
            f"{path}: expected {expected}, but {len(bad)} rows are incomplete (first: row "
            f"{bad[0]}). Rename the column, or take these rows out."
        )


def answers_to(prompts: Sequence[str], answers: Mapping[str, str], name: str) -> list[str]:
    """The answer to each prompt.

    Args:
        prompts: what was asked.
        answers: by prompt.
        name: where they come from, for messages.

    Raises:
        DataError: prompts without an answer; says how many, and one of them.
    """
    missing = [prompt for prompt in prompts if prompt not in answers]
    if missing:
        raise DataError(
            f"{name} has no answer to {len(missing)} of {len(prompts)} prompts (such as "
            f"{missing[0][:80]!r}). Answer the same prompts with both models, or take these "
            "prompts out."
        )
    return [answers[prompt] for prompt in prompts]


def _turn(value: Any, *, role: str) -> str | None:
    """A text, the first of several turns, or the first message of a role."""
    if isinstance(value, list):
        messages = [turn for turn in value if isinstance(turn, Mapping)]
        if messages:
            value = next(
                (turn.get("content") for turn in messages if turn.get("role") == role), None
            )
        else:
            value = value[0] if value else None
    return value.strip() if isinstance(value, str) else None
