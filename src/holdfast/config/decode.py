"""From what a file and a command line say to one settings value, with every mistake at once.

A request is checked in two steps: each key by its own declaration (`coerce`), then the value as a whole by its
`problems()` method, if it has one: sentences, or `Problem`s that name the key they are about. Where a key is missing or
refused, its default or an empty value stands in for it, and only what concerns the sound ones counts: a file that is
not there is reported beside a key that is not.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.config.declare import Setting, current_name, settings_of
from holdfast.config.synonyms import did_you_mean_key
from holdfast.config.values import Refused, coerce
from holdfast.errors import ConfigError, Path, Problem, problem_of

_WORD = re.compile(r"\w[\w-]*")
T = TypeVar("T")


@dataclasses.dataclass(kw_only=True)
class Given:
    """What a request says: the YAML's values and over them the command line's, and the mistakes in their form."""

    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    """By key; the command line's where both have one."""
    from_line: set[str] = dataclasses.field(default_factory=set)
    """Keys that the command line gave."""
    without_dashes: set[str] = dataclasses.field(default_factory=set)
    """Of those, what stood there as words without an option."""
    problems: list[Problem] = dataclasses.field(default_factory=list)
    lines: dict[Path, int] = dataclasses.field(default_factory=dict)
    """Line in the file (from 1) of every key and item that is there, by path with underscores (`normal`)."""
    file: str | None = None
    """The YAML's name, None without one."""

    def over(self, other: Given) -> Given:
        """This one's values over another's (the command line's over the file's)."""
        return Given(
            values={**other.values, **self.values},
            from_line=self.from_line | (other.from_line - set(self.values)),
            without_dashes=self.without_dashes,
            problems=[*other.problems, *self.problems],
            lines=other.lines | self.lines,
            file=self.file or other.file,
        )

    def set_here(self, cls: type) -> dict[str, Any]:
        """The values without the nulls of a settings dataclass's keys, which stand for "not set"; a key that it does
        not have stays, to be refused."""
        known = {setting.name for setting in settings_of(cls)}
        return {name: value for name, value in self.values.items() if value is not None or plain_key(name) not in known}

    def take(self, *names: str) -> dict[str, Any]:
        """Removes keys from the values and returns those that were there."""
        return {name: self.values.pop(name) for name in names if name in self.values}

    def sentences(self, problems: Iterable[Problem]) -> list[str]:
        """Mistakes as people read them: with the option's dashes, or with the line in the file."""
        return list(dict.fromkeys(self._sentence(m) for m in problems))

    def check(self, problems: Iterable[Problem] = ()) -> None:
        """Raises everything that is wrong together.

        Raises:
            ConfigError: there is a mistake, among the given ones or of the request's form.
        """
        found = self.sentences([*self.problems, *problems])
        if found:
            raise ConfigError(found, source=self.file)

    def _sentence(self, problem: Problem) -> str:
        top = problem.path[0] if problem.path else None
        if top in self.from_line or self.file is None:
            option = top in self.from_line - self.without_dashes
            return f"--{problem}" if option else problem
        place = (*problem.path, problem.key)
        for end in range(len(place), 0, -1):
            if (line := self.lines.get(normal(place[:end]))) is not None:
                return f"line {line}: {problem}"
        return problem


def decode(
    cls: type[T],
    values: Mapping[str, Any],
    *,
    defaults: T | None = None,
    also: Sequence[str] = (),
) -> tuple[T | None, list[Problem]]:
    """A settings value out of a mapping.

    Args:
        cls: a settings dataclass.
        values: by key; dashes and underscores are alike.
        defaults: takes the place of the declared defaults.
        also: keys that belong to somebody else, for the advice on an unknown one.

    Returns:
        The value (None where there is a mistake) and every mistake.
    """
    known = {s.name: s for s in settings_of(cls)}
    found, mistakes = coerce_all(known, values, also=also)
    unknown = any(current_name(plain_key(k), known) not in known for k in values)
    refused = {m.path[0] for m in mistakes if m.path}
    if defaults is not None:
        found = {s: getattr(defaults, s) for s in known} | found
    elif not unknown:  # otherwise the missing one is probably there, mistyped
        for setting in known.values():
            if setting.required and setting.name not in found and setting.name not in refused:
                mistakes.append(missing(setting))
    absent = {s.name: _stand_in(s) for s in known.values() if s.required and s.name not in found}
    try:
        value = cls(**found, **absent)
        problems = problems_of(value)
    except ConfigError as error:
        problems = [] if unknown else error.problems
    except Exception:
        if not absent:
            raise
        problems = []  # a rule that cannot do without what is missing
    sound = {current_name(plain_key(k), known) for k in values} - refused
    partial = bool(refused or absent)
    mistakes += [m for m in problems if not partial or (m.path and m.path[0] in sound)]
    return (None, mistakes) if mistakes else (value, [])


def decode_named(
    cls: type[T], value: Any, *, name: re.Pattern[str], allowed: str, shorthand: str | None = None, like: str = ""
) -> tuple[dict[str, T], list[Problem]]:
    """Settings values by name, in order.

    Args:
        cls: a settings dataclass.
        value: a mapping of names to mappings.
        name: what a name has to match.
        allowed: the same in words.
        shorthand: the key that a value stands for which is no mapping; None: there is none.
        like: such a mapping, for the message.

    Returns:
        The values without mistakes, and every mistake, its path starting with the name.

    Raises:
        ValueError: no mapping, or an empty one.
    """
    if not isinstance(value, Mapping) or not value:
        raise ValueError
    found: dict[str, T] = {}
    mistakes: list[Problem] = []
    for key, item in ((str(k), v) for k, v in value.items()):
        if not name.fullmatch(key):
            mistakes.append(Problem((), f"expected {allowed}, got {key!r}."))
        if not isinstance(item, Mapping):
            if shorthand is None:
                mistakes.append(Problem(key, f"expected a mapping such as {like}, got {item!r}."))
                continue
            item = {shorthand: item}
        one, problems = decode(cls, item)
        mistakes += [p.below(key) for p in problems]
        if one is not None:
            found[key] = one
    return found, mistakes


def _stand_in(setting: Setting) -> Any:
    """A value for a setting that was not given, for the rules about the others."""
    kind = setting.types[0]
    if setting.takes_many:
        return ()
    if kind in (int, float):
        return next((bound for bound in (setting.meta.ge, setting.meta.le) if bound is not None), 1)
    return pathlib.Path("missing") if kind is pathlib.Path else {} if setting.is_mapping else "missing"


def coerce_all(
    known: Mapping[str, Setting],
    values: Mapping[str, Any],
    *,
    also: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Problem]]:
    """The values that fit their settings, by key, and the mistakes in the others; see `decode`."""
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    spelled: dict[str, str] = {}
    for key, value in values.items():
        name = current_name(plain_key(key), known)
        if name not in known:
            text = unknown_key(str(key), [*known, *also])
            problems.append(Problem((), text, key=str(key)))
            continue
        if name in spelled:
            text = f"stands twice, as {spelled[name]!r} and as {str(key)!r}. Keep one of them."
            problems.append(Problem(name, text))
            continue
        spelled[name] = str(key)
        try:
            found[name] = coerce(known[name], value)
        except Refused as error:
            problems += error.problems
    return found, problems


def problems_in(value: Any) -> list[Problem]:
    """Everything that is wrong with a settings value made in Python: types and bounds of each field, then
    `problems()`."""
    fields = {s.name: getattr(value, s.name) for s in settings_of(type(value))}
    return decode(type(value), {name: field for name, field in fields.items() if field is not None})[1]


def field_problems(value: Any) -> list[Problem]:
    """What is wrong with the types and bounds of a settings value made in Python, field by field; for its own
    `problems()` too."""
    known = {s.name: s for s in settings_of(type(value))}
    return coerce_all(known, {name: getattr(value, name) for name in known})[1]


def with_floats(value: T) -> T:
    """A settings value with 1.0 for 1 where a number with a point was declared, for records and fingerprints, which
    tell the two apart."""
    whole = {
        s.name: float(getattr(value, s.name))
        for s in settings_of(type(value))
        if float in s.types and int not in s.types and type(getattr(value, s.name)) is int
    }
    return dataclasses.replace(value, **whole) if whole else value  # type: ignore[type-var]


def problems_of(value: Any) -> list[Problem]:
    """What `value.problems()` says, as mistakes."""
    problems = getattr(value, "problems", None)
    if problems is None:
        return []
    return [problem_of(problem) for problem in problems()]


def missing(setting: Setting) -> Problem:
    """The mistake of a setting that has to be given and was not."""
    what = f" ({setting.help[0].lower()}{setting.help[1:].rstrip('.')})" if setting.help else ""
    return Problem(setting.name, f"is missing: expected {setting.expected}{what}.")


def unknown_key(name: str, known: Sequence[str]) -> str:
    """The sentence about a key that does not exist, with the one that is meant, or all of them."""
    few = f" Known: {', '.join(known)}." if len(known) <= 40 else ""
    return f"unknown key '{name}'.{did_you_mean_key(name, known) or few}"


def plain_key(name: Any) -> str:
    """A key as settings have it, with underscores where dashes were written; what is no word stays as it is."""
    text = str(name)
    return text.replace("-", "_") if _WORD.fullmatch(text) else text


def normal(path: Path) -> Path:
    """A path with underscores for dashes."""
    return tuple(plain_key(part) if isinstance(part, str) else part for part in path)
