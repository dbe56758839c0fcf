"""messages.txt is current, and constructions that have to be read twice are not in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from messages import LISTED, SOURCE, listed

FORBIDDEN = [
    r"^Of (?:a|the|its|those)\b.*\bthose\b",
    r"\bis told\b",
    r"\bholds? against\b",
    r"\bstands there\b",
    r"\bsays something with\b",
    r"\bwithout end\b",
    r"\bstands? twice\b",
    r"\bso many (?:rows|questions|steps|samples|optimiser)\b",
    r"\bis not as it was written\b",
    r"\bcarries it\b",
    r"\bbites\b",
    r"\bas of self_replay\b",
    r"\bcannot be had\b",
    r"\bput the old (?:ones|model|files)\b",
]
"""Regular expressions of sentences that were written so and rewritten."""


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return listed().splitlines()


def test_messages_are_current(lines):
    assert LISTED.read_text(encoding="utf-8").splitlines() == lines, "run: python checks/messages.py"


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_message_is_built_so(lines, pattern):
    assert [line for line in lines if re.search(pattern, line)] == []


def descriptions(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        text = schema.get("description")
        if isinstance(text, str) and " " in text:
            yield " ".join(text.split())
        for value in schema.values():
            yield from descriptions(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from descriptions(value)


def test_help_of_every_key_in_a_schema_is_listed(lines):
    """Descriptions that are ours: those of transformers and TRL are not in our source."""
    known = {" ".join(line.replace("↵", " ").split()) for line in lines}
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    source = " ".join(source.split())
    in_schemas: set[str] = set()
    for path in (SOURCE / "schemas").glob("*.json"):
        in_schemas.update(descriptions(json.loads(path.read_text(encoding="utf-8"))))
    missing = "\n".join(text for text in in_schemas - known if f'"{text}"' in source)
    assert missing == ""
