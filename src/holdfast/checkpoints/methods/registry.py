"""All merge methods by name, and how a request names them.

    merge_method("ties", density=0.5)
    parse_merge_method("wise-ft", {"alpha": "0.3"})        # as it comes from a command line or YAML

Hyphens count as underscores, and other names in use are known: `soup` is linear. Adding a method: write its file, add
its class to `METHODS`; help texts, checks and the common laws of the tests then apply to it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoints.methods.breadcrumbs import Breadcrumbs
from holdfast.checkpoints.methods.dare import Dare, DareTies
from holdfast.checkpoints.methods.fisher import Fisher
from holdfast.checkpoints.methods.linear import Linear, TaskArithmetic, WiseFT
from holdfast.checkpoints.methods.protocol import MergeMethod
from holdfast.checkpoints.methods.slerp import Slerp
from holdfast.checkpoints.methods.ties import Ties
from holdfast.errors import ConfigError, did_you_mean

METHODS: dict[str, type[MergeMethod]] = {
    cls.name: cls for cls in (Linear, WiseFT, Slerp, TaskArithmetic, Ties, Dare, DareTies, Breadcrumbs, Fisher)
}

ALIASES = {"soup": "linear", "model_soup": "linear", "wiseft": "wise_ft", "dare_linear": "dare"}
"""Other names of methods."""


class Parameter(typing.NamedTuple):
    """One parameter of a method, for help texts and command lines."""

    name: str
    type: Any
    """The annotation: float, int, bool, str, or one of these or None; `tuple[float, ...] | None` for the weights."""
    default: Any
    help: str
    choices: tuple[str, ...]
    """The values it can have; empty where they are no list."""


def parameters_of(cls: type[MergeMethod]) -> list[Parameter]:
    """The parameters of a method, in the order of its fields."""
    hints = typing.get_type_hints(cls)
    return [
        Parameter(
            f.name, hints[f.name], f.default, str(f.metadata.get("help", "")), tuple(f.metadata.get("choices", ()))
        )
        for f in dataclasses.fields(cls)
    ]


def find_method(name: str) -> type[MergeMethod] | None:
    """The method of a name or alias; hyphens and capitals do not matter. None: there is none."""
    plain = name.strip().lower().replace("-", "_")
    return METHODS.get(ALIASES.get(plain, plain))


def parse_merge_method(
    name: str, parameters: Mapping[str, Any] | None = None, *, models: int | None = None
) -> tuple[MergeMethod | None, list[str]]:
    """Turns a name and parameters, as YAML or a command line has them, into a method.

    Args:
        name: of the method, or an alias.
        parameters: by name. Numbers may be text; weights a list, one number, or text with commas.
        models: how many models there are beside the base; None: not checked.

    Returns:
        The method, None where it could not be built, and every problem found as one sentence each: unknown names with
        the nearest known one, wrong types, values out of range, a number of models that does not fit.
    """
    cls = find_method(name)
    if cls is None:
        known = [*METHODS, *ALIASES]
        return None, [
            f"method: expected one of {', '.join(METHODS)}, got "
            f"'{name}'.{did_you_mean(name.lower().replace('-', '_'), known)}"
        ]
    known_parameters = {p.name: p for p in parameters_of(cls)}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in (parameters or {}).items():
        plain = str(key).replace("-", "_")
        if plain not in known_parameters:
            problems.append(
                f"{cls.name}: unknown parameter '{key}'; known: "
                f"{', '.join(known_parameters) or 'none'}.{did_you_mean(plain, known_parameters)}"
            )
            continue
        try:
            values[plain] = _coerced(value, known_parameters[plain].type)
        except (TypeError, ValueError):
            problems.append(f"{cls.name}.{plain}: expected {_said(known_parameters[plain].type)}, got {value!r}")
    method = cls(**values)
    problems += method.problems(models)
    return (None if problems else method), problems


def merge_method(name: str, **parameters: Any) -> MergeMethod:
    """A method by name, `merge_method("ties", density=0.5)`.

    Raises:
        ConfigError: with all problems at once. What depends on the number of models is checked when they are known, by
            `MergeMethod.problems`.
    """
    method, problems = parse_merge_method(name, parameters)
    if problems or method is None:
        raise ConfigError(problems)
    return method


def _coerced(value: Any, hint: Any) -> Any:
    """`value` as the field's type; command lines and YAML (`1e-4`) give numbers as text."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        if typing.get_origin(option) is tuple:
            items = (
                value.replace(",", " ").split()
                if isinstance(value, str)
                else value
                if isinstance(value, Sequence)
                else [value]
            )
            return tuple(_coerced(item, float) for item in items)
        if option is bool:
            if isinstance(value, bool):
                return value
            if isinstance(value, str) and value.lower() in ("true", "false"):
                return value.lower() == "true"
        elif isinstance(value, bool) or option is type(None):
            continue
        elif option is int:
            if isinstance(value, str) or float(value).is_integer():
                return int(value)
        elif option is float:
            return float(value)
        elif option is str and isinstance(value, str):
            return value
    raise TypeError


def _said(hint: Any) -> str:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return " or ".join(names.get(o, "numbers, one a model") for o in options if o is not type(None))
