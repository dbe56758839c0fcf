"""One coercion for every setting: what YAML or a shell gives, as the type that was declared.

`1e-4` is a STRING in YAML 1.1 and every word of a command line is one, so text that reads as a number is a number where
a number is wanted; `7.0` is a whole number, `TRUE` and `yes` are booleans. What is of another kind is refused, never
guessed: `true` is no number and `[3]` is no `3`. `transformers.HfArgumentParser`, which looks at strings only, agrees
wherever it looks.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import os
import pathlib
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.config.declare import (
    Meta,
    Setting,
    _unwrap,
    bounds_in_words,
    in_bounds,
    type_in_words,
    union,
)
from holdfast.errors import Path, Problem, did_you_mean


class Refused(ValueError):
    """A value does not fit its setting; `problems` says what, with paths below the setting's own."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def coerce(setting: Setting, value: Any) -> Any:
    """`value` as the setting's type.

    Null stands for "not set": kept where null is a value, false for a switch, otherwise the default where that is
    empty.

    Raises:
        Refused: the value does not fit; paths start with the setting's name.
    """
    path: Path = (setting.name,)
    if setting.meta.positional and not setting.takes_many and isinstance(value, list) and len(value) == 1:
        value = value[0]  # words without an option are a list to whoever writes them into a file
    if value is None or (
        isinstance(value, str)
        and value.lower() in ("none", "null")
        and setting.optional
        and str not in setting.types
        and value not in setting.choices
    ):
        return _coerce_null(setting)
    if setting.meta.parse is not None:
        try:
            return setting.meta.parse(value)
        except Refused as error:
            raise Refused(*(m.below(*path) for m in error.problems)) from None
        except (TypeError, ValueError, OverflowError) as error:
            expected = setting.meta.expected or str(error) or setting.expected
            raise Refused(Problem(path, f"expected {expected}, got {show(value)}.")) from None
    if value is False and "no" in setting.choices:  # YAML 1.1 reads the bare word `no` as false
        return "no"
    fits_no_bound, scalar = False, any(typing.get_origin(hint) is None for hint in setting.types)
    for hint in _in_order(setting.types, value):
        if scalar and typing.get_origin(hint) in (list, tuple) and not isinstance(value, (list, tuple)):
            continue  # what is no number is not one as the only item of a list either
        try:
            result = _convert(hint, value, setting.meta, path)
        except Refused:  # the right kind of value, with mistakes inside
            raise
        except _OutOfBounds:
            fits_no_bound = True
            continue
        except (TypeError, ValueError, OverflowError):
            continue
        _check_choice(setting, result, path)
        return result
    advice = ""
    if setting.choices:
        advice = did_you_mean(str(value), map(str, setting.choices))
    elif not fits_no_bound and str in setting.types and isinstance(value, (bool, float)):
        advice = " Put it in quotes if it is meant as text."
    raise Refused(Problem(path, f"expected {setting.expected}, got {show(value)}.{advice}"))


class _OutOfBounds(ValueError):
    """A number of the right kind outside its bounds."""


def _coerce_null(setting: Setting) -> Any:
    if setting.optional:
        return None
    if setting.is_switch:
        return False
    if not setting.required and not setting.default:
        return setting.default
    advice = "Give one." if setting.required else f"Leave the key out for its default, {setting.default}."
    text = f"expected {setting.expected}, got nothing (null). {advice}"
    raise Refused(Problem(setting.name, text))


def _check_choice(setting: Setting, value: Any, path: Path) -> None:
    value = value.value if isinstance(value, enum.Enum) else value
    if setting.choices and value not in setting.choices and value != setting.default:
        near = did_you_mean(str(value), map(str, setting.choices))
        raise Refused(Problem(path, f"expected {setting.expected}, got {show(value)}.{near}"))


def _in_order(hints: tuple[Any, ...], value: Any) -> list[Any]:
    """The hints to try, those nearest to the value's own type first."""
    if isinstance(value, str):
        rank = {bool: 1, int: 2, float: 3, str: 6}
        collection = 4 if value.lstrip().startswith(("[", "{")) else 7  # `report_to: wandb` stays a word
        return sorted(hints, key=lambda h: collection if _is_list(h) or _is_mapping(h) else rank.get(h, 0))
    return sorted(hints, key=lambda h: 0 if isinstance(h, type) and type(value) is h else 2 if h is str else 1)


def _is_list(hint: Any) -> bool:
    return hint in (list, tuple) or typing.get_origin(hint) in (list, tuple, Sequence)


def _is_mapping(hint: Any) -> bool:
    return hint is dict or typing.get_origin(hint) in (dict, Mapping)


def _convert(hint: Any, value: Any, meta: Meta, path: Path) -> Any:
    """`value` as `hint`, or ValueError. Strings are parsed; other types must already be of the kind."""
    hint, own = _unwrap(hint)
    meta = own or meta
    if own is not None and own.parse is not None:
        return own.parse(value)
    options, optional = union(hint)
    if len(options) > 1 or optional:
        return _convert_union(options, optional, value, meta, path)
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin is typing.Literal:
        return _literal(typing.get_args(hint), value)
    if _is_list(hint):
        return _to_list(hint, value, meta, path)
    if _is_mapping(hint):
        return _to_dict(hint, value, meta, path)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value).value
    if dataclasses.is_dataclass(hint):
        return _to_dataclass(typing.cast(type, hint), value, path)
    if isinstance(hint, type) and issubclass(hint, pathlib.PurePath):
        if isinstance(value, (str, pathlib.PurePath)) and str(value).strip():
            return _to_path(hint, str(value), path)
        raise ValueError
    if isinstance(hint, type) and hint not in (bool, int, float, str) and isinstance(value, hint):
        return value
    result = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}.get(hint, _refuse)(value)
    if isinstance(result, str):
        _check_text(result, "text", path)
    if isinstance(result, (int, float)) and not isinstance(result, bool) and not in_bounds(result, meta):
        raise _OutOfBounds
    return result


def _convert_union(options: tuple[Any, ...], optional: bool, value: Any, meta: Meta, path: Path) -> Any:
    if value is None and optional:
        return None
    for option in _in_order(options, value):
        try:
            return _convert(option, value, meta, path)
        except Refused:
            raise
        except (TypeError, ValueError, OverflowError):
            continue
    raise ValueError


def _literal(allowed: tuple[Any, ...], value: Any) -> Any:
    for one in allowed:
        if value == one and type(value) is type(one):
            return one
    if value is False and "no" in allowed:
        return "no"
    for one in allowed:  # 4.0 and "4" are 4, as everywhere
        if isinstance(one, (bool, int, float)) and isinstance(value, (str, float)):
            try:
                if {bool: _to_bool, int: _to_int, float: _to_float}[type(one)](value) == one:
                    return one
            except ValueError:
                continue
    raise ValueError


def _refuse(value: Any) -> Any:
    raise ValueError


_WORDS = {
    "yes": True, "true": True, "t": True, "y": True, "on": True, "1": True,
    "no": False, "false": False, "f": False, "n": False, "off": False, "0": False,
}  # fmt: skip


def _to_bool(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    raise ValueError


_MAX_WHOLE = 2**63 - 1
"""Whole numbers beyond 64 bits fit nothing that counts; a float takes them as a float."""


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = float(value)  # "1e3"
    if isinstance(value, (int, float)) and math.isfinite(value) and value == int(value) and abs(value) <= _MAX_WHOLE:
        return int(value)
    raise ValueError


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    if isinstance(value, int) and abs(value) <= _MAX_WHOLE:  # `save_steps: 100` stays 100 for everybody who prints it
        return value
    result = float(value)
    if math.isnan(result):
        raise ValueError
    return result


def _to_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_WHOLE:  # `run_name: 7`
        return str(value)
    if isinstance(value, pathlib.PurePath):
        return str(value)
    raise ValueError


def _check_text(text: str, expected: str, path: Path) -> None:
    """No file name can hold a null character, no file in UTF-8 half of a surrogate pair; `~` is a home folder."""
    advice = ""
    found = next((c for c in text if c == "\0" or "\ud800" <= c <= "\udfff"), None)
    if found is not None:
        advice = f"It holds the character {found!r}, which is no text. Leave it out."
    elif text.startswith("~") and "/" in text and os.path.expanduser(text) == text:
        advice = f"There is no user {text[1:].partition('/')[0]!r} whose home folder it could be. Write the path out."
    if advice:
        raise Refused(Problem(path, f"expected {expected}, got {show(text)}. {advice}"))


def _to_path(hint: Any, text: str, path: Path) -> pathlib.PurePath:
    """A path that the system takes: its limits are those of Linux, 255 bytes a name and 4,096 in all."""
    _check_text(text, "a path", path)
    result: pathlib.PurePath = hint(os.path.expanduser(text) if issubclass(hint, pathlib.Path) else text)
    if advice := impossible_path(result):
        raise Refused(Problem(path, f"expected a path, got {show(text)}. {advice}"))
    return result


def impossible_path(path: str | pathlib.PurePath) -> str:
    """Why nothing can be at a path, whatever it is for; empty where something can."""
    path = pathlib.PurePath(path)
    if max(len(os.fsencode(part)) for part in (*path.parts, ".")) > 255 or len(os.fsencode(path)) > 4000:
        return "A name may have 255 bytes at most, a path 4,000."
    file = next((p for p in path.parents if os.path.exists(p) and not os.path.isdir(p)), None)
    return f"{file} is a file, so nothing can lie in it." if file is not None else ""


def _from_yaml(text: str) -> Any:
    from holdfast.config.yaml_file import from_yaml  # which imports this module

    return from_yaml(text)


def _to_list(hint: Any, value: Any, meta: Meta, path: Path) -> Any:
    args = typing.get_args(hint)
    item = args[0] if args else Any
    if isinstance(value, str):
        value = _from_yaml(value) if value.lstrip().startswith("[") else [value]
    elif not isinstance(value, (list, tuple)) and typing.get_origin(hint) is tuple and not isinstance(value, Mapping):
        value = [value]  # `seeds: 3` is one seed
    if not isinstance(value, (list, tuple)):
        raise ValueError
    fixed = typing.get_origin(hint) is tuple and Ellipsis not in args and len(args) > 0
    if (fixed and len(value) != len(args)) or (meta.least is not None and len(value) < meta.least):
        raise ValueError
    hints = args if fixed else [item] * len(value)
    result = _convert_all(zip(range(len(value)), hints, value, strict=True), meta, path)
    return tuple(result) if typing.get_origin(hint) is tuple or hint is tuple else result


def _convert_all(items: Iterable[tuple[str | int, Any, Any]], meta: Meta, path: Path) -> list[Any]:
    """The values of a list or a mapping, converted.

    Args:
        items: where each stands below `path`, its type hint, and the value.
        meta: bounds of each.
        path: of all.

    Raises:
        Refused: with the mistakes of all.
    """
    results: list[Any] = []
    problems: list[Problem] = []
    for key, hint, value in items:
        try:
            results.append(_convert(hint, value, meta, (*path, key)))
        except Refused as error:
            problems += error.problems
        except (TypeError, ValueError, OverflowError):
            bounds = "" if typing.get_origin(hint) is typing.Annotated else _item_bounds(meta)
            text = f"expected {type_in_words(hint)}{bounds}, got {show(value)}."
            problems.append(Problem((*path, key), text))
    if problems:
        raise Refused(*problems)
    return results


def _item_bounds(meta: Meta) -> str:
    return bounds_in_words(dataclasses.replace(meta, least=None))


def _to_dict(hint: Any, value: Any, meta: Meta, path: Path) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            parsed = _from_yaml(value)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            text = f"""expected a mapping such as '{{"key": "value"}}', got {show(value)}, which is neither JSON nor """
            raise Refused(Problem(path, text + "YAML."))
        value = parsed
    if not isinstance(value, Mapping):
        raise ValueError
    args = typing.get_args(hint)
    if len(args) != 2 or args[1] is Any:
        return dict(value)
    names = [str(key) for key in value]
    items = zip(names, [args[1]] * len(names), value.values(), strict=True)
    return dict(zip(names, _convert_all(items, meta, path), strict=True))


def _to_dataclass(cls: type, value: Any, path: Path) -> Any:
    if isinstance(value, cls):
        return value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _from_yaml(value)
    if not isinstance(value, Mapping):
        raise ValueError
    from holdfast.config.decode import decode

    result, problems = decode(cls, value)
    if problems:
        raise Refused(*(m.below(*path) for m in problems))
    return result


def show(value: Any) -> str:
    """A value in a message: itself, shortened, and what kind of thing it is."""
    return f"{shorten(value)} ({kind(value)})"


def shorten(value: Any) -> str:
    """A value as Python writes it, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def kind(value: Any) -> str:
    """The YAML word for a value's type."""
    if value is None:
        return "null"
    kinds: tuple[tuple[Any, str], ...] = (
        (bool, "true/false"),
        (int, "whole number"),
        (float, "number"),
        (str, "text"),
        (Mapping, "mapping"),
        ((list, tuple), "list"),
    )
    return next((word for types_, word in kinds if isinstance(value, types_)), type(value).__name__)
