"""The keys of a sequence study, declared once, and its arms.

```yaml
train: {model_name_or_path: MODEL, learning_rate: 1.0e-5}     # common to all tasks
tasks:
  math: {train: {dataset_name: math.jsonl}, evaluation: [{task: gsm8k}, {perplexity: heldout.jsonl, name: text}]}
  law:  {train: {dataset_name: law.jsonl}, evaluation: [{multiple_choice: casehold.jsonl, name: casehold}]}
orders: [[math, law], [law, math]]
arms:
  - sequential                                      # fine-tuning on one task after the other
  - single                                          # each task from the base
  - multitask                                       # all tasks at once, from the base
  - multitask: {left_out: math}                     # all but one: what a model knows of it that never saw it
  - replay: {fraction: 0.1}                         # rehearsal: of all earlier tasks' data
  - sfa: {p: [1, 0.5, 0.25]}                        # any retention method; a list is tried value by value
  - [{l2: {coefficient: 0.01}}, {train: {learning_rate: 2.0e-5}}]
  - merge: {method: task_arithmetic, weights: [[0.25, 0.75], [0.5, 0.5]]}     # of the single-task models
```
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import decode_named
from holdfast.config.synonyms import did_you_mean_key
from holdfast.config.values import Refused
from holdfast.errors import ConfigError, Problem, did_you_mean
from holdfast.records.sequence import MERGE, MULTITASK, SEQUENTIAL, SINGLE
from holdfast.studies.engine.keys import ALLOWED, NAME, BaseStudySettings, SeedSettings, ToySettings
from holdfast.studies.engine.space import DIRECT, read_space

PLAIN = {
    SEQUENTIAL: "sequential fine-tuning",
    SINGLE: "single task",
    MULTITASK: "multitask training",
}
"""Arms without parameters, as people call them."""
CURVE_POINTS = 8
LEFT_OUT = "left_out"
"""Of multitask training: the task that it does without."""
KEEP = "keep"
"""Suite of what should be kept."""
SAMPLES = "samples"
"""Of a merge by Fisher information: samples of each task's data that it is computed on; no
parameter of the method."""
_FILES = ("data", "fisher", "reference", "anchor", "previous", "cache_dir", "sha256")


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """One task."""

    train: dict[str, Any] = field(default_factory=dict)
    """Keys of 'holdfast train' for this task: its data, and keys with other values than the common
    ones."""
    learn: Annotated[list[Any], Meta(former=("evaluation",))] = field(default_factory=list)
    """Entries as in 'holdfast train'; the first one is the task's score. A `perplexity` entry is
    also measured while later tasks are trained."""


def read_tasks(value: Any) -> dict[str, TaskSettings]:
    """The tasks by name, in order.

    Raises:
        ValueError: no mapping.
        Refused: what is wrong in each.
    """
    tasks, problems = decode_named(
        TaskSettings, value, name=NAME, allowed=f"a name of {ALLOWED}", shorthand="train"
    )
    for name, task in tasks.items():
        if not task.train:
            text = "is missing: the task's data, as in 'train: {dataset_name: FILE}'."
            problems.append(Problem((name, "train"), text))
        if not task.learn:
            problems.append(Problem((name, "learn"), "is missing: entries that score the task."))
    if problems:
        raise Refused(*problems)
    return tasks


def _shared_keys() -> list[str]:
    """Settings of a plan that are not about when a model is measured."""
    from holdfast.evaluation.entries import PlanSettings

    return [s.name for s in settings_of(PlanSettings) if s.name not in ("before", "along")]


def _shared_schema() -> dict[str, Any]:
    return {"type": "object", "propertyNames": {"enum": _shared_keys()}}


def _lists_of_names() -> dict[str, Any]:
    return {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "minItems": 2}}


@dataclass(frozen=True, kw_only=True)
class SequenceSettings(SeedSettings, ToySettings, BaseStudySettings):
    """Keys of a sequence study."""

    name: str = "sequence"
    train: dict[str, Any] = field(default_factory=dict)
    """Keys of 'holdfast train' that all tasks share: the base (`model_name_or_path`), learning
    rate, steps."""
    tasks: Annotated[
        dict[str, TaskSettings],
        Meta(
            parse=read_tasks,
            expected="tasks by name, each with train and learn",
            json_schema=lambda: {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "properties": {
                        "train": {"type": "object"},
                        "learn": {"type": "array", "minItems": 1},
                    },
                    "required": ["train", "learn"],
                    "additionalProperties": False,
                },
            },
        ),
    ] = field(default_factory=dict)
    """Tasks by name. Each has `train` (at least its data) and `learn` (entries; the first is the
    task's score)."""
    evaluation: Annotated[dict[str, Any], Meta(json_schema=_shared_schema)] = field(
        default_factory=dict
    )
    """Evaluation settings of all tasks: batch_size, confidence, seed, allow_code_execution."""
    keep: Annotated[list[Any], Meta(former=("source",))] = field(default_factory=list)
    """Entries for what the base knows and should keep, measured on every model."""
    orders: Annotated[tuple[tuple[str, ...], ...], Meta(json_schema=_lists_of_names)] = ()
    """Orders in which the tasks are trained; default: as listed."""
    arms: list[Any] = field(default_factory=lambda: [SEQUENTIAL, SINGLE, MULTITASK])
    """Ways of training: sequential, single, multitask, `merge: {method, weights}`, or retention
    methods."""
    from_first_task: Annotated[bool, Meta(former=("hold_first",))] = False
    """Apply methods in the first task, too, to keep what the base knows. By default all arms train
    the first task in the same way. Methods that need data of earlier tasks apply from the second
    task on."""
    continue_from: str = ""
    """Label of an arm, such as 'SFA, p 0.25'. From the third task on, every arm of the same method
    starts from this arm's model (default: from its own). Needs three or more tasks."""
    curve: Annotated[int, Meta(ge=0)] = CURVE_POINTS
    """How many times the held-out loss of earlier tasks is measured while a later task is trained;
    0: never."""
    keep_weights: Literal["all", "final", "none"] = "final"
    """Models whose weights stay on disk."""

    def problems(self) -> list[Problem | str]:
        """Names that are not there, and what is not enough."""
        problems = super().problems()

        def wrong(*path: str, text: str) -> None:
            problems.append(Problem(path, text))

        if not self.train.get("model_name_or_path"):
            text = "is missing. Give the base model of all tasks: a folder or a hub id."
            wrong("train", "model_name_or_path", text=text)
        if len(self.tasks) < 2:
            wrong("tasks", text=f"expected at least two tasks, got {len(self.tasks)}.")
        known = _shared_keys()
        for key in self.evaluation:
            if key not in known:
                wrong(
                    "evaluation",
                    key,
                    text=f"no such key.{did_you_mean_key(key, known)} Entries belong under tasks.",
                )
        if KEEP in self.tasks:
            wrong("tasks", KEEP, text="is the name of the suite to keep; rename the task.")
        for order in self.orders:
            for task in order:
                if self.tasks and task not in self.tasks:  # none: they were refused, which is said
                    wrong("orders", text=f"no such task: {task!r}.{did_you_mean(task, self.tasks)}")
            if len(order) < 2 or len(set(order)) < len(order):
                wrong("orders", text=f"expected at least two different tasks, got {list(order)}.")
        if len(set(self.orders)) < len(self.orders):
            wrong("orders", text=f"expected each order once, got {list(map(list, self.orders))}.")
        return problems


# --------------------------------------------------------------------------------------------- arms


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way of training all tasks."""

    kind: str
    """See `ArmResult.kind`."""
    label: str
    retention: list[dict[str, Any]] = field(default_factory=list)
    """Methods of every task but the first, as a config has them; what they take from earlier tasks
    is still open."""
    train: dict[str, Any] = field(default_factory=dict)
    """Settings of every task but the first that hold in this arm alone."""
    merge: dict[str, Any] = field(default_factory=dict)
    """Of a merge: its method, its weights and other parameters."""
    strength: float | None = None
    """See `ArmResult.strength`."""
    left_out: tuple[str, ...] = ()
    """Tasks that multitask training does without: what is known of them by a model that never saw
    them."""

    @property
    def old_data(self) -> bool:
        """See `ArmResult.old_data`: methods that read data declare a setting for it."""
        from holdfast.retention.registry import method_class

        if self.kind in (SINGLE, MULTITASK, MERGE):
            return True
        return any(_reads_data(method_class(next(iter(method)))) for method in self.retention)

    @property
    def first(self) -> list[dict[str, Any]]:
        """Of the methods those that can act before there are earlier tasks."""
        return [method for method in self.retention if not _needs_earlier_data(method)]

    @property
    def chained(self) -> bool:
        """Whether a task begins with what the one before it left."""
        return self.kind not in (SINGLE, MULTITASK, MERGE)


def _reads_data(method: type[Any]) -> bool:
    return any(setting.name == "data" for setting in settings_of(method))


def _needs_earlier_data(method: Mapping[str, Any]) -> bool:
    """Whether a method takes its data from earlier tasks, where the study leaves it open."""
    from holdfast.retention.protocol import RetentionMethod
    from holdfast.retention.registry import method_class

    name, parameters = next(iter(method.items()))
    cls: Any = method_class(name)
    base: Any = RetentionMethod
    if not _reads_data(cls) or cls.after_tasks.__func__ is base.after_tasks.__func__:
        return False
    return not any((parameters or {}).get(key) for key in ("data", "fisher"))


def read_arms(value: Sequence[Any], known: Sequence[str], problems: list[str]) -> list[Arm]:
    """The arms of a study; sequential fine-tuning is always the first.

    Args:
        value: as under `arms:`.
        known: keys of a training configuration.
        problems: gets a sentence a mistake.
    """
    arms = [Arm(kind=SEQUENTIAL, label=PLAIN[SEQUENTIAL])]
    for number, item in enumerate(value):
        where = f"arms[{number}]"
        keys = set(item) if isinstance(item, Mapping) else set()
        if item in (SINGLE, MULTITASK):
            arms.append(Arm(kind=item, label=PLAIN[item]))
        elif keys == {MULTITASK} and LEFT_OUT in (item[MULTITASK] or ()):
            arms += _multitask_without(item[MULTITASK], f"{where}.{MULTITASK}", problems)
        elif keys == {MERGE}:
            arms += _merges(item[MERGE], f"{where}.{MERGE}", problems)
        elif item != SEQUENTIAL:
            arms += _methods(item, where, known, problems)
    for label, count in Counter(arm.label for arm in arms).items():
        if count > 1:
            problems.append(f"arms: '{label}' is listed twice")
    return arms


def _multitask_without(value: Any, where: str, problems: list[str]) -> list[Arm]:
    """Multitask training without a task."""
    task = value.get(LEFT_OUT) if isinstance(value, Mapping) and set(value) == {LEFT_OUT} else None
    if not isinstance(task, str):
        problems.append(f"{where}: expected a mapping such as {{{LEFT_OUT}: TASK}}, got {value!r}")
        return []
    label = f"{PLAIN[MULTITASK]} without {task}"
    return [Arm(kind=MULTITASK, label=label, left_out=(task,))]


def _methods(item: Any, where: str, known: Sequence[str], problems: list[str]) -> list[Arm]:
    mistakes: list[str] = []
    if isinstance(item, str):
        item = {item: None}
    space = read_space([item], {}, None, grid=True, known=known, problems=mistakes)
    problems += [m.replace("arms[0]", where) for m in mistakes]
    if mistakes:
        return []
    arms = []
    for params in space.grid():
        tried = space.arm(params)
        settings = space.settings({}, params)
        retention = settings.pop("retention")
        kind = SEQUENTIAL if tried.kind == DIRECT else tried.kind
        label = tried.text or _label(retention, settings)
        varying = [name.rpartition(".")[2] for name in space.parameters(tried)]
        strength = _strength(retention, varying)
        arms.append(
            Arm(kind=kind, label=label, retention=retention, train=settings, strength=strength)
        )
    return arms


def _label(retention: Sequence[Mapping[str, Any]], train: Mapping[str, Any]) -> str:
    """The methods, with everything that was said of them but where their files lie."""
    from holdfast.retention.registry import title

    titles, words = [], []
    for method in retention:
        name, parameters = next(iter(method.items()))
        titles.append(title(name))
        prefix = f"{title(name)} " if len(retention) > 1 else ""
        for key, value in parameters.items():
            if key not in _FILES or value == "base":  # which is the study's own, and no file
                words.append(f"{prefix}{key.replace('_', ' ')} {_value_text(value)}")
    for key, value in train.items():
        words.append(f"{key.replace('_', ' ')} {_value_text(value)}")
    return ", ".join([" + ".join(titles) or PLAIN[SEQUENTIAL], *words])


def _strength(retention: Sequence[Mapping[str, Any]], varying: Sequence[str]) -> float | None:
    """What a curve of arms is drawn along: of the last method the parameter of its strength that
    varies, else the first that is given."""
    from holdfast.retention.registry import declared

    if not retention:
        return None
    name, parameters = next(iter(retention[-1].items()))
    cls = declared(name)
    keys = cls.strength if cls is not None else ()
    for key in sorted(keys, key=lambda key: key not in varying):
        value = parameters.get(key)
        if isinstance(value, (int, float)):
            return float(value)
    return None


def _merges(value: Any, where: str, problems: list[str]) -> list[Arm]:
    """A merge with every combination of its parameters; a list of weights is one value, a list of
    lists several."""
    from holdfast.checkpoints.methods.registry import find_method, merge_method

    if not isinstance(value, Mapping) or not isinstance(value.get("method"), str):
        problems.append(
            f"{where}: expected a mapping such as {{method: ties, density: 0.2}}, got {value!r}"
        )
        return []
    method = value["method"]
    tried: dict[str, list[Any]] = {}
    for key, item in value.items():
        several = isinstance(item, list) and (
            key != "weights" or any(isinstance(v, list) for v in item)
        )
        if key != "method":
            tried[str(key)] = item if several else [item]
    arms = []
    for values in itertools.product(*tried.values()):
        parameters = dict(zip(tried, values, strict=True))
        checked = dict(parameters)
        try:
            if find_method(method).extras is not None:
                checked.pop(SAMPLES, None)
            merge_method(method, **checked)
        except ConfigError as error:
            problems += [f"{where}: {problem}" for problem in error.problems]
            return []
        label = [f"merge: {method.replace('_', ' ')}"]
        for key, item in parameters.items():
            if len(tried[key]) > 1 or key == "weights":
                label.append(f"{key} {_value_text(item)}")
        weights = parameters.get("weights")
        strength = float(weights[-1]) if isinstance(weights, list) and weights else None
        for key, item in parameters.items():
            if strength is None and len(tried[key]) > 1 and isinstance(item, (int, float)):
                strength = float(item)
        merge = {"method": method, **parameters}
        arms.append(Arm(kind=MERGE, label=", ".join(label), merge=merge, strength=strength))
    return arms


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(_value_text, value))
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)
