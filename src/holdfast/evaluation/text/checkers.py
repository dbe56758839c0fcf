"""Programs that decide whether a reply follows an instruction, by id.

They look at nothing but the text, with no language detection and no sentence splitter, so that they decide the same
everywhere and for replies of a few words. IFEval's own instructions (`keywords:existence`, ...) are
lm-evaluation-harness's: its task `ifeval` takes a file of them (`data:`).

Strict and loose are IFEval's (Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", section
2.2): strict takes the reply as it is; loose takes it as following where one of eight variants does, without asterisks,
without its first line, without its last, and combinations. An empty reply follows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import did_you_mean

RULES = 1
"""Raised when a checker decides otherwise than before, so that older figures are not compared with."""


@dataclass(frozen=True, kw_only=True)
class Checker:
    """One instruction."""

    says: str
    """What a reply has to do."""
    arguments: dict[str, type]
    """What it needs: str, int (at least 1) or list (of texts)."""
    follows: Callable[..., bool]
    """Of a reply without white space around it, not empty, and the arguments by name."""


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def _begins(text: str, word: str) -> bool:
    return re.match(rf"\W*{re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _ends(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}\W*$", text, re.IGNORECASE) is not None


def _has(text: str, words: Sequence[str]) -> bool:
    return all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in words)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


CHECKERS: dict[str, Checker] = {
    "plain:begin": Checker(
        says="begins with the word (or words), marks before it aside", arguments={"word": str}, follows=_begins
    ),
    "plain:end": Checker(
        says="ends with the word (or words), marks after it aside", arguments={"word": str}, follows=_ends
    ),
    "plain:keywords": Checker(says="has all the words", arguments={"words": list}, follows=_has),
    "plain:without": Checker(
        says="has none of the words",
        arguments={"words": list},
        follows=lambda t, words: not any(_has(t, [w]) for w in words),
    ),
    "plain:capitals": Checker(says="has letters, all of them capital", arguments={}, follows=str.isupper),
    "plain:lowercase": Checker(says="has letters, none of them capital", arguments={}, follows=str.islower),
    "plain:quotes": Checker(
        says="stands in double quotation marks, with something between",
        arguments={},
        follows=lambda t: len(t) > 2 and t[0] == t[-1] == '"',
    ),
    "plain:brackets": Checker(
        says="stands in square brackets, with something between",
        arguments={},
        follows=lambda t: len(t) > 2 and t[0] == "[" and t[-1] == "]",
    ),
    "plain:words": Checker(
        says="has exactly so many words (runs of letters and digits)",
        arguments={"count": int},
        follows=lambda t, count: len(_words(t)) == count,
    ),
    "plain:list": Checker(
        says="has exactly so many lines that begin with a hyphen or an asterisk, and no others",
        arguments={"items": int},
        follows=lambda t, items: len(_lines(t)) == items and all(re.match(r"[-*]\s*\w", line) for line in _lines(t)),
    ),
    "plain:repeat": Checker(
        says="is the same line so many times",
        arguments={"times": int},
        follows=lambda t, times: len(_lines(t)) == times and len(set(_lines(t))) == 1,
    ),
    "plain:no_full_stop": Checker(says="has no full stop", arguments={}, follows=lambda t: "." not in t),
    "plain:no_comma": Checker(says="has no comma", arguments={}, follows=lambda t: "," not in t),
}
"""By id."""


def follow(reply: str, ids: Sequence[str], arguments: Sequence[Mapping[str, Any]], *, loose: bool) -> list[bool]:
    """Whether a reply follows each instruction.

    Args:
        reply: the model's.
        ids: of the instructions.
        arguments: one mapping an instruction; values of None count as not given.
        loose: see the module's docstring.
    """
    variants = [text for v in (_variants(reply) if loose else [reply]) if (text := v.strip())]
    followed = []
    for id_, given in zip(ids, arguments, strict=True):
        follows, known = CHECKERS[id_].follows, _not_none(given)
        followed.append(any(follows(variant, **known) for variant in variants))
    return followed


def mistake_in(id_: str, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with one instruction: an id that nobody knows, a missing or an unexpected argument. None:
    nothing."""
    if id_ not in CHECKERS:
        hint = did_you_mean(id_, CHECKERS) or f" Known: {', '.join(CHECKERS)}."
        return f"unknown instruction '{id_}'.{hint} IFEval's own are asked by `task: ifeval` with `data:`"
    given, wanted = _not_none(arguments), CHECKERS[id_].arguments
    for name in wanted:
        if name not in given:
            return f"'{id_}' needs `{name}` in its kwargs"
    for name, value in given.items():
        if name not in wanted:
            takes = " and ".join(f"`{n}`" for n in wanted) or "no arguments"
            return f"'{id_}' takes {takes}, not `{name}`.{did_you_mean(name, wanted)}"
        if not _is_sound(value, wanted[name]):
            return f"`{name}` of '{id_}' has to be {_EXPECTED[wanted[name]]}, got {value!r}"
    return None


def _not_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a file are the union of all rows', so most are null."""
    return {name: value for name, value in arguments.items() if value is not None}


_EXPECTED = {str: "a text", int: "a whole number of at least 1", list: "a list of texts"}


def _is_sound(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and bool(value) and all(isinstance(v, str) and v for v in value)
    if kind is int:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer() and value >= 1
        )
    return isinstance(value, str) and bool(value)


def _variants(reply: str) -> list[str]:
    lines = reply.split("\n")
    cut = [reply, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(text.replace("*", "") for text in cut)]
