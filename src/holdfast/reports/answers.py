"""What two models answer to the user's own prompts, side by side: for people to read.

The middle of long texts is left out, because answers end texts; the JSON record has all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.records.comparison import Answer, AnsweredPrompt, Answers
from holdfast.reports.blocks import (
    Block,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    chip,
    columns,
    sub,
)
from holdfast.reports.flips import in_lines
from holdfast.reports.format import plural

MOST_PROMPTS = 300
"""Prompts that one page shows."""
MOST_CHARACTERS = 4000
"""Longest prompt or answer in the page."""


def answers_in_words(answers: Answers) -> str:
    """How many answers differ, how many ended by themselves, and how long they are."""
    n = len(answers.prompts)
    different = sum(prompt.differs for prompt in answers.prompts)
    before = [prompt.before for prompt in answers.prompts]
    after = [prompt.after for prompt in answers.prompts]
    sentence = (
        f"{plural(n, 'prompt')} of {answers.file}, answered by both models: {different:,} "
        f"{'answers differ' if different != 1 else 'answer differs'}. Answers that ended on "
        "their own: "
        f"{_ended(before)} before, {_ended(after)} after. Mean length: {_length(before)} tokens "
        f"before, {_length(after)} after"
    )
    return (
        f"{sentence}; greedy decoding, at most {answers.max_new_tokens:,} tokens. The answers are "
        "not judged."
    )


def _ended(answers: Sequence[Answer]) -> str:
    return f"{sum(answer.ended for answer in answers):,}"


def _length(answers: Sequence[Answer]) -> str:
    return f"{sum(answer.tokens for answer in answers) / len(answers):,.0f}"


def answers_section(answers: Answers, labels: Sequence[str]) -> Section:
    """The prompts with both answers.

    Args:
        answers: of two models.
        labels: their names, the one before first.
    """
    prompts = answers.prompts[:MOST_PROMPTS]
    table = Table(
        columns=columns("Prompt", *labels, right=(), wide=(1, 2)),
        rows=[_row(prompt) for prompt in prompts],
        kind="dense flips",
        find="prompt",
    )
    blocks: list[Block] = [table]
    if len(prompts) < len(answers.prompts):
        rest = (
            f"The first {len(prompts):,} of {len(answers.prompts):,} prompts. "
            "--json has all of them."
        )
        blocks.append(Paragraph(rest, "note"))
    return Section("Your prompts", blocks, intro=answers_in_words(answers))


def _row(prompt: AnsweredPrompt) -> list[Text]:
    texts: list[Text] = []
    for message in prompt.messages:
        content = in_lines(str(message["content"]), MOST_CHARACTERS)
        if len(prompt.messages) == 1:
            texts.append(content)
        else:
            texts.append(sub(Span(str(message["role"]), "strong"), ": ", content))
    if not prompt.differs:
        texts.append(sub(chip("same answer")))
    return [texts, _cell(prompt.before), _cell(prompt.after)]


def _cell(answer: Answer) -> Text:
    """An answer, and below it how long it is and how it ended."""
    end: Text = "ended on its own"
    if answer.open_thought:
        end = chip("unfinished reasoning", "warn")
    elif not answer.ended:
        end = chip("cut", "warn")
    text = answer.text or "(nothing)"
    return (in_lines(text, MOST_CHARACTERS), sub(f"{answer.tokens:,} tokens, ", end))
