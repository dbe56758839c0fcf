"""Values that are no values of a kind, and files with something wrong in them."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any


class Raw(str):
    """YAML as it is written."""


HUGE = Raw("1" + "0" * 400)
"""More than any number of a machine, with few enough digits for Python to read it."""
DIGITS = Raw("9" * 5000)
"""More digits than Python reads."""
DEEP = Raw("[" * 3000 + "]" * 3000)
NOT_A_NUMBER: tuple[Any, ...] = (
    "many",
    "",
    [[1]],
    {"a": {"b": 1}},
    Raw(".nan"),
    HUGE,
    DIGITS,
    Raw("1:30"),
    "1\0",
    DEEP,
)
"""No number of any setting, whatever its bounds."""
NOT_WHOLE: tuple[Any, ...] = (*NOT_A_NUMBER, 1.5, Raw(".inf"), Raw("-.inf"), "1.5", True)
NOT_TEXT: tuple[Any, ...] = (
    {"a": {"b": 1}},
    [[1]],
    1.5,
    Raw(".nan"),
    "a\0b",
    Raw(r'"\ud800"'),
    DEEP,
    Raw("!!binary aGk="),
)
NOT_BOOLEAN: tuple[Any, ...] = ("maybe", 2, [[1]], {"a": 1}, HUGE, 0.5, DEEP)
NOT_A_MAPPING: tuple[Any, ...] = (7, 1.5, True, [[1]], HUGE, "a\0b", DEEP)
NO_PATH: tuple[str, ...] = ("nowhere.jsonl", "x" * 300 + ".jsonl", "a/" * 3000 + "b.jsonl", "~nobody-here/a.jsonl")
"""Names of files that are not there, or cannot be."""


def wrong_for(value: Any, rng: random.Random) -> Any:
    """A value of no kind that a setting with this sound value can take."""
    if isinstance(value, bool):
        return rng.choice(NOT_BOOLEAN)
    if isinstance(value, int):
        return rng.choice(NOT_WHOLE)
    if isinstance(value, float):
        return rng.choice(NOT_A_NUMBER)
    if isinstance(value, str):
        return rng.choice(NOT_TEXT)
    if isinstance(value, dict):
        return rng.choice(NOT_A_MAPPING)
    one = () if isinstance(value, list) and value and isinstance(value[0], (int, float)) else (1.5,)  # a list of one
    return rng.choice(({"a": {"b": 1}}, *one, HUGE, "a\0b", DEEP))


def yaml_text(value: Any, rng: random.Random) -> str:
    """A value as YAML, in one line or over many, with what is `Raw` as it is."""
    raw: list[Raw] = []

    def hidden(part: Any) -> Any:
        if isinstance(part, Raw):
            raw.append(part)
            return f"@raw{len(raw) - 1}@"
        if isinstance(part, dict):
            return {key: hidden(inner) for key, inner in part.items()}
        return [hidden(inner) for inner in part] if isinstance(part, list) else part

    plain = hidden(value)
    if isinstance(plain, dict) and rng.random() < 0.5:
        text = "".join(f"{json.dumps(key)}: {json.dumps(part)}\n" for key, part in plain.items())
    else:
        text = json.dumps(plain)
    for number, part in enumerate(raw):
        text = text.replace(f'"@raw{number}@"', part)
    return text


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands below a value: keys, and numbers in lists."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, part in inside for path in ((*above, key), *paths(part, (*above, key)))]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """What stands there."""
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    """Replaces what stands there."""
    at(value, path[:-1])[path[-1]] = new


# --------------------------------------------------------------------------------------------------------------- damage


def no_json(rng: random.Random) -> tuple[str, bytes]:
    """Content that is no JSON object, and what it is."""
    return rng.choice(
        [
            ("empty", b""),
            ("white space", b" \n\n"),
            ("a list", b"[]"),
            ("null", b"null"),
            ("a number", b"7"),
            ("a text", b'"text"'),
            ("an open brace", b"{"),
            ("a tail", b'{"a": 1} x'),
            ("NaN", b"NaN"),
            ("zeros", bytes(rng.randrange(1, 5000))),
            ("binary", rng.randbytes(rng.randrange(1, 5000))),
            ("deep", b"[" * 100_000),
            ("deep objects", b'{"a":' * 100_000),
            ("5,000 digits", b'{"schema": ' + b"9" * 5000 + b"}"),
            ("UTF-16", '{"name": "x"}'.encode("utf-16")),
            ("Latin-1", '{"name": "ä"}'.encode("latin-1")),
            ("gzip", gzip.compress(b'{"name": "x"}')),
        ]
    )


def cut(content: bytes, rng: random.Random) -> bytes:
    """All but an end of it."""
    return content[: rng.randrange(len(content))]


def flipped(content: bytes, rng: random.Random) -> bytes:
    """With one bit changed."""
    found = bytearray(content)
    found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def other_value(value: Any, rng: random.Random) -> tuple[tuple[Any, ...], Any]:
    """Somewhere in a JSON value something of another kind is put, or something is taken away; where, and what now
    stands there."""
    path = rng.choice(paths(value) or [()])
    if not path:
        return (), value
    place = at(value, path[:-1])
    if isinstance(place, dict) and rng.random() < 0.25:
        del place[path[-1]]
        return path, "nothing"
    new = rng.choice([None, True, -1, 7, 1.5, 10**300, "", "x", [], [None], {}, {"a": [1]}, "\u0000", {"float": "NaN"}])
    put(value, path, new)
    return path, new
