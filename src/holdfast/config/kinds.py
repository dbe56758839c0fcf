"""The kinds of values that settings have: what each reads, how a person would say it, and its JSON
Schema.

What YAML or a shell gives becomes the type that was declared. Every word of a command line is text,
and so is `1e-4` in YAML 1.1, so text that reads as a number is a number where a number is wanted;
`7.0` is a whole number, `TRUE` and `yes` are booleans. What is of another kind is refused, never
guessed: `true` is no number and `[3]` is no `3`. `transformers.HfArgumentParser`, which looks at
strings only, agrees wherever it looks.
"""

from __future__ import annotations

import enum
import itertools
import os
import pathlib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.config.declare import (
    Meta,
    bounds_in_words,
    in_bounds,
)
from holdfast.config.values import Refused, show
from holdfast.config.yaml_text import from_yaml
from holdfast.errors import KeyPath, Problem
from holdfast.support.paths import impossible_path

MISFIT = (TypeError, ValueError, OverflowError)
"""What reading raises where a value is of another kind; `Refused` among them, where it is of the
kind with mistakes inside."""
MAX_WHOLE = 2**63 - 1
"""Whole numbers beyond 64 bits fit nothing that counts; a float takes them as a float."""
SchemaOf = Callable[["Kind"], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of value; itself: any value."""

    words: typing.ClassVar[str] = "Any"
    """As a person would say it: "a whole number"."""
    plural: typing.ClassVar[str] = "values"

    @property
    def expected(self) -> str:
        """The words with the bounds: "a whole number of at least 2"."""
        return self.words

    def read(self, value: Any, path: KeyPath) -> Any:
        """A value as this kind.

        Args:
            value: what YAML or a shell gave.
            path: where it stands.

        Raises:
            TypeError, ValueError, OverflowError: it is of another kind.
            Refused: it is of this kind, with mistakes inside.
        """
        return value

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        """JSON Schema; empty: any value.

        Args:
            of: gives the schemas of the kinds that are within.
        """
        return {}

    def is_own(self, value: Any) -> bool:
        """Whether a value made in Python is of this kind already."""
        return False


class Truth(Kind):
    """`true` or `false`."""

    words = "true or false"

    def read(self, value: Any, path: KeyPath) -> bool:
        text = str(value).lower() if isinstance(value, (str, int)) else ""
        if text in ("true", "yes", "on", "t", "y", "1"):
            return True
        if text in ("false", "no", "off", "f", "n", "0"):
            return False
        raise ValueError

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Number(Kind):
    """A number within bounds; a whole one stays whole: `save_steps: 100` is 100 for everybody who
    prints it."""

    meta: Meta
    words = "a number"
    plural = "numbers"
    json_type = "number"

    @property
    def expected(self) -> str:
        return self.words + bounds_in_words(self.meta)

    def read(self, value: Any, path: KeyPath) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = self.parse(value)
        if not in_bounds(number, self.meta):
            raise ValueError
        return number

    def parse(self, value: float | str) -> float:
        """The number, whatever its bounds."""
        if isinstance(value, int) and abs(value) <= MAX_WHOLE:
            return value
        return float(value)

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        meta = self.meta
        bounds = {
            "minimum": meta.ge,
            "exclusiveMinimum": meta.gt,
            "maximum": meta.le,
            "exclusiveMaximum": meta.lt,
        }
        return {"type": self.json_type} | {
            name: bound for name, bound in bounds.items() if bound is not None
        }


class Whole(Number):
    """A whole number; text may write it as `1e3`."""

    words = "a whole number"
    plural = "whole numbers"
    json_type = "integer"

    def parse(self, value: float | str) -> int:
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                value = float(value)
        number = int(value)
        if number != value or abs(number) > MAX_WHOLE:
            raise ValueError
        return number


class Text(Kind):
    """Text; a whole number is text too (`run_name: 7`), one with a point is not: `1.10` would
    become `1.1`."""

    words = "text"
    plural = "texts"

    def read(self, value: Any, path: KeyPath) -> str:
        is_whole_number = (
            isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_WHOLE
        )
        if not is_whole_number and not isinstance(value, (str, pathlib.PurePath)):
            raise ValueError
        return _encodable(str(value))

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        return {"type": ["string", "integer"]}


@dataclass(frozen=True)
class PathName(Kind):
    """A path; `~` is the home folder."""

    type: type[pathlib.PurePath]
    words = "a path"

    def read(self, value: Any, path: KeyPath) -> pathlib.PurePath:
        if not isinstance(value, (str, pathlib.PurePath)) or not str(value).strip():
            raise ValueError
        result = self.type(os.path.expanduser(_encodable(str(value))))
        advice = impossible_path(result)
        if advice:
            raise Refused(Problem(path, f"expected a path, got {show(value)}. {advice}"))
        return result

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        return {"type": "string"}


@dataclass(frozen=True)
class Choice(Kind):
    """One of several values, from a `Literal` or an enumeration."""

    allowed: tuple[Any, ...]

    @property
    def words(self) -> str:  # type: ignore[override]
        names = [
            str(choice).lower() if isinstance(choice, bool) else str(choice)
            for choice in self.allowed
        ]
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"

    def read(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, enum.Enum):
            value = value.value
        if value is False and "no" in self.allowed:  # YAML 1.1 reads the bare word `no` as false
            return "no"
        for choice in self.allowed:
            if value == choice and type(value) is type(choice):
                return choice
            if not isinstance(choice, str) and str(value).lower() == str(choice).lower():
                return choice
        raise ValueError

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        return {"enum": list(self.allowed)}


@dataclass(frozen=True)
class Instance(Kind):
    """An object that Python code hands over; no text stands for one."""

    type: Any

    @property
    def words(self) -> str:  # type: ignore[override]
        return getattr(self.type, "__name__", str(self.type))

    def read(self, value: Any, path: KeyPath) -> Any:
        if not isinstance(self.type, type) or not isinstance(value, self.type):
            raise ValueError
        return value


@dataclass(frozen=True)
class ListOf(Kind):
    """A list, of any length or with a kind for each of its items."""

    type: type
    items: tuple[Kind, ...]
    """The kind of all items, or one kind for each item."""
    fixed: bool = False
    """Whether each item has its own kind."""
    least: int | None = None
    """Minimum number of items."""

    @property
    def words(self) -> str:  # type: ignore[override]
        count = f"{len(self.items)} " if self.fixed else ""
        return f"a list of {count}{self.items[0].plural}"

    @property
    def expected(self) -> str:
        return self.words + bounds_in_words(Meta(least=self.least))

    def read(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, str):
            value = from_yaml(value) if value.lstrip().startswith("[") else [value]
        elif self.type is tuple and not isinstance(value, (list, tuple, Mapping)):
            value = [value]  # `seeds: 3` is one seed
        if not isinstance(value, (list, tuple)) or len(value) < (self.least or 0):
            raise ValueError
        if self.fixed and len(value) != len(self.items):
            raise ValueError
        kinds = self.items if self.fixed else itertools.repeat(self.items[0])
        return self.type(read_all(kinds, dict(enumerate(value)), path).values())

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        items = of(self.items[0])
        array: dict[str, Any] = {"type": "array", "items": items}
        if self.least:
            array["minItems"] = self.least
        if items.get("type") in (None, "object", "array"):
            return array
        return {"anyOf": [array, items]}  # one stands for a list of one


@dataclass(frozen=True)
class MappingOf(Kind):
    """A mapping of names to values of a kind."""

    values: Kind
    words = "a mapping"

    def read(self, value: Any, path: KeyPath) -> dict[Any, Any]:
        by_name = {str(key): item for key, item in mapping_of(value, path).items()}
        return read_all(itertools.repeat(self.values), by_name, path)

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        values = of(self.values)
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}


@dataclass(frozen=True)
class AnyOf(Kind):
    """One of several kinds; the one that is nearest to the value's own type is tried first."""

    kinds: tuple[Kind, ...]
    optional: bool = False
    """Whether null is a value too."""

    @property
    def words(self) -> str:  # type: ignore[override]
        return " or ".join(dict.fromkeys(kind.words for kind in self.kinds))

    def read(self, value: Any, path: KeyPath) -> Any:
        if value is None and self.optional:
            return None
        is_list = isinstance(value, (list, tuple))
        only_lists = all(isinstance(kind, ListOf) for kind in self.kinds)
        for kind in sorted(self.kinds, key=lambda kind: _distance(kind, value)):
            if isinstance(kind, ListOf) and not is_list and not only_lists:
                continue  # what is no number is not one as the only item of a list either
            try:
                return kind.read(value, path)
            except Refused:
                raise
            except MISFIT:
                continue
        raise ValueError

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        return any_of([of(kind) for kind in self.kinds], optional=self.optional)


@dataclass(frozen=True)
class Stated(Kind):
    """A kind of which the declaration says more than its type does."""

    kind: Kind
    meta: Meta

    @property
    def words(self) -> str:  # type: ignore[override]
        return self.meta.expected or self.kind.expected

    def read(self, value: Any, path: KeyPath) -> Any:
        if self.meta.parse is None:
            return self.kind.read(value, path)
        return self.meta.parse(value)

    def schema(self, of: SchemaOf) -> dict[str, Any]:
        if self.meta.json_schema is not None:
            return dict(self.meta.json_schema())
        return {} if self.meta.parse is not None else of(self.kind)


def _distance(kind: Kind, value: Any) -> int:
    """How far a value is from a kind; what is nearer is tried first."""
    if isinstance(value, str):
        if isinstance(kind, MappingOf):
            return 4 if value.lstrip().startswith("{") else 6
        return {Truth: 1, Whole: 2, Number: 3, Text: 5}.get(type(kind), 0)
    exact = {bool: Truth, int: Whole, float: Number}.get(type(value))
    if type(kind) is exact or kind.is_own(value):
        return 0
    return 2 if isinstance(kind, Text) else 1


def scalar_kind(hint: Any, meta: Meta) -> Kind:
    """The kind of a single value."""
    if hint is Any:
        return Kind()
    if hint is bool:
        return Truth()
    if hint is int:
        return Whole(meta)
    if hint is float:
        return Number(meta)
    if hint is str:
        return Text()
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return Choice(tuple(member.value for member in hint))
    if isinstance(hint, type) and issubclass(hint, pathlib.PurePath):
        return PathName(hint)
    return Instance(hint)


# ------------------------------------------------------------------------------------------ helpers


def read_all(kinds: Iterable[Kind], values: Mapping[Any, Any], path: KeyPath) -> dict[Any, Any]:
    """The values of a list or a mapping, each as its kind.

    Args:
        kinds: in the order of the values.
        values: by the key or the number that they have below `path`.
        path: of all.

    Raises:
        Refused: with the mistakes of all.
    """
    results: dict[Any, Any] = {}
    problems: list[Problem] = []
    for kind, (key, value) in zip(kinds, values.items(), strict=False):
        try:
            results[key] = kind.read(value, (*path, key))
        except Refused as error:
            problems += error.problems
        except MISFIT:
            problems.append(Problem((*path, key), f"expected {kind.expected}, got {show(value)}."))
    if problems:
        raise Refused(*problems)
    return results


def _encodable(text: str) -> str:
    """A text that can be written: no file in UTF-8 holds half of a surrogate pair, no file name a
    null character."""
    text.encode("utf-8")
    if "\0" in text:
        raise ValueError
    return text


def mapping_of(value: Any, path: KeyPath) -> Mapping[Any, Any]:
    """A mapping as it is, and out of text in braces."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = from_yaml(value)
        except ValueError as error:
            raise Refused(
                Problem(path, f"expected a mapping, got {show(value)}: {error}.")
            ) from None
    if not isinstance(value, Mapping):
        raise ValueError
    return value


def any_of(schemas: Sequence[dict[str, Any]], *, optional: bool) -> dict[str, Any]:
    """The schema of what fits one of several, or is null."""
    if {} in schemas:
        return {}
    members = [*schemas, {"type": "null"}] if optional else list(schemas)
    return members[0] if len(members) == 1 else {"anyOf": members}
