"""All merge methods by name, and how a request names them.

    merge_method("ties", density=0.5)
    merge_method("my_method.py:Median", rate=0.1)          # a class of one's own
    parse_merge_method("wise-ft", {"alpha": "0.3"})        # as it comes from a command line or YAML

Hyphens count as underscores, and other names in use are known: `soup` is linear. A method of one's
own is a `MergeMethod` in a file, in an importable module (`package.module:Name`), or behind an
entry point of the group `holdfast.merge_methods`. Adding one here: write its file, add its class to
`METHODS`; help texts, checks and the common laws of the tests then apply to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from holdfast.checkpoints.methods.dare import Dare, DareTies
from holdfast.checkpoints.methods.fisher import Fisher
from holdfast.checkpoints.methods.linear import Linear, TaskArithmetic, WiseFT
from holdfast.checkpoints.methods.model_stock import ModelStock
from holdfast.checkpoints.methods.protocol import MergeMethod
from holdfast.checkpoints.methods.slerp import Slerp
from holdfast.checkpoints.methods.ties import Ties
from holdfast.config.declare import settings_of
from holdfast.config.decode import coerce_all, missing, unknown_key, with_floats
from holdfast.errors import ConfigError, Problem, did_you_mean
from holdfast.support.own_code import load_class

METHODS: dict[str, type[MergeMethod]] = {
    cls.name: cls
    for cls in (
        Linear,
        WiseFT,
        Slerp,
        ModelStock,
        TaskArithmetic,
        Ties,
        Dare,
        DareTies,
        Fisher,
    )
}

ALIASES = {
    "soup": "linear",
    "model_soup": "linear",
    "wiseft": "wise_ft",
    "dare_linear": "dare",
}
"""Other names of methods."""

GROUP = "holdfast.merge_methods"
"""Entry points of installed packages that name a `MergeMethod`."""


def find_method(name: str) -> type[MergeMethod]:
    """The method of a name or alias, for which hyphens and capitals do not matter, or of a
    reference to own code.

    Raises:
        ConfigError: there is none, or it cannot be loaded.
    """
    plain = name.strip().lower().replace("-", "_")
    try:
        cls = METHODS.get(ALIASES.get(plain, plain)) or load_class(
            name, base=MergeMethod, group=GROUP
        )
    except ConfigError as error:
        raise ConfigError([problem.below("method") for problem in error.problems]) from error
    if cls is None:
        near = did_you_mean(plain, [*METHODS, *ALIASES])
        or_own = " or your own class, as my_method.py:Name"
        raise ConfigError(
            Problem("method", f"expected one of {', '.join(METHODS)}{or_own}, got '{name}'.{near}")
        )
    lacking = [
        variable for variable in ("name", "needs_base", "models") if not hasattr(cls, variable)
    ]
    if lacking or not dataclasses.is_dataclass(cls):
        text = (
            f"{name} has to be a frozen dataclass with the class variables name, needs_base and "
            "models; "
        )
        raise ConfigError(
            Problem("method", f"{text}{', '.join(lacking) or 'the dataclass'} is missing")
        )
    return cls


def parse_merge_method(
    name: str | type[MergeMethod],
    parameters: Mapping[str, Any] | None = None,
    *,
    models: int | None = None,
) -> tuple[MergeMethod | None, list[Problem]]:
    """Turns a name and parameters, as YAML or a command line has them, into a method.

    Args:
        name: of the method, as `find_method` takes it, or its class.
        parameters: by name. Numbers may be text; weights a list, one number, or text with commas.
        models: how many models there are beside the base; None: not checked.

    Returns:
        The method, None where it could not be built, and every mistake: an unknown name with the
        nearest known one, wrong types, values out of range, a number of models that does not fit.
    """
    try:
        cls = find_method(name) if isinstance(name, str) else name
    except ConfigError as error:
        return None, error.problems
    known = {setting.name: setting for setting in settings_of(cls)}
    known_values, problems = {}, []
    for key, value in (parameters or {}).items():
        if key.replace("-", "_") in known:
            known_values[key] = value
        else:
            problems.append(Problem((), f"{cls.name}: {unknown_key(key, list(known))}"))
    values, wrong = coerce_all(known, known_values)
    absent = [
        missing(setting)
        for name, setting in known.items()
        if setting.required and name not in values
    ]
    if absent:
        return None, [*problems, *absent, *wrong]
    method = with_floats(cls(**values))
    problems += [*wrong, *method.problems(models)]
    return (None if problems else method), problems


def merge_method(name: str, **parameters: Any) -> MergeMethod:
    """A method by name, `merge_method("ties", density=0.5)`.

    Raises:
        ConfigError: with all problems at once. What depends on the number of models is checked when
            they are known, by `MergeMethod.problems`.
    """
    method, problems = parse_merge_method(name, parameters)
    if problems or method is None:
        raise ConfigError(problems, source=f"merge method {name}")
    return method
