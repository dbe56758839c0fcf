"""Multiple choice from a file: every question brings its own options, and the likeliest one is the answer.

For a prompt x and options o of |o| tokens:

    score(o) = log p(o | x) / |o|  (or the sum)      answer = argmax_o score(o)      nats = -log p(gold | x)

The options of one question share its forward pass (`holdfast.evaluation.text.shared_prefix`), so the prompt is computed
once, with its images where it has some (`holdfast.evaluation.images`). Division by the tokens is the choice of the
`classes` kind; lm-evaluation-harness's `acc` takes the sum and its `acc_norm` divides by bytes, so figures of the two
are near each other and not equal.

What is not done: few-shot examples (they can stand in the prompt) and several right answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.data.layouts import BadRow
from holdfast.data.vision import MARKER, undecoded
from holdfast.evaluation.entries import ChoicesEntry, QuestionsEntry
from holdfast.evaluation.images import ImagePrompt, Processor, RowImages
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.documents import border_ids, chat_prompt
from holdfast.evaluation.text.options import ImageOptions, score_options
from holdfast.evaluation.text.question_files import RowMistakes, question_rows, shown
from holdfast.evaluation.text.thoughts import refuse_open_thought
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
    """The text of the question; of choices the prompt of the file."""
    prompt: str
    """The same in the chat template, where it is put in one."""
    options: tuple[str, ...]
    gold: int
    """Index of the right option."""
    group: str | None = None
    unit: str | None = None
    """What it is about, where several questions make one sample."""
    chat: bool = False
    """Whether `prompt` was written by a chat template."""
    images: ImagePrompt | None = None
    """The prompt with its images, where it has some."""

    def sample(self) -> dict[str, Any]:
        """What a per-sample row says of the question: `doc`, which comparisons join on, the prompt's hash, the group
        and the names of its images."""
        content = [self.images.content()] if self.images is not None else []
        about = {"content": f"{self.options}{self.asked}"} if self.images is None else {"images": self.images.names}
        return {
            **about,
            "doc": fingerprint([self.asked, list(self.options), *content], length=32),
            "prompt": fingerprint(self.prompt, length=32),
            **({"task": self.group} if self.group is not None else {}),
            "question": self.asked,
            "choices": list(self.options),
        }


def _prompt(row: Mapping[str, Any]) -> str:
    return str(row["prompt"])


def read_choices(
    entry: QuestionsEntry,
    tokenizer: Any,
    *,
    processor: Processor | None = None,
    ask: Callable[[Mapping[str, Any]], str] = _prompt,
    most: int | None = None,
) -> list[Question]:
    """The questions of an entry.

    Args:
        entry: of choices or lettered.
        tokenizer: of the model that is asked.
        processor: of a vision-language model, for rows with images.
        ask: the text of a sound row's question.
        most: options that a question may have; None: as many as it likes.

    Raises:
        DataError: no rows, columns are missing, or rows do not hold a prompt, at least two different options and the
            index of one, or images that cannot be read or have no place in the prompt; all mistakes of the file in one
            message, each kind with the first row that has it. Images for a model that takes text only.
        ModelError: the chat template is asked for, and the tokenizer has none, or it opens a thought; no processor for
            images.
    """
    if entry.apply_chat_template:
        refuse_open_thought(tokenizer, f"{entry.suite}/{entry.name}")
    needed = (*COLUMNS, *(column for column in (entry.group, entry.unit) if column is not None))
    rows = undecoded(question_rows(entry, needed))
    images = RowImages(entry, rows)
    mistakes = RowMistakes(entry.data)
    questions = []
    for number, row in enumerate(rows):
        if not _is_sound(row, number, mistakes, most):
            continue
        asked = prompt = ask(row)
        seen = None
        if images.has(row):
            try:
                seen = images.prompt(row, asked, number=number, chat=entry.apply_chat_template, processor=processor)
            except BadRow as problem:
                mistakes.add(
                    "images that can be read, and a place for each in the prompt", row=number, got=str(problem)
                )
                continue
            prompt = seen.text
        elif processor is not None and MARKER in asked:  # to the tokenizer it is an image that nobody gave
            mistakes.add("an image for each place in the prompt", row=number, got=f"none, and the text says {MARKER}")
            continue
        elif entry.apply_chat_template:
            prompt = chat_prompt([{"role": "user", "content": prompt}], tokenizer)
        questions.append(
            Question(
                asked=asked,
                prompt=prompt,
                options=tuple(row["options"]),
                gold=int(row["answer"]),
                group=None if entry.group is None else str(row[entry.group]),
                unit=None if entry.unit is None else str(row[entry.unit]),
                chat=entry.apply_chat_template,
                images=seen,
            )
        )
    mistakes.check()
    return questions


def _is_sound(row: Mapping[str, Any], number: int, mistakes: RowMistakes, most: int | None) -> bool:
    prompt, options, answer = row["prompt"], row["options"], row["answer"]
    if not isinstance(prompt, str) or not prompt:
        return mistakes.add("a prompt that is a text and not empty", row=number, got=shown(prompt))
    texts = isinstance(options, list) and all(isinstance(option, str) and option for option in options)
    if not texts or len(options) < 2 or len(set(options)) < len(options):
        expected = "options that are a list of at least two different texts, none empty"
        return mistakes.add(expected, row=number, got=shown(options))
    if most is not None and len(options) > most:
        return mistakes.add(f"at most {most} options, a letter each", row=number, got=f"{len(options)} options")
    if isinstance(answer, bool) or answer not in range(len(options)):
        expected = "an answer that is the index of one of the options, from 0"
        return mistakes.add(expected, row=number, got=f"{shown(answer)} of {len(options)} options")
    return True


def measure(entry: ChoicesEntry, on: Subject) -> Outcome:
    """See `holdfast.evaluation.measures.measure`."""
    questions = read_choices(entry, on.tokenizer, processor=on.processor)
    requests: list[Any] = [
        ImageOptions.of(q.images, q.options, on)
        if q.images is not None
        else [border_ids(q.prompt, option, on.tokenizer, chat=q.chat) for option in q.options]
        for q in questions
    ]
    found = score_options(on, requests, name="option", length_normalised=entry.length_normalised)
    rows = [
        {
            **question.sample(),
            "loglikelihoods": scored.loglikelihoods,
            "probabilities": scored.probabilities,
            "gold": question.gold,
            "answer": scored.answer,
            "acc": float(scored.answer == question.gold),
            "nats": -scored.loglikelihoods[question.gold],
            "tokens": scored.tokens[question.gold],
        }
        for question, scored in zip(questions, found, strict=True)
    ]
    if entry.unit is not None:
        rows = by_unit(rows, questions)
    return Outcome(rows=rows, figures=_FIGURES, settings={"subtasks": groups_of(questions)})


def groups_of(questions: Sequence[Question]) -> list[str]:
    """The groups that there are, sorted."""
    return sorted({str(question.group) for question in questions if question.group is not None})


def by_unit(
    rows: Sequence[Mapping[str, Any]], questions: Sequence[Question], *, means: Sequence[str] = ("acc",)
) -> list[dict[str, Any]]:
    """One sample for all questions of a unit, in the order in which units first come: the mean of their accuracies (of
    all columns in `means`), and the nats and tokens of all."""
    units = [str(question.unit) for question in questions]
    together: dict[str, list[Mapping[str, Any]]] = {}
    for row, unit in zip(rows, units, strict=True):
        together.setdefault(unit, []).append(row)
    return [
        {
            "doc": fingerprint([unit, *(row["doc"] for row in found)], length=32),
            "prompt": fingerprint([row["prompt"] for row in found], length=32),
            **({"task": found[0]["task"]} if "task" in found[0] else {}),
            "question": unit,
            "questions": len(found),
            **{name: sum(row[name] for row in found) / len(found) for name in means},
            "nats": sum(row["nats"] for row in found),
            "tokens": sum(row["tokens"] for row in found),
        }
        for unit, found in together.items()
    ]


def check(entry: ChoicesEntry, tokenizer: Any, processor: Processor | None = None) -> None:
    """See `holdfast.evaluation.measures.check`."""
    read_choices(entry, tokenizer, processor=processor)
