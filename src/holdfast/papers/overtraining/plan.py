"""An overtraining study with nothing left open: which checkpoints are probed, and which are
fine-tuned how.

texts                        whether training text holds what is measured on
probe CHECKPOINT             as it is and under every change
align CHECKPOINT             with a vision tower, its projector trained with every seed
tune CHECKPOINT TASK ARM     at every rate, with every seed
line CHECKPOINT              along the direction of one of its fine-tunings
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.config.declare import settings_of
from holdfast.config.synonyms import did_you_mean_key
from holdfast.errors import ConfigError, Problem, UserError
from holdfast.evaluation.entries import DataEntry
from holdfast.evaluation.ladder import Rung, unlike
from holdfast.evaluation.loading import ModelLoading
from holdfast.papers.overtraining.settings import (
    ADAPTED,
    BUT_THE_TOWER,
    EARLY,
    OWN,
    RATE,
    STAGE_1,
    TRAIN,
    WHICH_PARAMETERS,
    AlignSettings,
    OvertrainingSettings,
    TaskSettings,
)
from holdfast.studies.engine.base import StudyConfigBase
from holdfast.studies.engine.held_out import overlap_may_change
from holdfast.studies.engine.models import folder_name
from holdfast.studies.engine.space import DIRECT, METHOD, Space, read_space

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.probe.changes import Change
    from holdfast.evaluation.session import ModelRequest
    from holdfast.runs.probed_checkpoint import Probe
    from holdfast.studies.engine.study import Job

KIND, CHECKPOINT, MODEL, DATA = "kind", "checkpoint", "model", "data"
"""Attributes of a job: `TEXTS`, `PROBE`, `ALIGN`, `TUNE` or `LINE`; the rung's label; the name of
the fine-tuning, or of the way to see; by task the data that methods mix in."""
TEXTS, PROBE, ALIGN, TUNE, LINE = "texts", "probe", "align", "tune", "line"
KEEP, VALIDATION, LEARN = "keep", "validation", "learn"
"""Suites: what should be kept, what chooses the rate, what is reported."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A way to fine-tune, at one rate, on one task."""

    task: str
    arm: str
    kind: str
    rate: float
    settings: dict[str, Any]
    """Of training, without model, seed, folder and measuring."""

    @property
    def to_the_end(self) -> bool:
        """Whether a method changes the weights after the last step, so that no earlier epoch is its
        result."""
        from holdfast.retention.protocol import LAST_STEP
        from holdfast.retention.registry import retention

        return any(LAST_STEP in method.needs for method in retention(self.settings["retention"]))

    @property
    def name(self) -> str:
        """Of its folders."""
        return folder_name([self.task, self.arm, f"{self.rate:g}"], self.settings)


Part = tuple[str, str, str | None]
"""Data by name, split and configuration."""


def _training_data(settings: Mapping[str, Any]) -> list[Part]:
    """What a training reads: its data set, or each of its mixture."""
    parts: list[Part] = []
    if "dataset_name" in settings:
        split = str(settings.get("dataset_train_split") or "train")
        parts.append((settings["dataset_name"], split, settings.get("dataset_config")))
    for data in settings.get("datasets") or ():
        parts.append((data["path"], str(data.get("split") or "train"), data.get("name")))
    return parts


def _data_of_methods(settings: Mapping[str, Any]) -> list[Part]:
    """The files that the methods of a training mix in or learn from."""
    parts: list[Part] = []
    for method in settings["retention"] if settings["retention"] != "none" else ():
        for parameters in method.values():
            data = (parameters or {}).get("data")
            if data and isinstance(data, str):
                parts.append((data, "train", None))
    return parts


@dataclass(frozen=True, kw_only=True)
class OvertrainingConfig(StudyConfigBase[OvertrainingSettings]):
    """An overtraining study."""

    settings_class: ClassVar[type[Any]] = OvertrainingSettings

    @staticmethod
    def training_parts(
        request: OvertrainingSettings,
    ) -> dict[str, tuple[Mapping[str, Any], Collection[str]]]:
        """See `StudyConfigBase`."""
        study_keys = (*OWN, *EARLY)
        parts: dict[str, tuple[Mapping[str, Any], Collection[str]]] = {
            "train": (request.train, study_keys)
        }
        for name, task in request.tasks.items():
            parts[f"tasks.{name}.train"] = (task.train, study_keys)
            if task.align is not None:
                parts[f"tasks.{name}.align.train"] = (task.align.train, study_keys)
        return parts

    @staticmethod
    def settings_problems(request: OvertrainingSettings) -> Sequence[str]:
        """What is wrong with what varies and with how it is measured."""
        from holdfast.runs.settings import training_keys

        problems: list[str] = []
        read_space(
            request.arms or None,
            request.vary,
            None,
            grid=True,
            known=training_keys(),
            problems=problems,
        )
        return [*problems, *_measuring_problems(request)]

    def plan_problems(self) -> Sequence[str]:
        """Labels twice, rates that are not said, and fine-tunings that are the same."""
        assert self.rungs  # a label twice is said here
        return _rate_problems(self) or _direction_problems(self)

    def part_problems(self) -> Sequence[str]:
        """What is wrong with the checkpoints, with what is measured, or else with a fine-tuning."""
        from holdfast.evaluation.suite import parse_evaluation

        trusted = bool(self.request.train.get("trust_remote_code"))
        models = [self.model(label) for label in self.rungs]
        problems: list[str] = [
            Problem("ladder", text) for text in unlike(models, trust_remote_code=trusted)
        ]
        if not problems and self.ways_to_see:
            problems += _vision_problems(self, models[0], trusted)
        problems += _in_file(parse_evaluation(self.evaluation(None))[1], None)
        if not problems:
            for task in self.request.tasks:
                problems += _in_file(parse_evaluation(self.evaluation(task))[1], task)
        if not problems and self.changes:
            from holdfast.runs.probing import check_probe

            try:
                check_probe(self.requests(), self.plan(None), self.probe, self.loading)
            except ConfigError as error:
                problems += error.problems
        return problems or self.run_problems()

    def validate_without_files(self) -> Sequence[str]:
        """Without early stopping, which looks at held-out files."""
        settings = dataclasses.replace(self.request, early_stopping=False)
        return StudyConfigBase.validate_without_files(dataclasses.replace(self, request=settings))

    def runs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every first stage and fine-tuning of the smallest budget, which stands in for a model
        that sees."""
        first, seed = next(iter(self.rungs)), self.request.seeds[0]
        checked = {
            "model_name_or_path": self.model(first),
            "output_dir": str(self.output_dir / "runs" / "checked"),
        }
        for name in self.ways_to_see:
            yield "align", {**self.aligning(first, name, seed), **checked}
        for tuning in self.tunings.values():
            yield (
                f"{tuning.task}, {tuning.arm}",
                {**self.training(first, tuning.name, seed), **checked},
            )

    def resumable_changes(self, old: Mapping[str, Any]) -> set[str]:
        """What is judged anew from what was measured, whether to go on past a refusal, and what is
        tried and on which checkpoints, where there has only come more."""
        begun = self.from_recorded(old)
        longer = begun is not None and all(
            rung in self.request.ladder for rung in begun.request.ladder
        )
        more = {"arms", "vary", "ladder"} if longer and self.has_jobs_of(begun) else set()
        return {"keep_weights", "max_perplexity", *overlap_may_change(old), *more}

    # --------------------------------------------------------------------------------- what is made

    @functools.cached_property
    def rungs(self) -> dict[str, Rung]:
        """The checkpoints by label, the smallest budget first."""
        from holdfast.evaluation.session import requests_of

        models = []
        for rung in self.request.ladder:
            models.append(f"{rung.label}={rung.model}" if rung.label else rung.model)
        labels = [request.label for request in requests_of(models)]
        return dict(zip(labels, self.request.ladder, strict=True))

    @functools.cached_property
    def changes(self) -> list[Change]:
        """What every checkpoint is put through."""
        return self.request.probe.changes() if self.request.probe else []

    @property
    def probe(self) -> Probe:
        """The changes that every checkpoint is probed with."""
        from holdfast.evaluation.probe.settings import CurvatureSettings
        from holdfast.runs.probed_checkpoint import Probe

        assert self.request.probe
        curvature = CurvatureSettings(curvature=self.request.curvature)
        return Probe(changes=self.changes, std=self.request.probe.std, curvature=curvature)

    @property
    def loading(self) -> ModelLoading:
        """How a checkpoint is loaded to be probed."""
        train = self.request.train
        return ModelLoading(
            dtype=train.get("dtype") or "auto",
            device="cpu" if train.get("use_cpu") else None,
            trust_remote_code=bool(train.get("trust_remote_code")),
        )

    def probe_along(self, label: str) -> Probe:
        """Steps in the direction of a checkpoint's fine-tuning; needs its weights."""
        from holdfast.evaluation.probe.changes import Toward
        from holdfast.evaluation.probe.settings import CurvatureSettings
        from holdfast.runs.probed_checkpoint import Probe

        direction, tuning = self.request.direction, self.direction
        assert direction is not None and tuning is not None
        name = f"{direction.task}-{direction.learning_rate:g}"
        folder = self.run_folder(label, tuning.name, self.request.seeds[0])
        changes = [Toward(size=size, label=name) for size in direction.steps]
        curvature = CurvatureSettings(curvature=self.request.curvature)
        return Probe(changes=changes, toward=[f"{name}={folder}"], curvature=curvature)

    @functools.cached_property
    def direction(self) -> Tuning | None:
        """The fine-tuning whose direction is followed; None where none is, or none is like that."""
        direction = self.request.direction
        if direction is not None:
            for tuning in self.arms(direction.task).get(self.direct, ()):
                if tuning.rate == direction.learning_rate:
                    return tuning
        return None

    def requests(self) -> list[ModelRequest]:
        """The checkpoints, as the code that measures takes them."""
        from holdfast.evaluation.session import ModelRequest

        return [ModelRequest(name=self.model(label), label=label) for label in self.rungs]

    @functools.cached_property
    def space(self) -> Space:
        """What is tried of each task."""
        from holdfast.runs.settings import training_keys

        return read_space(
            self.request.arms or None,
            self.request.vary,
            None,
            grid=True,
            known=training_keys(),
            problems=[],
        )

    @functools.cached_property
    def tunings(self) -> dict[str, Tuning]:
        """Every fine-tuning by name: tasks and ways as listed, rates rising."""
        tunings: dict[str, Tuning] = {}
        for name, task in self.request.tasks.items():
            for tuning in _tunings(self, name, task):
                tunings[tuning.name] = tuning
        return tunings

    def arms(self, task: str) -> dict[str, list[Tuning]]:
        """The ways to fine-tune on a task, each with its rates."""
        arms: dict[str, list[Tuning]] = {}
        for tuning in self.tunings.values():
            if tuning.task == task:
                arms.setdefault(tuning.arm, []).append(tuning)
        return arms

    @property
    def direct(self) -> str:
        """The way that others are held against: the first one without a method."""
        tunings = list(self.tunings.values())
        direct = [tuning.arm for tuning in tunings if tuning.kind == DIRECT]
        return next(iter(direct or [tuning.arm for tuning in tunings]), "")

    def trained_on(self, task: str) -> list[Part]:
        """All data that a task is trained on: of its stages, of every way to fine-tune on it, and
        what methods mix in or learn from."""
        align = self.request.tasks[task].align
        parts = self._own_data(task)
        if align is not None:
            parts += _training_data(align.train)
        parts += self.other_data(task)
        filled = self.with_paths([list(data) for data in parts])
        return [(str(name), str(split), subset) for name, split, subset in filled]

    def other_data(self, task: str) -> list[Part]:
        """Of this, what the task's own settings do not name: of methods first, then of
        trainings."""
        tunings = [tuning for tuning in self.tunings.values() if tuning.task == task]
        parts: list[Part] = []
        for read in (_data_of_methods, _training_data):
            for tuning in tunings:
                parts += read(tuning.settings)
        of_task = self._own_data(task)
        return [data for data in dict.fromkeys(parts) if data not in of_task]

    def _own_data(self, task: str) -> list[Part]:
        return _training_data({**self.request.train, **self.request.tasks[task].train})

    def jobs(self) -> list[Job]:
        """The texts, what every checkpoint is put through, and every fine-tuning of each."""
        from holdfast.studies.engine.study import LABEL, Job

        jobs: list[Job] = []
        numbers: dict[tuple[str, str, str], int] = {}

        def add(kind: str, checkpoint: str, model: str, text: str, *after: int) -> None:
            attributes = {LABEL: f"{checkpoint}: {text}", KIND: kind, CHECKPOINT: checkpoint}
            numbers[kind, checkpoint, model] = len(jobs)
            jobs.append(Job(attributes=attributes | ({MODEL: model} if model else {}), after=after))

        texts: tuple[int, ...] = ()
        if self.tunings:
            attributes: dict[str, Any] = {
                LABEL: "looking for evaluation data in the training data",
                KIND: TEXTS,
            }
            if others := self._other_data_by_task():
                attributes[DATA] = others  # with other data it is another job
            jobs.append(Job(attributes=attributes))
            texts = (0,)
        if self.changes:
            for label in self.rungs:
                add(PROBE, label, "", "noise, quantisation, pruning")
        for name in self.ways_to_see:
            for label in self.rungs:
                add(ALIGN, label, name, "training the projector for its vision tower", *texts)
        for name, tuning in self.tunings.items():
            way = self.way_to_see(tuning.task)
            for label in self.rungs:
                before = (*texts, numbers[ALIGN, label, way]) if way else texts
                add(
                    TUNE,
                    label,
                    name,
                    f"{tuning.task}, {tuning.arm}, learning rate {tuning.rate:g}",
                    *before,
                )
        if (direction := self.direction) is not None:
            for label in self.rungs:
                before = (numbers[PROBE, label, ""], numbers[TUNE, label, direction.name])
                text = (
                    f"loss along the direction of {direction.task}, learning rate "
                    f"{direction.rate:g}"
                )
                add(LINE, label, direction.name, text, *before)
        return jobs

    def _other_data_by_task(self) -> dict[str, list[Any]]:
        """As the storage keeps it: of a plain file the name alone, as studies of before have it."""
        others: dict[str, list[Any]] = {}
        for task in self.request.tasks:
            for name, split, subset in self.other_data(task):
                plain = (split, subset) == ("train", None)
                others.setdefault(task, []).append(name if plain else [name, split, subset])
        return others

    # ------------------------------------------------------------------------------ models that see

    def way_to_see(self, task: str) -> str:
        """The name of how a task's checkpoints come to see, "" for a task without; tasks with the
        same settings share it."""
        align = self.request.tasks[task].align
        return (
            ""
            if align is None
            else folder_name(["align"], [align.tower, align.layer, self._stage_1(align)])
        )

    @functools.cached_property
    def ways_to_see(self) -> dict[str, AlignSettings]:
        """How checkpoints come to see, by name."""
        ways = {}
        for name, task in self.request.tasks.items():
            if task.align is not None:
                ways[self.way_to_see(name)] = task.align
        return ways

    def aligned(self, label: str, name: str, seed: int) -> Path:
        """Where a checkpoint's projector is trained; the model before lies beside it while that is
        done."""
        return self.output_dir / "aligned" / label / name / f"seed-{seed}"

    def aligning(self, label: str, name: str, seed: int) -> dict[str, Any]:
        """The configuration of stage 1, as `holdfast train --config` takes it; its model is the
        checkpoint's language model with a projector that is not trained."""
        from holdfast.runs.wrapping import PROJECTOR

        folder = self.aligned(label, name, seed)
        return {
            **self.with_paths(self._stage_1(self.ways_to_see[name])),
            "model_name_or_path": str(folder.with_name(f"{folder.name}-start")),
            "train_only": [PROJECTOR],
            "seed": seed,
            "output_dir": str(folder),
        }

    def _stage_1(self, align: AlignSettings) -> dict[str, Any]:
        shared = {k: v for k, v in self.request.train.items() if k not in WHICH_PARAMETERS}
        return {**STAGE_1, **shared, **align.train}

    def start(self, label: str, task: str, seed: int) -> str:
        """What a fine-tuning begins with: the checkpoint, or the model that sees."""
        way = self.way_to_see(task)
        return str(self.aligned(label, way, seed)) if way else self.model(label)

    # ------------------------------------------------------------------------------------ measuring

    def evaluation(self, task: str | None) -> dict[str, Any]:
        """What a model is measured on: what should be kept and, of a fine-tuned one, its task."""
        evaluation: dict[str, Any] = {**self.request.evaluation, KEEP: list(self.request.keep)}
        if task is not None:
            evaluation |= {
                VALIDATION: self.request.tasks[task].validation,
                LEARN: self.request.tasks[task].learn,
            }
        return dict(self.with_paths(evaluation))

    def plan(self, task: str | None) -> EvaluationPlan:
        """The same as the code that measures takes it."""
        from holdfast.evaluation.suite import parse_evaluation

        return parse_evaluation(self.evaluation(task))[0]

    # ------------------------------------------------------------------------------------- training

    def model(self, label: str) -> str:
        """A checkpoint as it was named."""
        return str(self.with_paths(self.rungs[label].model))

    def held_out(self, task: str) -> dict[str, str]:
        """What early stopping looks at, as settings of a run.

        Raises:
            ConfigError: nothing that it could look at.
        """
        settings = self.request.tasks[task]
        if settings.held_out is not None:
            return {"eval_dataset_name": str(self.with_paths(settings.held_out))}
        first = next((e for e in self.plan(task).entries if e.suite == VALIDATION), None)
        problem, split = "", ""
        if not isinstance(first, DataEntry):
            problem = "a file with rows like the training data, for early stopping after each epoch"
        elif first.config is not None:
            problem = (
                f"{first.name} is the configuration {first.config} of {first.data}, and early "
                "stopping reads only "
            )
            problem += "data without a configuration"
        elif first.max_documents is None:
            split = first.split
        elif "[" in first.split:
            problem = (
                f"early stopping cannot read {first.name}: it is limited to the first "
                f"{first.max_documents} documents of {first.split}, which is already a part of a "
                "split"
            )
        else:
            split = f"{first.split}[:{first.max_documents}]"
        if problem or not isinstance(first, DataEntry):
            raise ConfigError(
                f"tasks.{task}.held_out: is missing: {problem}. Name a file, or set "
                "early_stopping: false."
            )
        return {"eval_dataset_name": first.data, "eval_dataset_split": split}

    def run_folder(self, label: str, name: str, seed: int) -> Path:
        """Where a checkpoint is fine-tuned."""
        return self.output_dir / "runs" / label / name / f"seed-{seed}"

    @property
    def probed(self) -> Path:
        """Evaluations of the checkpoints as they are and under every change."""
        return self.output_dir / "probed"

    def training(self, label: str, name: str, seed: int) -> dict[str, Any]:
        """The configuration of a fine-tuning, as `holdfast train --config` takes it."""
        tuning = self.tunings[name]
        stops = self.request.early_stopping and not tuning.to_the_end
        early = {**EARLY, **self.held_out(tuning.task)} if stops else {}
        return {
            **early,
            **self.with_paths(tuning.settings),
            "model_name_or_path": self.start(label, tuning.task, seed),
            "seed": seed,
            "evaluation": self.evaluation(tuning.task),
            "output_dir": str(self.run_folder(label, name, seed)),
        }


def _tunings(config: OvertrainingConfig, name: str, task: TaskSettings) -> list[Tuning]:
    """Every way to fine-tune on a task at every rate: ways as listed, rates rising."""
    space, base = config.space, {**TRAIN, **config.request.train, **task.train}
    arms: dict[str, list[Tuning]] = {}
    for params in space.grid():
        axes = space.axes(space.arm(params))
        settings = space.settings(base, params)
        settings["retention"] = settings["retention"] or "none"
        if task.align is not None and settings.get("use_peft"):
            settings.setdefault("lora_target_modules", list(ADAPTED))
        elif task.align is not None:
            settings.setdefault("train_only", list(BUT_THE_TOWER))
        if RATE not in settings:
            continue
        rates = [key for key in params if key != METHOD and axes[key][0] == (RATE,)]
        arm = space.label({key: value for key, value in params.items() if key not in rates})
        rate = float(settings[RATE])
        tuning = Tuning(task=name, arm=arm, kind=space.kind(params), rate=rate, settings=settings)
        arms.setdefault(arm, []).append(tuning)
    tunings = []
    for of_arm in arms.values():
        tunings += sorted(of_arm, key=lambda tuning: tuning.rate)
    return tunings


def _measuring_problems(request: OvertrainingSettings) -> Sequence[str]:
    """Keys under `evaluation` that are no settings of measuring."""
    from holdfast.evaluation.entries import PlanSettings

    shared = [s.name for s in settings_of(PlanSettings) if s.name not in ("before", "along")]
    problems: list[str] = []
    for key in request.evaluation:
        if key not in shared:
            near = did_you_mean_key(key, shared)
            text = f"no such key.{near} To measure something, list it under `keep` or `tasks`."
            problems.append(Problem(("evaluation", key), text))
    return problems


def _rate_problems(config: OvertrainingConfig) -> Sequence[str]:
    """Rates that are not said, and fine-tunings that are the same."""
    for task in config.request.tasks.values():
        tunings = _tunings(config, "", task)
        if len(tunings) < len(config.space.grid()):
            return [
                Problem(
                    ("vary", "learning_rate"),
                    "is missing: every arm needs learning rates to try.",
                )
            ]
        pairs = [(tuning.arm, tuning.rate) for tuning in tunings]
        for arm, rate in pairs:
            if pairs.count((arm, rate)) > 1:
                return [
                    Problem(
                        "vary",
                        f"'{arm}' at learning rate {rate:g} is listed twice. Give one of them a "
                        "label.",
                    )
                ]
    return []


def _direction_problems(config: OvertrainingConfig) -> Sequence[str]:
    """A direction that no fine-tuning has."""
    direction = config.request.direction
    if direction is None or not config.request.tasks:
        return []
    if config.direction is None:
        rates = [
            f"{tuning.rate:g}" for tuning in config.arms(direction.task).get(config.direct, ())
        ]
        return [
            Problem(
                ("direction", "learning_rate"),
                f"expected a learning rate that {config.direct} tries ({', '.join(rates)}), got "
                f"{direction.learning_rate:g}.",
            )
        ]
    if config.direction.settings.get("use_peft"):
        return [
            Problem(
                "direction",
                "expected full fine-tuning, because an adapter has no direction in the full "
                "weights. Leave direction out.",
            )
        ]
    return []


def _vision_problems(config: OvertrainingConfig, model: str, trusted: bool) -> Sequence[str]:
    """Why checkpoints cannot come to see."""
    from holdfast.models import takes_images
    from holdfast.runs.wrapping import check_tower

    problems: list[str] = []
    if takes_images(model, trust_remote_code=trusted):
        problems.append(
            Problem(
                "ladder",
                "expected models that read only text, because `align` adds a vision tower, but "
                f"{model} already reads images.",
            )
        )
    for name, task in config.request.tasks.items():
        if task.align is not None:
            try:
                check_tower(config.with_paths(task.align.tower), task.align.layer)
            except UserError as error:
                problems.append(Problem(("tasks", name, "align"), f"{error}"))
    for tuning in config.tunings.values():
        targets = tuning.settings.get("lora_target_modules") or ()
        sees = config.request.tasks[tuning.task].align is not None
        if sees and tuning.settings.get("use_peft") and "all-linear" in targets:
            text = (
                "all-linear would also train the vision tower. Leave lora_target_modules out, or "
                "give a pattern."
            )
            problems.append(Problem((), f"{tuning.task}, {tuning.arm}: {text}"))
    return list(dict.fromkeys(problems))


def _in_file(problems: Sequence[Problem], task: str | None) -> list[Problem]:
    """Problems of the measuring as the study's file has them."""
    keys = {
        KEEP: ("keep",),
        VALIDATION: ("tasks", str(task), "validation"),
        LEARN: ("tasks", str(task), "learn"),
    }
    in_file = []
    for problem in problems:
        suite = str(problem.path[1]) if len(problem.path) > 1 else ""
        in_file.append(
            Problem((*keys[suite], *problem.path[2:]), problem.text) if suite in keys else problem
        )
    return in_file
