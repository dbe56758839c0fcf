"""What a study was asked to do: its YAML, checked as a whole before anything runs.

```yaml
name: code
train: run.yaml                       # a training configuration: a file, or the keys themselves
vary:                                 # see `space`
  retention:
    - label_annealing: {weight: [0.3, 1, 3]}
    - l2: {coefficient: [0.001, 0.01]}
objectives:                           # evaluation entries; several: their mean. Default: the suite of that name
  target: humaneval
  source: [gsm8k, mmlu]
  validation: mbpp                    # left out: settings are chosen by the target itself
seeds: [0, 1, 2]                      # every trial is repeated with each
search: {sampler: grid}               # grid (extend: 2 lets it grow), random, tpe, nsga2; these three with trials: 30
select: {rule: knee}                  # knee, paper, target_within (points: 1)
output_dir: runs/code
```

Direct fine-tuning with the base's own settings is always the first trial: it is what the others are held against.
Imports neither torch nor Optuna until a study is read; the training configurations are checked by the code that will
read them.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

from holdfast.config.declare import MAX_SEED, Meta, Seed, settings_of
from holdfast.config.decode import Given, coerce_all, decode, problems_of
from holdfast.config.schema import json_schema, object_schema
from holdfast.config.values import Mistake, Refused
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, DataError, did_you_mean
from holdfast.records.study import STUDY_FILE
from holdfast.statistics.rules import DEFAULT_RULE, RULES, Rule
from holdfast.studies.engine import small as small_settings
from holdfast.studies.engine.keys import StudyKeys
from holdfast.studies.engine.space import Range, Space, read_space, tried_schema, vary_schema
from holdfast.support.files import fingerprint, read_object
from holdfast.support.paths import expanded
from holdfast.support.secrets import without_secrets

if TYPE_CHECKING:
    from holdfast.studies.engine.study import Job

VALIDATION = "validation"
PARAMS = "params"
"""Attribute of a trial: its combination, fixed beforehand or drawn."""


Sampler = Literal["grid", "random", "tpe", "nsga2"]


@dataclass(frozen=True, kw_only=True)
class Search:
    """How combinations are chosen."""

    sampler: Sampler = "grid"
    trials: Annotated[int | None, Meta(ge=1)] = None
    """Beside direct fine-tuning; None for a grid, whose size is its own."""
    seed: Seed = 0
    extend: Annotated[int, Meta(ge=0)] = 0
    """Values by which a grid may grow at each end of a method's strength, where it does not reach far enough."""

    def problems(self) -> list[Mistake]:
        """A grid counts its trials itself, the other samplers need a number."""
        text = None
        if self.extend and self.sampler != "grid":
            text = f"only a grid has ends to grow at, got {self.extend} with {self.sampler}. Leave it out."
            return [Mistake(path=("extend",), text=text)]
        if self.sampler == "grid" and self.trials is not None:
            text = (
                f"a grid has as many trials as combinations, got {self.trials}. Leave it out, or search with random, "
                f"tpe or nsga2."
            )
        elif self.sampler != "grid" and self.trials is None:
            text = f"expected how many combinations {self.sampler} tries, a whole number of at least 1, got nothing."
        return [] if text is None else [Mistake(path=("trials",), text=text)]


def _entries_schema() -> dict[str, Any]:
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


Entries = Annotated[
    tuple[Any, ...],
    Meta(least=1, expected="names of evaluation entries, such as [gsm8k, mmlu/acc]", json_schema=_entries_schema),
]


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """What a trial is judged by: entries of the evaluation section, as names, `name/metric`, or as (suite, name,
    metric) in a study that was read before."""

    target: Entries = ()
    """What is learnt; several: their mean. Default: all of the suite of that name."""
    source: Entries = ()
    """What is to be kept, likewise."""
    validation: Entries = ()
    """What direct fine-tuning's rate and the trial are chosen by in the target's place, which then reports alone:
    other entries in the target's unit. Default: none, the target chooses."""

    @property
    def resolved(self) -> bool:
        """Whether suites and metrics stand there too, so that the evaluation's files need not be on this machine."""
        found = [*self.target, *self.source, *self.validation]
        whole = all(isinstance(entry, (list, tuple)) and len(entry) == 3 for entry in found)
        return whole and bool(self.target) and bool(self.source)


T = TypeVar("T")


def _section(cls: type[T], value: Mapping[str, Any]) -> T:
    found, mistakes = decode(cls, value)
    if found is None:
        raise Refused(*mistakes)
    return found


def read_search(value: Any) -> Search:
    """A sampler's name, or a mapping.

    Raises:
        ValueError: it is neither.
        Refused: keys or values of the mapping do not fit, each of them named.
    """
    value = {"sampler": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise ValueError
    return _section(Search, {"sampler": "random" if value.get("trials") else "grid", **value})


def read_rule(value: Any) -> dict[str, Any]:
    """A rule's name, or a mapping; as the record keeps it.

    Raises:
        ValueError: it is neither.
        Refused: keys or values of the mapping do not fit, each of them named.
    """
    value = {"rule": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise ValueError
    _section(Rule, value)
    return {"rule": DEFAULT_RULE, **value}


def _or_mapping(cls: type, other: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The schema of a section that a plain value may stand for."""
    return lambda: {"anyOf": [other, object_schema(settings_of(cls))]}


@dataclass(frozen=True, kw_only=True)
class SweepSettings(StudyKeys):
    """Keys of a study."""

    name: str = "study"
    train: Annotated[
        dict[str, Any] | str | None,
        Meta(json_schema=lambda: {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/train"}]}),
    ] = None
    """A training configuration, as a mapping or a YAML file."""
    small: Annotated[str | None, Meta(json_schema=small_settings.settings_schema)] = None
    """Build a small base and data offline, for a study of minutes: code, math, alignment_tax, niche_knowledge,
    tasks."""
    vary: Annotated[
        dict[str, Any],
        Meta(
            expected="keys with what is tried, such as 'learning_rate: [1.0e-5, 3.0e-5]'",
            json_schema=lambda: {"$ref": "#/$defs/vary"},
        ),
    ] = field(default_factory=dict)
    """What is tried: keys of the training configuration with lists or ranges of values."""
    objectives: Objectives = Objectives()
    """{target: entries, source: entries}, default: all entries of the suite of that name; validation: entries that
    settings are chosen by in the target's place."""
    seeds: Annotated[tuple[int, ...], Meta(ge=0, le=MAX_SEED, least=1)] = (0,)
    """Repetitions of every trial."""
    search: Annotated[
        Search,
        Meta(
            parse=read_search,
            expected="a sampler, or a mapping of sampler, trials, seed, extend, until",
            json_schema=_or_mapping(Search, {"enum": list(get_args(Sampler))}),
        ),
    ] = Search()
    """{sampler, trials, seed, extend, until}: grid, which may extend; random, tpe, nsga2, with trials."""
    select: Annotated[
        dict[str, Any],
        Meta(
            parse=read_rule,
            expected="a rule, or a mapping of rule, points, strict",
            json_schema=_or_mapping(Rule, {"enum": list(RULES)}),
        ),
    ] = field(default_factory=dict)
    """{rule, points, strict}: which trial is taken; default: knee, or what the study's folder has recorded."""
    keep: Literal["all", "frontier", "none"] = "all"
    """Whose weights stay on disk."""
    teacher: Literal["auto", "cached", "online"] = "auto"
    """Auto or cached: label annealing's teacher runs once for all trials; online: in each."""

    def problems(self) -> list[Mistake | str]:
        """Names and seeds."""
        found = super().problems()
        if len(set(self.seeds)) < len(self.seeds):
            text = f"expected different whole numbers such as [0, 1, 2], got {list(self.seeds)}."
            found.append(Mistake(path=("seeds",), text=text))
        if (wrong := small_settings.problem_with(self.small)) is not None:
            found.append(Mistake(path=("small",), text=wrong))
        return found


def sweep_schema(train: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """JSON Schema of a study's file.

    Args:
        train: the schema of a training configuration.
        known: its keys that may vary.
    """
    schema = json_schema(SweepSettings, title="holdfast sweep", description="The file of 'holdfast sweep --config'.")
    run = {k: v for k, v in train.items() if k not in ("$schema", "title", "$defs")}
    ranges = object_schema(settings_of(Range))
    names = list(known)
    vary = {"vary": vary_schema(names), "tried": tried_schema(names)}
    return {**schema, "$defs": {**train["$defs"], "train": run, **vary, "range": ranges}}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One objective as asked for."""

    entries: tuple[tuple[str, str, str | None], ...]
    """(suite, name, metric); metric None: the one that leads."""

    @property
    def label(self) -> str:
        names = [f"{name} ({metric})" if metric else name for _, name, metric in self.entries]
        return names[0] if len(names) == 1 else f"mean of {', '.join(names)}"


@dataclass(frozen=True, kw_only=True, repr=False)
class StudyConfig:
    """A study, checked. Made by `load_study` and `study_config`."""

    name: str
    train: dict[str, Any]
    """The base's training configuration, without seed and output folder. With `small`, names such as ${base} are still
    in it."""
    space: Space
    target: Wanted
    source: Wanted
    seeds: tuple[int, ...]
    search: Search
    select: dict[str, Any]
    keep: str
    teacher: str
    workers: int | None
    """None: as many as the machine is good for."""
    output_dir: Path
    storage: str
    """Address of the storage; may hold a password, so it is never shown: see `storage.shown`."""
    small: str | None
    resolved: dict[str, Any]
    """The YAML with the training configuration inside, without what may be secret: what the storage keeps for other
    workers."""
    notes: list[str] = field(default_factory=list)
    validation: Wanted | None = None
    """What the target's side of every choice goes by; None: the target itself."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the names of `small` stand for, once it is made; empty before."""

    @property
    def objectives(self) -> dict[str, Wanted]:
        """By name in the YAML."""
        found = {"target": self.target, "source": self.source}
        return found if self.validation is None else {**found, VALIDATION: self.validation}

    @property
    def judged_by(self) -> tuple[Wanted, Wanted]:
        """Both sides as samplers see them; the target's own figures decide nothing where there is a
        validation."""
        return self.validation or self.target, self.source

    def trials(self) -> list[dict[str, Any]]:
        """What is put in the queue: every combination of a grid; else as many empty ones as trials are wanted. The
        reference comes first."""
        if self.search.sampler != "grid":
            return [{} for _ in range(self.search.trials or 0)]
        seen = {fingerprint(self.reference())}
        found = []
        for params in self.space.grid():
            key = fingerprint(self.settings(params))
            if key not in seen:  # a weight of 0 is direct fine-tuning too, but written otherwise, and stays
                seen.add(key)
                found.append(params)
        return found

    @property
    def measures(self) -> tuple[str, ...]:
        """What a trial reports."""
        return ("target gain" if self.validation is None else "validation gain", "source gain")

    def jobs(self) -> list[Job]:
        """Direct fine-tuning, then every trial, as the storage queues them."""
        from holdfast.studies.engine.study import LABEL, Job

        named = [
            Job(attributes={"direct": False, **({LABEL: self.space.label(p), PARAMS: dict(p)} if p else {})})
            for p in self.trials()
        ]
        return [Job(attributes={"direct": True}), *named]

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The training configuration of a combination."""
        return self._filled(self.space.settings(self.train, params))

    def reference(self) -> dict[str, Any]:
        """The training configuration of direct fine-tuning: the base's own values, and the middle of what it leaves
        open."""
        open_keys = {k: v for k, v in self.space.middle().items() if k not in self.train}
        return self._filled({**copy.deepcopy(self.train), **open_keys, "retention": []})

    def _filled(self, settings: dict[str, Any]) -> dict[str, Any]:
        return small_settings.fill(settings, self.names) if self.names else settings

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What keeps the study whose `resolved` is `old` from being this one, a line a key. The selection may
        change; trials may be added, and alternatives behind those of a grid."""
        before, now = deciding(old), deciding(self.resolved)
        there, here = before.get(ALTERNATIVES), now.get(ALTERNATIVES)
        lists = isinstance(there, list) and isinstance(here, list) and self.search.sampler == "grid"
        if lists and there == list(here or ())[: len(there or ())]:
            before[ALTERNATIVES] = here
        changed = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
        found = [f"{key}: {_brief(before.get(key))} there, {_brief(now.get(key))} now" for key in changed]
        trials = (old.get("search") or {}).get("trials")
        if trials and self.search.trials and self.search.trials < trials:
            found.append(
                f"search.trials: {trials} there, {self.search.trials} now; trials can be added, not taken back"
            )
        return found


ALTERNATIVES = "vary.retention"


def deciding(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What two studies must share to be one, flat: `{"vary.learning_rate": ..., "train.max_steps": ...}`."""
    found: dict[str, Any] = {}
    for key in ("small", "train", "vary", "objectives", "seeds", "teacher"):
        value = resolved.get(key)
        if isinstance(value, Mapping) and key in ("train", "vary", "objectives"):
            found.update({f"{key}.{k}": v for k, v in value.items()})
        else:
            found[key] = value
    search = resolved.get("search") or {}
    found["search.sampler"] = search.get("sampler", "grid")
    if search.get("sampler", "grid") != "grid":
        found["search.seed"] = search.get("seed", 0)
    return found


def _brief(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 100 else text[:97] + "..."


# -------------------------------------------------------------------------------------------------------------- loading


def load_study(path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> StudyConfig:
    """The study in a YAML file.

    Args:
        path: the file.
        overrides: keys that win over the file's, as the command line gives them.

    Raises:
        ConfigError: with every mistake at once.
    """
    path = expanded(path)
    given = read_yaml(path)
    changed = {k: v for k, v in (overrides or {}).items() if v is not None}
    given.values = {"name": path.stem, **given.values, **changed}
    given.from_line |= set(changed)
    return study_config(given, beside=path.parent, source=str(path))


def study_config(
    values: Mapping[str, Any] | Given,
    *,
    beside: Path | None = None,
    source: str | None = None,
    prepared: bool = False,
) -> StudyConfig:
    """A study from keys as in the YAML, everything checked that can be before anything runs.

    Args:
        values: keys of `SweepSettings`.
        beside: folder that `train: file.yaml` is looked up in, before the working directory.
        source: where the keys came from, for the message.
        prepared: leaves the training configurations unchecked: their files are not there yet (`small:`), or were
            checked by who made the study.

    Raises:
        ConfigError: with every mistake at once.
    """
    from holdfast.runs.settings import known_keys

    given = values if isinstance(values, Given) else Given(values=dict(values))
    known = {s.name: s for s in settings_of(SweepSettings)}
    sound, mistakes = coerce_all(known, given.set_here(SweepSettings))
    refused = {m.path[0] for m in mistakes if m.path}
    asked = SweepSettings(**sound)
    mistakes += [m for m in problems_of(asked) if m.path[0] not in refused]
    refused |= {m.path[0] for m in mistakes if m.path}
    found = given.sentences([*given.mistakes, *mistakes])
    small = None if "small" in refused else small_settings.recorded(asked.small)
    notes: list[str] = []
    train = _train(asked.train, beside, found, notes) if "train" not in refused else {}
    search = asked.search
    space = read_space(
        asked.vary,
        train.get("retention"),
        grid=search.sampler == "grid",
        known=known_keys(),
        problems=found,
    )
    if not asked.vary and "vary" not in refused:
        found.append(
            "vary: is missing; expected what is tried, such as 'retention: [{label_annealing: {weight: [0.3, 1, 3]}}]'"
        )
    if (
        search.sampler != "grid"
        and not any(space.parameters(a) for a in space.alternatives)
        and len(space.alternatives) < 2
        and not found
    ):
        found.append(f"vary: nothing varies, so there is nothing for {search.sampler} to search")
    if search.extend and not found and not any(space.strengths(a) for a in space.alternatives):
        found.append(
            "search.extend: expected at least two values above 0 of a method's strength to go on with, such as "
            "'label_annealing: {weight: [0.3, 1]}', got none"
        )
    sides = asked.objectives
    if prepared and sides.resolved:
        given_sides = {side: getattr(sides, side) for side in ("target", "source", VALIDATION)}
        wanted = {side: Wanted(entries=tuple((s, n, m) for s, n, m in e)) for side, e in given_sides.items() if e}
    else:
        wanted = _objectives(sides, train.get("evaluation"), small, found)
    folder = asked.folder
    select = asked.select or _recorded_selection(folder) or {"rule": DEFAULT_RULE}
    resolved = {
        "name": asked.name,
        "small": small,
        "train": without_secrets(train),
        "vary": asked.vary,
        "objectives": {side: [list(e) for e in w.entries] for side, w in wanted.items()},
        "seeds": list(asked.seeds),
        "search": {k: v for k, v in dataclasses.asdict(search).items() if k != "extend" or v},
        "select": select,
        "keep": asked.keep,
        "teacher": asked.teacher,
        "output_dir": str(folder),
    }
    config = StudyConfig(
        name=asked.name,
        train=train,
        space=space,
        target=wanted["target"],
        source=wanted["source"],
        validation=wanted.get(VALIDATION),
        seeds=asked.seeds,
        search=search,
        select=select,
        keep=asked.keep,
        teacher=asked.teacher,
        workers=asked.workers,
        output_dir=folder,
        storage=asked.database,
        small=small,
        resolved=resolved,
        notes=notes,
    )
    if not prepared and train and not small:
        found += check_trials(config, base_only=bool(found))
    elif not prepared and train and not found:
        found += small_settings.problems_before(small, lambda names: check_trials(filled(config, names)))
    if found:
        raise ConfigError(list(dict.fromkeys(found)), source=source)
    return config


def _recorded_selection(folder: Path) -> dict[str, Any]:
    """The rule of the study that a folder holds, which it keeps where none is asked for; empty without one."""
    try:
        found = read_object(expanded(folder) / STUDY_FILE).get("selection")
    except (DataError, OSError):
        return {}
    return {str(k): v for k, v in found.items() if v is not None} if isinstance(found, Mapping) else {}


def filled(config: StudyConfig, names: Mapping[str, str]) -> StudyConfig:
    """The study with paths in the place of its small setting's names.

    Raises:
        ConfigError: a name that the setting does not make.
    """
    return dataclasses.replace(config, train=small_settings.fill(config.train, names), names=names)


def check_trials(config: StudyConfig, *, base_only: bool = False) -> list[str]:
    """Builds the training configuration of the reference, and one for every value that is tried; what is wrong with
    them, each thing once.

    Args:
        config: the study, with nothing left open.
        base_only: only the reference, where what varies is known to be wrong.
    """
    from holdfast.runs.config import train_config

    def problems_of(settings: Mapping[str, Any]) -> list[str]:
        environment = dict(os.environ)
        try:
            train_config({**settings, "output_dir": str(config.output_dir / "runs" / "trial"), "seed": config.seeds[0]})
        except ConfigError as error:
            return error.problems
        finally:
            os.environ.clear()
            os.environ.update(environment)
        return []

    base = problems_of(config.reference())
    found = [f"train: {p}" for p in base]
    for params in () if base_only else config.space.corners():
        for problem in problems_of(config.settings(params)):
            if problem not in base:
                base.append(problem)
                found.append(f"vary: {config.space.label(params)}: {problem}")
    return found


# ------------------------------------------------------------------------------------------------------------- the keys


def _train(value: Any, beside: Path | None, problems: list[str], notes: list[str]) -> dict[str, Any]:
    if isinstance(value, str):
        places = [p for p in ((beside / value) if beside else None, Path(value)) if p is not None]
        path = next((p for p in places if p.is_file()), places[-1])
        try:
            given = read_yaml(path, option="train:")
        except ConfigError as error:
            problems += error.problems
            return {}
        problems += [f"{path}: {p}" for p in given.sentences(given.mistakes)]
        value = given.values
    if not isinstance(value, Mapping):
        problems.append(
            f"train: expected a training configuration, as keys or as a YAML file, got "
            f"{'nothing' if value is None else repr(value)}"
        )
        return {}
    train = {str(k): v for k, v in value.items()}
    for key, instead in (
        ("output_dir", "every trial has a folder of its own"),
        ("seed", "'seeds:' of the study repeats every trial"),
    ):
        if train.pop(key, None) is not None:
            notes.append(f"train.{key} has no effect: {instead}.")
    return train


def _objectives(asked: Objectives, evaluation: Any, small: str | None, problems: list[str]) -> dict[str, Wanted]:
    """The objectives, their entries looked up in the evaluation section."""
    import tempfile

    from holdfast.evaluation.averages import SUITE
    from holdfast.evaluation.suite import parse_evaluation

    nothing = dict.fromkeys(("target", "source"), Wanted(entries=()))
    with tempfile.TemporaryDirectory() as place:
        if small is not None:  # its files are not there yet; only names and kinds matter here
            names = small_settings.stand_ins(small, place)
            for file in names.values():
                Path(file).touch()
            try:
                evaluation = small_settings.fill(evaluation, names)
            except ConfigError as error:
                problems += error.problems
                return nothing
        plan, wrong = parse_evaluation(evaluation)
    if wrong:
        problems += [f"train: {p}" for p in wrong]
        return nothing
    kinds = {(e.suite, e.name): e.kind for e in plan.entries} | {(SUITE, a.name): "average" for a in plan.averages}
    if not plan.before:
        problems.append(
            "train.evaluation.before: false leaves the start unmeasured, which every trial is compared with. Leave it "
            "out."
        )
    found = {VALIDATION: _wanted(VALIDATION, asked.validation, kinds, problems)} if asked.validation else {}
    aside = {(s, n) for w in found.values() for s, n, _ in w.entries}
    left = [(s, n, None) for s, n in kinds if s == "target" and (s, n) not in aside] if aside else []
    found["target"] = _wanted("target", asked.target or left, kinds, problems)
    found["source"] = _wanted("source", asked.source, kinds, problems)
    named = {side: {(s, n) for s, n, _ in w.entries} for side, w in found.items()}
    if both := named["target"] & named["source"]:
        problems.append(
            f"objectives: {', '.join(n for _, n in sorted(both))} cannot be learnt and kept at once; name it on one "
            f"side"
        )
    members = {(SUITE, a.name): {(s, n) for s, n, _ in a.members} for a in plan.averages}
    whole = {side: set().union(*(members.get(k, {k}) for k in keys)) for side, keys in named.items()}
    for side in ("target", "source") if VALIDATION in whole else ():
        if both := whole[VALIDATION] & whole[side]:
            problems.append(
                f"objectives.validation: {', '.join(n for _, n in sorted(both))} is in the {side} too, so it would "
                f"choose what it reports. Expected other held-out entries."
            )
    if VALIDATION in found and len({_is_text(s, n, kinds) for w in (VALIDATION, "target") for s, n in whole[w]}) > 1:
        problems.append(
            f"objectives.validation: expected entries in the unit of the target ({found['target'].label}), got "
            f"{found[VALIDATION].label}: one is nats of text, the other shares."
        )
    return {side: found[side] for side in ("target", "source", VALIDATION) if side in found}


def _wanted(side: str, asked: Sequence[Any], kinds: Mapping[tuple[str, str], str], problems: list[str]) -> Wanted:
    """One objective, its entries looked up among those that are measured, `kinds` by (suite, name)."""
    entries: list[tuple[str, str, str | None]] = [(s, n, None) for s, n in kinds if s == side] if not asked else []
    names = [n for _, n in kinds]
    home = "target" if side == VALIDATION else side
    if not asked and not entries:
        advice = f"Entries: {', '.join(names)}." if names else "Add an evaluation section with source and target."
        problems.append(f"objectives.{side}: is missing, and train.evaluation measures nothing as {side}. {advice}")
    for item in asked:
        suite, name, metric = item if isinstance(item, (list, tuple)) else (None, *str(item).partition("/")[::2])
        found = [key for key in kinds if key[1] == name and suite in (None, key[0])]
        found = [key for key in found if key[0] == home] or found
        if found:
            entries.append((*found[0], metric or None))
            continue
        problems.append(
            f"objectives.{side}: '{name}' is not among the evaluation entries.{did_you_mean(str(name), names)} "
            f"Entries: {', '.join(names) or 'none'}."
        )
    text = [n for s, n, _ in entries if _is_text(s, n, kinds)]
    if text and len(text) < len(entries):
        problems.append(
            f"objectives.{side}: nats and shares have no mean. Expected entries of one unit, got text "
            f"({', '.join(text)}) beside tasks."
        )
    return Wanted(entries=tuple(entries))


def _is_text(suite: str, name: str, kinds: Mapping[tuple[str, str], str]) -> bool:
    return kinds.get((suite, name)) in ("perplexity", "memorisation")
