"""The YAML reader: what is no YAML is a mistake with file, line and column; numbers are those of YAML 1.2."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.config.yaml_file import from_yaml, parse_yaml, read_yaml
from holdfast.errors import ConfigError

DEEP = "[" * 3000 + "]" * 3000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {k: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: !!int foo\n", "line 2, column 4: not valid YAML: 'foo' is no int"),
        ("a: !!bool maybe\n", "'maybe' is no bool"),
        (f"a: !!int {'9' * 5000}\n", "is no int"),
        ("a: !!timestamp 2020-13-45\n", "could not determine a constructor for the tag"),
        ("a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor for the tag"),
        ("a: !!map foo\n", "expected a mapping node"),
        ("? [a]\n: 1\n", "unhashable key"),
        (f"a: {DEEP}\n", "line 1, column 103: not valid YAML: nested more than 100 levels deep"),
        ("a: " + "{b: " * 3000 + "}" * 3000, "nested more than 100 levels deep"),
        ("a: &a [*a]\n", "holds itself"),
        (BOMB, "stands for more than 1,000,000 values"),
        (MERGE_BOMB, "stands for more than 1,000,000 values"),
        ("a: *b\n", "found undefined alias"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ('a: "\x01"\n', "special characters are not allowed"),
    ],
)
def test_what_cannot_be_read_is_a_mistake_in_the_file(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    start = time.process_time()
    with pytest.raises(ConfigError) as error:
        read_yaml(file)
    assert str(file) in str(error.value) and words in str(error.value)
    assert len(str(error.value)) < 1000
    with pytest.raises(ValueError):  # and so inline
        from_yaml(text)
    assert time.process_time() - start < 2


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
    with pytest.raises(ValueError, match="'a' stands twice"):
        from_yaml("{a: 1, a: 2}")


def test_a_file_of_another_kind_is_not_read_whole() -> None:
    with pytest.raises(ConfigError, match=r"/dev/zero: expected a YAML file of at most 10 MB"):
        read_yaml("/dev/zero")


def test_merge_keys_and_anchors_work() -> None:
    given = parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\n")
    assert given.values["b"] == {"x": 1, "y": 3}
    assert given.values["c"] == [{"x": 1, "y": 2}] * 2
    assert given.problems == []
