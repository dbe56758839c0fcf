"""The YAML that people write: what a text means, the line of every key, and keys that stand twice.

Numbers are those of YAML 1.2. What only YAML 1.1 takes for one (`1:30`, `010`, `1_000`) and dates
stay the text that they are: a setting that wants a number or a day reads it from there, a name
keeps its zeros. `yes`, `no`, `on` and `off` are booleans as in YAML 1.1, because the libraries
whose keys are passed on read them so.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.errors import KeyPath, dotted

if TYPE_CHECKING:
    import yaml

_TAG = "tag:yaml.org,2002:"
_PATTERNS = (
    (
        "bool",
        "yYnNtTfFoO",
        r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
    ),
    ("int", "-+0123456789", r"[-+]?(?:0|[1-9][0-9]{0,17})|0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}"),
    ("float", "-+.0123456789", r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"),
    ("float", "-+.", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
    ("null", ("~", "n", "N", ""), r"~|null|Null|NULL|"),
    ("merge", "<", r"<<"),
)
"""How text without quotes is read: the tag, the letters that it may begin with, and what it looks
like."""


def _resolvers() -> dict[str, list[Any]]:
    """The patterns by first letter, as PyYAML wants them."""
    by_letter: dict[str, list[Any]] = {}
    for tag, letters, pattern in _PATTERNS:
        for letter in letters:
            by_letter.setdefault(letter, []).append((_TAG + tag, re.compile(f"(?:{pattern})$")))
    return by_letter


def _whole_number(loader: yaml.SafeLoader, node: Any) -> int:
    text = loader.construct_scalar(node)
    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))


def _number(loader: yaml.SafeLoader, node: Any) -> float:
    text = loader.construct_scalar(node).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    """PyYAML's safe loader with the numbers of YAML 1.2; made late, because a `--help` needs no
    yaml."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = _resolvers()
        yaml_constructors = yaml.SafeLoader.yaml_constructors | {
            f"{_TAG}int": _whole_number,
            f"{_TAG}float": _number,
        }

    return Loader


@dataclass(kw_only=True)
class Document:
    """What a text says."""

    value: Any = None
    """What it means; None for nothing."""
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """The line, from 1, of every key and item."""
    repeated: list[tuple[KeyPath, int, int]] = field(default_factory=list)
    """Every key that stands twice in its mapping, with both lines."""


def load(text: str, *, top_key: Callable[[str], str] = str) -> Document:
    """Reads a text.

    Args:
        text: YAML, or JSON.
        top_key: the name that counts of a key of the outermost mapping.

    Raises:
        yaml.YAMLError: the text is no YAML.
    """
    import yaml

    loader = _loader()(text)
    document = Document()
    try:
        node = loader.get_single_node()
        if node is not None:
            _note_lines(node, (), document, top_key)
            document.value = loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("mappings and lists are nested too deeply") from None
    except (ValueError, KeyError) as error:  # a tag such as !!int before what is none
        raise yaml.YAMLError(f"a value does not fit its tag ({error})") from None
    finally:
        loader.dispose()
    return document


def _note_lines(node: Any, path: KeyPath, document: Document, name: Callable[[str], str]) -> None:
    """Notes the lines of what lies below a node, before merged keys are put among a mapping's
    own."""
    if node.id == "sequence":
        for number, item in enumerate(node.value):
            document.lines[(*path, number)] = item.start_mark.line + 1
            _note_lines(item, (*path, number), document, str)
    elif node.id == "mapping":
        for key, value in node.value:
            if key.tag == f"{_TAG}merge" or not isinstance(key.value, str):
                continue
            line, below = key.start_mark.line + 1, (*path, name(key.value))
            if below in document.lines:
                document.repeated.append((below, document.lines[below], line))
                continue
            document.lines[below] = line
            _note_lines(value, below, document, str)


def from_yaml(text: str) -> Any:
    """What a text means in YAML.

    Raises:
        ValueError: it is no YAML, or has a key twice.
    """
    import yaml

    try:
        document = load(text)
    except yaml.YAMLError as error:
        raise ValueError(reason(error)) from None
    for path, _, _ in document.repeated:
        raise ValueError(f"the key {dotted(path)!r} is listed twice")
    return document.value


def reason(error: yaml.YAMLError) -> str:
    """Why a text is no YAML."""
    what = str(getattr(error, "problem", None) or error)
    context = getattr(error, "context", None)
    return f"{context}, {what}" if context and what.startswith("but ") else what
