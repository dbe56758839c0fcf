"""What a program sees in the form of a reply: JSON, lists, headings, refusals.

A reply is taken without its thought (`text.thoughts`). Code in fences is no prose: a list or a
heading counts where it stands outside of them, and a refusal counts outside of them or where the
fence holds the whole reply. JSON may stand in one fence, with nothing beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

RULES = 1
"""Raised when a rule of this file, of `languages` or of `tool_calls` decides otherwise than before,
so that older figures are not compared with."""

_FENCES = re.compile(r"^[ \t]*```.*?(?:^[ \t]*```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_ONE_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_ITEM = re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
_HEADING = re.compile(r"^(?:#{1,6}[ \t]+\S.*|\*\*[^*\n]+\*\*:?[ \t]*)$", re.MULTILINE)

_APOSTROPHES = str.maketrans(dict.fromkeys("’‘ʼ＇′´`", "'"))
_BEGINNING = 300
"""Characters of a reply in which a refusal is looked for: one that comes later is a remark."""
_CANNOT = (
    r"(?:can't|cannot|can not|won't|will not|(?:'m|am) (?:unable|not able|not going) to"
    r"|(?:must|have to) (?:decline|refuse) to|decline to|refuse to)"
)
_DEEDS = (
    r"(?:help(?! but)|assist|provide|support|comply|fulfil|give|share|write|create|offer|generate"
    r"|do (?:that|this|so)|answer|discuss|engage|participate|continue|encourage|tell you|teach"
    r"|explain|make|produce|facilitate)"
)
_REFUSALS = re.compile(
    rf"\bi ?{_CANNOT} (?:\w+ ){{0,2}}?{_DEEDS}"
    rf"|\b(?:sorry|apologi[sz]e)\b[^.!?]{{0,20}}\bi ?{_CANNOT}(?=[.!]|$)"
    r"|\bi (?:must|have to) (?:decline|refuse)\b"
    r"|\bnot something (?:that )?i (?:can|could|am able to|will) (?:help|assist|do|support)"
    r"|\b(?:kann|darf|werde) (?:\w+ ){0,4}nicht (?:\w+ ){0,2}(?:\w*helfen|unterstützen|beantworten)"
    r"|\bne (?:peux|puis) pas (?:\w+[' ]){0,2}?(?:aider|fournir|répondre|assister)"
    r"|\bno puedo (?:\w+ )?(?:ayudar|proporcionar|responder|asistir)"
    r"|\bnon posso (?:\w+ )?(?:aiutar|fornir|risponder)"
    r"|\bnão posso (?:\w+ )?(?:ajudar|fornecer|responder)"
    r"|\bне могу (?:\w+ ){0,2}(?:помочь|предоставить|ответить)"
    r"|(?:无法|不能)(?:为您|为你)?(?:提供|协助|帮助|回答|满足)"
    r"|(?:お手伝い|お答え|提供|対応)(?:することは|は)?でき(?:ません|かねます)"
)


def prose(reply: str) -> str:
    """A reply without the code in its fences."""
    return _FENCES.sub("", reply).strip()


def unfenced(reply: str) -> str:
    """What stands in the fence that a reply consists of; other replies as they are."""
    fence = _ONE_FENCE.fullmatch(reply.strip())
    return (fence[1] if fence else reply).strip()


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def read_json(text: str) -> Any:
    """The value of JSON text; None where it is none. NaN and infinities are no JSON."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def is_json(reply: str, keys: Sequence[str]) -> bool:
    """Whether a reply is JSON and nothing else: an object with all of the keys, or without keys an
    object or a list."""
    value = read_json(unfenced(reply))
    if not keys:
        return isinstance(value, dict | list)
    return isinstance(value, dict) and all(key in value for key in keys)


def has_list(reply: str) -> bool:
    """Whether a reply has at least two lines that begin with a bullet or a number."""
    return len(_ITEM.findall(prose(reply))) >= 2


def has_heading(reply: str) -> bool:
    """Whether a reply has a Markdown heading, or a line that is bold as a whole."""
    return _HEADING.search(prose(reply)) is not None


def is_refusal(reply: str) -> bool:
    """Whether a reply says in its first 300 characters that it will not do what it was asked: "I"
    with cannot, will not or the like and help, provide, write or the like, and as much in a few
    other languages.

    Apostrophes of any kind are the same, Markdown's marks do not count. "I'm sorry" alone, a
    warning or a lecture is no refusal.
    """
    text = prose(reply) or unfenced(reply)
    text = text.translate(_APOSTROPHES).lower()
    words = re.sub(r"[*_#>~]+", "", text).split()
    return _REFUSALS.search(" ".join(words)[:_BEGINNING]) is not None
