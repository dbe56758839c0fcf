"""The keys of a sweep, declared once; what varies is declared in `engine.space`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from holdfast.config.declare import Meta, Seed, settings_of
from holdfast.config.decode import decode
from holdfast.config.schema import json_schema, object_schema
from holdfast.config.values import Refused
from holdfast.errors import Problem
from holdfast.studies.engine.keys import BaseStudySettings, SeedSettings, ToySettings
from holdfast.studies.engine.space import Range, arms_schema, tried_schema, vary_schema

VALIDATION = "validation"
Sampler = Literal["grid", "random", "tpe", "nsga2"]


@dataclass(frozen=True, kw_only=True)
class Search:
    """How combinations are chosen."""

    sampler: Sampler = "grid"
    """How trials are chosen: every point of a grid, or a sampler."""
    trials: Annotated[int | None, Meta(ge=1)] = None
    """Number of trials in addition to direct fine-tuning. None for a grid, which tries every
    combination."""
    seed: Seed = 0
    """Seed of the sampler."""

    def problems(self) -> list[Problem]:
        """A grid counts its trials itself, the other samplers need a number."""
        is_grid = self.sampler == "grid"
        if is_grid == (self.trials is None):
            return []
        text = (
            f"expected the number of combinations that {self.sampler} tries, a whole number of at "
            "least 1, got nothing."
        )
        if is_grid:
            text = (
                f"a grid tries every combination, so the number of trials is fixed; got "
                f"{self.trials}. Leave it out, or search with random, tpe or nsga2."
            )
        return [Problem("trials", text)]


def _entries_schema() -> dict[str, Any]:
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def read_entries(value: Any) -> tuple[Any, ...]:
    """Names of entries, one alone too.

    Raises:
        ValueError: something else.
    """
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)):
        raise ValueError
    return tuple(entries)


Entries = Annotated[
    tuple[Any, ...],
    Meta(
        parse=read_entries,
        expected="names of evaluation entries, such as [gsm8k, mmlu/acc]",
        json_schema=_entries_schema,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """What a trial is judged by: entries of the evaluation section, as names, `name/metric`, or as
    (suite, name, metric) in a study that was read before."""

    learn: Annotated[Entries, Meta(former=("target",))] = ()
    """Entries that measure learning; several are averaged. Default: all entries of the suite
    `learn`."""
    keep: Annotated[Entries, Meta(former=("source",))] = ()
    """Entries that measure keeping; several are averaged. Default: all entries of the suite
    `keep`."""
    validation: Entries = ()
    """Entries that choose the trial, and direct fine-tuning's learning rate. They need the unit of
    `learn`, whose entries are then only reported. Default: the entries of `learn`."""

    @property
    def resolved(self) -> bool:
        """Whether suites and metrics stand there too, so that the evaluation's files need not be on
        this machine."""
        if not self.learn or not self.keep:
            return False
        entries = [*self.learn, *self.keep, *self.validation]
        return all(isinstance(entry, (list, tuple)) and len(entry) == 3 for entry in entries)


def read_rule(value: Any) -> dict[str, Any]:
    """A rule as the record keeps it.

    Raises:
        ValueError: no mapping.
        Refused: keys or values of the mapping do not fit, each of them named.
    """
    from holdfast.statistics.rules import DEFAULT_RULE, Rule

    if not isinstance(value, Mapping):
        raise ValueError
    _, problems = decode(Rule, value)
    if problems:
        raise Refused(*problems)
    return {"rule": DEFAULT_RULE, **value}


def _rule_schema() -> dict[str, Any]:
    from holdfast.statistics.rules import Rule

    return object_schema(settings_of(Rule))


@dataclass(frozen=True, kw_only=True)
class SweepSettings(SeedSettings, ToySettings, BaseStudySettings):
    """Keys of a study."""

    name: str = "study"
    train: dict[str, Any] | str | None = None
    """A training configuration, as a mapping or a YAML file."""
    arms: list[Any] = field(default_factory=list)
    """Ways to train, which are compared: retention methods, combinations, direct, other settings.
    Each value in a list is tried."""
    vary: Annotated[
        dict[str, Any],
        Meta(expected="keys with the values to try, such as 'learning_rate: [1.0e-5, 3.0e-5]'"),
    ] = field(default_factory=dict)
    """Keys of the training configuration, with lists or ranges of values to try."""
    objectives: Annotated[Objectives, Meta(metavar="'{...}'")] = Objectives()
    """{learn: entries, keep: entries}; default: all entries of these suites. validation:
    entries that choose settings in place of `learn`."""
    search: Annotated[Search, Meta(metavar="'{...}'")] = Search()
    """{sampler, trials, seed}. Samplers: grid; random, tpe and nsga2, which need trials."""
    select: Annotated[
        dict[str, Any],
        Meta(
            parse=read_rule,
            expected="a mapping of rule, points, strict",
            json_schema=_rule_schema,
        ),
    ] = field(default_factory=dict)
    """{rule, points, strict}: how one trial is chosen. Default: knee, or the rule that the study's
    folder has recorded."""
    keep_weights: Literal["all", "frontier", "none"] = "all"
    """Models whose weights stay on disk."""
    teacher: Literal["auto", "cached", "online"] = "auto"
    """Label annealing's teacher. auto or cached: computed once for all trials; online: computed in
    each trial."""


def sweep_schema(train: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """JSON Schema of a study's file.

    Args:
        train: the schema of a training configuration.
        known: its keys that may vary.
    """
    schema = json_schema(
        SweepSettings, title="holdfast sweep", description="The file of 'holdfast sweep --config'."
    )
    references: dict[str, dict[str, Any]] = {
        "arms": {"$ref": "#/$defs/arms"},
        "vary": {"$ref": "#/$defs/vary"},
    }
    references["train"] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/train"}]}
    for key, reference in references.items():
        schema["properties"][key] = {
            "description": schema["properties"][key]["description"],
            **reference,
        }
    run = {k: v for k, v in train.items() if k not in ("$schema", "title", "$defs")}
    ranges = object_schema(settings_of(Range))
    names = list(known)
    vary = {"arms": arms_schema(), "vary": vary_schema(names), "tried": tried_schema(names)}
    return {**schema, "$defs": {**train["$defs"], "train": run, **vary, "range": ranges}}
