"""The one reader of YAML files that people write: requests, suites, studies, recipes.

PyYAML keeps the last of two equal keys in silence and reports errors in the language of parsers; here a duplicate key
is a mistake with both line numbers, a syntax error comes with line, column and the usual cause, and the line of every
key is kept for later messages.

Numbers are those of YAML 1.2. What only YAML 1.1 takes for one (`1:30`, `010`, `1_000`) and dates stay the text that
they are: a setting that wants a number or a day reads it from there, a name keeps its zeros. `yes`, `no`, `on` and
`off` are booleans as in YAML 1.1, because the libraries whose keys are passed on read them so.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.config.decode import Given, normal, plain_key
from holdfast.config.values import shorten, show
from holdfast.errors import ConfigError, Problem, did_you_mean, dotted
from holdfast.errors import Path as KeyPath
from holdfast.printable import lines
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    import yaml

MAX_DEPTH = 100
"""Mappings and lists within each other at most."""
MAX_VALUES = 1_000_000
"""Values that a text may stand for, aliases written out."""
MAX_BYTES = 10_000_000
"""Of a file."""


def read_yaml(path: str | Path, *, option: str = "--config", needs: str = "") -> Given:
    """Reads a file with one YAML mapping (JSON is YAML, so that works too).

    Args:
        path: the file; `~` is the home folder.
        option: where the name was given, for messages.
        needs: what such a file needs at least, for the message on an empty one.

    Raises:
        ConfigError: no such file, not readable as text, or not YAML; nothing is known of the keys then.
    """
    import yaml

    path = expanded(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{option} {path}: no such file.{nearest_sibling(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{option} {path}: expected a YAML file, got a folder.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{option} {path}: expected text in UTF-8, but byte {error.start} is not. Save the file as UTF-8."
        ) from None
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot be read ({error.strerror}).") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{option} {path}: expected a YAML file of at most {MAX_BYTES // 10**6} MB, got more.")
    try:
        given = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(_explain_syntax(path, text, error)) from None
    if given is None:
        raise ConfigError(f"{option} {path}: the file is empty.{' It needs at least ' + needs + '.' if needs else ''}")
    if not isinstance(given, Given):
        raise ConfigError(f"{option} {path}: expected a mapping ('key: value' lines), got {show(given[0])}.")
    given.file = str(path)
    return given


def parse_yaml(text: str) -> Given | list[Any] | None:
    """A YAML text's mapping with its lines and duplicate keys; what is no mapping in a list of one, None for nothing.
    Dashes in its own keys become underscores.

    Raises:
        yaml.YAMLError: the text is no YAML.
    """
    places, content = _load(text)
    if content is None:
        return None
    if not isinstance(content, dict):
        return [content]
    lines: dict[KeyPath, int] = {}
    problems = []
    twice: set[KeyPath] = set()
    for spelled, line in places:
        path = (*normal(spelled[:1]), *spelled[1:])  # below may be names of files and models, in which dashes count
        if any(path[:end] in twice for end in range(1, len(path))):
            continue  # reported with the key above already
        if path in lines:
            twice.add(path)
            again = f"stands twice, in line {lines[path]} and in line {line}. Keep one of them."
            problems.append(Problem((), f"{dotted(path)!r} {again}"))
        else:
            lines[path] = line
    return Given(
        values={plain_key(k): v for k, v in content.items()},
        problems=problems,
        lines={normal(path): line for path, line in reversed(lines.items())},
    )


def from_yaml(text: str) -> Any:
    """What a text means in YAML.

    Raises:
        ValueError: it is no YAML, or has a key twice.
    """
    import yaml

    try:
        places, content = _load(text)
    except yaml.YAMLError as error:
        raise ValueError(_problem(error)) from None
    seen = set()
    for path, _ in places:
        if path in seen:
            raise ValueError(f"the key {dotted(path)!r} stands twice")
        seen.add(path)
    return content


def _load(text: str) -> tuple[list[tuple[KeyPath, int]], Any]:
    """Every key and list item of a text with its line, and what the text means; None for nothing.

    Raises:
        yaml.YAMLError: the text is no YAML, or stands for more than anybody writes.
    """
    loader = _loader()(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return [], None
        _count(node, {})
        places = list(_places(node, ()))  # before merged keys are put among a mapping's own
        return places, loader.construct_document(node)
    finally:
        loader.dispose()


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    """The class that reads; made late, because a `--help` needs no yaml."""
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML's failsafe and JSON types, numbers as in YAML 1.2, every refusal with its line."""

        yaml_constructors: ClassVar[dict[Any, Any]] = {
            tag: construct
            for tag, construct in yaml.SafeLoader.yaml_constructors.items()
            if tag is None or tag.rpartition(":")[2] in ("null", "bool", "str", "seq", "map")
        }
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            """A node, unless it lies too deep for the recursion here and in whatever walks it later."""
            self.depth += 1
            if self.depth > MAX_DEPTH:
                where = self.peek_event().start_mark
                raise yaml.composer.ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", where)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            """A node's value; a scalar whose tag does not fit it is refused like any other mistake."""
            try:
                return super().construct_object(node, deep)
            except (ValueError, KeyError):
                what = f"{shorten(node.value)} is no {node.tag.rpartition(':')[2]}"
                raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from None

    def integer(loader: yaml.SafeLoader, node: Any) -> int:
        text = str(loader.construct_scalar(node))
        return int(text, {"0x": 16, "0o": 8}.get(text.lstrip("+-")[:2], 10))

    def number(loader: yaml.SafeLoader, node: Any) -> float:
        return float(re.sub(r"\.(?=inf$|nan$)", "", str(loader.construct_scalar(node)).lower()))

    Loader.yaml_implicit_resolvers = {}
    Loader.add_constructor("tag:yaml.org,2002:int", integer)
    Loader.add_constructor("tag:yaml.org,2002:float", number)
    for tag, letters, pattern in (
        ("bool", "yYnNtTfFoO", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF"),
        ("int", "-+0123456789", r"[-+]?(?:0|[1-9][0-9]{0,17})|0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}"),
        ("float", "-+.0123456789", r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"),
        ("float", "-+.", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
        ("null", ["~", "n", "N", ""], r"~|null|Null|NULL|"),
        ("merge", "<", r"<<"),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), list(letters))
    return Loader


def _count(node: Any, counts: dict[int, int]) -> int:
    """Values that a node stands for with its aliases written out, which is what whoever walks it meets."""
    import yaml

    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in counts:
        counts[id(node)] = 0  # while it is being counted
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        counts[id(node)] = 1 + sum(_count(part, counts) for part in parts)
    found = counts[id(node)]
    if not found or found > MAX_VALUES:
        what = f"stands for more than {MAX_VALUES:,} values" if found else "holds itself"
        raise yaml.constructor.ConstructorError(None, None, f"what begins here {what}", node.start_mark)
    return found


def _places(node: Any, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Every key and list item below a node with its line."""
    kind = getattr(node, "id", None)
    if kind == "mapping":
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key.value, str):
                continue
            yield (*path, key.value), key.start_mark.line + 1
            yield from _places(value, (*path, key.value))
    elif kind == "sequence":
        for number, item in enumerate(node.value):
            yield (*path, number), item.start_mark.line + 1
            yield from _places(item, (*path, number))


def _problem(error: yaml.YAMLError) -> str:
    what = str(getattr(error, "problem", None) or error)
    context = getattr(error, "context", None)
    return f"{context}, {what}" if context and what.startswith("but ") else what


def _explain_syntax(path: Path, text: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = _problem(error)
    if mark is None:
        return f"{path}: not valid YAML: {what}."
    rows = text.splitlines()
    row = rows[mark.line] if mark.line < len(rows) else ""
    advice = ""
    if "\t" in row:
        advice = " YAML wants spaces, not tabs."
    elif "mapping values are not allowed" in what:
        advice = " A value that contains ': ' needs quotes, and keys of one level need the same indentation."
    shown = [f"      {row[:120]}", f"      {' ' * min(mark.column, 119)}^"] if row.strip() else []
    where = f"{path}, line {mark.line + 1}, column {mark.column + 1}"
    return lines(f"{where}: not valid YAML: {what}.{advice}", *shown)


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
