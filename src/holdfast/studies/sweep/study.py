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
search: {sampler: grid}               # grid (extend: 2 lets it grow), random, tpe, nsga2; these three with trials: 30
select: {rule: knee}                  # knee, paper, keep_within (points: 1)
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.config.declare import settings_of
from holdfast.config.decode import Given, coerce_all, problems_of
from holdfast.config.yaml_file import read_yaml
from holdfast.errors import ConfigError, DataError, did_you_mean
from holdfast.records.study import STUDY_FILE
from holdfast.statistics.rules import DEFAULT_RULE
from holdfast.studies.engine import toy as toy_settings
from holdfast.studies.engine.base import StudyConfigBase
from holdfast.studies.engine.space import Space, read_space
from holdfast.studies.sweep.settings import VALIDATION, Objectives, Search, SweepSettings
from holdfast.support.files import fingerprint, read_object
from holdfast.support.paths import expanded
from holdfast.support.secrets import without_secrets

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.studies.engine.study import Job

PARAMS = "params"
"""Attribute of a trial: its combination, fixed beforehand or drawn."""
ARMS = "arms"


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """One objective as asked for."""

    entries: tuple[tuple[str, str, str | None], ...]
    """(suite, name, metric); metric None: the one that leads."""

    @property
    def label(self) -> str:
        """For people."""
        names = []
        for _, name, metric in self.entries:
            names.append(f"{name} ({metric})" if metric else name)
        return names[0] if len(names) == 1 else f"mean of {', '.join(names)}"


@dataclass(frozen=True, kw_only=True, repr=False)
class StudyConfig(StudyConfigBase[SweepSettings]):
    """A study, checked. Made by `load_study` and `study_config`."""

    settings_class: ClassVar[type[Any]] = SweepSettings
    later: ClassVar[tuple[str, ...]] = ()

    train: dict[str, Any]
    """The base's training configuration, without seed and output folder. With `toy`, names such as ${base} are still
    in it."""
    space: Space
    """What varies."""
    learn: ObjectiveSettings
    keep: ObjectiveSettings
    validation: ObjectiveSettings | None = None
    """What every choice goes by in place of `learn`; None: `learn` itself."""
    select: dict[str, Any]
    """The rule that takes a trial."""
    notes: list[str] = field(default_factory=list)

    @property
    def search(self) -> Search:
        """How combinations are chosen."""
        return self.request.search

    @property
    def objectives(self) -> dict[str, ObjectiveSettings]:
        """By name in the YAML."""
        sides = {"learn": self.learn, "keep": self.keep}
        return sides if self.validation is None else {**sides, VALIDATION: self.validation}

    @property
    def judged_by(self) -> tuple[ObjectiveSettings, ObjectiveSettings]:
        """Both sides as samplers see them; the figures of `learn` decide nothing where there is a validation."""
        return self.validation or self.learn, self.keep

    @property
    def measures(self) -> tuple[str, ...]:
        """What a trial reports."""
        return ("learn gain" if self.validation is None else "validation gain", "keep gain")

    # ---------------------------------------------------------------------------------------------------------- trials

    def trials(self) -> list[dict[str, Any]]:
        """What is put in the queue: every combination of a grid; else as many empty ones as trials are wanted. The
        reference comes first."""
        search = self.request.search
        if search.sampler != "grid":
            return [{} for _ in range(search.trials or 0)]
        known = {fingerprint(self.reference())}
        trials = []
        for params in self.space.grid():
            key = fingerprint(self.settings(params))
            if key not in known:  # a weight of 0 is direct fine-tuning too, but written otherwise, and stays
                known.add(key)
                trials.append(params)
        return trials

    def jobs(self) -> list[Job]:
        """Direct fine-tuning, then every trial, as the storage queues them."""
        from holdfast.studies.engine.study import LABEL, Job

        jobs = [Job(attributes={"direct": True})]
        for params in self.trials():
            known = {LABEL: self.space.label(params), PARAMS: dict(params)} if params else {}
            jobs.append(Job(attributes={"direct": False, **known}))
        return jobs

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The training configuration of a combination."""
        return dict(self.with_paths(self.space.settings(self.train, params)))

    def reference(self) -> dict[str, Any]:
        """The training configuration of direct fine-tuning: the base's own values, and the middle of what it leaves
        open."""
        settings = copy.deepcopy(self.train)
        for key, value in self.space.middle().items():
            settings.setdefault(key, value)
        settings["retention"] = []
        return dict(self.with_paths(settings))

    # ----------------------------------------------------------------------------------------------- resuming, checking

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What keeps the study whose `resolved` is `old` from being this one, a line a key. The selection may
        change; trials may be added, and arms behind those of a grid."""
        before, now, search = deciding(old), deciding(self.resolved), self.request.search
        old_arms, arms = before.get(ARMS), now.get(ARMS)
        if isinstance(old_arms, list) and isinstance(arms, list) and search.sampler == "grid":
            before[ARMS] = arms if arms[: len(old_arms)] == old_arms else old_arms
        differences = []
        for key in dict.fromkeys([*before, *now]):
            if before.get(key) != now.get(key):
                differences.append(f"{key}: {_brief(before.get(key))} there, {_brief(now.get(key))} now")
        trials = (old.get("search") or {}).get("trials")
        if trials and search.trials and search.trials < trials:
            text = f"{trials} there, {search.trials} now; trials can be added, not taken back"
            differences.append(f"search.trials: {text}")
        return differences

    def runs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The reference, and one for every value that is tried."""
        checked = {"output_dir": str(self.output_dir / "runs" / "trial"), "seed": self.request.seeds[0]}
        yield "train", {**self.reference(), **checked}
        for params in self.space.corners():
            yield f"vary: {self.space.label(params)}", {**self.settings(params), **checked}

    def part_problems(self) -> list[str]:
        """What is wrong with the trainings."""
        return self.run_problems()

    @classmethod
    def read(
        cls,
        values: Mapping[str, Any] | Given,
        *,
        source: str | None = None,
        check: bool = True,
        beside: Path | None = None,
    ) -> StudyConfig:
        """See `study_config`."""
        request = values if isinstance(values, Given) else Given(values=dict(values))
        request.values = cls.current_keys(request.values)
        known = {setting.name: setting for setting in settings_of(SweepSettings)}
        sound, mistakes = coerce_all(known, request.set_here(SweepSettings))
        refused = {mistake.path[0] for mistake in mistakes if mistake.path}
        settings = SweepSettings(**sound)
        mistakes += [mistake for mistake in problems_of(settings) if mistake.path[0] not in refused]
        refused |= {mistake.path[0] for mistake in mistakes if mistake.path}
        problems = request.sentences([*request.mistakes, *mistakes])
        toy = None if "toy" in refused else toy_settings.versioned_name(settings.toy)
        notes: list[str] = []
        train = {} if "train" in refused else _train(settings.train, beside, problems, notes)
        space = _space(settings, train, problems, is_refused="vary" in refused)
        keys = settings.objectives
        if not check and keys.resolved:
            sides = _resolved_objectives(keys)
        else:
            sides = _objectives(keys, train.get("evaluation"), toy, problems)
        objectives = {}
        for side, objective in sides.items():
            objectives[side] = list(map(list, objective.entries))
        select = settings.select or _recorded_selection(settings.folder) or {"rule": DEFAULT_RULE}
        search = dataclasses.asdict(settings.search)
        if not settings.search.extend:
            del search["extend"]
        resolved = {
            "name": settings.name,
            "toy": toy,
            "train": without_secrets(train),
            "arms": settings.arms,
            "vary": settings.vary,
            "objectives": objectives,
            "seeds": list(settings.seeds),
            "search": search,
            "select": select,
            "keep_weights": settings.keep_weights,
            "teacher": settings.teacher,
            "output_dir": str(settings.folder),
        }
        config = cls(
            request=dataclasses.replace(settings, toy=toy),
            output_dir=settings.folder,
            storage=settings.database,
            names={},
            resolved=resolved,
            train=train,
            space=space,
            learn=sides["learn"],
            keep=sides["keep"],
            validation=sides.get(VALIDATION),
            select=select,
            notes=notes,
        )
        if check and train and toy and not problems:
            problems = config.validate_without_files()
        elif check and train and not toy:
            problems += config.trial_problems(base_only=bool(problems))
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)), source=source)
        return config

    def trial_problems(self, *, base_only: bool) -> list[str]:
        """What the code that trains says of the trials; of the reference alone where what varies is known to be
        wrong."""
        if not base_only:
            return self.run_problems()
        reference = dataclasses.replace(self.space, arms=[])
        return dataclasses.replace(self, space=reference).run_problems()


def deciding(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What two studies must share to be one, flat: `{"vary.learning_rate": ..., "train.max_steps": ...}`."""
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
    request = read_yaml(path)
    changed = {k: v for k, v in (overrides or {}).items() if v is not None}
    request.values = {"name": path.stem, **request.values, **changed}
    request.from_line |= set(changed)
    return study_config(request, beside=path.parent, source=str(path))


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
        prepared: leaves the training configurations unchecked: their files are not there yet (`toy:`), or were
            checked by who made the study.

    Raises:
        ConfigError: with every mistake at once.
    """
    return StudyConfig.read(values, source=source, check=not prepared, beside=beside)


def _recorded_selection(folder: Path) -> dict[str, Any]:
    """The rule of the study that a folder holds, which it keeps where none is asked for; empty without one."""
    try:
        selection = read_object(expanded(folder) / STUDY_FILE).get("selection")
    except (DataError, OSError):
        return {}
    if not isinstance(selection, Mapping):
        return {}
    return {str(key): value for key, value in selection.items() if value is not None}


# ------------------------------------------------------------------------------------------------------------- the keys


def _train(value: Any, beside: Path | None, problems: list[str], notes: list[str]) -> dict[str, Any]:
    if isinstance(value, str):
        path = Path(value)
        if beside is not None and (beside / value).is_file():
            path = beside / value
        try:
            request = read_yaml(path, option="train:")
        except ConfigError as error:
            problems += error.problems
            return {}
        problems += [f"{path}: {problem}" for problem in request.sentences(request.mistakes)]
        value = request.values
    if not isinstance(value, Mapping):
        problems.append(
            f"train: expected a training configuration, as keys or as a YAML file, got "
            f"{'nothing' if value is None else repr(value)}"
        )
        return {}
    train = {str(key): item for key, item in value.items()}
    for key, instead in SET_BY_STUDY.items():
        if train.pop(key, None) is not None:
            notes.append(f"train.{key} has no effect: {instead}.")
    return train


SET_BY_STUDY = {
    "output_dir": "every trial has a folder of its own",
    "seed": "'seeds:' of the study repeats every trial",
}
"""Keys of a training configuration, and what the study does instead."""


def _space(request: SweepSettings, train: Mapping[str, Any], problems: list[str], *, is_refused: bool) -> Space:
    """What varies; nothing where that cannot be searched."""
    from holdfast.runs.settings import known_keys

    search, retention = request.search, train.get("retention")
    space = read_space(
        request.arms or None,
        request.vary,
        retention,
        grid=search.sampler == "grid",
        known=known_keys(),
        problems=problems,
    )
    if not request.vary and not request.arms and not is_refused:
        problems.append(
            "arms: is missing; expected ways to train, such as '[{label_annealing: {weight: [0.3, 1, 3]}}]', or vary"
        )
    if problems:
        return space
    varies = len(space.arms) > 1 or any(space.parameters(a) for a in space.arms)
    if search.sampler != "grid" and not varies:
        problems.append(f"vary: nothing varies, so there is nothing for {search.sampler} to search")
    elif search.extend and not any(space.strengths(a) for a in space.arms):
        problems.append(
            "search.extend: expected at least two values above 0 of a method's strength to go on with, such as "
            "'label_annealing: {weight: [0.3, 1]}', got none"
        )
    return space


def _resolved_objectives(request: Objectives) -> dict[str, ObjectiveSettings]:
    """Of a study that was read before."""
    sides: dict[str, ObjectiveSettings] = {}
    for side in ("learn", "keep", VALIDATION):
        entries = tuple(map(tuple, getattr(request, side)))
        if entries:
            sides[side] = ObjectiveSettings(entries=entries)
    return sides


def _objectives(
    request: Objectives, evaluation: Any, toy: str | None, problems: list[str]
) -> dict[str, ObjectiveSettings]:
    """The objectives, their entries looked up in the evaluation section."""
    from holdfast.evaluation.averages import SUITE

    plan = _evaluation_plan(evaluation, toy, problems)
    if plan is None:
        return dict.fromkeys(("learn", "keep"), ObjectiveSettings(entries=()))
    kinds = {(entry.suite, entry.name): entry.kind for entry in plan.entries}
    kinds |= {(SUITE, average.name): "average" for average in plan.averages}
    if not plan.before:
        problems.append(
            "train.evaluation.before: false leaves the start unmeasured, which every trial is compared with. Leave it "
            "out."
        )
    validation = _wanted(VALIDATION, request.validation, kinds, problems) if request.validation else None
    learn_entries: Sequence[Any] = request.learn
    if validation is not None and not learn_entries:  # all of the suite but for what chooses
        chosen = _measured(validation, {})
        learn_entries = []
        for suite, name in kinds:
            if suite == "learn" and (suite, name) not in chosen:
                learn_entries.append((suite, name, None))
    learn = _wanted("learn", learn_entries, kinds, problems)
    keep = _wanted("keep", request.keep, kinds, problems)
    both = _measured(learn, {}) & _measured(keep, {})
    if both:
        names = ", ".join(name for _, name in sorted(both))
        problems.append(f"objectives: {names} cannot be learnt and kept at once; name it on one side")
    sides = {"learn": learn, "keep": keep}
    if validation is None:
        return sides
    members = {}
    for average in plan.averages:
        members[SUITE, average.name] = {(suite, name) for suite, name, _ in average.members}
    chosen = _measured(validation, members)
    for side, objective in sides.items():
        both = chosen & _measured(objective, members)
        if both:
            names = ", ".join(name for _, name in sorted(both))
            problems.append(
                f"objectives.validation: {names} is in {side} too, so it would choose what it reports. Expected "
                "other held-out entries."
            )
    entries = chosen | _measured(learn, members)
    if len({_is_text(*entry, kinds) for entry in entries}) > 1:
        problems.append(
            f"objectives.validation: expected entries in the unit of learn ({learn.label}), got "
            f"{validation.label}: one is nats of text, the other shares."
        )
    return {**sides, VALIDATION: validation}


def _evaluation_plan(evaluation: Any, toy: str | None, problems: list[str]) -> EvaluationPlan | None:
    """What is measured; None where there are mistakes. Of files of a toy setting, which are not there yet, only names
    and kinds matter here."""
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
    """One objective, its entries looked up among those that are measured, `kinds` by (suite, name)."""
    names = [name for _, name in kinds]
    entries: list[tuple[str, str, str | None]] = []
    if not request:
        entries = [(suite, name, None) for suite, name in kinds if suite == side]
    if not request and not entries:
        advice = f"Entries: {', '.join(names)}." if names else "Add an evaluation section with keep and learn."
        problems.append(f"objectives.{side}: is missing, and train.evaluation measures nothing as {side}. {advice}")
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
                f"objectives.{side}: '{name}' is not among the evaluation entries.{did_you_mean(str(name), names)} "
                f"Entries: {', '.join(names) or 'none'}."
            )
            continue
        suite = "learn" if side == VALIDATION else side
        key = (suite, name) if (suite, name) in fitting else fitting[0]
        entries.append((*key, metric or None))
    text = [name for suite, name, _ in entries if _is_text(suite, name, kinds)]
    if text and len(text) < len(entries):
        problems.append(
            f"objectives.{side}: nats and shares have no mean. Expected entries of one unit, got text "
            f"({', '.join(text)}) beside tasks."
        )
    return ObjectiveSettings(entries=tuple(entries))


def _is_text(suite: str, name: str, kinds: Mapping[tuple[str, str], str]) -> bool:
    return kinds.get((suite, name)) in ("perplexity", "memorisation")
