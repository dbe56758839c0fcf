"""All retention methods by name, and how a config names them.

```yaml
retention:
  - label_annealing: {weight: 1.0, temperature: 2.0}
  - sfa: {p: 0.25}
  - l2                      # with its defaults
```

Direct fine-tuning is an empty list (or `none`). Adding a method: write its file, add its class to `METHODS`; the law
suite, the help texts and the config checks then apply to it. No torch at import.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError, did_you_mean
from holdfast.retention.averaging import ExponentialAverage, SequentialAveraging, WiseFT
from holdfast.retention.budget import Budget, combination_problems
from holdfast.retention.ewc import EWC
from holdfast.retention.l2 import L2
from holdfast.retention.label_annealing import LabelAnnealing
from holdfast.retention.method import RetentionMethod
from holdfast.retention.replay import Multitask, Replay

METHODS: dict[str, type[RetentionMethod]] = {
    cls.name: cls
    for cls in (LabelAnnealing, L2, EWC, SequentialAveraging, WiseFT, ExponentialAverage, Replay, Multitask, Budget)
}

NONE = ("none", "direct", "")


def parse_retention(value: Any) -> tuple[list[RetentionMethod], list[str]]:
    """Turns a config's `retention:` value into methods.

    Args:
        value: None or "none" (direct), a method name, a `{name: parameters}` mapping, or a list of these.

    Returns:
        The methods that could be built, and every problem found as one sentence each (unknown methods and parameters
        with the nearest known name, wrong types, values out of range, combinations that make no sense).
    """
    if value is None or (isinstance(value, str) and value.lower() in NONE):
        return [], []
    items: Sequence[Any] = value if isinstance(value, (list, tuple)) else [value]
    methods: list[RetentionMethod] = []
    problems: list[str] = []
    for number, item in enumerate(items):
        where = f"retention[{number}]"
        if isinstance(item, RetentionMethod):
            methods.append(item)
            problems.extend(item.problems())
            continue
        if isinstance(item, str):
            item = {item: {}}
        if not isinstance(item, Mapping) or len(item) != 1:
            problems.append(f"{where}: expected a method name or one '{{name: {{parameters}}}}' mapping, got {item!r}")
            continue
        name, parameters = next(iter(item.items()))
        if str(name).lower() in NONE:
            continue
        if name not in METHODS:
            problems.append(
                f"{where}: unknown method '{name}'; known: {', '.join(METHODS)}.{did_you_mean(str(name), METHODS)}"
            )
            continue
        method, found = _build(METHODS[name], {} if parameters is None else parameters)
        problems.extend(found)
        if method is not None:
            methods.append(method)
    problems.extend(_combination_problems(methods))
    return methods, problems


def retention(value: Any) -> list[RetentionMethod]:
    """`parse_retention` for library users.

    Raises:
        ConfigError: with all problems at once.
    """
    methods, problems = parse_retention(value)
    if problems:
        raise ConfigError(problems)
    return methods


def title(name: str) -> str:
    """What people call a method; a name that is not registered with spaces for its underscores."""
    return METHODS[name].title if name in METHODS else name.replace("_", " ")


def parameters_of(cls: type[RetentionMethod]) -> list[tuple[str, Any, str]]:
    """`(name, default, help)` of each parameter, for help texts."""
    return [(f.name, f.default, str(f.metadata.get("help", ""))) for f in dataclasses.fields(cls)]


def _build(cls: type[RetentionMethod], parameters: Any) -> tuple[RetentionMethod | None, list[str]]:
    if not isinstance(parameters, Mapping):
        return None, [f"{cls.name}: expected a mapping of parameters, got {parameters!r}"]
    known = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in parameters.items():
        if key not in known:
            problems.append(
                f"{cls.name}: unknown parameter '{key}'; known: {', '.join(known)}.{did_you_mean(str(key), known)}"
            )
            continue
        try:
            values[key] = _coerce(value, hints[key])
        except (TypeError, ValueError):
            problems.append(f"{cls.name}.{key}: expected {_type_name(hints[key])}, got {value!r}")
    if problems:
        return None, problems
    method = cls(**values)
    return method, method.problems()


def _coerce(value: Any, hint: Any) -> Any:
    """`value` as the field's type. YAML reads `1e-4` as a string, so strings that are numbers are numbers here."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if value is None:
        if type(None) in options:
            return None
        raise TypeError
    for option in options:
        if option is bool:
            if isinstance(value, bool):
                return value
            if isinstance(value, str) and value.lower() in ("true", "false"):
                return value.lower() == "true"
        elif option is int and not isinstance(value, bool):
            if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
                return int(value)
            if isinstance(value, str):
                return int(value)
        elif option is float and not isinstance(value, bool):
            return float(value)
        elif option is str and isinstance(value, str):
            return value
    raise TypeError


def _type_name(hint: Any) -> str:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "nothing"}
    return " or ".join(names.get(o, str(o)) for o in options)


def _combination_problems(methods: Sequence[RetentionMethod]) -> list[str]:
    problems = []
    counts: dict[str, int] = {}
    for method in methods:
        counts[method.name] = counts.get(method.name, 0) + 1
    for name, count in counts.items():
        if count > 1 and not METHODS[name].repeatable:
            problems.append(
                f"retention: '{name}' is given {count} times; expected once. Put all its parameters in one entry."
            )
    share = sum(m.fraction for m in methods if isinstance(m, Replay))
    if share >= 1:
        problems.append(
            f"retention: the replay fractions add up to {share:g}; expected less than 1, so that some new data is left."
        )
    return problems + combination_problems(methods)
