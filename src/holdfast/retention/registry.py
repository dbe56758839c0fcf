"""All retention methods by name, and how a config names them.

```yaml
retention:
  - label_annealing: {weight: 1.0, temperature: 2.0}
  - sfa: {p: 0.25}
  - l2                      # with its defaults
```

Direct fine-tuning is an empty list (or `none`). Adding a method: write its file, add its class to
`METHODS`; the law suite, the help texts and the config checks then apply to it. A method in the
user's own file needs neither (`method_class`). No torch at import.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.config.declare import settings_of
from holdfast.config.decode import decode, problems_in
from holdfast.config.raw_request import RawRequest
from holdfast.config.schema import object_schema
from holdfast.config.values import show
from holdfast.errors import ConfigError, KeyPath, Problem, did_you_mean, problem_of
from holdfast.retention.methods.budget import Budget, combination_problems
from holdfast.retention.methods.ema import ExponentialAverage
from holdfast.retention.methods.ewc import EWC
from holdfast.retention.methods.l2 import L2
from holdfast.retention.methods.label_annealing import LabelAnnealing
from holdfast.retention.methods.mofo import MoFO
from holdfast.retention.methods.multitask import Multitask
from holdfast.retention.methods.replay import Replay
from holdfast.retention.methods.self_replay import SelfReplay
from holdfast.retention.methods.sfa import SequentialAveraging
from holdfast.retention.methods.token_weighting import TokenWeighting
from holdfast.retention.methods.wise_ft import WiseFT
from holdfast.retention.presets import PRESETS, Preset
from holdfast.retention.protocol import Origin, RetentionMethod
from holdfast.support.own_code import is_ours, load_class, origin

METHODS: dict[str, type[RetentionMethod]] = {
    cls.name: cls
    for cls in (
        LabelAnnealing,
        TokenWeighting,
        L2,
        EWC,
        SequentialAveraging,
        WiseFT,
        ExponentialAverage,
        MoFO,
        Replay,
        SelfReplay,
        Multitask,
        Budget,
    )
}

NONE = ("none", "direct", "")


GROUP = "holdfast.methods"
"""Entry points that installed packages declare methods by."""
NEEDED = ("name", "title", "summary", "place")
"""What a class has to say of itself."""
_own: dict[str, type[RetentionMethod]] = {}
"""The user's own methods that this process has loaded, by the name the user gave, the one that was
named last at the end."""


def method_class(
    name: str, *, load: bool = True, also: Sequence[str] = ()
) -> type[RetentionMethod]:
    """The class behind a name of a config: a method of the package, a class of the user's own
    (`my_method.py:Dropback`, `package.module:Dropback`), or an entry point of the group `GROUP`.

    Naming the user's own code runs it; configurations of finished runs are read without
    (`load=False`).

    Args:
        name: as the user wrote it.
        load: whether the user's own code may run; False: only what this process has loaded already
            is known.
        also: words that stand for something else there, for the message.

    Raises:
        ConfigError: no such method, with the nearest name; or what is wrong with the user's own.
    """
    cls = METHODS.get(name) or (_load_own(name) if load else _own.get(name))
    if cls is None:
        raise ConfigError(
            f"unknown method '{name}'; known: {', '.join([*also, *METHODS, *PRESETS])}."
            f"{did_you_mean(name, [*METHODS, *PRESETS])}"
        )
    taken = {"method", "from", *dir(RetentionMethod), *RetentionMethod.__annotations__}
    clashing = sorted(taken.intersection(s.name for s in settings_of(cls)))
    if clashing:
        raise ConfigError(
            f"{name}: the parameter{('s' if len(clashing) > 1 else '')} {', '.join(clashing)} "
            "would hide attributes that every method has. Choose another name, such as "
            f"'{clashing[0]}_'."
        )
    return cls


def _load_own(name: str) -> type[RetentionMethod] | None:
    cls = load_class(name, base=RetentionMethod, group=GROUP)
    if cls is None or cls in METHODS.values():
        return cls
    lacking = [n for n in NEEDED if not isinstance(getattr(cls, n, None), str)]
    if lacking:
        raise ConfigError(
            f"{name}: the class lacks {', '.join(lacking)}; write for example 'name: "
            'ClassVar[str] = "dropback"\'.'
        )
    if cls.name in METHODS:
        raise ConfigError(
            f"{name}: the name '{cls.name}' is taken by a method of holdfast. Choose another name."
        )
    if "__dataclass_params__" not in vars(cls) or not vars(cls)["__dataclass_params__"].frozen:
        raise ConfigError(
            f"{name}: expected a frozen dataclass; write @dataclass(frozen=True, kw_only=True) "
            "above it."
        )
    if cls.origin is None or cls.origin.reference != name:
        cls.origin = Origin(reference=name, sha256=str(origin(cls).get("code_sha256", "")))
    _own.pop(name, None)  # the newest stands last
    _own[name] = cls
    return cls


def declared(name: str) -> type[RetentionMethod] | None:
    """The class of a method by its name in a record (or by the name a config gives), where this
    process knows it; of several classes of the user's own with this name the one that was named
    last."""
    named_so = (cls for reference, cls in reversed(_own.items()) if name in (reference, cls.name))
    return METHODS.get(name) or next(named_so, None)


def parse_retention(
    value: Any, *, load: bool = True
) -> tuple[list[RetentionMethod], list[Problem]]:
    """Turns a config's `retention:` value into methods.

    Args:
        value: None or "none" (direct), a method name, a `{name: parameters}` mapping, or a list of
            these.
        load: as of `method_class`.

    Returns:
        The methods that could be built, and every mistake, with paths that begin with "retention"
        (unknown methods and parameters with the nearest known name, wrong types, values out of
        range, combinations that make no sense).
    """
    if value is None or (isinstance(value, str) and value.lower() in NONE):
        return [], []
    several = isinstance(value, (list, tuple))
    methods: list[RetentionMethod] = []
    problems: list[Problem] = []
    presets: list[Preset] = []
    complete = True
    for number, item in enumerate(value if several else [value]):
        path: KeyPath = ("retention", number) if several else ("retention",)
        preset, item_problems = _preset(item)
        if preset is None and not item_problems:
            method, item_problems = _method(item, load=load)
            item_methods = [] if method is None else [method]
        else:
            item_methods = [] if preset is None else [_with_floats(m) for m in preset.methods()]
        complete = complete and (bool(item_methods) or not item_problems)
        problems += (problem.below(*path) for problem in item_problems)
        methods += item_methods
        if preset is not None:
            presets.append(preset)
    if complete:  # otherwise what seems to be missing may be there, mistyped
        problems += [
            problem_of(text).below("retention") for text in _combination_problems(methods, presets)
        ]
    return methods, problems


def retention(value: Any) -> list[RetentionMethod]:
    """Builds retention methods from the value of `retention:` in a configuration, such as a
    method's name or a list of `{name: parameters}` mappings; see `parse_retention`.

    Raises:
        ConfigError: the value has mistakes; the message lists all of them.
    """
    methods, problems = parse_retention(value)
    RawRequest().check(problems)
    return methods


def retention_schema() -> dict[str, Any]:
    """JSON Schema of a config's `retention:` value."""
    entry = method_schema(lambda cls: object_schema(settings_of(cls)), {**METHODS, **PRESETS})
    return {"anyOf": [{"type": "null"}, *entry["anyOf"], {"type": "array", "items": entry}]}


def method_schema(
    parameters: Callable[[Any], dict[str, Any]], known: Mapping[str, Any] = METHODS
) -> dict[str, Any]:
    """JSON Schema of one method, by its name or with its parameters.

    Args:
        parameters: schema of a method's parameters, as an object.
        known: classes by name.
    """
    with_parameters = {
        "type": "object",
        "properties": {
            name: {"description": cls.summary, "anyOf": [parameters(cls), {"type": "null"}]}
            for name, cls in known.items()
        },
        "patternProperties": {
            r"[.:]": {"type": ["object", "null"], "description": "Your own method."}
        },
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
    return {
        "anyOf": [
            {"enum": [*known, *NONE]},
            {"type": "string", "pattern": r"[.:]"},
            with_parameters,
        ]
    }


def title(name: str) -> str:
    """What people call a method; a name that is not known here with spaces for its underscores."""
    cls = declared(name)
    return name.replace("_", " ") if cls is None else cls.title


def own_titles(names: Iterable[str]) -> dict[str, str]:
    """The titles of those methods of the given names that are not holdfast's own, for records that
    are read where their classes are not known."""
    known = {name: declared(name) for name in names}
    return {n: cls.title for n, cls in known.items() if cls is not None and not is_ours(cls)}


def _method(item: Any, *, load: bool) -> tuple[RetentionMethod | None, list[Problem]]:
    """One entry as a method; None where it stands for none, or does not work."""
    if isinstance(item, RetentionMethod):
        return item, _named(item, problems_in(item))
    if isinstance(item, str):
        item = {item: None}
    if not isinstance(item, Mapping) or len(item) != 1:
        text = (
            f"expected a method name or one '{{name: {{parameters}}}}' mapping, got {show(item)}."
        )
        return None, [Problem((), text)]
    name, parameters = next(iter(item.items()))
    if str(name).lower() in NONE:
        return None, []
    try:
        cls = method_class(str(name), load=load)
    except ConfigError as error:
        return None, [Problem((), problem) for problem in error.problems]
    if parameters is not None and not isinstance(parameters, Mapping):
        text = f"expected a mapping of parameters, got {show(parameters)}."
        return None, [Problem(name, text)]
    values = dict(parameters or {})
    recorded = values.pop("sha256", None) if cls.origin is not None else None
    method, problems = decode(cls, values)
    if method is None:
        return None, _named(cls, problems)
    method = _with_floats(method)
    if recorded is not None:
        object.__setattr__(method, "recorded_sha256", recorded)
    return method, _named(cls, problems)


def _preset(item: Any) -> tuple[Preset | None, list[Problem]]:
    """A preset that the entry names; None where it names none, or does not work."""
    entry = {item: None} if isinstance(item, str) else item
    if not isinstance(entry, Mapping) or len(entry) != 1 or next(iter(entry)) not in PRESETS:
        return None, []
    name, parameters = next(iter(entry.items()))
    if parameters is not None and not isinstance(parameters, Mapping):
        return None, [Problem(name, f"expected a mapping of parameters, got {show(parameters)}.")]
    preset, problems = decode(PRESETS[name], dict(parameters or {}))
    return preset, _named(PRESETS[name], problems)


def _named(cls: Any, problems: Sequence[Problem]) -> list[Problem]:
    """A method's problems with its name in their paths."""
    return [problem.below(cls.name) for problem in problems]


def _with_floats(method: RetentionMethod) -> RetentionMethod:
    """The method with a float where one is declared, whether a config says 2 or 2.0: both are one
    run and one label."""
    floats = {}
    for setting in settings_of(type(method)):
        value = getattr(method, setting.name)
        if float in setting.types and type(value) is int:
            floats[setting.name] = float(value)
    return dataclasses.replace(method, **floats)


def _preset_with(presets: Sequence[Preset], name: str) -> Preset | None:
    """The first preset that stands for a method, among others."""
    for preset in presets:
        if any(method.name == name for method in preset.methods()):
            return preset
    return None


def _combination_problems(
    methods: Sequence[RetentionMethod], presets: Sequence[Preset] = ()
) -> list[str]:
    problems: list[str] = []
    repeatable = {method.name for method in methods if method.repeatable}
    counts: dict[str, int] = {}
    for method in methods:
        counts[method.name] = counts.get(method.name, 0) + 1
    for name, count in counts.items():
        preset = _preset_with(presets, name)
        if count > 1 and preset is not None:
            *first, last = [method.name for method in preset.methods()]
            names = f"{', '.join(first)} and {last}"
            problems.append(
                f"'{preset.name}' includes {names}, and '{name}' is given as well. Leave one out, "
                f"or list the methods instead of '{preset.name}'."
            )
        elif count > 1 and name not in repeatable:
            problems.append(
                f"'{name}' is given {count} times; expected once. Put all its parameters in one "
                "entry."
            )
    share = sum(m.replayed() for m in methods if m.shares_mixture)
    if share >= 1:
        problems.append(
            "expected replay fractions with a sum below 1, so that some new data is left, got "
            f"{share:g}. Lower them."
        )
    return problems + _origin_problems(methods) + combination_problems(methods)


def _origin_problems(methods: Sequence[RetentionMethod]) -> list[Problem]:
    """Sentences about weights of rows that nothing mixes in, and about rows that nothing trains
    on."""
    sources = {m.row_source for m in methods if m.row_source}
    terms = []
    for method in methods:
        term = None if method.off else method.token_loss()
        if term is not None:
            terms.append((method.name, term))
    problems = []
    for name, term in terms:
        for source in term.by_origin:
            if not (sources if source == "new" else sources & {source}):
                mixing = " or ".join(_giving(source))
                text = (
                    "applies only with a method that mixes other rows into the new data "
                    f"({mixing}), got none."
                )
                problems.append(Problem((name, f"weight_{source}"), text))
    for method in methods:
        factors = {} if method.off else method.ce_by_origin()
        untrained = [source for source, factor in factors.items() if factor == 0]
        is_pulled = any(
            term.by_origin.get(source, 1.0) > 0 for _, term in terms for source in untrained
        )
        if untrained and not is_pulled:
            problems.append(
                Problem(
                    (method.name, "ce"),
                    "with ce: false, the mixed-in rows have no loss. Add label_annealing, with "
                    f"weight_{untrained[0]} above 0.",
                )
            )
    return problems


def _giving(origin: str) -> list[str]:
    """Names of the methods that mix in rows of an origin; for new ones, of those that mix in
    others."""
    return [
        name
        for name, cls in METHODS.items()
        if cls.row_source and origin in ("new", cls.row_source)
    ]
