"""Multiple choice from a file, asked with a letter for each option:

    Where does Kamoran live?
    A. Brastow
    B. Dunveil
    Answer:

The answer is the likeliest letter, over its tokens with and without a space before it. What is measured at the answer
position (mass, entropies) stands in `answer_position`; besides, nats = -log p(O_gold), of the right letter over the
whole vocabulary. The rows are those of the kind `choices`, which asks by the likelihood of each option's text and needs
no letters to be known.

What is not done: few-shot examples (they can stand in the template or the prompt) and several right answers.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.entries import LETTERED_PROMPT, LetteredEntry
from holdfast.evaluation.images import Processor
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.modes import evaluation_mode
from holdfast.evaluation.text.answer_position import FIGURES, OptionTokens, answered, distributions
from holdfast.evaluation.text.choices import Question, by_unit, groups_of, read_choices
from holdfast.evaluation.text.documents import prompt_ids
from holdfast.evaluation.text.perplexity import resolve_window
from holdfast.statistics.estimates import TEXT_FIGURES

LETTERS = string.ascii_uppercase
"""Of the options, in order; a question has at most so many."""

_FIGURES = {
    "acc": FIGURES["acc"],
    **{name: FIGURES[name] for name in ("mass", "aligned", "entropy", "option_entropy")},
    "nats_per_token": TEXT_FIGURES["nats_per_token"],
}


def lettered_prompt(row: Mapping[str, Any], template: str = LETTERED_PROMPT) -> str:
    """The question of a row as it is asked.

    Args:
        row: with the options (texts, at most 26) and the columns that the template names.
        template: see `holdfast.evaluation.entries.LetteredEntry`.
    """
    lines = [f"{letter}. {option.strip()}" for letter, option in zip(LETTERS, row["options"], strict=False)]
    return template.format(**{**row, "options": "\n".join(lines)})


def read_lettered(entry: LetteredEntry, tokenizer: Any, processor: Processor | None = None) -> list[Question]:
    """The questions of an entry; arguments as of `choices.read_choices`.

    Raises:
        DataError: as of `choices.read_choices`; more options than letters; columns that the template names are missing.
        ModelError: the chat template is asked for, and the tokenizer has none.
    """
    try:
        return read_choices(
            entry,
            tokenizer,
            processor=processor,
            ask=functools.partial(lettered_prompt, template=entry.prompt),
            most=len(LETTERS),
        )
    except (KeyError, IndexError) as error:
        raise DataError(
            f"The prompt of '{entry.name}' names the column {error}, which {entry.data} does not have. Rename it, or "
            f"leave it out."
        ) from None
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(f"The prompt of '{entry.name}' cannot be filled from {entry.data}: {error}.") from None


def measure(entry: LetteredEntry, on: Subject) -> Outcome:
    """See `holdfast.evaluation.measures.measure`."""
    questions = read_lettered(entry, on.tokenizer, on.processor)
    options = _option_tokens(entry, questions, on.tokenizer)
    contexts = [
        question.images or prompt_ids(question.prompt, on.tokenizer, chat=question.chat) for question in questions
    ]
    length, _ = resolve_window(on.model)
    with evaluation_mode(on.model):
        found = distributions(on, contexts, options, length=length)
    rows = [
        {
            **question.sample(),
            "gold": question.gold,
            **answered(one, question.gold),
            "nats": one["nats"][question.gold],
            "tokens": 1,
        }
        for question, one in zip(questions, found, strict=True)
    ]
    if entry.unit is not None:
        rows = by_unit(rows, questions, means=list(FIGURES))
    settings = {"subtasks": groups_of(questions)}
    return Outcome(rows=rows, figures=_FIGURES, settings=settings)


def _option_tokens(entry: LetteredEntry, questions: Sequence[Question], tokenizer: Any) -> list[list[list[int]]]:
    """Of every question and option the tokens of its letter.

    Raises:
        ModelError: a letter that is no single token.
    """
    instead = f"Use a tokenizer that has letters, or `choices: {entry.data}`, which scores the options' own texts."
    tokens = OptionTokens(tokenizer, f"{entry.suite}/{entry.name}", kind="lettered", instead=instead)
    return [[tokens.of(letter) for letter in LETTERS[: len(question.options)]] for question in questions]


def check(entry: LetteredEntry, tokenizer: Any, processor: Processor | None = None) -> None:
    """See `holdfast.evaluation.measures.check`."""
    _option_tokens(entry, read_lettered(entry, tokenizer, processor), tokenizer)
