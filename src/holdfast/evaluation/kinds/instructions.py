"""Instruction following from a file: the model replies greedily, and a program decides whether each
instruction was followed.

Rows have IFEval's layout: `prompt` (or `messages`), `instruction_id_list`, and `kwargs`, one
mapping an instruction. The checkers, strict and loose, are those of
`holdfast.evaluation.text.checkers`. Figures are IFEval's four (Zhou et al. 2023, section 2.2),
named as lm-evaluation-harness does:

    prompt_level_*_acc = share of prompts all of whose instructions are followed
    inst_level_*_acc   = followed instructions / instructions, over all prompts

Replies are generated greedily (`text.replies`). What a reply says besides is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.config.declare import Meta
from holdfast.data.layouts import Row
from holdfast.evaluation.entries import DataEntry
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.checkers import RULES, follow, mistake_in
from holdfast.evaluation.text.documents import chat_prompt, prompt_ids
from holdfast.evaluation.text.question_files import (
    RowMistakes,
    prompt_rows,
    row_messages,
    shown,
)
from holdfast.support.files import fingerprint

if TYPE_CHECKING:
    from holdfast.statistics.estimates import Ratio


@dataclass(frozen=True, kw_only=True)
class InstructionsEntry(DataEntry):
    """Prompts with instructions that a program can verify. Rows have prompt (or messages),
    instruction_id_list and kwargs, as in IFEval."""

    kind = "instructions"
    batched = True

    max_new_tokens: Annotated[int, Meta(ge=1)] = 256
    """Maximum number of tokens of a reply (greedy decoding)."""
    apply_chat_template: bool = False
    """Put prompts in the tokenizer's chat template. Messages always use it."""

    def versions(self) -> dict[str, str]:
        """Our rules."""
        return {"checkers": str(RULES)}

    def requests(self, tokenizer: Any, processor: Any = None) -> list[Prompt]:
        """See `Entry.requests`."""
        return read_instructions(self, tokenizer)

    def scores(self, requests: list[Prompt], on: Subject) -> Outcome:
        """Generates and checks the replies, see `Entry.scores`.

        Raises:
            ModelError: the context has no room for a reply of `max_new_tokens` tokens, or the
                tokenizer has no end of sequence.
        """
        from holdfast.evaluation.text.replies import reply

        encoded = [prompt_ids(prompt.prompt, on.tokenizer, chat=prompt.chat) for prompt in requests]
        replies = reply(
            on, encoded, self.max_new_tokens, chat=any(prompt.chat for prompt in requests)
        )
        rows = []
        for prompt, text in zip(requests, replies.texts, strict=True):
            row: dict[str, Any] = {
                "doc": fingerprint([prompt.asked, prompt.ids, prompt.kwargs], length=32),
                "prompt": fingerprint(prompt.prompt, length=32),
                "question": prompt.asked,
                "gold": prompt.instructions,
                "output": text,
            }
            for how in ("strict", "loose"):
                followed = follow(text, prompt.ids, prompt.kwargs, loose=how == "loose")
                row[f"prompt_level_{how}_acc"] = float(all(followed))
                row[f"inst_level_{how}_acc"] = float(sum(followed))
                row[f"inst_level_{how}_acc#"] = len(followed)
                row[f"followed_{how}"] = followed
            rows.append({**row, "instructions": prompt.ids})
        settings = {"longest": self.max_new_tokens, "notes": replies.notes}
        return Outcome(rows=rows, figures=_figures(), settings=settings, broken=replies.broken)


def _figures() -> dict[str, Ratio]:
    """As lm-evaluation-harness calls them: over prompts, or over all instructions of all
    prompts."""
    from holdfast.statistics.estimates import Ratio

    figures = {}
    for how in ("strict", "loose"):
        prompts, instructions = f"prompt_level_{how}_acc", f"inst_level_{how}_acc"
        figures[prompts] = Ratio(numerator=prompts, unit=prompts, higher_is_better=True)
        figures[instructions] = Ratio(
            numerator=instructions,
            denominator=f"{instructions}#",
            unit=instructions,
            higher_is_better=True,
        )
    return figures


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt with what its reply has to do."""

    asked: str
    """The last user's words."""
    prompt: str
    """What the model goes on with."""
    ids: list[str]
    """Of the instructions."""
    kwargs: list[dict[str, Any]]
    """Of each."""
    chat: bool
    """Whether `prompt` was written by a chat template."""

    @property
    def instructions(self) -> str:
        """For people: ids with their arguments."""
        texts = []
        for id_, kwargs in zip(self.ids, self.kwargs, strict=True):
            arguments = []
            for name, value in kwargs.items():
                arguments.append(f"{name} {' '.join(value) if isinstance(value, list) else value}")
            texts.append(f"{id_} ({', '.join(arguments)})" if arguments else id_)
        return ", ".join(texts)


def read_instructions(entry: InstructionsEntry, tokenizer: Any) -> list[Prompt]:
    """The prompts of an entry.

    Raises:
        DataError: no rows, columns are missing, an instruction that nobody knows, or arguments that
            do not fit; all mistakes of the file in one message, each kind with the first row that
            has it.
        ModelError: messages or the chat template are asked for, and the tokenizer has none.
    """
    rows = prompt_rows(entry, ("instruction_id_list", "kwargs"))
    mistakes = RowMistakes(entry.data)
    prompts = []
    for number, row in enumerate(rows):
        messages = row_messages(row, number, mistakes)
        kwargs = _arguments(row, number, mistakes)
        if messages is None or kwargs is None:
            continue
        chat = entry.apply_chat_template or not isinstance(row.get("prompt"), str)
        prompts.append(
            Prompt(
                asked=str(messages[-1]["content"]),
                prompt=chat_prompt(messages, tokenizer) if chat else str(row["prompt"]),
                ids=list(row["instruction_id_list"]),
                kwargs=kwargs,
                chat=chat,
            )
        )
    mistakes.check()
    return prompts


def _arguments(row: Row, number: int, mistakes: RowMistakes) -> list[dict[str, Any]] | None:
    """Of every instruction of a row, without those that are null; None where something is wrong."""
    ids, kwargs = row["instruction_id_list"], row["kwargs"]
    if not isinstance(ids, list) or not ids or not all(isinstance(id_, str) for id_ in ids):
        mistakes.add("an instruction_id_list with at least one id", row=number, got=shown(ids))
        return None
    are_mappings = isinstance(kwargs, list) and all(isinstance(k, Mapping | None) for k in kwargs)
    if not are_mappings or len(kwargs) != len(ids):
        expected = "a list in kwargs, with one mapping for each instruction"
        mistakes.add(expected, row=number, got=f"{shown(kwargs)} for {len(ids)} instructions")
        return None
    arguments = []
    for id_, given_arguments in zip(ids, kwargs, strict=True):
        # columns of a file are the union of all rows', so most are null
        values = {
            name: value for name, value in (given_arguments or {}).items() if value is not None
        }
        problem = mistake_in(id_, values)
        if problem is not None:
            mistakes.add("instructions that can be checked", row=number, got=problem)
            return None
        arguments.append(values)
    return arguments
