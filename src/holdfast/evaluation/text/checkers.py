"""Programs that decide whether a reply follows an instruction, by id.

holdfast's own (`plain:...`) look at nothing but the text, with no language detection and no sentence splitter, so that
they decide the same everywhere and for replies of a few words. Ids of IFEval (`keywords:existence`, ...) are checked by
lm-evaluation-harness's copy of IFEval's checkers, where its packages are installed (`pip install 'lm_eval[ifeval]'`).

Strict and loose are IFEval's (Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", section
2.2): strict takes the reply as it is; loose takes it as following where one of eight variants does, without asterisks,
without its first line, without its last, and combinations. An empty reply follows nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import did_you_mean, first_line

OWN = "plain:"
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
"""holdfast's own, by id."""


def follow(
    reply: str, prompt: str, ids: Sequence[str], arguments: Sequence[Mapping[str, Any]], *, loose: bool
) -> list[bool]:
    """Whether a reply follows each instruction.

    Args:
        reply: the model's.
        prompt: what it answers, which some of IFEval's instructions look at.
        ids: of the instructions.
        arguments: one mapping an instruction; values of None (and of IFEval's all that are false) count as not given.
        loose: see the module's docstring.
    """
    variants = [v for v in (_variants(reply) if loose else [reply]) if v.strip()]
    return [
        any(_follows(variant, prompt, id_, given) for variant in variants)
        for id_, given in zip(ids, arguments, strict=True)
    ]


def mistake_in(id_: str, arguments: Mapping[str, Any]) -> str | None:
    """What is wrong with one instruction: an id that nobody knows, a missing or an unexpected argument, packages that
    are missing. None: nothing."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if id_.startswith(OWN):
        return _own_mistake(id_, given)
    missing = ifeval_missing()
    if missing is not None:
        known = did_you_mean(id_, CHECKERS)
        return (
            f"'{id_}' is none of holdfast's own instructions ({', '.join(CHECKERS)}), and IFEval's cannot be "
            f"checked: {missing}.{known}"
        )
    if id_ not in _ifeval():
        return _unknown(id_, [*CHECKERS, *_ifeval()])
    try:
        _described(id_, "", given)
    except TypeError as error:
        return f"IFEval's '{id_}' does not take these kwargs: {re.sub(r'^.*?build_description[^ ]* ', '', str(error))}"
    except Exception as error:  # whatever the values of a user's file make IFEval's code raise
        return f"IFEval's '{id_}' refuses its kwargs: {first_line(error)}"
    return None


def _own_mistake(id_: str, given: Mapping[str, Any]) -> str | None:
    if id_ not in CHECKERS:
        return _unknown(id_, CHECKERS)
    wanted = CHECKERS[id_].arguments
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


def _unknown(id_: str, known: Collection[str]) -> str:
    return f"unknown instruction '{id_}'.{did_you_mean(id_, known) or ' Known: ' + ', '.join(known) + '.'}"


_EXPECTED = {str: "a text", int: "a whole number of at least 1", list: "a list of texts"}


def _is_sound(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and bool(value) and all(isinstance(v, str) and v for v in value)
    if kind is int:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer() and value >= 1
        )
    return isinstance(value, str) and bool(value)


def _follows(reply: str, prompt: str, id_: str, arguments: Mapping[str, Any]) -> bool:
    if id_.startswith(OWN):
        return bool(
            CHECKERS[id_].follows(
                reply.strip(), **{name: value for name, value in arguments.items() if value is not None}
            )
        )
    return bool(_described(id_, prompt, arguments).check_following(reply))


def _variants(reply: str) -> list[str]:
    lines = reply.split("\n")
    cut = [reply, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(text.replace("*", "") for text in cut)]


# --------------------------------------------------------------------------------------------------------------- IFEval


def ifeval_missing() -> str | None:
    """Why IFEval's checkers cannot be used here, None where they can."""
    lacking = [
        name for name in ("lm_eval", "langdetect", "immutabledict", "nltk") if importlib.util.find_spec(name) is None
    ]
    return (
        f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed (pip install 'lm_eval[ifeval]')"
        if lacking
        else None
    )


@functools.cache
def _ifeval() -> dict[str, Any]:
    """IFEval's checkers by id; the module asks for a sentence model when it is imported."""
    from holdfast.evaluation.text.sentences import fix_language_detection, provide_sentence_model

    provide_sentence_model()
    fix_language_detection()
    from lm_eval.tasks.ifeval.instructions_registry import INSTRUCTION_DICT

    return dict(INSTRUCTION_DICT)


def _described(id_: str, prompt: str, arguments: Mapping[str, Any]) -> Any:
    """One of IFEval's checkers with its arguments, as the harness makes it."""
    checker = _ifeval()[id_](id_)
    checker.build_description(**{name: value for name, value in arguments.items() if value})
    if "prompt" in (checker.get_instruction_args() or {}):
        checker.build_description(prompt=prompt)
    return checker
