"""An overtraining study with nothing left open: which checkpoints are probed, and which are fine-tuned how.

texts                        whether training text holds what is measured on
probe CHECKPOINT             as it is and under every change
align CHECKPOINT             with a vision tower, its projector trained with every seed
tune CHECKPOINT TASK ARM     at every rate, with every seed
line CHECKPOINT              along the direction of one of its fine-tunings
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.config.declare import settings_of
from holdfast.config.decode import Given
from holdfast.config.synonyms import did_you_mean_key
from holdfast.errors import ConfigError, UserError
from holdfast.evaluation.entries import DataEntry
from holdfast.evaluation.ladder import Rung, unlike
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
from holdfast.studies.engine.asked import AskedStudy
from holdfast.studies.engine.held_out import overlap_may_change
from holdfast.studies.engine.models import folder_name
from holdfast.studies.engine.space import DIRECT, METHOD, Space, read_space

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.probe.changes import Change
    from holdfast.evaluation.session import ModelRequest
    from holdfast.studies.engine.study import Job

KIND, CHECKPOINT, MODEL, DATA = "kind", "checkpoint", "model", "data"
"""Attributes of a job: `TEXTS`, `PROBE`, `ALIGN`, `TUNE` or `LINE`; the rung's label; the name of the fine-tuning, or
of the way to see; by task the data that methods mix in."""
TEXTS, PROBE, ALIGN, TUNE, LINE = "texts", "probe", "align", "tune", "line"
SOURCE, VALIDATION, TEST = "source", "validation", "target"
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
        """Whether a method changes the weights after the last step, so that no earlier epoch is its result."""
        from holdfast.retention.registry import method_class

        methods = self.settings["retention"]
        return methods != "none" and any(method_class(next(iter(m))).at_last_step for m in methods)

    @property
    def name(self) -> str:
        """Of its folders."""
        return folder_name([self.task, self.arm, f"{self.rate:g}"], self.settings)


Part = tuple[str, str, str | None]
"""Data by name, split and configuration."""


def _read_by(settings: Mapping[str, Any]) -> list[Part]:
    """What a training reads: its data set, or each of its mixture."""
    found: list[Part] = []
    if "dataset_name" in settings:
        split = str(settings.get("dataset_train_split") or "train")
        found.append((settings["dataset_name"], split, settings.get("dataset_config")))
    mixture = settings.get("datasets") or ()
    return found + [(one["path"], str(one.get("split") or "train"), one.get("name")) for one in mixture]


@dataclass(frozen=True, kw_only=True)
class OvertrainingConfig(AskedStudy[OvertrainingSettings]):
    """A study as `overtraining_config` gives it."""

    settings_class: ClassVar[type[Any]] = OvertrainingSettings

    @staticmethod
    def training_parts(asked: OvertrainingSettings) -> dict[str, tuple[Mapping[str, Any], Collection[str]]]:
        """See `AskedStudy`."""
        parts = {"train": asked.train, **{f"tasks.{n}.train": t.train for n, t in asked.tasks.items()}}
        parts |= {f"tasks.{n}.align.train": t.align.train for n, t in asked.tasks.items() if t.align is not None}
        return {where: (train, (*OWN, *EARLY)) for where, train in parts.items()}

    @staticmethod
    def settings_problems(asked: OvertrainingSettings) -> list[str]:
        """What is wrong with what varies and with how it is measured."""
        from holdfast.runs.settings import training_keys

        problems: list[str] = []
        read_space(asked.vary, None, grid=True, known=training_keys(), problems=problems)
        return problems + _measuring_problems(asked)

    def plan_problems(self) -> list[str]:
        """Rates that are not said, and fine-tunings that are the same."""
        return _unclear(self)

    def part_problems(self) -> list[str]:
        """See `check_parts`."""
        return check_parts(self)

    def problems_before(self) -> list[str]:
        """Without early stopping, which looks at held-out files."""
        asked = dataclasses.replace(self.asked, early_stopping=False)
        return AskedStudy.problems_before(dataclasses.replace(self, asked=asked))

    def runs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every first stage and fine-tuning of the smallest budget, which stands in for a model that sees."""
        first, seed = next(iter(self.rungs)), self.asked.seeds[0]
        checked = {"model_name_or_path": self.model(first), "output_dir": str(self.output_dir / "runs" / "checked")}
        for name in self.ways_to_see:
            yield "align", {**self.aligning(first, name, seed), **checked}
        for tuning in self.tunings.values():
            yield f"{tuning.task}, {tuning.arm}", {**self.training(first, tuning.name, seed), **checked}

    def may_change(self, old: Mapping[str, Any]) -> set[str]:
        """What is judged anew from what was measured, whether to go on past a refusal, and what is tried and on which
        checkpoints, where there has only come more."""
        begun = self.begun_as(old)
        longer = begun is not None and all(rung in self.asked.ladder for rung in begun.asked.ladder)
        more = {"vary", "ladder"} if longer and self.has_jobs_of(begun) else set()
        return {"keep", "most_perplexity", *overlap_may_change(old), *more}

    # ----------------------------------------------------------------------------------------------------- what is made

    @functools.cached_property
    def rungs(self) -> dict[str, Rung]:
        """The checkpoints by label, the smallest budget first."""
        from holdfast.evaluation.session import requests_of

        named = [f"{r.label}={r.model}" if r.label else r.model for r in self.asked.ladder]
        labels = [request.label for request in requests_of(named)]
        return dict(zip(labels, self.asked.ladder, strict=True))

    @functools.cached_property
    def changes(self) -> list[Change]:
        """What every checkpoint is put through."""
        return self.asked.probe.changes() if self.asked.probe else []

    @property
    def probing(self) -> dict[str, Any]:
        """What `runs.probed_checkpoint` and `runs.probing` take: the changes, and how a checkpoint is loaded."""
        from holdfast.evaluation.probe.settings import CurvatureSettings
        from holdfast.runs.probed_checkpoint import Probe

        assert self.asked.probe
        train, curvature = self.asked.train, CurvatureSettings(curvature=self.asked.curvature)
        return {
            "plan": self.plan(None),
            "probe": Probe(changes=self.changes, std=self.asked.probe.std, curvature=curvature),
            "dtype": str(train.get("dtype") or "auto"),
            "device": "cpu" if train.get("use_cpu") else None,
            "trust_remote_code": bool(train.get("trust_remote_code")),
        }

    def along(self, label: str) -> dict[str, Any]:
        """The same for the direction of a checkpoint's fine-tuning; needs its weights."""
        from holdfast.evaluation.probe.changes import Toward
        from holdfast.evaluation.probe.settings import CurvatureSettings
        from holdfast.runs.probed_checkpoint import Probe

        asked, tuning = self.asked.direction, self.direction
        assert asked is not None and tuning is not None
        name = f"{asked.task}-{asked.learning_rate:g}"
        folder = self.run_folder(label, tuning.name, self.asked.seeds[0])
        changes = [Toward(size=size, label=name) for size in asked.steps]
        curvature = CurvatureSettings(curvature=self.asked.curvature)
        return {**self.probing, "probe": Probe(changes=changes, toward=[f"{name}={folder}"], curvature=curvature)}

    @functools.cached_property
    def direction(self) -> Tuning | None:
        """The fine-tuning whose direction is followed; None where none is, or none is like that."""
        asked = self.asked.direction
        if asked is None:
            return None
        alike = (
            t
            for t in self.tunings.values()
            if (t.task, t.arm, t.rate) == (asked.task, self.direct, asked.learning_rate)
        )
        return next(alike, None)

    def requests(self) -> list[ModelRequest]:
        """The checkpoints, as the code that measures takes them."""
        from holdfast.evaluation.session import ModelRequest

        return [ModelRequest(name=self.model(label), label=label) for label in self.rungs]

    @functools.cached_property
    def space(self) -> Space:
        """What is tried of each task."""
        from holdfast.runs.settings import training_keys

        return read_space(self.asked.vary, None, grid=True, known=training_keys(), problems=[])

    @functools.cached_property
    def tunings(self) -> dict[str, Tuning]:
        """Every fine-tuning by name: tasks and ways as listed, rates rising."""
        found = [tuning for name, task in self.asked.tasks.items() for tuning in _tunings(self, name, task)]
        return {tuning.name: tuning for tuning in found}

    def arms(self, task: str) -> dict[str, list[Tuning]]:
        """The ways to fine-tune on a task, each with its rates."""
        found: dict[str, list[Tuning]] = {}
        for tuning in self.tunings.values():
            if tuning.task == task:
                found.setdefault(tuning.arm, []).append(tuning)
        return found

    @property
    def direct(self) -> str:
        """The way that others are held against: the first one without a method."""
        kinds = {tuning.arm: tuning.kind for tuning in self.tunings.values()}
        return next((arm for arm, kind in kinds.items() if kind == DIRECT), next(iter(kinds), ""))

    def trained_on(self, task: str) -> list[Part]:
        """All data that a task is trained on: of its stages, of every way to fine-tune on it, and what methods mix in
        or learn from."""
        align = self.asked.tasks[task].align
        parts = [*self._own_data(task), *(_read_by(align.train) if align is not None else ()), *self.other_data(task)]
        return [(str(name), str(split), subset) for name, split, subset in self.filled(list(map(list, parts)))]

    def other_data(self, task: str) -> list[Part]:
        """Of this, what the task's own settings do not name."""
        ways = [t.settings for t in self.tunings.values() if t.task == task]
        methods = [p for s in ways if s["retention"] != "none" for method in s["retention"] for p in method.values()]
        named = [p["data"] for p in methods if p and isinstance(p.get("data"), str) and p["data"]]
        parts = [*((name, "train", None) for name in named), *(part for s in ways for part in _read_by(s))]
        own = self._own_data(task)
        return [part for part in dict.fromkeys(parts) if part not in own]

    def _own_data(self, task: str) -> list[Part]:
        return _read_by({**self.asked.train, **self.asked.tasks[task].train})

    def jobs(self) -> list[Job]:
        """The texts, what every checkpoint is put through, and every fine-tuning of each."""
        from holdfast.studies.engine.study import LABEL, Job

        # of a plain file the name alone, as studies of before have it
        others = {
            task: [
                name if (split, subset) == ("train", None) else [name, split, subset] for name, split, subset in data
            ]
            for task in self.asked.tasks
            if (data := self.other_data(task))
        }
        looking = {LABEL: "looking for what is measured in what is trained on", KIND: TEXTS}
        checks = [Job(attributes=looking | ({DATA: others} if others else {}))]  # with other data it is another job
        checks = checks if self.tunings else []
        after = tuple(range(len(checks)))
        probes = [
            Job(attributes={LABEL: f"{label}: noise, few bits, pruning", KIND: PROBE, CHECKPOINT: label})
            for label in (self.rungs if self.changes else ())
        ]
        aligned = {(label, name): len(checks) + len(probes) + n for n, (label, name) in enumerate(self.alignments())}
        alignments = [
            Job(
                attributes={
                    LABEL: f"{label}: a projector for its vision tower",
                    KIND: ALIGN,
                    CHECKPOINT: label,
                    MODEL: n,
                },
                after=after,
            )
            for label, n in aligned
        ]
        tunings = [
            Job(
                attributes={
                    LABEL: f"{label}: {t.task}, {t.arm}, learning rate {t.rate:g}",
                    KIND: TUNE,
                    CHECKPOINT: label,
                    MODEL: name,
                },
                after=(*after, *([aligned[label, self.way_to_see(t.task)]] if self.way_to_see(t.task) else [])),
            )
            for name, t in self.tunings.items()
            for label in self.rungs
        ]
        jobs = [*checks, *probes, *alignments, *tunings]
        if (followed := self.direction) is not None:
            made = {
                (j.attributes[KIND], j.attributes.get(CHECKPOINT), j.attributes.get(MODEL)): n
                for n, j in enumerate(jobs)
            }
            jobs += [
                Job(
                    attributes={
                        LABEL: f"{label}: along {followed.task}, learning rate {followed.rate:g}",
                        KIND: LINE,
                        CHECKPOINT: label,
                        MODEL: followed.name,
                    },
                    after=(made[PROBE, label, None], made[TUNE, label, followed.name]),
                )
                for label in self.rungs
            ]
        return jobs

    # -------------------------------------------------------------------------------------------------- models that see

    def way_to_see(self, task: str) -> str:
        """The name of how a task's checkpoints come to see, "" for a task without; tasks with the same settings share
        it."""
        align = self.asked.tasks[task].align
        return "" if align is None else folder_name(["align"], [align.tower, align.layer, self._stage_1(align)])

    @functools.cached_property
    def ways_to_see(self) -> dict[str, AlignSettings]:
        """How checkpoints come to see, by name."""
        return {self.way_to_see(name): task.align for name, task in self.asked.tasks.items() if task.align is not None}

    def alignments(self) -> list[tuple[str, str]]:
        """Every checkpoint that gets a tower, with the name of the way."""
        return [(label, name) for name in self.ways_to_see for label in self.rungs]

    def aligned(self, label: str, name: str, seed: int) -> Path:
        """Where a checkpoint's projector is trained; the model before lies beside it while that is done."""
        return self.output_dir / "aligned" / label / name / f"seed-{seed}"

    def aligning(self, label: str, name: str, seed: int) -> dict[str, Any]:
        """The configuration of stage 1, as `holdfast train --config` takes it; its model is the checkpoint's language
        model with a projector that is not trained."""
        from holdfast.runs.wrapping import PROJECTOR

        folder = self.aligned(label, name, seed)
        return {
            **self.filled(self._stage_1(self.ways_to_see[name])),
            "model_name_or_path": str(folder.with_name(f"{folder.name}-start")),
            "train_only": [PROJECTOR],
            "seed": seed,
            "output_dir": str(folder),
        }

    def _stage_1(self, align: AlignSettings) -> dict[str, Any]:
        shared = {k: v for k, v in self.asked.train.items() if k not in WHICH_PARAMETERS}
        return {**STAGE_1, **shared, **align.train}

    def start(self, label: str, task: str, seed: int) -> str:
        """What a fine-tuning begins with: the checkpoint, or the model that sees."""
        way = self.way_to_see(task)
        return str(self.aligned(label, way, seed)) if way else self.model(label)

    # ------------------------------------------------------------------------------------------------------- measuring

    def evaluation(self, task: str | None) -> dict[str, Any]:
        """What a model is measured on: what should be kept and, of a fine-tuned one, its task."""
        found: dict[str, Any] = {**self.asked.evaluation, SOURCE: list(self.asked.generalist)}
        if task is not None:
            found |= {VALIDATION: self.asked.tasks[task].validation, TEST: self.asked.tasks[task].test}
        return dict(self.filled(found))

    def plan(self, task: str | None) -> EvaluationPlan:
        """The same as the code that measures takes it."""
        from holdfast.evaluation.suite import parse_evaluation

        return parse_evaluation(self.evaluation(task))[0]

    # --------------------------------------------------------------------------------------------------------- training

    def model(self, label: str) -> str:
        """A checkpoint as it was named."""
        return str(self.filled(self.rungs[label].model))

    def held_out(self, task: str) -> dict[str, str]:
        """What early stopping looks at, as settings of a run.

        Raises:
            ConfigError: nothing that it could look at.
        """
        settings = self.asked.tasks[task]
        if settings.held_out is not None:
            return {"eval_dataset_name": str(self.filled(settings.held_out))}
        first = next((e for e in self.plan(task).entries if e.suite == VALIDATION), None)
        if not isinstance(first, DataEntry):
            raise ConfigError(
                f"tasks.{task}.held_out: is missing: a file with rows like those that are trained on, which early "
                f"stopping looks at after each epoch; or set early_stopping: false."
            )
        if first.config is not None:
            raise ConfigError(
                f"tasks.{task}.held_out: is missing: {first.name} is the configuration {first.config} of {first.data}, "
                f"and early stopping reads data without one. Name a file, or set early_stopping: false."
            )
        if first.max_documents is not None and "[" in first.split:
            raise ConfigError(
                f"tasks.{task}.held_out: is missing: {first.name} is the first {first.max_documents} documents of "
                f"{first.split}, a part of a part. Name a file, or set early_stopping: false."
            )
        part = f"[:{first.max_documents}]" if first.max_documents is not None else ""
        return {"eval_dataset_name": first.data, "eval_dataset_split": f"{first.split}{part}"}

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
        stops = self.asked.early_stopping and not tuning.to_the_end
        early = {**EARLY, **self.held_out(tuning.task)} if stops else {}
        return {
            **early,
            **self.filled(tuning.settings),
            "model_name_or_path": self.start(label, tuning.task, seed),
            "seed": seed,
            "evaluation": self.evaluation(tuning.task),
            "output_dir": str(self.run_folder(label, name, seed)),
        }


def _tunings(config: OvertrainingConfig, name: str, task: TaskSettings) -> list[Tuning]:
    space, base = config.space, {**TRAIN, **config.asked.train, **task.train}
    found = []
    for params in space.grid():
        alternative = space.alternative(params)
        axes = space.axes(alternative)
        arm = {k: v for k, v in params.items() if k == METHOD or axes[k][0] != (RATE,)}
        settings = space.settings(base, params)
        settings["retention"] = settings["retention"] or "none"
        if task.align is not None:
            own = ("lora_target_modules", ADAPTED) if settings.get("use_peft") else ("train_only", BUT_THE_TOWER)
            settings.setdefault(own[0], list(own[1]))
        if RATE in settings:
            found.append(
                Tuning(
                    task=name,
                    arm=space.label(arm),
                    kind=space.kind(params),
                    rate=float(settings[RATE]),
                    settings=settings,
                )
            )
    order = list(dict.fromkeys(t.arm for t in found))
    return sorted(found, key=lambda t: (order.index(t.arm), t.rate))


def overtraining_config(
    values: Mapping[str, Any] | Given, *, source: str | None = None, check: bool = True
) -> OvertrainingConfig:
    """A study from keys as in the YAML, everything checked that can be before anything runs.

    Args:
        values: keys of `OvertrainingSettings`.
        source: where they came from, for the message.
        check: whether configurations are read by the code that will use them; not by workers, who get a study that was
            checked.

    Raises:
        ConfigError: with every mistake at once.
    """
    return OvertrainingConfig.read(values, source=source, check=check)


def _measuring_problems(asked: OvertrainingSettings) -> list[str]:
    """Keys under `evaluation` that are no settings of measuring."""
    from holdfast.evaluation.entries import PlanSettings

    shared = [s.name for s in settings_of(PlanSettings) if s.name not in ("before", "along")]
    return [
        f"evaluation.{key}: no such key.{did_you_mean_key(key, shared)} What is measured stands under generalist and "
        f"tasks."
        for key in asked.evaluation
        if key not in shared
    ]


def _unclear(config: OvertrainingConfig) -> list[str]:
    """Rates that are not said, and fine-tunings that are the same."""
    rungs = config.rungs  # a label twice is said here
    assert rungs
    if not config.asked.tasks:
        return []
    for task in config.asked.tasks.values():
        tried = _tunings(config, "", task)
        if len(tried) < len(config.space.grid()):
            return ["vary.learning_rate: is missing: every way to fine-tune needs the rates that are tried."]
        same = [(t.arm, t.rate) for t in tried]
        if twice := [one for one in dict.fromkeys(same) if same.count(one) > 1]:
            arm, rate = twice[0]
            return [f"vary: '{arm}' at learning rate {rate:g} stands there twice. Give one of them a label."]
    asked, followed = config.asked.direction, config.direction
    if asked is not None and followed is None:
        own = [t for t in config.tunings.values() if (t.task, t.arm) == (asked.task, config.direct)]
        return [
            f"direction.learning_rate: expected one of {', '.join(f'{t.rate:g}' for t in own)}, at which "
            f"{config.direct} is tried, got {asked.learning_rate:g}."
        ]
    if followed is not None and followed.settings.get("use_peft"):
        return [
            "direction: expected a fine-tuning of all weights, an adapter has no direction of its own. Leave it out."
        ]
    return []


def check_parts(config: OvertrainingConfig) -> list[str]:
    """What is wrong with the checkpoints, with what is measured, or else with a fine-tuning.

    Args:
        config: with nothing left open.
    """
    from holdfast.evaluation.suite import parse_evaluation

    models = [config.model(label) for label in config.rungs]
    trusted = bool(config.asked.train.get("trust_remote_code"))
    problems = [f"ladder: {text}" for text in unlike(models, trust_remote_code=trusted)]
    if not problems and config.ways_to_see:
        problems += _blind(config, models[0], trusted)
    problems += [f"{_place(p, None)}" for p in parse_evaluation(config.evaluation(None))[1]]
    for name in config.asked.tasks if not problems else ():
        problems += [_place(p, name) for p in parse_evaluation(config.evaluation(name))[1]]
    if not problems and config.changes:
        from holdfast.runs.probing import check_probe

        try:
            check_probe(config.requests(), **config.probing)
        except ConfigError as error:
            problems += error.problems
    return problems or config.run_problems()


def _blind(config: OvertrainingConfig, model: str, trusted: bool) -> list[str]:
    """Why checkpoints cannot come to see."""
    from holdfast.models import takes_images
    from holdfast.runs.wrapping import check_tower

    problems = []
    if takes_images(model, trust_remote_code=trusted):
        problems.append(f"ladder: expected language models, to which `align` puts a tower, but {model} reads images.")
    for name, task in config.asked.tasks.items():
        if task.align is None:
            continue
        try:
            check_tower(config.filled(task.align.tower), task.align.layer)
        except UserError as error:
            problems.append(f"tasks.{name}.align: {error}")
    for tuning in config.tunings.values():
        targets = tuning.settings.get("lora_target_modules")
        if (
            config.asked.tasks[tuning.task].align
            and tuning.settings.get("use_peft")
            and "all-linear" in (targets or ())
        ):
            text = "all-linear would train the tower, too. Leave lora_target_modules out, or give a pattern."
            problems.append(f"{tuning.task}, {tuning.arm}: {text}")
    return list(dict.fromkeys(problems))


def _place(problem: str, task: str | None) -> str:
    """A problem of the measuring as the study's file has it."""
    named = {SOURCE: "generalist", VALIDATION: f"tasks.{task}.validation", TEST: f"tasks.{task}.test"}
    for suite, key in named.items():
        if problem.startswith(f"evaluation.{suite}"):
            return key + problem.removeprefix(f"evaluation.{suite}")
    return problem
