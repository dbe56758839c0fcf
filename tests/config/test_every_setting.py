"""One law over all declared settings: every command's, every method's, every evaluation entry's.

Every field is explained; its default passes its own coercion and its schema; a value of another kind is refused with
the key's name, and so is what lies just outside a bound, while the bound itself is taken if it belongs; numbers may be
given as text; a mistyped key is answered with the right one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from declared_commands import declared_commands
from holdfast.checkpoints.methods.registry import METHODS as MERGE_METHODS
from holdfast.cli.main import main
from holdfast.config.command_line import Command
from holdfast.config.declare import Setting, in_bounds, settings_of
from holdfast.config.decode import coerce, decode, expected
from holdfast.config.schema import setting_schema
from holdfast.config.values import Refused
from holdfast.data.layouts import Templates
from holdfast.evaluation.kinds import KINDS
from holdfast.retention.registry import METHODS
from holdfast.runs.settings import OwnSettings
from holdfast.support.files import to_jsonable
from holdfast.training.adapters import AdapterArguments


def commands() -> list[Command[Any]]:
    return list(declared_commands().values())


def declared() -> dict[str, type]:
    """All settings dataclasses by name, those of nested sections too."""
    found = {f"{c.name}: {c.request.__name__}": c.request for c in commands()}
    found |= {f"retention: {name}": cls for name, cls in METHODS.items()}
    found |= {f"merge: {name}": cls for name, cls in MERGE_METHODS.items()}
    found |= {f"evaluation: {name}": kind for name, kind in KINDS.items()}
    found |= {cls.__name__: cls for cls in (OwnSettings, AdapterArguments, Templates)}
    for name, cls in list(found.items()):
        for setting in settings_of(cls):
            found |= {f"{name}.{setting.name}": t for t in setting.types if dataclasses.is_dataclass(t)}
    return found


DECLARED = declared()
SETTINGS = {f"{name}.{s.name}": s for name, cls in DECLARED.items() for s in settings_of(cls)}
PLAIN = {name: s for name, s in SETTINGS.items() if s.meta.parse is None and Any not in s.types}
"""Settings whose type says what they take."""
OPTIONAL = {name: s for name, s in SETTINGS.items() if not s.required}
NUMBERS = {name: s for name, s in PLAIN.items() if set(s.types) <= {int, float} and not s.choices}


def for_every(items: Mapping[str, Any]) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Makes one test of a check: it looks at every item and names all that fail.

    One item of the suite for each of a thousand settings would spend most of its time between tests.
    """

    def decorate(check: Callable[[Any], None]) -> Callable[[], None]:
        def test() -> None:
            failures: list[str] = []
            for name, item in items.items():
                try:
                    check(item)
                except (Exception, pytest.fail.Exception) as error:
                    failures.append(f"{name}: {type(error).__name__}: {error}")
            assert items and not failures, "\n".join(failures)

        return test

    return decorate


def sample(setting: Setting) -> int | float:
    """A number within a setting's bounds."""
    meta, whole = setting.meta, float not in setting.types
    low = meta.ge if meta.ge is not None else meta.gt
    high = meta.le if meta.le is not None else meta.lt
    tried = [0.5 * ((low or 0) + (high if high is not None else (low or 0) + 4)), low, high, 1, 2, 0]
    return next(
        int(x) if whole else float(x)
        for x in tried
        if x is not None and (not whole or x == int(x)) and in_bounds(x, meta)
    )


@for_every(SETTINGS)
def test_it_is_explained(setting: Setting) -> None:
    assert len(setting.help) > 3 and setting.help[-1] in ".):"
    assert expected(setting)


@for_every({name: s for name, s in PLAIN.items() if name in OPTIONAL})
def test_its_default_is_a_value_of_it(setting: Setting) -> None:
    assert coerce(setting, setting.default) == setting.default


@for_every({name: s for name, s in OPTIONAL.items() if s.meta.yaml})
def test_its_schema_takes_the_default(setting: Setting) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    given = setting.default
    if dataclasses.is_dataclass(given):
        given = {k: v for k, v in dataclasses.asdict(given).items() if v is not None}  # type: ignore[arg-type]
    if given is not None or setting.optional:
        jsonschema.Draft202012Validator(setting_schema(setting)).validate(to_jsonable(given))


@for_every(PLAIN)
def test_another_kind_of_value_is_refused_by_name(setting: Setting) -> None:
    with pytest.raises(Refused) as refused:
        coerce(setting, object())
    assert refused.value.problems[0].path[0] == setting.name
    assert "expected" in refused.value.problems[0].text
    if not setting.takes_many and not setting.is_mapping and str not in setting.types:
        for wrong in ([[]], {"a": {}}, "no such value, surely"):
            if isinstance(wrong, dict) and any(map(dataclasses.is_dataclass, setting.types)):
                continue
            if isinstance(wrong, str) and any("Path" in str(t) for t in setting.types):
                continue
            with pytest.raises(Refused):
                coerce(setting, wrong)


@for_every({name: s for name, s in PLAIN.items() if s.choices})
def test_its_choices_are_taken_and_the_nearest_is_named(setting: Setting) -> None:
    for choice in setting.choices:
        assert coerce(setting, choice) == choice
        assert choice is None or coerce(setting, str(choice)) == choice
    word = next((c for c in setting.choices if isinstance(c, str) and len(c) > 4), None)
    if word is not None:
        with pytest.raises(Refused, match="Did you mean"):
            coerce(setting, word[:-1] + "~")


@for_every(NUMBERS)
def test_its_bounds_hold_and_numbers_may_be_text(setting: Setting) -> None:
    meta, whole = setting.meta, float not in setting.types
    value = sample(setting)
    assert coerce(setting, value) == coerce(setting, str(value)) == coerce(setting, f"{value:e}") == value
    if whole:
        assert coerce(setting, float(value)) == value and type(coerce(setting, float(value))) is int
    step = 1 if whole else 1e-9
    for bound, inside, sign in ((meta.ge, True, -1), (meta.gt, False, -1), (meta.le, True, 1), (meta.lt, False, 1)):
        if bound is None:
            continue
        exact = int(bound) if whole and bound == int(bound) else bound
        if inside:
            assert coerce(setting, exact) == exact
        for beyond in (exact + sign * step, *(() if inside else (exact,))):
            with pytest.raises(Refused, match=setting.name):
                coerce(setting, beyond)
    for wrong in (True, math.nan, "nan", "many"):
        with pytest.raises(Refused, match=setting.name):
            coerce(setting, wrong)


@for_every(DECLARED)
def test_a_mistyped_key_is_answered_with_the_right_one(cls: type) -> None:
    shown = [s.name for s in settings_of(cls) if len(s.name) > 5]
    for name in shown:
        mistyped = name[:3] + name[4:]
        if mistyped in {s.name for s in settings_of(cls)}:
            continue
        _, problems = decode(cls, {mistyped: 1})
        assert any(f"unknown key '{mistyped}'. Did you mean '" in m.text for m in problems)


@pytest.mark.parametrize(
    ("words", "nowhere"),
    [
        (["merge", "./no", "./nowhere", "--method", "ties"], ["models: ", "./nowhere"]),
        (["residual", "extract", "--base", "./nowhere"], ["--base: ", "./nowhere"]),
        (["residual", "apply", "--residual", "./nowhere"], ["--residual: ", "./nowhere"]),
        (["fisher", "./nowhere"], ["model: ", "./nowhere"]),
        (["data", "prepare", "--input", "no.json"], ["--input: ", "no.json"]),
    ],
    ids=lambda words: words[0] + " " + words[1],
)
def test_files_that_are_not_there_are_named_beside_keys_that_are_missing(
    words: list[str], nowhere: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any("is missing: expected" in line for line in lines)
    assert any(all(word in line for word in nowhere) for line in lines)
