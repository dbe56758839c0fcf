"""Which tokens of a conversation are trained: what the assistant says, and the token that ends it.

A chat template that marks the assistant's words with {% generation %} says so itself. Any other is
asked twice for each message i of the assistant: for the messages before it with the beginning of a
reply (P, as the model is asked), and for those up to and with it (Q). Where the whole conversation
begins with P and with Q, its tokens between the two are the message's:

    P   <user>Hi<end><assistant>
    Q   <user>Hi<end><assistant>Hello<end>
    W   <user>Hi<end><assistant>Hello<end><user>...
                                ^^^^^^^^^^ trained

What Q has behind that may be special tokens and white space: the end of a text, which follows the
last turn only. White space behind the token that ends the turn is not trained: no model is asked
for it. A token across the border of prompt and reply is trained, as TRL has it. A template that
rewrites earlier turns (leaves out their thoughts) makes another W than P and Q: the model would be
trained to answer otherwise than it is asked. Such a row is refused, or trained as `rewritten` says.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from holdfast.data.chat_templates import (
    common_prefix,
    end_of_turn,
    reply_header,
    tokens_of_messages,
)
from holdfast.data.messages import (
    BadRow,
    Convert,
    Row,
    conversation_of,
    template_variables,
    trained_messages,
)
from holdfast.errors import first_line
from holdfast.printable import printable

Which = Literal["last", "all", "per_message"]
Rewritten = Literal["refuse", "whole", "as_written"]

_IGNORED = -100
_THINK = "<think>"
_SHOWN = 40
"""Characters of a text in a message."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedTurns:
    """Which messages of a conversation are trained, and how their tokens are found."""

    which: Which | None = None
    """The assistant's last message, all of them, or those that say so (`train`, `weight`); None:
    all, unless messages say."""
    thoughts: bool = True
    """Whether thoughts are trained: what stands between <think> and </think>, and what the template
    writes of `reasoning_content`."""
    rewritten: Rewritten = "refuse"
    """What becomes of a row whose turns the template rewrites: it is refused, trained whole (the
    user's words, too), or trained on what the template has written of the assistant's messages."""
    in_prompts: bool = False
    """Of prompts and completions: whether what the assistant says in a prompt is trained."""
    marked_template: str | None = None
    """A chat template that marks the assistant's words, in place of the tokenizer's."""

    def converter(self, convert: Convert, tokenizer: Any, column: str | None) -> Convert:
        """A converter that puts `input_ids` and `labels` beside conversations.

        Args:
            convert: gives `messages`, or `prompt` and `completion` in messages.
            tokenizer: a fast one, with a chat template.
            column: of the user's messages, which say whether they are trained; None: they do not.
        """
        frame = (reply_header(tokenizer), end_of_turn(tokenizer))

        def converted(row: Row) -> dict[str, Any]:
            result = convert(row)
            messages = conversation_of(result)
            if column is not None:
                trained = trained_messages(row[column], messages)
            else:
                trained = self._of_the_assistant(messages, len(result.get("prompt") or ()))
            variables = template_variables(result)
            if self.marked_template is not None:
                variables["chat_template"] = self.marked_template
            tokens = self.tokens(messages, trained, tokenizer, frame, **variables)
            return {**result, **tokens}

        return converted

    def _of_the_assistant(self, messages: Sequence[Row], prompt: int) -> list[bool]:
        """Which messages are trained, behind the first ones that are a prompt."""
        trained = [message["role"] == "assistant" for message in messages]
        if not self.in_prompts:
            trained[:prompt] = [False] * prompt
        if self.which == "last" and any(trained):
            last = max(number for number, flag in enumerate(trained) if flag)
            trained = [number == last for number in range(len(messages))]
        return trained

    def tokens(
        self,
        messages: Sequence[Row],
        trained: Sequence[bool],
        tokenizer: Any,
        frame: tuple[str, int | None],
        **variables: Any,
    ) -> dict[str, list[int]]:
        """A conversation as `input_ids` and `labels`, -100 where a token is not trained.

        Args:
            messages: of one row.
            trained: whether each of them is.
            tokenizer: a fast one, with a chat template.
            frame: see `chat_templates.reply_header` and `end_of_turn`.
            variables: what the template reads beside messages.

        Raises:
            BadRow: the template refuses the conversation or rewrites its turns, or nothing is left
                to train.
        """
        written = _Written.of(messages, tokenizer, variables)
        try:
            labels = self._labels(written, trained, *frame)
        except BadRow as error:
            if self.rewritten == "as_written":
                raise
            if self.rewritten == "refuse":
                raise BadRow(
                    f"{error}. Set rewritten_turns: as_written to train on the text as the "
                    "template writes it, or whole to train on the whole row"
                ) from None
            labels = list(written.ids)
        if not self.thoughts:
            labels = _without_thoughts(labels, written)
        if all(label == _IGNORED for label in labels):
            raise BadRow("the row has no trained tokens")
        return {"input_ids": written.ids, "labels": labels}

    def _labels(
        self, written: _Written, trained: Sequence[bool], header: str, end: int | None
    ) -> list[int]:
        """
        Raises:
            BadRow: the tokens of a message cannot be told.
        """
        labels = [_IGNORED] * len(written.ids)
        numbers = [number for number in written.replies if trained[number]]
        # whose content alone is trained, as it is written: nothing asks for what is no reply
        others = [flag and number not in numbers for number, flag in enumerate(trained)]
        groups = [[number] for number in numbers]
        if self.marked_template is not None and numbers:
            groups = [numbers]
        for group in groups:
            try:
                if self.marked_template is not None:
                    stretches = written.marked(group)
                else:
                    stretches = [written.stretch(group[0], header, end)]
            except BadRow:
                if self.rewritten != "as_written":
                    raise
                for number in group:
                    others[number] = True
                continue
            for first, last in stretches:
                labels[first:last] = written.ids[first:last]
        if any(others):
            messages, variables = written.messages, written.variables
            beside = tokens_of_messages(messages, others, written.tokenizer, **variables)["labels"]
            labels = [max(pair) for pair in zip(labels, beside, strict=True)]
        return labels


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Written:
    """A conversation as the chat template writes it."""

    messages: Sequence[Row]
    tokenizer: Any
    variables: Mapping[str, Any]
    text: str
    ids: list[int]
    offsets: list[tuple[int, int]]
    """Of each token, its first character and the one behind its last."""

    @classmethod
    def of(cls, messages: Sequence[Row], tokenizer: Any, variables: Mapping[str, Any]) -> _Written:
        """
        Raises:
            BadRow: the template refuses it.
        """
        text = _render(messages, tokenizer, variables)
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return cls(
            messages=messages,
            tokenizer=tokenizer,
            variables=variables,
            text=text,
            ids=list(encoded["input_ids"]),
            offsets=list(encoded["offset_mapping"]),
        )

    @property
    def replies(self) -> list[int]:
        """Numbers of the assistant's messages, from 0."""
        return [n for n, message in enumerate(self.messages) if message["role"] == "assistant"]

    def stretch(self, number: int, header: str, end: int | None) -> tuple[int, int]:
        """The first token of a reply and the one behind its last, by growing prefixes.

        Raises:
            BadRow: the whole conversation does not begin with them.
        """
        before = self._beginning(number, reply=True) + header
        with_reply = self._beginning(number + 1)
        if not self.text.startswith(before):
            raise self._unlike(number, before, "it is generated")
        first, _ = self._same_tokens(before)
        last, rest = self._same_tokens(with_reply)
        ends = [index + 1 for index in range(first, last) if self.ids[index] == end]
        # the end of the turn, if it stands behind the last turn alone, has another in its place
        if last <= first or not self._ends_a_text(rest) or (end in rest and not ends):
            raise self._unlike(number, with_reply, "it is the last turn (train_on: last)")
        return first, ends[-1] if ends else last

    def marked(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """The stretches of tokens that the template marks of these replies.

        Raises:
            BadRow: it marks nothing, or not one stretch a reply where not all are trained.
        """
        output = self.tokenizer.apply_chat_template(
            list(self.messages),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            **self.variables,
        )
        runs = list(_runs(output["assistant_masks"]))
        replies = self.replies
        if runs and list(numbers) == replies:
            return runs
        if len(runs) != len(replies):
            raise BadRow(
                f"the chat template marks {len(runs)} spans of text, but the assistant has "
                f"{len(replies)} messages, so they cannot be matched"
            )
        return [runs[replies.index(number)] for number in numbers]

    def _beginning(self, count: int, *, reply: bool = False) -> str:
        try:
            messages = self.messages[:count]
            return _render(messages, self.tokenizer, self.variables, add_generation_prompt=reply)
        except BadRow as error:
            raise BadRow(
                "to find the assistant's tokens, the first messages are written alone, but the chat "
                f"template fails on the first {count}: {error}"
            ) from None

    def _same_tokens(self, text: str) -> tuple[int, list[int]]:
        """How many tokens of the conversation are in the beginning that it has in common with a
        text, and the tokens of what the text has behind them."""
        same = len(text)
        if not self.text.startswith(text):
            same = common_prefix(text, self.text)
        count = bisect.bisect_right(self.offsets, same, key=lambda offset: offset[1])
        rest = text[self.offsets[count - 1][1] :] if count else text
        if not rest:
            return count, []
        return count, list(self.tokenizer(rest, add_special_tokens=False)["input_ids"])

    def _ends_a_text(self, ids: Sequence[int]) -> bool:
        """Whether tokens are special or white space alone."""
        special = self.tokenizer.all_special_ids
        return all(token in special or not self.tokenizer.decode([token]).strip() for token in ids)

    def _unlike(self, number: int, text: str, when: str) -> BadRow:
        at = common_prefix(text, self.text)
        expected, got = (printable(words[at : at + _SHOWN]) for words in (text, self.text))
        return BadRow(
            f"message {number + 1} (assistant): the chat template writes '{expected}' when {when}, "
            f"and '{got}' in the whole conversation"
        )


def _render(
    messages: Sequence[Row], tokenizer: Any, variables: Mapping[str, Any], **more: Any
) -> str:
    """
    Raises:
        BadRow: the template refuses it.
    """
    from jinja2.exceptions import TemplateError

    try:
        return str(
            tokenizer.apply_chat_template(list(messages), tokenize=False, **variables, **more)
        )
    except (TemplateError, IndexError, TypeError) as error:  # what templates raise
        reason = first_line(error.__cause__ or error)  # without the words of who names the template
        raise BadRow(f"the chat template refuses it: {reason}") from None


def _runs(flags: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Stretches of items that are not 0: first, and the one behind the last."""
    first = None
    for index, flag in enumerate([*flags, 0]):
        if flag and first is None:
            first = index
        elif not flag and first is not None:
            yield first, index
            first = None


def _without_thoughts(labels: Sequence[int], written: _Written) -> list[int]:
    """Labels that are -100 at tokens of thoughts, the tags around them included."""
    patterns = [rf"{_THINK}.*?(?:</think>|\Z)"]
    for message in written.messages:
        for key in ("reasoning_content", "thinking"):
            if thought := str(message.get(key) or "").strip():
                patterns.append(re.escape(thought))
    pattern = re.compile("|".join(patterns), re.DOTALL)
    masked = list(labels)
    for start, stop in _runs([label != _IGNORED for label in labels]):
        begin, end = written.offsets[start][0], written.offsets[stop - 1][1]
        # where the prompt has begun the thought, its tag belongs to it
        if written.text[:begin].rstrip().endswith(_THINK):
            begin = written.text.rindex(_THINK, 0, begin)
        for match in pattern.finditer(written.text, begin, end):
            for index in range(start, stop):
                first, last = written.offsets[index]
                if first < match.end() and match.start() < last:
                    masked[index] = _IGNORED
    return masked
