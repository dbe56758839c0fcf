"""The YAML reader: what is no YAML is a mistake with file, line and column; numbers are those of YAML 1.2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.config.yaml_file import parse_yaml, read_yaml
from holdfast.config.yaml_text import from_yaml
from holdfast.errors import ConfigError

DEEP = "[" * 600 + "]" * 600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: !!int foo\n", "not valid YAML: a value does not fit its tag (invalid literal for int()"),
        ("a: !!bool maybe\n", "a value does not fit its tag ('maybe')"),
        ("a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor for the tag"),
        ("a: !!map foo\n", "expected a mapping node"),
        ("? [a]\n: 1\n", "unhashable key"),
        (f"a: {DEEP}\n", "mappings and lists are nested too deeply"),
        ("a: &a [*a]\n", "mappings and lists are nested too deeply"),
        ("a: *b\n", "found undefined alias"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ('a: "\x01"\n', "special characters are not allowed"),
    ],
)
def test_what_cannot_be_read_is_a_mistake_in_the_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_yaml(file)
    assert str(file) in str(error.value) and words in str(error.value)
    assert len(str(error.value)) < 1000
    with pytest.raises(ValueError):  # and so inline
        from_yaml(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("0x1F", 31),
        ("0o17", 15),
        ("1.5", 1.5),
        ("1.5e+3", 1500.0),
        (".inf", float("inf")),
        ("true", True),
        ("~", None),
        # a number for YAML 1.1 only, or one that a number cannot hold as it is written: its text
        ("1:30", "1:30"),
        ("010", "010"),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1e-4", "1e-4"),
        ("2020-01-15", "2020-01-15"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_numbers_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    read = from_yaml(text)
    assert read == value and type(read) is type(value)
    given = parse_yaml(f"a: {text}\n")
    assert given.values == {"a": value}


def test_an_inline_mapping_with_a_key_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' is listed twice"):
        from_yaml("{a: 1, a: 2}")


def test_merge_keys_and_anchors_work() -> None:
    given = parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\n")
    assert given.values["b"] == {"x": 1, "y": 3}
    assert given.values["c"] == [{"x": 1, "y": 2}] * 2
    assert given.problems == []
