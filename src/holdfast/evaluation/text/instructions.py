"""Instruction following from a file: the model replies greedily, and a program decides whether each instruction was
followed.

Rows have IFEval's layout: `prompt` (or `messages`), `instruction_id_list`, and `kwargs`, one mapping an instruction.
The checkers, strict and loose, are those of `holdfast.evaluation.text.checkers`. Figures are IFEval's four (Zhou et al.
2023, section 2.2), named as lm-evaluation-harness does:

    prompt_level_*_acc = share of prompts all of whose instructions are followed
    inst_level_*_acc   = followed instructions / instructions, over all prompts

Replies are generated greedily (`holdfast.generation`); a batch is kept on disk as soon as it is
written, so an interruption costs one. What a reply says besides is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import DataError, ModelError
from holdfast.evaluation.entries import InstructionsEntry
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.modes import evaluation_mode
from holdfast.evaluation.remarks import remarks_on_cut
from holdfast.evaluation.served import ServedModel
from holdfast.evaluation.text.checkers import RULES, follow, mistake_in
from holdfast.evaluation.text.documents import chat_prompt, prompt_ids
from holdfast.evaluation.text.question_files import RowMistakes, question_rows, shown
from holdfast.evaluation.text.thoughts import open_thought, reply_text, without_thought
from holdfast.generation import BROKEN, continued, end_tokens
from holdfast.statistics.estimates import Ratio
from holdfast.support.files import fingerprint

_FIGURES = {
    f"{level}_level_{how}_acc": Ratio(
        numerator=f"{level}_level_{how}_acc",
        denominator=f"inst_level_{how}_acc#" if level == "inst" else None,
        unit=f"{level}_level_{how}_acc",
        higher_is_better=True,
    )
    for level, how in (("prompt", "strict"), ("inst", "strict"), ("prompt", "loose"), ("inst", "loose"))
}
"""As lm-evaluation-harness calls them: over prompts, or over all instructions of all prompts."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt with what its reply has to do."""

    asked: str
    """The last user's words."""
    prompt: str
    """What the model goes on with."""
    ids: tuple[str, ...]
    kwargs: tuple[dict[str, Any], ...]
    chat: bool
    """Whether `prompt` was written by a chat template."""


def read_instructions(entry: InstructionsEntry, tokenizer: Any) -> list[Prompt]:
    """The prompts of an entry.

    Raises:
        DataError: no rows, columns are missing, an instruction that nobody knows, or arguments that do not fit; all
            mistakes of the file in one message, each kind with the first row that has it.
        ModelError: messages or the chat template are asked for, and the tokenizer has none.
    """
    rows = question_rows(entry, ("instruction_id_list", "kwargs"))
    columns = list(rows.column_names)
    if not {"prompt", "messages"} & set(columns):
        raise DataError(
            f"{entry.data} lacks the column prompt (or messages): what the model is asked. It has {', '.join(columns)}."
        )
    mistakes = RowMistakes(entry.data)
    prompts = []
    for number, row in enumerate(rows):
        messages = _messages(row, number, mistakes)
        ids, kwargs = _instructions(row, number, mistakes)
        if messages is None or ids is None:
            continue
        chat = entry.apply_chat_template or not isinstance(row.get("prompt"), str)
        prompts.append(
            Prompt(
                asked=str(messages[-1]["content"]),
                prompt=chat_prompt(messages, tokenizer) if chat else str(row["prompt"]),
                ids=tuple(ids),
                kwargs=tuple(kwargs),
                chat=chat,
            )
        )
    mistakes.check()
    return prompts


def _messages(row: Mapping[str, Any], number: int, mistakes: RowMistakes) -> list[dict[str, Any]] | None:
    prompt, messages = row.get("prompt"), row.get("messages")
    if isinstance(prompt, str) and prompt.strip():
        return [{"role": "user", "content": prompt}]
    if (
        isinstance(messages, list)
        and messages
        and all(isinstance(m, Mapping) and m.get("role") and m.get("content") for m in messages)
    ):
        if messages[-1]["role"] != "assistant":
            return [{"role": m["role"], "content": m["content"]} for m in messages]
        mistakes.add(
            "messages that end with a user's, which the model replies to", row=number, got="an assistant's last"
        )
        return None
    expected = "a prompt that is a text and not empty, or messages with role and content"
    mistakes.add(expected, row=number, got=shown(prompt if messages is None else messages))
    return None


def _instructions(
    row: Mapping[str, Any], number: int, mistakes: RowMistakes
) -> tuple[list[str] | None, list[dict[str, Any]]]:
    ids, kwargs = row["instruction_id_list"], row["kwargs"]
    if not isinstance(ids, list) or not ids or not all(isinstance(i, str) for i in ids):
        mistakes.add("an instruction_id_list with at least one id", row=number, got=shown(ids))
        return None, []
    if (
        not isinstance(kwargs, list)
        or len(kwargs) != len(ids)
        or not all(k is None or isinstance(k, Mapping) for k in kwargs)
    ):
        mistakes.add(
            "kwargs that are a list with one mapping for each instruction",
            row=number,
            got=f"{shown(kwargs)} for {len(ids)} instructions",
        )
        return None, []
    plain = [{name: value for name, value in (k or {}).items() if value is not None} for k in kwargs]
    for id_, given in zip(ids, plain, strict=True):
        mistake = mistake_in(id_, given)
        if mistake is not None:
            mistakes.add("instructions that can be checked", row=number, got=mistake)
            return None, []
    return list(ids), plain


def measure(entry: InstructionsEntry, on: Subject) -> Outcome:
    """Generates and checks the replies, see `holdfast.evaluation.measures.measure`.

    Raises:
        ModelError: the context has no room for a reply of `max_new_tokens` tokens, or the tokenizer has no end of
            sequence.
    """
    prompts = read_instructions(entry, on.tokenizer)
    longest = entry.max_new_tokens
    encoded = [prompt_ids(p.prompt, on.tokenizer, chat=p.chat) for p in prompts]
    found = reply(on, encoded, longest, chat=any(p.chat for p in prompts))
    rows = []
    for prompt, text in zip(prompts, found.texts, strict=True):
        row: dict[str, Any] = {
            "doc": fingerprint([prompt.asked, list(prompt.ids), list(prompt.kwargs)], length=32),
            "prompt": fingerprint(prompt.prompt, length=32),
            "question": prompt.asked,
            "gold": ", ".join(_shown(id_, given) for id_, given in zip(prompt.ids, prompt.kwargs, strict=True)),
            "output": text,
        }
        for how in ("strict", "loose"):
            followed = follow(text, prompt.ids, prompt.kwargs, loose=how == "loose")
            row[f"prompt_level_{how}_acc"] = float(all(followed))
            row[f"inst_level_{how}_acc"] = float(sum(followed))
            row[f"inst_level_{how}_acc#"] = len(followed)
            row[f"followed_{how}"] = followed
        rows.append({**row, "instructions": list(prompt.ids)})
    settled = {"longest": longest, "notes": found.notes}
    return Outcome(rows=rows, figures=_FIGURES, settings=settled, broken=found.broken)


@dataclass(frozen=True, kw_only=True)
class Replies:
    """What a model said to prompts."""

    texts: list[str]
    """One a prompt, in order."""
    broken: str
    """`Outcome.broken`."""
    notes: list[str]


def reply(on: Subject, encoded: Sequence[Sequence[int]], longest: int, *, chat: bool) -> Replies:
    """Greedy replies without their thoughts; a prompt that leaves no room for one loses its beginning.

    Args:
        on: the model.
        encoded: token ids of the prompts, none empty.
        longest: tokens of a reply at most.
        chat: as of `generate`.

    Raises:
        ModelError: the context has no room for so long a reply, or the tokenizer has no end of sequence.
    """
    from holdfast.evaluation.text.perplexity import resolve_window

    window, _ = resolve_window(on.model)
    if longest >= window:
        raise ModelError(
            f"max_new_tokens: expected fewer than the model's context of {window} tokens, got {longest}; the prompt "
            f"needs room too. Lower it."
        )
    cut = sum(len(ids) > window - longest for ids in encoded)
    fitting = [ids[-(window - longest) :] for ids in encoded]
    texts, broken = generate(on, fitting, max_new_tokens=longest, chat=chat)
    notes = remarks_on_cut(cut, len(encoded), window - longest)
    if chat and open_thought(on.tokenizer) and (unfinished := texts.count("")):
        notes.append(
            f"{unfinished} of {len(texts)} replies are thoughts without an end: {longest} tokens were allowed."
        )
    return Replies(texts=texts, broken=BROKEN if broken else "", notes=notes)


def generate(
    on: Subject, encoded: Sequence[Sequence[int]], *, max_new_tokens: int, chat: bool = True
) -> tuple[list[str], bool]:
    """Greedy continuations as text, special tokens and thoughts left out; each ends before the model's end of sequence,
    or after `max_new_tokens`. And whether some of them were chosen by logits that are not finite.

    Args:
        on: the model; the batch size is the plan's, and prompts of similar length share a batch.
        encoded: token ids of the prompts, none empty.
        max_new_tokens: tokens at most.
        chat: whether the prompts were written by the chat template, which may open a thought.

    Raises:
        ModelError: the tokenizer has no end of sequence.
        HoldfastError: the accelerator's memory does not suffice.
    """
    if not end_tokens(on.model, on.tokenizer):
        raise ModelError(
            "Expected a tokenizer with an end of sequence (eos_token), where replies end; this one has none. Set one."
        )

    opened = open_thought(on.tokenizer) if chat else None

    def replies(batch: Sequence[int]) -> list[Any]:
        """Of prompts that share a forward pass; {"broken": text} where it says nothing."""
        asked = [encoded[i] for i in batch]
        if isinstance(on.model, ServedModel):
            asked_for = [{"max_tokens": max_new_tokens}] * len(asked)
            return [without_thought(r.text, opened) for r in on.model.completions(asked, asked_for)]
        with evaluation_mode(on.model):
            continuations = continued(on.model, on.tokenizer, asked, max_new_tokens=max_new_tokens)
        texts = []
        for one in continuations:
            ids = one.ids[:-1] if one.ended else one.ids
            texts.append(reply_text(on.tokenizer, ids, opened))
        if any(one.broken for one in continuations):
            return [{"broken": text} for text in texts]
        return texts

    order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
    size = on.model.at_once if isinstance(on.model, ServedModel) else on.plan.batch_size
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    found = on.partial.resumed(
        "reply", ((batch, batch) for batch in batches), replies, total=len(encoded), report=on.report
    )
    texts = [one["broken"] if isinstance(one, dict) else one for one in found]
    return texts, any(isinstance(one, dict) for one in found)


def versions(entry: InstructionsEntry) -> dict[str, str]:
    """What decides an entry's figures beside the model and the data: our rules."""
    return {"checkers": str(RULES)}


def _shown(id_: str, given: Mapping[str, Any]) -> str:
    words = ", ".join(f"{name} {' '.join(v) if isinstance(v, list) else v}" for name, v in given.items())
    return f"{id_} ({words})" if words else id_


def check(entry: InstructionsEntry, tokenizer: Any) -> None:
    """See `holdfast.evaluation.measures.check`."""
    read_instructions(entry, tokenizer)
