"""A sequence study with nothing left open: its models, each made once however many arms need it,
and the ways of its arms through them.

A model is what it is made of: the model it begins with, a task, and settings. So the model after
the first task, which no arm trains in a way of its own, serves all of them, and is the single-task
model of that task too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import Problem, did_you_mean
from holdfast.records.sequence import MULTITASK, SEQUENTIAL, SINGLE
from holdfast.retention.protocol import Earlier
from holdfast.studies.engine.base import StudyConfigBase
from holdfast.studies.engine.models import folder_name
from holdfast.studies.engine.recipes import Merged, Trained
from holdfast.studies.sequence.settings import (
    KEEP,
    PLAIN,
    SAMPLES,
    Arm,
    SequenceSettings,
    read_arms,
)

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.studies.engine.study import Job

MODEL, SEED = "model", "seed"
"""Attributes of a job."""
OWN = ("seed", "data_seed", "output_dir", "evaluation", "retention")
"""Keys of a training configuration that the study sets itself."""
ONE = ("model_name_or_path", "chat_template_path", "eos_token", "pad_token")
"""Keys that cannot differ between tasks: the base and how it reads text, or scores of one task by
the model of another would mean nothing."""
FISHER = "fisher"
"""Folder of a run in which EWC keeps its Fisher diagonal."""
FISHER_SAMPLES = 64


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model that the study makes, once a seed."""

    name: str
    """Of its folders, from what decides it."""
    label: str
    trained: tuple[str, ...]
    """The tasks behind it, the oldest first."""
    start: str = ""
    """The model that training begins with; "" the base."""
    before: str = ""
    """The arm's own model after the task before, which it may not start from (`continue_from`)."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of training, without model, seed, folder and measuring; empty for a merge."""
    merge: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Method and parameters of a merge."""
    parts: tuple[str, ...] = ()
    """The models that are merged."""
    reference: str = ""
    """The model that its distance is taken to; "" the base."""
    watched: tuple[str, ...] = ()
    """Tasks whose held-out loss is measured along training, where they are not those before."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The models that have to be there."""
        names = (self.start, self.before, *self.parts, self.reference)
        return tuple(dict.fromkeys(filter(None, names)))


@dataclass(frozen=True, kw_only=True)
class ArmTrajectory:
    """The models of one arm in one order of the tasks."""

    arm: Arm
    order: tuple[str, ...]
    models: tuple[str, ...]
    """After each task; the last one alone where all tasks are trained, or merged, at once. Single
    tasks: each task's own."""


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(StudyConfigBase[SequenceSettings]):
    """A sequence study."""

    settings_class: ClassVar[type[Any]] = SequenceSettings
    later: ClassVar[tuple[str, ...]] = ()

    @functools.cached_property
    def arms(self) -> list[Arm]:
        """The ways of training; sequential fine-tuning is the first."""
        from holdfast.runs.settings import training_keys

        return read_arms(self.request.arms, training_keys(), [])

    def resumable_changes(self, old: Mapping[str, Any]) -> set[str]:
        """What is kept on the disk. Arms may come later, whose models are then the last ones."""
        old_arms, arms = list(old.get("arms") or ()), list(self.resolved.get("arms") or ())
        if not all(arm in arms for arm in old_arms):
            return {"keep_weights"}
        earlier = self.from_recorded({**self.resolved, "arms": old_arms})
        return {"keep_weights", "arms"} if self.has_jobs_of(earlier) else {"keep_weights"}

    @property
    def base(self) -> str:
        """The model that all tasks begin with."""
        return str(self.with_paths(self.request.train["model_name_or_path"]))

    # ------------------------------------------------------------------------------------ measuring

    @property
    def evaluation(self) -> dict[str, Any]:
        """What is measured of every model: a suite a task, and what they share."""
        suites = {KEEP: self.request.keep} if self.request.keep else {}
        suites |= {name: task.learn for name, task in self.request.tasks.items()}
        return {**self.with_paths(suites), **self.request.evaluation}

    @functools.cached_property
    def measured(self) -> EvaluationPlan:
        """The same as the code that measures takes it."""
        from holdfast.evaluation.suite import parse_evaluation

        return parse_evaluation(self.evaluation)[0]

    @functools.cached_property
    def leading(self) -> dict[str, tuple[str, str]]:
        """By task the entry that scores it, (suite, name): its first one."""
        first: dict[str, tuple[str, str]] = {}
        for entry in self.measured.entries:
            first.setdefault(entry.suite, (entry.suite, entry.name))
        return {task: first[task] for task in self.request.tasks}

    @functools.cached_property
    def others(self) -> dict[str, tuple[str, str]]:
        """The tasks' other entries by "task/entry": (suite, name)."""
        entries = {}
        for entry in self.measured.entries:
            key = (entry.suite, entry.name)
            if entry.suite in self.request.tasks and self.leading[entry.suite] != key:
                entries[f"{entry.suite}/{entry.name}"] = key
        return entries

    @functools.cached_property
    def kept(self) -> dict[str, tuple[str, str]]:
        """What should be kept beside the tasks, by name: (suite, name)."""
        entries = {}
        for entry in self.measured.entries:
            if entry.suite == KEEP:
                entries[entry.name] = (entry.suite, entry.name)
        return entries

    # --------------------------------------------------------------------------------------- models

    @functools.cached_property
    def plan(self) -> tuple[dict[str, Model], list[ArmTrajectory]]:
        """Every model by name, those that others need first, and the arms' ways through them."""
        return _plan(self)

    @property
    def models(self) -> dict[str, Model]:
        """Every model by name."""
        return self.plan[0]

    @property
    def chains(self) -> list[ArmTrajectory]:
        """Every arm in every order."""
        return self.plan[1]

    def jobs(self) -> list[Job]:
        """A model with a seed each; one that needs others waits for them."""
        from holdfast.studies.engine.study import LABEL, Job

        seeds = self.request.seeds
        numbers: dict[tuple[str, int], int] = {}
        jobs: list[Job] = []
        for model in self.models.values():
            for seed in seeds:
                numbers[model.name, seed] = len(jobs)
                label = f"{model.label}, seed {seed}" if len(seeds) > 1 else model.label
                after = tuple(numbers[needed, seed] for needed in model.needs)
                jobs.append(
                    Job(attributes={LABEL: label, MODEL: model.name, SEED: seed}, after=after)
                )
        return jobs

    def folder(self, name: str, seed: int) -> Path:
        """Where a model lies."""
        kind = "models" if self.models[name].merge else "runs"
        return self.output_dir / kind / name / f"seed-{seed}"

    def _data_of(self, tasks: Sequence[str]) -> tuple[str, ...]:
        return tuple(str(self.request.tasks[task].train["dataset_name"]) for task in tasks)

    def training(
        self, model: Model, seed: int, *, start: str, fisher: str | None = None
    ) -> dict[str, Any]:
        """The configuration of a model's training, as `holdfast train --config` takes it.

        Args:
            model: which is trained.
            seed: of this repetition.
            start: folder of the model that it begins with.
            fisher: see `Earlier.fisher`.
        """
        data = self._data_of(model.trained[:-1])
        retention = completed(
            model.settings["retention"], Earlier(data=data, base=self.base, fisher=fisher)
        )
        settings = {
            **model.settings,
            "model_name_or_path": start,
            "seed": seed,
            "evaluation": self.evaluation,
            "retention": retention or "none",
            "output_dir": str(self.folder(model.name, seed)),
        }
        return dict(self.with_paths(settings))

    def recipe(self, model: Model, seed: int) -> Merged | Trained:
        """How a model is made of those that it needs."""
        if not model.merge:
            start = str(self.folder(model.start, seed)) if model.start else self.base
            fisher = self.folder(model.before, seed) / FISHER if model.before else None
            known = str(fisher) if fisher is not None and fisher.is_dir() else ""
            settings = self.training(model, seed, start=start, fisher=known)
            watched = model.watched or model.trained[:-1] or tuple(self.request.tasks)
            return Trained(settings=settings, watched=watched, points=self.request.curve)
        from holdfast.checkpoints.methods.registry import find_method

        parameters, folder = dict(model.merge), self.folder(model.name, seed)
        parts = tuple(self.folder(name, seed) for name in model.parts)
        method = str(parameters.pop("method"))
        if find_method(method).needs_base:
            parameters["base"] = self.base
        if find_method(method).extras is None:
            return Merged(parts=parts, method=method, parameters=parameters, folder=folder)
        samples = int(parameters.pop(SAMPLES, FISHER_SAMPLES))
        data = tuple(map(self.with_paths, self._data_of(model.trained)))
        return Merged(
            parts=parts,
            method=method,
            parameters=parameters,
            folder=folder,
            fisher_data=data,
            fisher_samples=samples,
        )

    # ------------------------------------------------------------------------------------- checking

    @staticmethod
    def normalised(request: SequenceSettings) -> SequenceSettings:
        """Tasks that are given no order have the one that they are listed in."""
        return dataclasses.replace(request, orders=request.orders or (tuple(request.tasks),))

    @staticmethod
    def training_parts(
        request: SequenceSettings,
    ) -> dict[str, tuple[Mapping[str, Any], Collection[str]]]:
        """What all tasks share, and what each has of its own."""
        parts: dict[str, tuple[Mapping[str, Any], Collection[str]]] = {
            "train": (request.train, OWN)
        }
        for name, task in request.tasks.items():
            parts[f"tasks.{name}.train"] = (task.train, OWN)
        return parts

    @staticmethod
    def settings_problems(request: SequenceSettings) -> Sequence[str]:
        """Keys that the study sets or that cannot differ, data that is missing, and what is wrong
        with the arms."""
        from holdfast.runs.settings import training_keys

        problems: list[str] = []
        trains = {}
        for where, (train, _) in SequenceConfig.training_parts(request).items():
            trains[where] = train
            problems += [
                f"{where}.{key}: is set by the study; leave it out." for key in train if key in OWN
            ]
        for name, task in request.tasks.items():
            where = f"tasks.{name}.train"
            if not isinstance(task.train.get("dataset_name"), str):
                problems.append(Problem((where, "dataset_name"), "is missing: the task's data."))
            shared = [key for key in ONE if key in task.train]
            problems += [
                f"{where}.{key}: is common to all tasks; put it under train." for key in shared
            ]
        arms = read_arms(request.arms, training_keys(), problems)
        for arm in arms:
            for left_out in arm.left_out:
                if left_out not in request.tasks:
                    hint = did_you_mean(left_out, request.tasks)
                    problems.append(Problem("arms", f"{arm.label}: no such task.{hint}"))
            where = Problem("arms", f"{arm.label}: train")
            trains[where] = arm.train
            shared = [key for key in ONE if key in arm.train]
            problems += [
                f"{where}.{key}: is common to all arms; put it under train." for key in shared
            ]
        for where, train in trains.items():
            if train.get("use_peft"):
                problems.append(
                    Problem(
                        (where, "use_peft"),
                        "adapters are not supported, because each task starts from the full "
                        "weights of the previous one. Leave it out.",
                    )
                )
        return [*problems, *_continuing_problems(request, arms)]

    def part_problems(self) -> Sequence[str]:
        """What is wrong with what is measured, or else with any model's training."""
        from holdfast.evaluation.suite import parse_evaluation

        _, problems = parse_evaluation(self.evaluation)
        return [f"tasks.{problem}" for problem in problems] or self.run_problems()

    def runs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every model's; the base stands in for models that are not there yet."""
        for model in self.models.values():
            if not model.merge:
                settings = self.training(model, self.request.seeds[0], start=self.base)
                yield (
                    model.label,
                    {**settings, "output_dir": str(self.output_dir / "runs" / "checked")},
                )

    def run_problems(
        self, known: Sequence[str] = (), *, without: Collection[str] = ()
    ) -> Sequence[str]:
        """With what the merge methods say of so many models, such as weights for others."""
        merges = []
        for model in self.models.values():
            if model.merge:
                merges += [
                    Problem("arms", f"{model.label}: {problem}")
                    for problem in _merge_problems(model)
                ]
        return [*merges, *super().run_problems((*known, *merges), without=without)]


def completed(retention: Sequence[Mapping[str, Any]], earlier: Earlier) -> list[dict[str, Any]]:
    """Methods with what they take from earlier tasks where the study leaves it open."""
    from holdfast.retention.registry import method_class

    methods: list[dict[str, Any]] = []
    for method in retention:
        name, parameters = next(iter(method.items()))
        for entry in method_class(name).after_tasks(parameters or {}, earlier):
            methods.append({name: entry})
    return methods


def _continuing_problems(request: SequenceSettings, arms: Sequence[Arm]) -> Sequence[str]:
    """What is wrong with the arm that others go on from."""
    problems: list[str] = []
    if not request.continue_from:
        return problems
    labels = [arm.label for arm in arms if arm.chained]
    if request.continue_from not in labels:
        problems.append(
            Problem(
                "continue_from",
                f"expected the label of an arm ({'; '.join(labels)}), got "
                f"{request.continue_from!r}.{did_you_mean(request.continue_from, labels)}",
            )
        )
    if max(map(len, request.orders)) < 3:
        problems.append(Problem("continue_from", "has no effect with two tasks. Leave it out."))
    return problems


def _merge_problems(model: Model) -> Sequence[str]:
    from holdfast.checkpoints.methods.registry import merge_method

    parameters = dict(model.merge)
    method = parameters.pop("method")
    parameters.pop(SAMPLES, None)
    return merge_method(method, **parameters).problems(len(model.parts))


# --------------------------------------------------------------------------------------------- plan


class _Plan:
    """Collects models; the same one twice is one."""

    def __init__(self, config: SequenceConfig) -> None:
        self.config, self.models = config.request, dict[str, Model]()
        self.plain = config.arms[0]

    def add(self, model: Model) -> str:
        """The name of a model, which is in the plan then."""
        return self.models.setdefault(model.name, model).name

    def trained(
        self,
        order: Sequence[str],
        arm: Arm,
        *,
        start: str = "",
        before: str = "",
        reference: str | None = None,
        watched: Sequence[str] = (),
        label: str,
    ) -> str:
        """A training on the last task of `order`, from a model of the plan, or from the base."""
        config, task = self.config, self.config.tasks[order[-1]]
        is_first = len(order) == 1
        retention = arm.retention
        if is_first:
            retention = arm.first if config.from_first_task else []
        differs = bool(retention) or not is_first or (config.from_first_task and bool(arm.train))
        settings = {
            **config.train,
            **task.train,
            **(arm.train if differs else {}),
            "retention": retention,
        }
        settings.pop("model_name_or_path")
        words = list(order)
        if differs and (arm.kind != SEQUENTIAL or is_first):
            words.append(arm.label)
        deciding = [start, before, list(order), settings, config.train["model_name_or_path"]]
        if watched:
            deciding.append(list(watched))
        return self.add(
            Model(
                name=folder_name(words, deciding),
                label=label,
                trained=tuple(order),
                start=start,
                before=before,
                settings=settings,
                reference=start if reference is None else reference,
                watched=tuple(watched),
            )
        )

    def merged(self, order: Sequence[str], arm: Arm, parts: Sequence[str], reference: str) -> str:
        """A merge of models."""
        return self.add(
            Model(
                name=folder_name([*order, arm.label], [list(parts), arm.merge]),
                label=f"{arm.label}: {', '.join(order)}",
                trained=tuple(order),
                merge=arm.merge,
                parts=tuple(parts),
                reference=reference,
            )
        )

    def through(
        self, order: Sequence[str], arm: Arm, start_from: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """An arm's model after each task; from the third on each begins with the model of
        `start_from`, where there is one."""
        models: list[str] = []
        for count in range(1, len(order) + 1):
            done = order[:count]
            before = start = models[-1] if models else ""
            if count > 2 and start_from:
                start = start_from[count - 2]
            alike = not (self.config.from_first_task and (arm.first or arm.train))
            label = PLAIN[SINGLE] if count == 1 and alike else arm.label
            models.append(
                self.trained(
                    done, arm, start=start, before=before, label=f"{label}: {', '.join(done)}"
                )
            )
        return tuple(models)

    def single(self, task: str) -> str:
        """The base trained on one task."""
        return self.trained([task], self.plain, label=f"{PLAIN[SINGLE]}: {task}")

    def multitask(self, order: Sequence[str], arm: Arm, *, reference: str) -> str:
        """All tasks at once from the base, but those that the arm leaves out: the last task's
        settings, the others' data mixed in, the steps of all."""
        config = self.config
        watched = tuple(order[:-1]) if arm.left_out else ()
        steps = []
        order = [task for task in order if task not in arm.left_out]
        for task in order:
            settings = {**config.train, **config.tasks[task].train}
            steps.append(settings.get("max_steps", -1))
        train = (
            {"max_steps": sum(steps)} if all(isinstance(s, int) and s > 0 for s in steps) else {}
        )
        mixed = dataclasses.replace(arm, retention=[{"multitask": {}}], train=train)
        label = f"{PLAIN[MULTITASK]}: {', '.join(order)}"
        return self.trained(order, mixed, reference=reference, watched=watched, label=label)


def _plan(config: SequenceConfig) -> tuple[dict[str, Model], list[ArmTrajectory]]:
    plan, chains, continue_from = _Plan(config), list[ArmTrajectory](), config.request.continue_from
    for order in config.request.orders:
        sequential = plan.through(order, plan.plain)
        start_from: tuple[str, ...] = ()
        kind = ""
        if continue_from and len(order) > 2:
            first = next(arm for arm in config.arms if arm.label == continue_from)
            start_from, kind = plan.through(order, first), first.kind
        for arm in config.arms:
            if arm.chained and arm.label == continue_from:
                models = start_from or plan.through(order, arm)
            elif arm.chained:
                models = plan.through(order, arm, start_from if arm.kind == kind else ())
            elif arm.kind == SINGLE:
                models = tuple(plan.single(task) for task in order)
            elif arm.kind == MULTITASK:
                models = (plan.multitask(order, arm, reference=sequential[-2]),)
            else:
                parts = [plan.single(task) for task in order]
                models = (plan.merged(order, arm, parts, sequential[-2]),)
            chains.append(ArmTrajectory(arm=arm, order=order, models=models))
    return plan.models, chains
