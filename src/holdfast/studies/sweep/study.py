"""What a study was asked to do: its YAML, checked as a whole before anything runs.

```yaml
name: code
train: run.yaml                       # a training configuration: a file, or the keys themselves
arms:                                 # see `engine.space`
  - label_annealing: {weight: [0.3, 1, 3]}
  - l2: {coefficient: [0.001, 0.01]}
objectives:                           # evaluation entries; several: their mean. Default: the suite of that name
  learn: humaneval
  keep: [gsm8k, mmlu]
  validation: mbpp                    # left out: settings are chosen by `learn` itself
seeds: [0, 1, 2]                      # every trial is repeated with each
search: {sampler: grid}               # grid, random, tpe, nsga2; these three with trials: 30
select: {rule: knee}                  # knee, paper, keep_within (points: 1)
output_dir: runs/code
```

Direct fine-tuning with the base's own settings is always the first trial: it is what the others are
held against. Imports neither torch nor Optuna until a study is read; the training configurations
are checked by the code that will read them.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.config.declare import settings_of
from holdfast.config.decode import coerce_all
from holdfast.config.raw_request import RawRequest
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, DataError, Problem, did_you_mean
from holdfast.records.study import STUDY_FILE
from holdfast.statistics.rules import DEFAULT_RULE
from holdfast.studies.engine import toy as toy_settings
from holdfast.studies.engine.base import StudyConfigBase
from holdfast.studies.engine.space import Space, read_space
from holdfast.studies.engine.study import LABEL, Job
from holdfast.studies.sweep.settings import VALIDATION, Objectives, Search, SweepSettings
from holdfast.support.files import fingerprint, read_object
from holdfast.support.paths import expanded
from holdfast.support.secrets import without_secrets

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan

PARAMS = "params"
"""Attribute of a trial: its combination, fixed beforehand or drawn."""
ARMS = "arms"


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """One objective as asked for."""

    entries: tuple[tuple[str, str, str | None], ...]
    """(suite, name, metric); metric None: the first one."""

    @property
    def label(self) -> str:
        """For people."""
        names = []
        for _, name, metric in self.entries:
            names.append(f"{name} ({metric})" if metric else name)
        return names[0] if len(names) == 1 else f"mean of {', '.join(names)}"


@dataclass(frozen=True, kw_only=True, repr=False)
class StudyConfig(StudyConfigBase[SweepSettings]):
    """A sweep."""

    settings_class: ClassVar[type[Any]] = SweepSettings
    later: ClassVar[tuple[str, ...]] = ()

    @functools.cached_property
    def train(self) -> dict[str, Any]:
        """The base's training configuration, without seed and output folder. With `toy`, names such
        as ${base} are still in it."""
        return _train(self.request)

    @property
    def base(self) -> str:
        """The model that every trial begins with."""
        return str(self.train.get("model_name_or_path"))

    @functools.cached_property
    def space(self) -> Space:
        """What varies."""
        return _space(self.request, [])

    @functools.cached_property
    def objectives(self) -> dict[str, ObjectiveSettings]:
        """By name in the YAML."""
        return _objectives(self.request, [])

    @property
    def learn(self) -> ObjectiveSettings:
        """What is learnt."""
        return self.objectives["learn"]

    @property
    def keep(self) -> ObjectiveSettings:
        """What is to be kept."""
        return self.objectives["keep"]

    @property
    def validation(self) -> ObjectiveSettings | None:
        """What every choice goes by in place of `learn`; None: `learn` itself."""
        return self.objectives.get(VALIDATION)

    @property
    def select(self) -> dict[str, Any]:
        """The rule that takes a trial."""
        return self.request.select

    @property
    def search(self) -> Search:
        """How combinations are chosen."""
        return self.request.search

    @property
    def notes(self) -> list[str]:
        """Keys of the training configuration that have no effect."""
        notes = []
        for key, instead in SET_BY_STUDY.items():
            if isinstance(self.request.train, Mapping) and key in self.request.train:
                notes.append(f"train.{key} has no effect: {instead}.")
        return notes

    @property
    def judged_by(self) -> tuple[ObjectiveSettings, ObjectiveSettings]:
        """Both sides as samplers see them; the figures of `learn` decide nothing where there is a
        validation."""
        return self.validation or self.learn, self.keep

    @property
    def measures(self) -> tuple[str, ...]:
        """What a trial reports."""
        return ("learn gain" if self.validation is None else "validation gain", "keep gain")

    # --------------------------------------------------------------------------------------- trials

    def trials(self) -> list[dict[str, Any]]:
        """What is put in the queue: every combination of a grid; else as many empty ones as trials
        are wanted. The reference comes first."""
        search = self.request.search
        if search.sampler != "grid":
            return [{} for _ in range(search.trials or 0)]
        known = {fingerprint(self.reference())}
        trials = []
        for params in self.space.grid():
            key = fingerprint(self.settings(params))
            if (
                key not in known
            ):  # a weight of 0 is direct fine-tuning too, but written otherwise, and stays
                known.add(key)
                trials.append(params)
        return trials

    def jobs(self) -> list[Job]:
        """Direct fine-tuning, then every trial, as the storage queues them."""
        jobs = [Job(attributes={"direct": True})]
        for params in self.trials():
            known = {LABEL: self.space.label(params), PARAMS: dict(params)} if params else {}
            jobs.append(Job(attributes={"direct": False, **known}))
        return jobs

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The training configuration of a combination."""
        return dict(self.with_paths(self.space.settings(self.train, params)))

    def reference(self) -> dict[str, Any]:
        """The training configuration of direct fine-tuning: the base's own values, and the middle
        of what it leaves open."""
        settings = copy.deepcopy(self.train)
        for key, value in self.space.middle().items():
            settings.setdefault(key, value)
        settings["retention"] = []
        return dict(self.with_paths(settings))

    # --------------------------------------------------------------------------- resuming, checking

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What keeps the study whose `resolved` is `old` from being this one, a line a key. The
        selection may change; trials may be added, and arms behind those of a grid."""
        before, now, search = deciding(old), deciding(self.resolved), self.request.search
        old_arms, arms = before.get(ARMS), now.get(ARMS)
        if isinstance(old_arms, list) and isinstance(arms, list) and search.sampler == "grid":
            before[ARMS] = arms if arms[: len(old_arms)] == old_arms else old_arms
        differences = []
        for key in dict.fromkeys([*before, *now]):
            if before.get(key) != now.get(key):
                differences.append(
                    f"{key}: {_brief(before.get(key))} before, {_brief(now.get(key))} now"
                )
        trials = (old.get("search") or {}).get("trials")
        if trials and search.trials and search.trials < trials:
            text = f"{trials} before, {search.trials} now; trials can be added, but not removed"
            differences.append(f"search.trials: {text}")
        return differences

    def runs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The reference, and one for every value that is tried."""
        checked = {
            "output_dir": str(self.output_dir / "runs" / "trial"),
            "seed": self.request.seeds[0],
        }
        yield "train", {**self.reference(), **checked}
        for params in self.space.corners():
            yield f"vary: {self.space.label(params)}", {**self.settings(params), **checked}

    def part_problems(self) -> Sequence[str]:
        """What is wrong with the trainings."""
        return self.run_problems()

    @staticmethod
    def normalised(request: SweepSettings) -> SweepSettings:
        """The rule of the study that the folder holds, where none is asked for."""
        return dataclasses.replace(
            request,
            select=request.select or _recorded_selection(request.folder) or {"rule": DEFAULT_RULE},
        )

    @staticmethod
    def settings_problems(request: SweepSettings) -> Sequence[str]:
        """What is wrong with what varies, and with what is looked at."""
        if not request.train:
            return [
                Problem(
                    "train",
                    "expected a training configuration, as keys or as a YAML file, got nothing",
                )
            ]
        problems: list[str] = []
        _space(request, problems)
        _objectives(request, problems)
        return problems

    @staticmethod
    def recorded(request: SweepSettings, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as a record keeps them, the objectives with their suites."""
        objectives = {}
        for side, objective in _objectives(request, []).items():
            objectives[side] = list(map(list, objective.entries))
        train = without_secrets(_train(request))
        return {
            **StudyConfigBase.recorded(request, given),
            "train": train,
            "objectives": objectives,
        }

    @classmethod
    def read(
        cls,
        values: Mapping[str, Any] | RawRequest,
        *,
        source: str | None = None,
        check: bool = True,
    ) -> StudyConfig:
        """See `StudyConfigBase.read`; `train:` may name a file, which is looked up beside the
        study's first."""
        request = (
            values
            if isinstance(values, RawRequest)
            else RawRequest(values=dict(values), file=source)
        )
        train = request.values.get("train")
        if isinstance(train, str):
            path = Path(train)
            beside = Path(request.file or "").parent / train
            if beside.is_file():
                path = beside
            try:
                file = read_yaml(path, option="train:")
                problems: list[str] = [
                    f"{path}: {problem}" for problem in file.sentences(file.problems)
                ]
                request.values["train"] = file.values
            except ConfigError as error:
                problems = [*error.problems]
            request.problems += [Problem("train", problem) for problem in problems]
        try:
            return super().read(request, source=source, check=check)
        except ConfigError as error:
            problems = [*error.problems, *cls._other_problems(request)]
            raise ConfigError(
                list(dict.fromkeys(problems)), source=source or request.file
            ) from None

    @classmethod
    def _other_problems(cls, request: RawRequest) -> Sequence[str]:
        """What is wrong beside settings that were refused, as far as it can be seen without
        them."""
        known = {setting.name: setting for setting in settings_of(SweepSettings)}
        sound, mistakes = coerce_all(known, request.set_here(SweepSettings))
        refused = {
            str(mistake.path[0]) for mistake in (*request.problems, *mistakes) if mistake.path
        }
        settings = SweepSettings(**sound)
        problems: list[str] = []
        for problem in cls.settings_problems(settings):
            if re.split(r"[.\[:]", problem)[0] not in refused:
                problems.append(problem)
        if settings.train and not settings.toy:
            alone = dataclasses.replace(settings, arms=[], vary={})
            reference = cls(
                request=alone, output_dir=alone.folder, storage="", names={}, resolved={}
            )
            problems += reference.run_problems()
        return problems


def deciding(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What two studies must share to be one, flat:
    `{"vary.learning_rate": ..., "train.max_steps": ...}`."""
    flat: dict[str, Any] = {}
    for key in ("toy", "train", "arms", "vary", "objectives", "seeds", "teacher"):
        value = resolved.get(key)
        if isinstance(value, Mapping):
            for name, item in value.items():
                flat[f"{key}.{name}"] = item
        else:
            flat[key] = value
    search = resolved.get("search") or {}
    flat["search.sampler"] = search.get("sampler", "grid")
    if flat["search.sampler"] != "grid":
        flat["search.seed"] = search.get("seed", 0)
    return flat


def _brief(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 100 else text[:97] + "..."


# ------------------------------------------------------------------------------------------ loading


def load_study(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None
) -> StudyConfig:
    """Reads a study from a YAML file.

    Args:
        path: the file.
        overrides: keys that override those of the file, as on the command line.

    Raises:
        ConfigError: the study has mistakes; the message lists all of them.
    """
    path = expanded(path)
    request = read_yaml(path)
    request.values = {"name": path.stem, **request.values, **(overrides or {})}
    request.from_line |= set(overrides or {})
    return StudyConfig.read(request)


def _recorded_selection(folder: Path) -> dict[str, Any]:
    """The rule of the study that a folder holds, which it keeps where none is asked for; empty
    without one."""
    try:
        selection = read_object(expanded(folder) / STUDY_FILE).get("selection")
    except (DataError, OSError):
        return {}
    if not isinstance(selection, Mapping):
        return {}
    return {str(key): value for key, value in selection.items() if value is not None}


# ----------------------------------------------------------------------------------------- the keys


SET_BY_STUDY = {
    "output_dir": "every trial has its own folder",
    "seed": "'seeds:' of the study repeats every trial",
}
"""Keys of a training configuration, and what the study does instead."""


def _train(request: SweepSettings) -> dict[str, Any]:
    if not isinstance(request.train, Mapping):
        return {}
    return {str(key): value for key, value in request.train.items() if key not in SET_BY_STUDY}


def _space(request: SweepSettings, problems: list[str]) -> Space:
    """What varies; nothing where that cannot be searched."""
    from holdfast.runs.settings import known_keys

    is_grid = request.search.sampler == "grid"
    retention = _train(request).get("retention")
    space = read_space(
        request.arms or None,
        request.vary,
        retention,
        grid=is_grid,
        known=known_keys(),
        problems=problems,
    )
    if not request.vary and not request.arms:
        problems.append(
            "arms: is missing. Give ways to train, such as '[{label_annealing: {weight: [0.3, 1, "
            "3]}}]', or give vary instead"
        )
    varies = len(space.arms) > 1 or any(space.parameters(arm) for arm in space.arms)
    if not problems and not is_grid and not varies:
        problems.append(
            f"vary: nothing varies, so there is nothing for {request.search.sampler} to search"
        )
    return space


def _objectives(request: SweepSettings, problems: list[str]) -> dict[str, ObjectiveSettings]:
    """The objectives, their entries looked up in the evaluation section; those of a study that was
    read before as they are."""
    from holdfast.evaluation.averages import SUITE

    keys = request.objectives
    if keys.resolved:
        return _resolved_objectives(keys)
    plan = _evaluation_plan(_train(request).get("evaluation"), request.toy, problems)
    if plan is None:
        return dict.fromkeys(("learn", "keep"), ObjectiveSettings(entries=()))
    kinds = {(entry.suite, entry.name): entry.kind for entry in plan.entries}
    kinds |= {(SUITE, average.name): "average" for average in plan.averages}
    if not plan.before:
        problems.append(
            "train.evaluation.before: expected true, got false: every trial is compared with the "
            "initial model. Leave it out."
        )
    validation = _wanted(VALIDATION, keys.validation, kinds, problems) if keys.validation else None
    learn_entries: Sequence[Any] = keys.learn
    if validation is not None and not learn_entries:  # all of the suite but for what chooses
        chosen = _measured(validation, {})
        learn_entries = []
        for suite, name in kinds:
            if suite == "learn" and (suite, name) not in chosen:
                learn_entries.append((suite, name, None))
    learn = _wanted("learn", learn_entries, kinds, problems)
    keep = _wanted("keep", keys.keep, kinds, problems)
    both = _measured(learn, {}) & _measured(keep, {})
    if both:
        names = ", ".join(name for _, name in sorted(both))
        problems.append(f"objectives: {names} cannot be under both learn and keep. Choose one")
    sides = {"learn": learn, "keep": keep}
    if validation is None:
        return sides
    members = {}
    for average in plan.averages:
        members[SUITE, average.name] = {(suite, name) for suite, name, _ in average.members}
    problems += _validation_problems(validation, sides, members, kinds)
    return {**sides, VALIDATION: validation}


def _resolved_objectives(keys: Objectives) -> dict[str, ObjectiveSettings]:
    objectives: dict[str, ObjectiveSettings] = {}
    for side in ("learn", "keep", VALIDATION):
        if getattr(keys, side):
            objectives[side] = ObjectiveSettings(entries=tuple(map(tuple, getattr(keys, side))))
    return objectives


def _validation_problems(
    validation: ObjectiveSettings,
    sides: Mapping[str, ObjectiveSettings],
    members: Mapping[tuple[str, str], set[tuple[str, str]]],
    kinds: Mapping[tuple[str, str], str],
) -> list[str]:
    """Why what chooses must not choose: it is reported too, or is in another unit than what is
    learnt."""
    problems = []
    chosen, learn = _measured(validation, members), sides["learn"]
    for side, objective in sides.items():
        both = chosen & _measured(objective, members)
        if both:
            names = ", ".join(name for _, name in sorted(both))
            problems.append(
                f"objectives.validation: {names} is also in {side}, so the same figures would "
                "choose the trial and be reported as its result. Expected other held-out entries."
            )
    entries = chosen | _measured(learn, members)
    if len({_is_text(*entry, kinds) for entry in entries}) > 1:
        problems.append(
            f"objectives.validation: expected entries in the unit of learn ({learn.label}), got "
            f"{validation.label}: one is in nats, the other a share."
        )
    return problems


def _evaluation_plan(
    evaluation: Any, toy: str | None, problems: list[str]
) -> EvaluationPlan | None:
    """What is measured; None where there are mistakes. Of files of a toy setting, which are not
    there yet, only names and kinds matter here."""
    import tempfile

    from holdfast.evaluation.suite import parse_evaluation

    with tempfile.TemporaryDirectory() as folder:
        if toy is not None:
            names = toy_settings.placeholder_paths(toy, folder)
            for file in names.values():
                Path(file).touch()
            try:
                evaluation = toy_settings.fill(evaluation, names)
            except ConfigError as error:
                problems += error.problems
                return None
        plan, mistakes = parse_evaluation(evaluation)
    problems += [f"train: {mistake}" for mistake in mistakes]
    return None if mistakes else plan


def _measured(
    wanted: ObjectiveSettings, members: Mapping[tuple[str, str], set[tuple[str, str]]]
) -> set[tuple[str, str]]:
    """The (suite, name) that an objective consists of, averages by their members."""
    entries: set[tuple[str, str]] = set()
    for suite, name, _ in wanted.entries:
        entries |= members.get((suite, name), {(suite, name)})
    return entries


def _wanted(
    side: str, request: Sequence[Any], kinds: Mapping[tuple[str, str], str], problems: list[str]
) -> ObjectiveSettings:
    """One objective, its entries looked up among those that are measured, `kinds` by (suite,
    name)."""
    names = [name for _, name in kinds]
    entries: list[tuple[str, str, str | None]] = []
    if not request:
        entries = [(suite, name, None) for suite, name in kinds if suite == side]
    if not request and not entries:
        advice = (
            f"Entries: {', '.join(names)}."
            if names
            else "Add an evaluation section with keep and learn."
        )
        problems.append(
            f"objectives.{side}: is missing, and train.evaluation has no entries under {side}. "
            f"{advice}"
        )
    for item in request:
        suite, (name, metric) = None, str(item).partition("/")[::2]
        if isinstance(item, (list, tuple)):
            suite, name, metric = item
        fitting = []
        for key in kinds:
            if key[1] == name and suite in (None, key[0]):
                fitting.append(key)
        if not fitting:
            problems.append(
                f"objectives.{side}: '{name}' is not among the evaluation "
                f"entries.{did_you_mean(str(name), names)} Entries: {', '.join(names) or 'none'}."
            )
            continue
        suite = "learn" if side == VALIDATION else side
        key = (suite, name) if (suite, name) in fitting else fitting[0]
        entries.append((*key, metric or None))
    text = [name for suite, name, _ in entries if _is_text(suite, name, kinds)]
    if text and len(text) < len(entries):
        problems.append(
            f"objectives.{side}: expected entries of one unit, because nats and shares cannot be "
            f"averaged, got text ({', '.join(text)}) and tasks."
        )
    return ObjectiveSettings(entries=tuple(entries))


def _is_text(suite: str, name: str, kinds: Mapping[tuple[str, str], str]) -> bool:
    return kinds.get((suite, name)) in ("perplexity", "memorisation")
