"""From what a file and a command line say to one settings value, with every mistake at once.

A request is checked in two steps: each key by its own declaration (`coerce`), then the value as a
whole by its `problems()` method, if it has one: sentences, or `Problem`s that name the key they are
about. Where a key is missing or refused, its default or an empty value stands in for it, and only
what concerns the sound ones counts: a file that is not there is reported beside a key that is not.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.config.declare import (
    Meta,
    Setting,
    bounds_in_words,
    current_name,
    settings_of,
    union,
    unwrap,
)
from holdfast.config.kinds import (
    MISFIT,
    AnyOf,
    Choice,
    Kind,
    ListOf,
    MappingOf,
    Stated,
    mapping_of,
    scalar_kind,
)
from holdfast.config.raw_request import plain_key
from holdfast.config.synonyms import did_you_mean_key
from holdfast.config.values import Refused, show
from holdfast.errors import ConfigError, KeyPath, Problem, did_you_mean, problem_of

T = TypeVar("T")


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
    known = {setting.name: setting for setting in settings_of(cls)}
    fields, problems = coerce_all(known, values, also=also)
    if defaults is not None:
        fields = {name: getattr(defaults, name) for name in known} | fields
    keys = {current_name(plain_key(key), known) for key in values}
    has_unknown = not keys <= set(known)
    refused = {problem.path[0] for problem in problems if problem.path}
    absent = [
        setting for setting in known.values() if setting.required and setting.name not in fields
    ]
    if not has_unknown:  # otherwise the missing one is probably there, mistyped
        problems += [missing(setting) for setting in absent if setting.name not in refused]
    stand_ins = {setting.name: _stand_in(setting) for setting in absent}
    try:
        value = cls(**fields, **stand_ins)
        rules = problems_of(value)
    except ConfigError as error:
        rules = [] if has_unknown else error.problems
    except Exception:
        if not absent:
            raise
        rules = []  # a rule that cannot do without what is missing
    sound = keys - refused
    if refused or absent:
        rules = [problem for problem in rules if problem.path and problem.path[0] in sound]
    problems += rules
    return (None, problems) if problems else (value, [])


def decode_named(
    cls: type[T],
    value: Any,
    *,
    name: re.Pattern[str],
    allowed: str,
    shorthand: str | None = None,
    like: str = "",
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
    decoded: dict[str, T] = {}
    problems: list[Problem] = []
    for key, item in value.items():
        key = str(key)
        if not name.fullmatch(key):
            problems.append(Problem((), f"expected {allowed}, got {key!r}."))
        if not isinstance(item, Mapping):
            if shorthand is None:
                problems.append(Problem(key, f"expected a mapping such as {like}, got {item!r}."))
                continue
            item = {shorthand: item}
        settings, below = decode(cls, item)
        problems += [problem.below(key) for problem in below]
        if settings is not None:
            decoded[key] = settings
    return decoded, problems


def _stand_in(setting: Setting) -> Any:
    """A value for a setting that was not given, for the rules about the others."""
    kind = setting.types[0]
    if setting.takes_many:
        return ()
    if kind in (int, float):
        return setting.meta.ge or setting.meta.le or 1
    if kind is pathlib.Path:
        return pathlib.Path("missing")
    return {} if setting.is_mapping else "missing"


def coerce_all(
    known: Mapping[str, Setting],
    values: Mapping[str, Any],
    *,
    also: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Problem]]:
    """The values that fit their settings, by key, and the mistakes in the others; see `decode`."""
    fitting: dict[str, Any] = {}
    problems: list[Problem] = []
    spellings: dict[str, str] = {}
    for key, value in values.items():
        name = current_name(plain_key(key), known)
        if name not in known:
            problems.append(Problem((), unknown_key(str(key), [*known, *also]), key=str(key)))
        elif name in spellings:
            text = f"is listed twice, as {spellings[name]!r} and as {str(key)!r}. Keep one of them."
            problems.append(Problem(name, text))
        else:
            spellings[name] = str(key)
            try:
                fitting[name] = coerce(known[name], value)
            except Refused as error:
                problems += error.problems
    return fitting, problems


def coerce(setting: Setting, value: Any) -> Any:
    """`value` as the setting's type.

    Raises:
        Refused: the value does not fit; paths start with the setting's name.
    """
    if (
        setting.meta.positional
        and not setting.takes_many
        and isinstance(value, list)
        and len(value) == 1
    ):
        value = value[0]  # words without an option are a list to whoever writes them into a file
    if value is None or _is_null_word(setting, value):
        return _null_of(setting)
    try:
        return _parsed(setting, value) if setting.meta.parse is None else setting.meta.parse(value)
    except Refused as error:
        raise Refused(*(problem.below(setting.name) for problem in error.problems)) from None
    except MISFIT as error:
        raise Refused(_misfit(setting, value, error)) from None


def _parsed(setting: Setting, value: Any) -> Any:
    """A value as one of the setting's types and choices."""
    if value is False and "no" in setting.choices:  # YAML 1.1 reads the bare word `no` as false
        return "no"
    result = kind_of_setting(setting).read(value, ())
    if setting.choices and result not in setting.choices and result != setting.default:
        raise ValueError
    return result


def _misfit(setting: Setting, value: Any, error: Exception) -> Problem:
    """What was expected, what came, and what to do."""
    by_type = setting.meta.parse is None
    words = setting.meta.expected or ("" if by_type else str(error)) or expected(setting)
    advice = ""
    if setting.choices:
        advice = did_you_mean(str(value), map(str, setting.choices))
    elif by_type and str in setting.types and isinstance(value, (bool, float)):
        advice = " Put it in quotes if it is text."
    return Problem(setting.name, f"expected {words}, got {show(value)}.{advice}")


def _is_null_word(setting: Setting, value: Any) -> bool:
    """Whether a word of the command line stands for null, where null is a value and text is
    none."""
    if not isinstance(value, str) or value.lower() not in ("none", "null"):
        return False
    return setting.optional and str not in setting.types and value not in setting.choices


def _null_of(setting: Setting) -> Any:
    """What null stands for, which is "not set": itself where it is a value, false for a switch,
    otherwise the default where that is empty."""
    if setting.optional:
        return None
    if setting.is_switch:
        return False
    if not setting.required and not setting.default:
        return setting.default
    advice = (
        "Give one."
        if setting.required
        else f"Leave the key out for its default, {setting.default}."
    )
    raise Refused(
        Problem(setting.name, f"expected {expected(setting)}, got nothing (null). {advice}")
    )


def problems_in(value: Any) -> list[Problem]:
    """Everything that is wrong with a settings value made in Python: types and bounds of each
    field, then `problems()`."""
    fields = {name: field for name, field in _fields(value).items() if field is not None}
    return decode(type(value), fields)[1]


def field_problems(value: Any) -> list[Problem]:
    """What is wrong with the types and bounds of a settings value made in Python, field by field;
    for its own `problems()` too."""
    known = {setting.name: setting for setting in settings_of(type(value))}
    return coerce_all(known, _fields(value))[1]


def _fields(value: Any) -> dict[str, Any]:
    return {setting.name: getattr(value, setting.name) for setting in settings_of(type(value))}


def with_floats(value: T) -> T:
    """A settings value with 1.0 for 1 where a number with a point was declared, for records and
    fingerprints, which tell the two apart."""
    numbers = {}
    for setting in settings_of(type(value)):
        number = getattr(value, setting.name)
        if type(number) is int and float in setting.types and int not in setting.types:
            numbers[setting.name] = float(number)
    return dataclasses.replace(value, **numbers) if numbers else value  # type: ignore[type-var]


def problems_of(value: Any) -> list[Problem]:
    """What `value.problems()` says, as mistakes."""
    return (
        [problem_of(problem) for problem in value.problems()] if hasattr(value, "problems") else []
    )


def missing(setting: Setting) -> Problem:
    """The mistake of a setting that has to be given and was not."""
    text = setting.help[:1].lower() + setting.help[1:].rstrip(".")
    explanation = f" ({text})" if text else ""
    return Problem(setting.name, f"is missing: expected {expected(setting)}{explanation}.")


def unknown_key(
    name: str, known: Sequence[str], *, hidden: Sequence[str] = (), option: bool = False
) -> str:
    """The sentence about a key or an option that does not exist, with the one that is meant, or all
    that are not hidden."""
    kind, dashes = ("option", "--") if option else ("key", "")
    advice = did_you_mean_key(name, [*known, *hidden], dashes=dashes)
    if not advice and len(known) <= 40:
        names = ", ".join(dashes + key for key in known)
        advice = f" Known: {names}."
    return f"unknown {kind} '{dashes}{name}'.{advice}"


# ------------------------------------------------------------------------------ from types to kinds


def kind_of(hint: Any, meta: Meta) -> Kind:
    """The kind of value that a type hint stands for.

    Args:
        hint: a type, a union, a container, a `Literal`, an `Annotated` with a `Meta`.
        meta: bounds of the numbers in it.
    """
    hint, stated = unwrap(hint)
    kind = _plain_kind(hint, stated or meta)
    if stated is None or not (stated.expected or stated.parse or stated.json_schema):
        return kind
    return Stated(kind, stated)


def _plain_kind(hint: Any, meta: Meta) -> Kind:
    members, optional = union(hint)
    if len(members) > 1 or optional:
        return AnyOf(tuple(kind_of(member, meta) for member in members), optional)
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is typing.Literal:
        return Choice(arguments)
    if origin in (list, tuple, Sequence):
        return _list_kind(origin, arguments, meta)
    if origin in (dict, Mapping):
        return MappingOf(kind_of(arguments[1], meta) if len(arguments) == 2 else Kind())
    if dataclasses.is_dataclass(hint):
        return Section(typing.cast(type, hint))
    return scalar_kind(hint, dataclasses.replace(meta, least=None))


def _list_kind(origin: Any, arguments: tuple[Any, ...], meta: Meta) -> ListOf:
    kinds = [
        kind_of(item, dataclasses.replace(meta, least=None))
        for item in arguments
        if item is not Ellipsis
    ]
    fixed = origin is tuple and bool(arguments) and Ellipsis not in arguments
    container = tuple if origin is tuple else list
    return ListOf(container, tuple(kinds) or (Kind(),), fixed, meta.least)


@dataclass(frozen=True)
class Section(Kind):
    """A mapping with the settings that a dataclass declares."""

    cls: type
    words = "a mapping"
    plural = "mappings"

    def read(self, value: Any, path: KeyPath) -> Any:
        if isinstance(value, self.cls):
            return value
        settings, problems = decode(self.cls, mapping_of(value, path))
        if problems:
            raise Refused(*(problem.below(*path) for problem in problems))
        return settings

    def is_own(self, value: Any) -> bool:
        return type(value) is self.cls


def kind_of_setting(setting: Setting) -> AnyOf:
    """The kind of a setting's value, without its null."""
    return AnyOf(tuple(kind_of(hint, setting.meta) for hint in setting.types))


def expected(setting: Setting) -> str:
    """What a setting's value looks like, in words: "a whole number of at least 2", "true or false",
    ..."""
    if setting.meta.expected:
        return setting.meta.expected
    if setting.choices:
        return "one of " + ", ".join(
            "null" if choice is None else str(choice) for choice in setting.choices
        )
    return kind_of_setting(setting).words + bounds_in_words(setting.meta)
