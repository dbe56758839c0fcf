"""One name for one thing (docs/glossary.md): names that were given up are keys of no settings, entries or records."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from holdfast.cli.schema import SCHEMAS
from holdfast.evaluation.kinds import KINDS
from holdfast.records.sequence import SequenceRecord
from holdfast.records.study import StudyRecord, TrialRecord

ROOT = Path(__file__).parents[2]
GIVEN_UP = {
    *("source", "target", "generalist", "remedy", "hold_first", "most_perplexity", "small", "measuring", "way"),
    *("choices", "lettered", "classes", "answers"),
}
"""Settings, suites, kinds of entries and fields of records that have another name now."""
ELSEWHERE = {"source", "target", "lettered"}
"""Of these the words for something else in a schema: where text comes from, what a teacher is given, how many questions
with letters a world has."""


def keys_of(schema: object) -> Iterator[str]:
    """Keys of settings anywhere in a JSON Schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for value in schema.values():
            yield from keys_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys_of(value)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_no_file_has_a_key_that_was_given_up(kind):
    schema = json.loads(Path(str(files("holdfast.schemas") / f"{kind}.schema.json")).read_text())
    assert not set(keys_of(schema)) & (GIVEN_UP - ELSEWHERE)


def test_records_and_entries_have_the_names_of_the_glossary():
    for record in (StudyRecord, TrialRecord, SequenceRecord):
        assert not {field.name for field in dataclasses.fields(record)} & GIVEN_UP, record
    assert not KINDS.keys() & GIVEN_UP


def test_recipes_use_the_names_of_the_glossary():
    def keys(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            yield from map(str, value)
            for item in value.values():
                yield from keys(item)
        elif isinstance(value, list):
            for item in value:
                yield from keys(item)

    recipes = Path(str(files("holdfast.papers"))) / "recipes"
    found = [path for path in recipes.rglob("*.yaml") if set(keys(yaml.safe_load(path.read_text()))) & GIVEN_UP]
    assert found == []


def test_the_glossary_has_every_kind_of_entry_and_each_term_once():
    text = (ROOT / "docs" / "glossary.md").read_text()
    terms = [term for row in re.findall(r"^\| (\*\*.*?) \|", text, re.M) for term in re.findall(r"\*\*(.+?)\*\*", row)]
    assert len(terms) == len(set(terms))
    assert {"arm", "keep", "learn", "validation", "job", "seed", "cluster", "reference", "before", "after"} <= set(
        terms
    )
    listed = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert {kind for kind, cls in KINDS.items() if cls.written} - {"code"} <= set(listed)
