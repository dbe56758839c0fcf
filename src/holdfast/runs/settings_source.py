"""Where settings come from: a YAML file and the command line. Reads them, checks their form, and knows no key's
meaning.

PyYAML keeps the last of two equal keys in silence and reports errors in the language of parsers; here a duplicate is a
problem with both line numbers, and a syntax error comes with line, column and the usual cause. Does not import torch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import ConfigError, did_you_mean
from holdfast.runs.settings import RENAMED, Setting, show

REPEATABLE = ("retention", "source", "target")
"""Options that add up when given again; any other option given twice takes the last value."""
MAPPINGS = ("evaluation", "data", "env")
"""Options whose value is a mapping, written on the command line as `'{prompt: ..., completion: ...}'`."""


@dataclasses.dataclass(kw_only=True)
class Given:
    """What one source says: values by key, the mistakes in their form, and the line of each key where there are
    lines."""

    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)
    lines: dict[str, int] = dataclasses.field(default_factory=dict)


# ----------------------------------------------------------------------------------------------------------------- YAML


class _Loader(yaml.SafeLoader):
    """SafeLoader that collects duplicate keys instead of keeping the last in silence."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.duplicates: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key, line = key_node.value if isinstance(key_node.value, str) else None, key_node.start_mark.line + 1
            if key is not None and key in seen:
                self.duplicates.append(
                    f"{key!r} stands twice, in line {seen[key]} and in line {line}. Keep one of them."
                )
            elif key is not None:
                seen[key] = line
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> Given:
    """Reads a configuration file: one YAML mapping (JSON is YAML, so that works too).

    Raises:
        ConfigError: no such file, not readable as text, or not YAML; nothing can be said about the keys then.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: no such file.{nearest_sibling(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"--config {path}: expected a YAML file, got a folder.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--config {path}: expected text in UTF-8, but byte {error.start} is not. Save the file as UTF-8."
        ) from None
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot be read ({error.strerror}).") from None
    loader = _Loader("")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        values = loader.construct_document(node) if node is not None else None
    except yaml.YAMLError as error:
        raise ConfigError(_explain_syntax(path, text, error)) from None
    finally:
        loader.dispose()
    if values is None:
        raise ConfigError(
            f"--config {path}: the file is empty. It needs at least 'model_name_or_path:' and 'dataset_name:'."
        )
    if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"--config {path}: expected a mapping ('key: value' lines), got {show(values)}.")
    lines = {str(k.value): k.start_mark.line + 1 for k, _ in node.value}
    return Given(values={str(k): v for k, v in values.items()}, problems=loader.duplicates, lines=lines)


def _explain_syntax(path: Path, text: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or str(error)
    if mark is None:
        return f"--config {path}: not valid YAML: {what}."
    rows = text.splitlines()
    row = rows[mark.line] if mark.line < len(rows) else ""
    advice = ""
    if "\t" in row:
        advice = " YAML wants spaces, not tabs."
    elif "mapping values are not allowed" in what:
        advice = " A value that contains ': ' needs quotes, and keys of one level need the same indentation."
    shown = f"\n      {row[:120]}\n      {' ' * min(mark.column, 119)}^" if row.strip() else ""
    return f"{path}, line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {what}.{advice}{shown}"


# --------------------------------------------------------------------------------------------------------- command line


def find_config(argv: Sequence[str]) -> Path | None:
    """The file after `--config`, found before any key is known.

    Raises:
        ConfigError: `--config` without a file, or twice.
    """
    found = []
    for position, word in enumerate(argv):
        if word == "--config":
            if position + 1 >= len(argv) or argv[position + 1].startswith("--"):
                raise ConfigError("--config expects a YAML file, as in '--config run.yaml'.")
            found.append(argv[position + 1])
        elif word.startswith("--config="):
            found.append(word.partition("=")[2])
    if len(found) > 1:
        raise ConfigError(
            f"--config was given {len(found)} times ({', '.join(found)}). Put everything in one file; single keys can "
            f"be given as --key value."
        )
    return Path(found[0]).expanduser() if found else None


def read_command_line(argv: Sequence[str], known: Mapping[str, Setting]) -> Given:
    """`--key value`, `--key=value`, `--switch`, `--no_switch`, `--list a b`; hyphens and underscores are the same.

    Values stay strings, except that own mappings and methods are parsed here.

    Args:
        argv: the words after `holdfast train`.
        known: all keys with their types, which decide how many words an option takes.
    """
    given = Given()
    names = [*known, *REPEATABLE, *MAPPINGS, "config"]
    words = list(argv)
    while words:
        word = words.pop(0)
        if not _is_option(word):
            hint = (
                f" For a configuration file write '--config {word}'."
                if word.endswith((".yaml", ".yml", ".json"))
                else " Options start with '--'."
            )
            given.problems.append(f"unexpected argument {word!r}.{hint}")
            continue
        name, equals, attached = word[2:].partition("=")
        name = name.replace("-", "_")
        values = [attached] if equals else []
        while words and not _is_option(words[0]) and not equals:
            values.append(words.pop(0))
        if name == "config":
            extra = values[1:]
        elif name in REPEATABLE:
            extra = []
            _add_repeatable(given, name, values)
        elif name in MAPPINGS:
            extra = values[1:]
            _add_mapping(given, name, values[:1])
        elif name in known:
            extra = _add_setting(given, known[name], values)
        elif name.startswith("no_") and name[3:] in known and known[name[3:]].is_switch:
            extra = values
            given.values[name[3:]] = False
        else:
            extra = []
            given.problems.append(f"unknown option '--{name}'.{_renamed(name, '--') or did_you_mean(name, names)}")
        given.problems.extend(
            f"--{name}: unexpected {value!r} after its value. Put a value with spaces in quotes." for value in extra
        )
    return given


def _is_option(word: str) -> bool:
    return word.startswith("--") and len(word) > 2


def _add_setting(given: Given, setting: Setting, values: list[str]) -> list[str]:
    """Stores one option's value; returns the words that are too many."""
    if not values:
        if setting.is_switch:
            given.values[setting.name] = True
        else:
            given.problems.append(f"--{setting.name}: expected {setting.expected} after it, got nothing.")
        return []
    if setting.takes_many and len(values) > 1:
        given.values[setting.name] = values
        return []
    given.values[setting.name] = values[0]
    return values[1:]


def _add_repeatable(given: Given, name: str, values: list[str]) -> None:
    if not values:
        example = "label_annealing:weight=1.0" if name == "retention" else "held_out.jsonl"
        given.problems.append(f"--{name}: expected a value, as in '--{name} {example}', got nothing.")
        return
    stored = given.values.setdefault(name, [])
    for value in values:
        if name != "retention":
            stored.append(value)
            continue
        try:
            stored.extend(parse_compact_method(value))
        except ValueError as error:
            given.problems.append(f"--retention {value!r}: {error}")


def _add_mapping(given: Given, name: str, values: list[str]) -> None:
    parsed = None
    if values:
        try:
            parsed = yaml.safe_load(values[0])
        except yaml.YAMLError:
            parsed = None
    if isinstance(parsed, dict):
        given.values[name] = parsed
    else:
        got = repr(values[0]) if values else "nothing"
        given.problems.append(f"--{name}: expected a mapping in quotes, as in --{name} '{{key: value}}', got {got}.")


_REFERENCE = re.compile(r"[^:=,]+:[A-Za-z_]\w*(?=:|$)")


def parse_compact_method(text: str) -> list[Any]:
    """One `--retention` argument as the list YAML would have given.

    `sfa` is `["sfa"]`, `sfa:p=0.25,beta=0.9` is `[{"sfa": {"p": 0.25, "beta": 0.9}}]`, `my_method.py:Dropback:rate=0.1`
    is `[{"my_method.py:Dropback": {"rate": 0.1}}]`; a YAML or JSON list or mapping is taken as it is.

    Raises:
        ValueError: what is wrong with the form (not with the method: the registry checks that).
    """
    text = text.strip()
    if text.startswith(("[", "{")):
        try:
            parsed = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"not valid YAML ({getattr(error, 'problem', None) or error}).") from None
        return parsed if isinstance(parsed, list) else [parsed]
    named = _REFERENCE.match(text)  # the colon in 'my_method.py:Dropback' is part of the name
    name, colon, rest = (
        text.partition(":") if named is None else (named[0], text[named.end() :][:1], text[named.end() + 1 :])
    )
    if not colon:
        return [name]
    parameters: dict[str, Any] = {}
    for part in _split_outside(rest):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(
                f"expected parameter=value, as in 'label_annealing:weight=1.0,temperature=2', got {part!r}."
            )
        if key.strip() in parameters:
            raise ValueError(f"parameter {key.strip()!r} stands twice.")
        try:
            parameters[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            parameters[key.strip()] = value.strip()
    return [{name.strip(): parameters}]


def _split_outside(text: str) -> list[str]:
    """Splits at the commas that are outside brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


# ---------------------------------------------------------------------------------------------------------------- hints


def unknown_key(name: str, known: Sequence[str]) -> str:
    """The sentence about a key that does not exist, with today's name or the nearest one."""
    return f"unknown key {name!r}.{_renamed(name, '') or did_you_mean(name, known)}"


def _renamed(name: str, prefix: str) -> str:
    if name not in RENAMED:
        return ""
    today = RENAMED[name].replace("'", "'" + prefix, 1)
    return f" Today's name for it: {today}."


def nearest_sibling(path: Path, *, accept: Callable[[Path], bool] = lambda _: True) -> str:
    """`" Did you mean '...'?"` with the entry of the same folder whose name is nearest, or what is wrong with the
    folder itself."""
    parent = path.parent
    if not parent.is_dir():
        return f" The folder {parent} does not exist either."
    try:
        names = [p.name for p in parent.iterdir() if accept(p)]
    except OSError:
        return ""
    return did_you_mean(path.name, names)
