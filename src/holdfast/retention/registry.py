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
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.config.declare import settings_of
from holdfast.config.decode import Given, decode, mistakes_in
from holdfast.config.schema import object_schema
from holdfast.config.values import Mistake, Path, show
from holdfast.errors import did_you_mean
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


def parse_retention(value: Any) -> tuple[list[RetentionMethod], list[Mistake]]:
    """Turns a config's `retention:` value into methods.

    Args:
        value: None or "none" (direct), a method name, a `{name: parameters}` mapping, or a list of these.

    Returns:
        The methods that could be built, and every mistake, with paths that begin with "retention" (unknown methods and
        parameters with the nearest known name, wrong types, values out of range, combinations that make no sense).
    """
    if value is None or (isinstance(value, str) and value.lower() in NONE):
        return [], []
    several = isinstance(value, (list, tuple))
    methods: list[RetentionMethod] = []
    mistakes: list[Mistake] = []
    complete = True
    for number, item in enumerate(value if several else [value]):
        path: Path = ("retention", number) if several else ("retention",)
        method, found = _method(item)
        complete = complete and (method is not None or not found)
        mistakes += (dataclasses.replace(m, path=(*path, *m.path)) for m in found)
        if method is not None:
            methods.append(method)
    if complete:  # otherwise what seems to be missing may be there, mistyped
        mistakes += (Mistake(path=("retention",), text=problem) for problem in _combination_problems(methods))
    return methods, mistakes


def retention(value: Any) -> list[RetentionMethod]:
    """`parse_retention` for library users.

    Raises:
        ConfigError: with all mistakes at once.
    """
    methods, mistakes = parse_retention(value)
    Given().check(mistakes)
    return methods


def retention_schema() -> dict[str, Any]:
    """JSON Schema of a config's `retention:` value."""
    parameters = {
        name: {"description": cls.summary, "anyOf": [object_schema(settings_of(cls)), {"type": "null"}]}
        for name, cls in METHODS.items()
    }
    one = {"type": "object", "properties": parameters, "additionalProperties": False, "minProperties": 1}
    entry = {"anyOf": [{"enum": [*METHODS, *NONE]}, {**one, "maxProperties": 1}]}
    return {"anyOf": [{"type": "null"}, *entry["anyOf"], {"type": "array", "items": entry}]}


def title(name: str) -> str:
    """What people call a method; a name that is not registered with spaces for its underscores."""
    return METHODS[name].title if name in METHODS else name.replace("_", " ")


def _method(item: Any) -> tuple[RetentionMethod | None, list[Mistake]]:
    """One entry as a method; None where it stands for none, or does not work."""
    if isinstance(item, RetentionMethod):
        return item, _named(item, mistakes_in(item))
    if isinstance(item, str):
        item = {item: None}
    if not isinstance(item, Mapping) or len(item) != 1:
        text = f"expected a method name or one '{{name: {{parameters}}}}' mapping, got {show(item)}."
        return None, [Mistake(path=(), text=text)]
    name, parameters = next(iter(item.items()))
    if str(name).lower() in NONE:
        return None, []
    if name not in METHODS:
        advice = did_you_mean(str(name), METHODS)
        return None, [Mistake(path=(), text=f"unknown method '{name}'; known: {', '.join(METHODS)}.{advice}")]
    cls = METHODS[name]
    if parameters is not None and not isinstance(parameters, Mapping):
        text = f"expected a mapping of parameters, got {show(parameters)}."
        return None, [Mistake(path=(name,), text=text)]
    method, mistakes = decode(cls, parameters or {})
    return (None if method is None else _with_floats(method)), _named(cls, mistakes)


def _named(cls: Any, mistakes: Sequence[Mistake]) -> list[Mistake]:
    """A method's mistakes with its name in their paths, and once in their words."""
    return [Mistake(path=(cls.name, *m.path), text=m.text.removeprefix(f"{cls.name}: ")) for m in mistakes]


def _with_floats(method: RetentionMethod) -> RetentionMethod:
    """The method with a float where one is declared, whether a config says 2 or 2.0: both are one run and one label."""
    values = {s.name: getattr(method, s.name) for s in settings_of(type(method)) if float in s.types}
    floats = {name: float(value) for name, value in values.items() if type(value) is int}
    return dataclasses.replace(method, **floats)


def _combination_problems(methods: Sequence[RetentionMethod]) -> list[str]:
    problems = []
    counts: dict[str, int] = {}
    for method in methods:
        counts[method.name] = counts.get(method.name, 0) + 1
    for name, count in counts.items():
        if count > 1 and not METHODS[name].repeatable:
            problems.append(f"'{name}' is given {count} times; expected once. Put all its parameters in one entry.")
    share = sum(m.fraction for m in methods if isinstance(m, Replay))
    if share >= 1:
        problems.append(
            f"the replay fractions add up to {share:g}; expected less than 1, so that some new data is left."
        )
    return problems + combination_problems(methods)
