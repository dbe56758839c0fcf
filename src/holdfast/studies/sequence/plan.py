"""A sequence study with nothing left open: its models, each made once however many arms need it, and the ways of its
arms through them.

A model is what it is made of: the model it begins with, a task, and settings. So the model after the first task, which
no arm trains in a way of its own, serves all of them, and is the single-task model of that task too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.config.decode import Given
from holdfast.errors import did_you_mean
from holdfast.records.sequence import MULTITASK, RESIDUAL, SEQUENTIAL, SINGLE
from holdfast.retention.protocol import Earlier
from holdfast.studies.engine.asked import AskedStudy
from holdfast.studies.engine.models import folder_name, training_problems
from holdfast.studies.sequence.settings import PLAIN, SAMPLES, SOURCE, Arm, SequenceSettings, read_arms

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.studies.engine.study import Job

MODEL, SEED = "model", "seed"
"""Attributes of a job."""
OWN = ("seed", "data_seed", "output_dir", "evaluation", "retention")
"""Keys of a training configuration that the study sets itself."""
ONE = ("model_name_or_path", "chat_template_path", "eos_token", "pad_token")
"""Keys that cannot differ between tasks: the base and how it reads text, or scores of one task by the model of another
would mean nothing."""


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
    origin: str = ""
    """Another base that training begins with, a folder or hub id."""
    before: str = ""
    """The arm's own model after the task before, which it may not start from (`continue_from`)."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of training, without model, seed, folder and measuring; empty for a merge."""
    merge: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Method and parameters of a merge, or of what is added."""
    parts: tuple[str, ...] = ()
    """The models that are merged."""
    reference: str = ""
    """The model that its distance is taken to; "" the base."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The models that have to be there."""
        return tuple(dict.fromkeys(n for n in (self.start, self.before, *self.parts, self.reference) if n))


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The models of one arm in one order of the tasks."""

    arm: Arm
    order: tuple[str, ...]
    models: tuple[str, ...]
    """After each task; the last one alone where all tasks are trained, or merged, at once. Single tasks: each task's
    own."""


@dataclass(frozen=True, kw_only=True)
class SequenceConfig(AskedStudy[SequenceSettings]):
    """A study as `sequence_config` gives it."""

    settings_class: ClassVar[type[Any]] = SequenceSettings
    later: ClassVar[tuple[str, ...]] = ()

    @property
    def measures(self) -> tuple[str, ...]:
        """What a finished model reports to the storage."""
        return ("mean_score",)

    @functools.cached_property
    def arms(self) -> list[Arm]:
        """The ways of training; sequential fine-tuning is the first."""
        return read_arms(self.asked.arms, self.known_keys(self.asked), [])

    def may_change(self, old: Mapping[str, Any]) -> set[str]:
        """What is kept on the disk. Arms may come later, whose models are then the last ones."""
        arms, mine = list(old.get("arms") or ()), list(self.resolved.get("arms") or ())
        earlier = self.begun_as({**self.resolved, "arms": arms}) if all(arm in mine for arm in arms) else None
        return {"keep", *(("arms",) if self.has_jobs_of(earlier) else ())}

    @property
    def base(self) -> str:
        """The model that all tasks begin with."""
        return str(self.filled(self.asked.train["model_name_or_path"]))

    @property
    def evaluation(self) -> dict[str, Any]:
        """What is measured of every model: a suite a task, and what they share."""
        asked = self.asked
        source = {SOURCE: self.filled(asked.source)} if asked.source else {}
        return {**source, **{n: self.filled(task.evaluation) for n, task in asked.tasks.items()}, **asked.evaluation}

    @functools.cached_property
    def measured(self) -> EvaluationPlan:
        """The same as the code that measures takes it."""
        from holdfast.evaluation.suite import parse_evaluation

        return parse_evaluation(self.evaluation)[0]

    @functools.cached_property
    def leading(self) -> dict[str, tuple[str, str]]:
        """By task the entry that scores it, (suite, name): its first one."""
        found: dict[str, tuple[str, str]] = {}
        for entry in self.measured.entries:
            found.setdefault(entry.suite, (entry.suite, entry.name))
        return {task: found[task] for task in self.asked.tasks}

    @functools.cached_property
    def kept(self) -> dict[str, tuple[str, str]]:
        """What should be kept beside the tasks, by name: (suite, name)."""
        return {e.name: (e.suite, e.name) for e in self.measured.entries if e.suite == SOURCE}

    @functools.cached_property
    def plan(self) -> tuple[dict[str, Model], list[Chain]]:
        """Every model by name, those that others need first, and the arms' ways through them."""
        return _plan(self)

    @property
    def models(self) -> dict[str, Model]:
        """Every model by name."""
        return self.plan[0]

    @property
    def chains(self) -> list[Chain]:
        """Every arm in every order."""
        return self.plan[1]

    def jobs(self) -> list[Job]:
        """A model with a seed each; one that needs others waits for them."""
        from holdfast.studies.engine.study import LABEL, Job

        places = {(name, seed): i for i, (name, seed) in enumerate(self._cells())}
        return [
            Job(
                attributes={
                    LABEL: self.models[name].label + (f", seed {seed}" if len(self.asked.seeds) > 1 else ""),
                    MODEL: name,
                    SEED: seed,
                },
                after=tuple(places[needed, seed] for needed in self.models[name].needs),
            )
            for name, seed in places
        ]

    def _cells(self) -> list[tuple[str, int]]:
        return [(name, seed) for name in self.models for seed in self.asked.seeds]

    def folder(self, name: str, seed: int) -> Path:
        """Where a model lies."""
        kind = "models" if self.models[name].merge else "runs"
        return self.output_dir / kind / name / f"seed-{seed}"

    def training(self, model: Model, seed: int, *, start: str, fisher: str | None = None) -> dict[str, Any]:
        """The configuration of a model's training, as `holdfast train --config` takes it.

        Args:
            model: which is trained.
            seed: of this repetition.
            start: folder of the model that it begins with.
            fisher: see `Earlier.fisher`.
        """
        settings: dict[str, Any] = {**model.settings, "model_name_or_path": start, "seed": seed}
        settings["evaluation"] = self.evaluation
        earlier = [str(self.asked.tasks[t].train["dataset_name"]) for t in model.trained[:-1]]
        retention = settings.pop("retention")
        if retention:
            retention = completed(retention, Earlier(data=tuple(earlier), base=self.base, fisher=fisher))
        retention = retention or "none"
        return self.filled({**settings, "retention": retention, "output_dir": str(self.folder(model.name, seed))})

    # -------------------------------------------------------------------------------------------------------- checking

    @staticmethod
    def normalised(asked: SequenceSettings) -> SequenceSettings:
        """Tasks that are given no order have the one that they are listed in."""
        return dataclasses.replace(asked, orders=asked.orders or (tuple(asked.tasks),))

    @staticmethod
    def known_keys(asked: SequenceSettings) -> Sequence[str]:
        """Of a training configuration."""
        from holdfast.runs.settings import training_keys

        return training_keys()

    @staticmethod
    def training_parts(asked: SequenceSettings) -> dict[str, tuple[Mapping[str, Any], Collection[str]]]:
        """What all tasks share, and what each has of its own."""
        return {"train": (asked.train, OWN), **{f"tasks.{n}.train": (t.train, OWN) for n, t in asked.tasks.items()}}

    @staticmethod
    def settings_problems(asked: SequenceSettings) -> list[str]:
        """Keys that the study sets or that cannot differ, data that is missing, and what is wrong with the arms."""
        problems: list[str] = []
        parts = {where: train for where, (train, _) in SequenceConfig.training_parts(asked).items()}
        for where, train in parts.items():
            problems += [f"{where}.{k}: is set by the study; leave it out." for k in train if k in OWN]
        for name, task in asked.tasks.items():
            if not isinstance(task.train.get("dataset_name"), str):
                problems.append(f"tasks.{name}.train.dataset_name: is missing: the task's data.")
            problems += [
                f"tasks.{name}.train.{k}: is common to all tasks; put it under train." for k in ONE if k in task.train
            ]
        arms = read_arms(asked.arms, SequenceConfig.known_keys(asked), problems)
        problems += [
            f"arms: {arm.label}: train.{k}: is common to all arms; put it under train."
            for arm in arms
            for k in ONE
            if k in arm.train
        ]
        problems += [
            f"{where}.use_peft: a task begins with the whole model that the one before left, which an adapter is not. "
            "Leave it out."
            for where, train in (*parts.items(), *((f"arms: {arm.label}: train", arm.train) for arm in arms))
            if train.get("use_peft")
        ]
        labels = [arm.label for arm in arms if arm.chained]
        if asked.continue_from and asked.continue_from not in labels:
            problems.append(
                f"continue_from: expected the label of an arm ({'; '.join(labels)}), got {asked.continue_from!r}."
                f"{did_you_mean(asked.continue_from, labels)}"
            )
        if asked.continue_from and max(map(len, asked.orders)) < 3:
            problems.append("continue_from: has no effect with two tasks; leave it out.")
        return problems

    def part_problems(self) -> list[str]:
        """What is wrong with what is measured, or else with any model's training."""
        from holdfast.evaluation.suite import parse_evaluation

        measuring = [f"tasks.{problem}" for problem in parse_evaluation(self.evaluation)[1]]
        return measuring or self.run_problems()

    def runs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every model's; the base stands in for models that are not there yet."""
        for model in (m for m in self.models.values() if not m.merge):
            settings = self.training(model, self.asked.seeds[0], start=self.filled(model.origin) or self.base)
            yield model.label, {**settings, "output_dir": str(self.output_dir / "runs" / "checked")}

    def problems_of_run(self, settings: Mapping[str, Any]) -> list[str]:
        """Of a training configuration."""
        return training_problems(settings)

    def run_problems(self, known: Sequence[str] = (), *, without: Collection[str] = ()) -> list[str]:
        """With what the merge methods say of so many models, such as weights for others."""
        merges = [f"arms: {m.label}: {p}" for m in self.models.values() if m.merge for p in _merge_problems(m)]
        return [*merges, *super().run_problems((*known, *merges), without=without)]


def completed(retention: Sequence[Mapping[str, Any]], earlier: Earlier) -> list[dict[str, Any]]:
    """Methods with what they take from earlier tasks where the study leaves it open."""
    from holdfast.retention.registry import method_class

    found: list[dict[str, Any]] = []
    for method in retention:
        name, parameters = next(iter(method.items()))
        found += [{name: p} for p in method_class(name).after_tasks(parameters or {}, earlier)]
    return found


def sequence_config(
    values: Mapping[str, Any] | Given, *, source: str | None = None, check: bool = True
) -> SequenceConfig:
    """A study from keys as in the YAML, everything checked that can be before anything runs.

    Args:
        values: keys of `SequenceSettings`.
        source: where they came from, for the message.
        check: whether every training configuration is read by the code that will; not by workers, who get a study that
            was checked.

    Raises:
        ConfigError: with every mistake at once.
    """
    return SequenceConfig.read(values, source=source, check=check)


def _merge_problems(model: Model) -> list[str]:
    from holdfast.checkpoints.methods.registry import merge_method

    method, parameters = model.merge["method"], {k: v for k, v in model.merge.items() if k not in ("method", SAMPLES)}
    return [] if method == RESIDUAL else merge_method(method, **parameters).problems(len(model.parts))


# ----------------------------------------------------------------------------------------------------------------- plan


class _Plan:
    """Collects models; the same one twice is one."""

    def __init__(self, config: SequenceConfig) -> None:
        self.config, self.models = config, dict[str, Model]()

    def trained(
        self,
        order: Sequence[str],
        arm: Arm,
        *,
        start: str = "",
        origin: str = "",
        before: str = "",
        reference: str | None = None,
        label: str,
    ) -> str:
        """A training on the last task of `order`, from a model of the plan, from another base, or from the base."""
        config, task = self.config.asked, self.config.asked.tasks[order[-1]]
        later = len(order) > 1
        retention = arm.retention if later else arm.first if config.hold_first else []
        own = bool(retention) or later or (config.hold_first and bool(arm.train))
        settings = {**config.train, **task.train, **(arm.train if own else {}), "retention": retention}
        settings.pop("model_name_or_path")
        deciding = [
            start,
            before,
            list(order),
            settings,
            config.train["model_name_or_path"],
            *([origin] if origin else []),
        ]
        model = Model(
            name=folder_name(
                [*order, *([arm.label] if own and (arm.kind != SEQUENTIAL or not later) else [])], deciding
            ),
            label=label,
            trained=tuple(order),
            start=start,
            origin=origin,
            before=before,
            settings=settings,
            reference=start if reference is None else reference,
        )
        return self.models.setdefault(model.name, model).name

    def merged(self, order: Sequence[str], arm: Arm, parts: Sequence[str], reference: str) -> str:
        """A merge of models, or something added to one."""
        model = Model(
            name=folder_name([*order, arm.label], [list(parts), arm.merge]),
            label=f"{arm.label}: {', '.join(order)}",
            trained=tuple(order),
            merge=arm.merge,
            parts=tuple(parts),
            reference=reference,
        )
        return self.models.setdefault(model.name, model).name


def _plan(config: SequenceConfig) -> tuple[dict[str, Model], list[Chain]]:
    plan, chains, asked = _Plan(config), list[Chain](), config.asked
    plain = config.arms[0]
    for order in asked.orders:
        through = functools.partial(_through, plan, order)
        sequential = through(plain)
        start_from: tuple[str, ...] = ()
        if asked.continue_from and len(order) > 2:
            start_from = through(next(a for a in config.arms if a.label == asked.continue_from))
        for arm in config.arms:
            if arm.chained:
                models = through(arm, start_from) if arm.label != asked.continue_from else start_from or through(arm)
            elif arm.kind == RESIDUAL:
                models = _residual(plan, order, arm)
            elif arm.kind == SINGLE:
                models = tuple(_single(plan, task) for task in order)
            elif arm.kind == MULTITASK:
                models = (_multitask(plan, order, arm, reference=sequential[-2]),)
            else:
                parts = [_single(plan, task) for task in order]
                models = (plan.merged(order, arm, parts, sequential[-2]),)
            chains.append(Chain(arm=arm, order=order, models=models))
    return plan.models, chains


def _through(plan: _Plan, order: Sequence[str], arm: Arm, start_from: Sequence[str] = ()) -> tuple[str, ...]:
    """An arm's model after each task; from the third on each begins with the model of `start_from`, where there is
    one."""
    models: list[str] = []
    for count in range(1, len(order) + 1):
        done = order[:count]
        before = start = "" if count == 1 else models[-1]
        if count > 2 and start_from:
            start = start_from[count - 2]
        alike = not (plan.config.asked.hold_first and (arm.first or arm.train))
        label = PLAIN[SINGLE] if count == 1 and alike else arm.label
        models.append(plan.trained(done, arm, start=start, before=before, label=f"{label}: {', '.join(done)}"))
    return tuple(models)


def _residual(plan: _Plan, order: Sequence[str], arm: Arm) -> tuple[str, ...]:
    """After each task another base, continued on all tasks so far, plus what the start has over it."""
    base, models, continued = str(arm.merge["base"]), list[str](), ""
    for count in range(1, len(order) + 1):
        done, label = order[:count], f"continued base: {', '.join(order[:count])}"
        plain = plan.config.arms[0]
        origin = "" if continued else base
        continued = plan.trained(done, plain, start=continued, origin=origin, label=label)
        models.append(plan.merged(done, arm, [continued], models[-1] if models else ""))
    return tuple(models)


def _single(plan: _Plan, task: str) -> str:
    return plan.trained([task], plan.config.arms[0], label=f"{PLAIN[SINGLE]}: {task}")


def _multitask(plan: _Plan, order: Sequence[str], arm: Arm, *, reference: str) -> str:
    """All tasks at once from the base: the last task's settings, the others' data mixed in, the steps of all."""
    config = plan.config.asked
    steps = [{**config.train, **config.tasks[t].train}.get("max_steps", -1) for t in order]
    train = {"max_steps": sum(steps)} if all(isinstance(s, int) and s > 0 for s in steps) else {}
    mixed = dataclasses.replace(arm, retention=[{"multitask": {}}], train=train)
    return plan.trained(order, mixed, start="", reference=reference, label=f"{arm.label}: {', '.join(order)}")
