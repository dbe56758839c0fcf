"""The one reader of YAML files that people write: requests, suites, studies, recipes.

PyYAML keeps the last of two equal keys in silence and reports errors in the language of parsers; here a duplicate key
is a mistake with both line numbers, a syntax error comes with line, column and the usual cause, and the line of every
key is kept for later messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config import values as value_words
from holdfast.config.decode import Given, normal
from holdfast.config.values import Mistake, show
from holdfast.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import yaml


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

    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
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
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        content = loader.construct_document(node) if node is not None else None
    finally:
        loader.dispose()
    if content is None:
        return None
    if not isinstance(content, dict):
        return [content]
    lines: dict[value_words.Path, int] = {}
    mistakes = []
    twice: set[value_words.Path] = set()
    for spelled, line in _places(node, ()):
        path = (*normal(spelled[:1]), *spelled[1:])  # below may be names of files and models, in which dashes count
        if any(path[:end] in twice for end in range(1, len(path))):
            continue  # reported with the key above already
        if path in lines:
            twice.add(path)
            again = f"stands twice, in line {lines[path]} and in line {line}. Keep one of them."
            mistakes.append(Mistake(path=(), text=f"{value_words.dotted(path)!r} {again}"))
        else:
            lines[path] = line
    return Given(
        values={str(k).replace("-", "_"): v for k, v in content.items()},
        mistakes=mistakes,
        lines={normal(path): line for path, line in reversed(lines.items())},
    )


def _places(node: Any, path: value_words.Path) -> Iterator[tuple[value_words.Path, int]]:
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


def _explain_syntax(path: Path, text: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or str(error)
    if mark is None:
        return f"{path}: not valid YAML: {what}."
    rows = text.splitlines()
    row = rows[mark.line] if mark.line < len(rows) else ""
    advice = ""
    if "\t" in row:
        advice = " YAML wants spaces, not tabs."
    elif "mapping values are not allowed" in what:
        advice = " A value that contains ': ' needs quotes, and keys of one level need the same indentation."
    shown = f"\n      {row[:120]}\n      {' ' * min(mark.column, 119)}^" if row.strip() else ""
    return f"{path}, line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {what}.{advice}{shown}"


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
