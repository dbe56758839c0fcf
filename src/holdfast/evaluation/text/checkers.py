"""Programs that decide whether a reply follows an instruction, by id.

IFEval's own instructions (`keywords:existence`, ...) are lm-evaluation-harness's: its task `ifeval`
takes a file of them (`data:`). These here are what IFEval has no instruction for, or decides in
another way: it has no exact number of words, no beginning, no brackets and no repeated line; for
capitals and lower case it asks langdetect, which guesses for replies of a few words; its lists may
have other lines. These look at the text alone, and decide the same everywhere.

Strict and loose are IFEval's (Zhou et al. 2023, "Instruction-Following Evaluation for Large
Language Models", section 2.2): strict takes the reply as it is; loose takes it as following where
one of eight variants does, without asterisks, without its first line, without its last, and
combinations. An empty reply follows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import did_you_mean

RULES = 1
"""Raised when a checker decides otherwise than before, so that older figures are not compared
with."""


@dataclass(frozen=True)
class Checker:
    """One instruction."""

    follows: Callable[..., bool]
    """Of a reply without white space around it, not empty, and the arguments by name."""
    arguments: Mapping[str, type] = field(default_factory=dict)
    """What it needs: str, int (at least 1) or list (of texts)."""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _begins(text: str, word: str) -> bool:
    return re.match(rf"\W*{re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _ends(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}\W*$", text, re.IGNORECASE) is not None


def _has(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _has_all(text: str, words: Sequence[str]) -> bool:
    return all(_has(text, word) for word in words)


def _has_none(text: str, words: Sequence[str]) -> bool:
    return not any(_has(text, word) for word in words)


def _is_quoted(text: str) -> bool:
    return len(text) > 2 and text[0] == text[-1] == '"'


def _is_bracketed(text: str) -> bool:
    return len(text) > 2 and text[0] == "[" and text[-1] == "]"


def _counts(text: str, count: int) -> bool:
    return len(re.findall(r"\w+", text)) == count


def _is_list(text: str, items: int) -> bool:
    lines = _lines(text)
    return len(lines) == items and all(re.match(r"[-*]\s*\w", line) for line in lines)


def _repeats(text: str, times: int) -> bool:
    lines = _lines(text)
    return len(lines) == times and len(set(lines)) == 1


def _no_full_stop(text: str) -> bool:
    return "." not in text


def _no_comma(text: str) -> bool:
    return "," not in text


CHECKERS: dict[str, Checker] = {
    # marks before and after the words aside
    "plain:begin": Checker(_begins, {"word": str}),
    "plain:end": Checker(_ends, {"word": str}),
    "plain:keywords": Checker(_has_all, {"words": list}),
    "plain:without": Checker(_has_none, {"words": list}),
    # of letters, of which there is at least one
    "plain:capitals": Checker(str.isupper),
    "plain:lowercase": Checker(str.islower),
    # with something between
    "plain:quotes": Checker(_is_quoted),
    "plain:brackets": Checker(_is_bracketed),
    # exactly so many runs of letters and digits, lines with a hyphen or an asterisk and no others,
    # equal lines
    "plain:words": Checker(_counts, {"count": int}),
    "plain:list": Checker(_is_list, {"items": int}),
    "plain:repeat": Checker(_repeats, {"times": int}),
    "plain:no_full_stop": Checker(_no_full_stop),
    "plain:no_comma": Checker(_no_comma),
}
"""By id."""


def follow(
    reply: str, ids: Sequence[str], arguments: Sequence[Mapping[str, Any]], *, loose: bool
) -> list[bool]:
    """Whether a reply follows each instruction.

    Args:
        reply: the model's.
        ids: of the instructions.
        arguments: one mapping an instruction; values of None count as not given.
        loose: see the module's docstring.
    """
    variants = [variant.strip() for variant in (_variants(reply) if loose else [reply])]
    followed = []
    for id_, values in zip(ids, arguments, strict=True):
        follows, known = CHECKERS[id_].follows, _not_none(values)
        followed.append(any(follows(variant, **known) for variant in variants if variant))
    return followed


def mistake_in(id_: str, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with one instruction: an id that nobody knows, a missing or an unexpected
    argument. None: nothing."""
    if id_ not in CHECKERS:
        hint = did_you_mean(id_, CHECKERS) or f" Known: {', '.join(CHECKERS)}."
        return (
            f"unknown instruction '{id_}'.{hint} For IFEval's own instructions use `task: ifeval` "
            "with `data:`"
        )
    values, types = _not_none(arguments), CHECKERS[id_].arguments
    for name in types:
        if name not in values:
            return f"'{id_}' needs `{name}` in its kwargs"
    for name, value in values.items():
        if name not in types:
            takes = " and ".join(f"`{n}`" for n in types) or "no arguments"
            return f"'{id_}' takes {takes}, not `{name}`.{did_you_mean(name, types)}"
        if not _is_sound(value, types[name]):
            return f"`{name}` of '{id_}' has to be {_EXPECTED[types[name]]}, got {value!r}"
    return None


def _not_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a file are the union of all rows', so most are null."""
    return {name: value for name, value in arguments.items() if value is not None}


_EXPECTED = {str: "a text", int: "a whole number of at least 1", list: "a list of texts"}


def _is_sound(value: Any, kind: type) -> bool:
    if kind is list:
        return (
            isinstance(value, list) and bool(value) and all(isinstance(v, str) and v for v in value)
        )
    if kind is int:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and float(value).is_integer() and value >= 1
    return isinstance(value, str) and bool(value)


def _variants(reply: str) -> list[str]:
    lines = reply.split("\n")
    variants = [reply]
    for kept_lines in (lines[1:], lines[:-1], lines[1:-1]):
        variants.append("\n".join(kept_lines).strip())
    return variants + [text.replace("*", "") for text in variants]
