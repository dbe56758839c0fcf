"""Multiple choice from a file: every question brings its own options, and the likeliest one is the answer.

For a prompt x and options o of |o| tokens:

    score(o) = log p(o | x) / |o|  (or the sum)      answer = argmax_o score(o)      nats = -log p(gold | x)

The options of one question share its forward pass (`holdfast.evaluation.text.shared_prefix`), so the prompt is computed
once. Division by the tokens is the choice of the `classes` kind; lm-evaluation-harness's `acc` takes the sum and its
`acc_norm` divides by bytes, so figures of the two are near each other and not equal.

What is not done: few-shot examples (they can stand in the prompt) and several right answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.evaluation.entries import ChoicesEntry, EvaluationPlan
from holdfast.evaluation.measures import Outcome, Report, figures
from holdfast.evaluation.partial import Partial
from holdfast.evaluation.text.documents import border_ids, chat_prompt
from holdfast.evaluation.text.question_files import RowMistakes, question_rows, shown
from holdfast.evaluation.text.shared_prefix import normalised, score_options
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio
from holdfast.support.files import fingerprint

_FIGURES = {
    "acc": Ratio(numerator="acc", unit="accuracy", higher_is_better=True),
    "nats_per_token": TEXT_FIGURES["nats_per_token"],
}


COLUMNS = ("prompt", "options", "answer")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question as the model is given it."""

    asked: str
    """The prompt of the file."""
    prompt: str
    """The same in the chat template, where it is put in one."""
    options: tuple[str, ...]
    gold: int
    """Index of the right option."""
    group: str | None = None
    chat: bool = False
    """Whether `prompt` was written by a chat template."""


def read_choices(entry: ChoicesEntry, tokenizer: Any) -> list[Question]:
    """The questions of an entry.

    Raises:
        DataError: no rows, columns are missing, or rows do not hold a prompt, at least two different options and the
            index of one; all mistakes of the file in one message, each kind with the first row that has it.
        ModelError: the chat template is asked for, and the tokenizer has none.
    """
    needed = (*COLUMNS, *((entry.group,) if entry.group is not None else ()))
    rows = question_rows(entry.data, split=entry.split, config=entry.config, limit=entry.max_documents, needed=needed)
    mistakes = RowMistakes(entry.data)
    questions = []
    for number, row in enumerate(rows):
        if not _is_sound(row, number, mistakes):
            continue
        prompt = row["prompt"]
        if entry.apply_chat_template:
            prompt = chat_prompt([{"role": "user", "content": prompt}], tokenizer)
        questions.append(
            Question(
                asked=row["prompt"],
                prompt=prompt,
                options=tuple(row["options"]),
                gold=int(row["answer"]),
                group=None if entry.group is None else str(row[entry.group]),
                chat=entry.apply_chat_template,
            )
        )
    mistakes.check()
    return questions


def _is_sound(row: Mapping[str, Any], number: int, mistakes: RowMistakes) -> bool:
    prompt, options, answer = row["prompt"], row["options"], row["answer"]
    if not isinstance(prompt, str) or not prompt:
        mistakes.add("a prompt that is a text and not empty", row=number, got=shown(prompt))
        return False
    if (
        not isinstance(options, list)
        or len(options) < 2
        or not all(isinstance(o, str) and o for o in options)
        or len(set(options)) < len(options)
    ):
        mistakes.add(
            "options that are a list of at least two different texts, none empty", row=number, got=shown(options)
        )
        return False
    whole = isinstance(answer, int) or (isinstance(answer, float) and answer.is_integer())
    if isinstance(answer, bool) or not whole or not 0 <= answer < len(options):
        mistakes.add(
            "an answer that is the index of one of the options, from 0",
            row=number,
            got=f"{shown(answer)} of {len(options)} options",
        )
        return False
    return True


def score_choices(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    *,
    length_normalised: bool = True,
    progress: Callable[[int, int], None] | None = None,
    partial: Partial | None = None,
) -> list[dict[str, Any]]:
    """Rows of the kind "choices" (see `holdfast.records.evaluation.Evaluation`), one a question, in order.

    Args:
        model: a Hugging Face causal LM.
        tokenizer: its tokenizer.
        questions: from `read_choices`.
        length_normalised: see the module's docstring.
        progress: called with (options done, options in all).
        partial: where finished rows are kept.

    Raises:
        DataError: an option that adds no token, or more tokens than the model takes.
    """
    requests = [border_ids(q.prompt, option, tokenizer, chat=q.chat) for q in questions for option in q.options]
    found = iter(score_options(model, requests, name="option", partial=partial, progress=progress))
    scored = []
    for question in questions:
        here = [next(found) for _ in question.options]
        logs, tokens = [log for log, _ in here], [count for _, count in here]
        scores = [log / count for log, count in here] if length_normalised else logs
        probabilities, _ = normalised(scores)
        best = scores.index(max(scores))
        scored.append(
            {
                "doc": fingerprint([question.asked, list(question.options)], length=32),
                "prompt": fingerprint(question.prompt, length=32),
                **({"task": question.group} if question.group is not None else {}),
                "question": question.asked,
                "choices": list(question.options),
                "loglikelihoods": logs,
                "probabilities": probabilities,
                "gold": question.gold,
                "answer": best,
                "acc": float(best == question.gold),
                "nats": -logs[question.gold],
                "tokens": tokens[question.gold],
            }
        )
    return scored


def measure(
    model: Any, tokenizer: Any, entry: ChoicesEntry, plan: EvaluationPlan, *, report: Report, partial: Partial
) -> Outcome:
    """See `holdfast.evaluation.measures.measure`."""
    questions = read_choices(entry, tokenizer)
    rows = score_choices(
        model, tokenizer, questions, length_normalised=entry.length_normalised, progress=report, partial=partial
    )
    groups = sorted({row["task"] for row in rows if "task" in row})
    return rows, figures(rows, _FIGURES, plan), "acc", {"subtasks": groups}


def check(entry: ChoicesEntry, tokenizer: Any) -> None:
    """See `holdfast.evaluation.measures.check`."""
    read_choices(entry, tokenizer)
