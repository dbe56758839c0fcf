"""Templates of models that think before they reply: does a reply begin inside an open thought, and
what of a reply is no thought?

A template whose prompt ends in `<think>` has options and letters scored as the first words of a
thought, which says nothing of the answer: such an entry is refused, with the variable that closes
the thought where the template has one. Replies are judged without their thought; one that never
ends its thought is empty.
"""

from __future__ import annotations

import bisect
import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import ModelError

Marks = tuple[str, str]
MARKS: tuple[Marks, ...] = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
)
"""Where a thought begins and ends, as model families write it."""
SWITCHES = ("enable_thinking", "thinking")
"""Variables of templates by which thinking is turned off."""


def with_variables(processing: Any, variables: Mapping[str, Any]) -> Any:
    """A tokenizer or processor whose chat template gets variables wherever it writes; the caller's
    own win."""
    if not variables:
        return processing
    changed = copy.copy(processing)
    changed.apply_chat_template = functools.partial(processing.apply_chat_template, **variables)
    return changed


def _prompt(tokenizer: Any, **variables: Any) -> str:
    """How the template begins a reply; empty where there is none, or it takes no such
    conversation."""
    from jinja2 import TemplateError

    if not getattr(tokenizer, "chat_template", None):
        return ""
    try:
        messages = [{"role": "user", "content": "Hello"}]
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **variables
            )
        )
    except (TemplateError, ValueError, TypeError):
        return ""


def _open(prompt: str) -> Marks | None:
    for marks in MARKS:
        begin, end = marks
        if prompt.rfind(begin) > prompt.rfind(end):
            return marks
    return None


def open_thought(tokenizer: Any) -> Marks | None:
    """The marks of the thought that replies begin in; None where the template opens none."""
    return _open(_prompt(tokenizer))


def _switch(tokenizer: Any) -> str | None:
    """The variable that makes the template begin a reply without a thought; None where it has none,
    or does so."""
    usual = _prompt(tokenizer)
    for name in SWITCHES if usual else ():
        prompt = _prompt(tokenizer, **{name: False})
        if prompt not in ("", usual) and _open(prompt) is None:
            return name
    return None


def refuse_open_thought(tokenizer: Any, what: str) -> None:
    """Stops where options would be scored as the first words of a thought.

    Args:
        tokenizer: with its template, and the variables of the entry.
        what: the entry, for the message.

    Raises:
        ModelError: the chat template begins replies inside an open thought.
    """
    if (marks := open_thought(tokenizer)) is None:
        return
    switch = _switch(tokenizer)
    advice = (
        f"Turn thinking off with `chat_template_kwargs: {{{switch}: false}}`"
        if switch
        else "This template has no setting that turns thinking off"
    )
    raise ModelError(
        f"{what}: expected a reply that begins with the answer, but the chat template ends the "
        f"prompt inside a thought ({marks[0]}). Options and letters would be scored as part of the "
        f"thought. {advice}. Otherwise turn apply_chat_template off, or use an entry with "
        "generated replies (`instructions`, or a task that generates)."
    )


def remarks_on_thoughts(tokenizer: Any) -> list[str]:
    """What is to be said of an entry that writes its prompts by the chat template."""
    if (marks := open_thought(tokenizer)) is not None:
        return [
            f"The chat template ends the prompt inside a thought ({marks[0]}): only the text after "
            f"{marks[1]} is judged."
        ]
    if (switch := _switch(tokenizer)) is not None:
        off = f"`chat_template_kwargs: {{{switch}: false}}`"
        return [
            f"The chat template leaves thinking on, so replies may begin with a thought. {off} "
            "turns it off."
        ]
    return []


def _thought_of(text: str, opened: Marks | None) -> Marks | None:
    """The marks of the thought that a reply begins with."""
    if opened is not None:
        return opened
    for marks in MARKS:
        if text.lstrip().startswith(marks[0]):
            return marks
    return None


def without_thought(text: str, opened: Marks | None) -> str:
    """A reply without the thought that it begins with; empty where that has no end.

    Args:
        text: what the model wrote behind the prompt.
        opened: the thought that the prompt opens.
    """
    marks = _thought_of(text, opened)
    return text if marks is None else text.partition(marks[1])[2].lstrip()


def state_of_thought(text: str, opened: Marks | None) -> str:
    """ "closed" or "open" for the thought that a reply begins with; empty where there is none.

    Args:
        text: what the model wrote behind the prompt, special tokens included.
        opened: the thought that the prompt opens.
    """
    marks = _thought_of(text, opened)
    if marks is None:
        return ""
    return "closed" if marks[1] in text else "open"


def reply_text(tokenizer: Any, ids: Sequence[int], opened: Marks | None) -> str:
    """The text of a reply's tokens without special ones and without its thought, whose marks may be
    special."""

    def text_of(tokens: Sequence[int], *, special: bool) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=not special))

    text = text_of(ids, special=True)
    marks = _thought_of(text, opened)
    if marks is None:
        return text_of(ids, special=False)
    if marks[1] not in text:
        return ""
    ends = range(len(ids) + 1)
    end = bisect.bisect_left(ends, True, key=lambda n: marks[1] in text_of(ids[:n], special=True))
    return text_of(ids[end:], special=False).lstrip()
