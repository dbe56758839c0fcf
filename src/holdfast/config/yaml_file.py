"""The one reader of YAML files that people write: requests, suites, studies, recipes.

PyYAML keeps the last of two equal keys in silence and reports errors in the language of parsers;
here a duplicate key is a mistake with both line numbers, a syntax error comes with line, column and
the usual cause, and the line of every key is kept for later messages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.config.raw_request import RawRequest, normal, plain_key
from holdfast.config.values import show
from holdfast.config.yaml_text import load, reason
from holdfast.errors import ConfigError, Problem, did_you_mean, dotted
from holdfast.printable import lines
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    import yaml


def read_yaml(path: str | Path, *, option: str = "--config", needs: str = "") -> RawRequest:
    """Reads a file with one YAML mapping (JSON is YAML, so that works too).

    Args:
        path: the file; `~` is the home folder.
        option: where the name was given, for messages.
        needs: what such a file needs at least, for the message on an empty one.

    Raises:
        ConfigError: no such file, not readable as text, or not YAML; nothing is known of the keys
            then.
    """
    import yaml

    path = expanded(path)
    try:
        text = path.read_text(encoding="utf-8")
        request = parse_yaml(text)
    except FileNotFoundError:
        problem = f"no such file.{nearest_sibling(path)}"
    except IsADirectoryError:
        problem = "expected a YAML file, got a folder."
    except UnicodeDecodeError as error:
        problem = (
            f"expected text in UTF-8, but byte {error.start} is not UTF-8. Save the file as UTF-8."
        )
    except OSError as error:
        problem = f"cannot be read ({error.strerror})."
    except yaml.YAMLError as error:
        raise ConfigError(_explain_syntax(path, text, error)) from None
    else:
        if isinstance(request, RawRequest):
            request.file = str(path)
            return request
        problem = f"expected a mapping ('key: value' lines), got {show(request)}."
        if request is None:
            problem = f"the file is empty.{f' The file needs at least {needs}.' if needs else ''}"
    raise ConfigError(f"{option} {path}: {problem}")


def parse_yaml(text: str) -> RawRequest | Any:
    """A YAML text's mapping with its lines and duplicate keys; what is no mapping as it is, None
    for nothing. Dashes in its own keys become underscores; below may be names of files and models,
    in which dashes count.

    Raises:
        yaml.YAMLError: the text is no YAML.
    """
    document = load(text, top_key=plain_key)
    if not isinstance(document.value, dict):
        return document.value
    request = RawRequest(values={plain_key(key): value for key, value in document.value.items()})
    for path, first, second in document.repeated:
        advice = f"is listed twice, in line {first} and in line {second}. Keep one of them."
        request.problems.append(Problem((), f"{dotted(path)!r} {advice}"))
    for path, line in document.lines.items():
        request.lines.setdefault(normal(path), line)
    return request


_ADVICE = {
    "mapping values are not allowed": "A value that contains ': ' needs quotes, and keys of one level need the same "
    "indentation.",
    r"'\t'": "YAML wants spaces, not tabs.",
}
"""By what PyYAML says."""


def _explain_syntax(path: Path, text: str, error: yaml.YAMLError) -> str:
    """Where a file is no YAML, why, and the line itself."""
    why = reason(error)
    advice = "".join(f" {text}" for words, text in _ADVICE.items() if words in why)
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{path}: not valid YAML: {why}.{advice}"
    where = f"{path}, line {mark.line + 1}, column {mark.column + 1}"
    row = [*text.splitlines(), ""][mark.line]
    excerpt = [f"      {row[:120]}", " " * (6 + min(mark.column, 119)) + "^"] if row.strip() else []
    return lines(f"{where}: not valid YAML: {why}.{advice}", *excerpt)


def nearest_sibling(path: Path, *, accept: Callable[[Path], bool] = lambda _: True) -> str:
    """`" Did you mean '...'?"` with the entry of the same folder whose name is nearest, or what is
    wrong with the folder itself."""
    parent = path.parent
    if not parent.is_dir():
        return f" The folder {parent} does not exist either."
    try:
        names = [sibling.name for sibling in parent.iterdir() if accept(sibling)]
    except OSError:
        return ""
    return did_you_mean(path.name, names)
