"""Text of others as text: what comes from a file, a name or a library cannot act on a terminal,
turn the direction of reading, begin a line of ours, or give a build server a command.

Every outlet (terminal, messages, Markdown, JUnit, pages) calls `printable`. Text of several lines
is built by `lines`, part by part; a line break inside a part is shown as `\\n`.
"""

from __future__ import annotations

import json
import re

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters (C0, C1), marks of direction, separators of lines, invisible characters, lone
surrogates."""
_BUILD_COMMAND = re.compile(r"^\s*:(?=:)|#(?=#[A-Za-z]*\[)")
"""`::error ...` at the beginning of a line (GitHub), `##[error]`, `##vso[...]`, `##teamcity[...]`
anywhere."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Lines(str):
    """Text that is printable already; its line breaks are ours."""

    __slots__ = ()


def printable(text: str, *, breaks: bool = False) -> Lines:
    r"""The text with everything unprintable as an escape: `\x1b`, `\u202e`, `\n`.

    Args:
        text: anything; `Lines` stay as they are.
        breaks: line breaks and tabs stay, for places where no line of ours could follow (elements
            of a page).
    """
    if isinstance(text, Lines):
        return text
    if breaks:
        return Lines(_UNPRINTABLE.sub(lambda m: m[0] if m[0] in "\n\t" else escaped(m[0]), text))
    return Lines(
        _BUILD_COMMAND.sub(
            lambda m: m[0][:-1] + escaped(m[0][-1]), _UNPRINTABLE.sub(lambda m: escaped(m[0]), text)
        )
    )


def lines(*parts: str) -> Lines:
    """Parts, one a line."""
    return Lines("\n".join(map(printable, parts)))


def json_escaped(text: str) -> str:
    """JSON text whose strings hold nothing unprintable; it means the same."""
    return _UNPRINTABLE.sub(lambda m: m[0] if m[0] == "\n" else json.dumps(m[0])[1:-1], text)


def escaped(character: str) -> str:
    r"""One character as `\n`, `\x1b`, `\u202e` or `\U000e0001`."""
    code = ord(character)
    form = (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )
    return _SHORT.get(character, form)
