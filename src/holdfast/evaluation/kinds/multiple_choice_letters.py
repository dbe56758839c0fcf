"""Multiple choice from a file, asked with a letter for each option:

    Where does Kamoran live?
    A. Brastow
    B. Dunveil
    Answer:

The answer is the likeliest letter, over its tokens with and without a space before it. What is
measured at the answer position (mass, entropies) stands in `answer_position`; besides, nats = -log
p(O_gold), of the right letter over the whole vocabulary. The rows are those of the kind
`multiple_choice`, which asks by the likelihood of each option's text and needs no letters to be
known.

What is not done: few-shot examples (they can stand in the template or the prompt) and several right
answers.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.data.layouts import Row
from holdfast.errors import Problem
from holdfast.evaluation.entries import DataEntry, Processor, Template, template_fields
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.documents import prompt_ids
from holdfast.evaluation.text.question_files import fill_template
from holdfast.evaluation.text.questions import (
    Question,
    QuestionsEntry,
    by_cluster,
    groups_of,
    read_questions,
)

LETTERS = string.ascii_uppercase
"""Of the options, in order; a question has at most so many."""
LETTERED_PROMPT = "{prompt}\n{options}\nAnswer:"
"""How a question is asked with letters: `options` are lines such as "A. blue"."""


@dataclass(frozen=True, kw_only=True)
class LettersEntry(QuestionsEntry):
    """Questions, each with its own options. Each option gets a letter, and the answer is the
    likeliest letter. Rows are as in multiple_choice."""

    kind = "multiple_choice_letters"
    former = "lettered"
    served = False
    most_options = len(LETTERS)

    prompt: Template = LETTERED_PROMPT
    """`str.format` template over the columns. {options} stands for the lines "A. ...", "B.
    ..."."""

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        if "options" in template_fields(self.prompt):
            return []
        return [
            Problem(
                "prompt",
                "expected a template with {options}, the place of the lettered options, got "
                f"{self.prompt!r}. Without it the prompt does not say what the letters mean.",
            )
        ]

    def text_of(self, row: Row, number: int) -> str:
        """The question with its options and their letters."""
        return fill_template(self, self.prompt, lettered_row(row), number)

    def requests(self, tokenizer: Any, processor: Processor | None = None) -> list[Question]:
        """See `Entry.requests`."""
        questions = read_questions(self, tokenizer, processor)
        letter_tokens(self, questions, tokenizer)
        return questions

    def scores(self, requests: list[Question], on: Subject) -> Outcome:
        """See `Entry.scores`."""
        from holdfast.evaluation.text.answer_position import FIGURES, answered, distributions
        from holdfast.evaluation.text.perplexity import resolve_window
        from holdfast.statistics.estimates import TEXT_FIGURES

        options = letter_tokens(self, requests, on.tokenizer)
        contexts = []
        for question in requests:
            contexts.append(
                question.images or prompt_ids(question.prompt, on.tokenizer, chat=question.chat)
            )
        length, _ = resolve_window(on.model)
        answers = distributions(on, contexts, options, length=length)
        rows = []
        for question, answer in zip(requests, answers, strict=True):
            columns = answered(answer, question.gold)
            nats = answer["nats"][question.gold]
            rows.append(
                {**question.sample(), "gold": question.gold, **columns, "nats": nats, "tokens": 1}
            )
        if self.cluster is not None:
            rows = by_cluster(rows, requests, means=list(FIGURES))
        names = ("acc", "mass", "aligned", "entropy", "option_entropy")
        figures = {name: FIGURES[name] for name in names} | {
            "nats_per_token": TEXT_FIGURES["nats_per_token"]
        }
        return Outcome(rows=rows, figures=figures, settings={"subtasks": groups_of(requests)})


def lettered_row(row: Row) -> dict[str, Any]:
    """A row whose options (texts, at most 26) are lines with letters."""
    lines = []
    for letter, option in zip(LETTERS, row["options"], strict=False):
        lines.append(f"{letter}. {option.strip()}")
    return {**row, "options": "\n".join(lines)}


def lettered_prompt(row: Row) -> str:
    """The question of a row with a prompt and options (texts, at most 26), as it is asked by
    default."""
    return LETTERED_PROMPT.format(**lettered_row(row))


def letter_tokens(
    entry: DataEntry, questions: Sequence[Question], tokenizer: Any
) -> list[list[list[int]]]:
    """Of every question and option the tokens of its letter.

    Raises:
        ModelError: a letter that is no single token.
    """
    from holdfast.evaluation.text.answer_position import OptionTokens

    advice = (
        "Use a tokenizer in which each letter is one token, or "
        f"`multiple_choice: {entry.data}`, which scores the texts of the options."
    )
    tokens = OptionTokens(tokenizer, entry, advice=advice)
    letters = []
    for question in questions:
        letters.append([tokens.of(letter) for letter in LETTERS[: len(question.options)]])
    return letters
