"""The keys of an overtraining study, declared once.

```yaml
ladder: runs/ladder/15M.yaml               # one model at rising pre-training budgets
probe: {noise: [0.01, 0.03], quantize: [int4]}     # what every checkpoint is put through without training
tasks:
  sentiment:
    train: {dataset_name: mr-train.jsonl}
    validation: [{multiple_choice: mr-valid.jsonl}]        # the first entry chooses the learning rate of each budget
    learn: [{multiple_choice: mr-test.jsonl}]               # the first entry is reported
keep: [{perplexity: web.jsonl}, {task: arc_easy, num_fewshot: 5}]      # what should be kept; the first leads
train: {per_device_train_batch_size: 64}           # keys of 'holdfast train' that all tasks share
arms: [direct, {label_annealing: {weight: 1}}, sfa, [{train: {use_peft: true}}, {label: LoRA}]]
vary:
  learning_rate: {log: [1.0e-5, 1.0e-3], points: 7}
seeds: [0, 1, 2]
```

A task whose data has images gets a vision tower, as LLaVA does: a projector is trained first (stage
1), with each seed, and the task (stage 2) begins with the model that came of it.

```yaml
tasks:
  pictures:
    align: {tower: clip-vit-large-patch14-336, train: {dataset_name: captions.jsonl}}
    train: {dataset_name: instructions.jsonl}
    validation: [{multiple_choice: asked.jsonl, split: "train[:500]"}]
    learn: [{multiple_choice: asked.jsonl, split: "train[500:]"}]
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.config.decode import decode, decode_named
from holdfast.config.values import Refused
from holdfast.errors import Problem, did_you_mean
from holdfast.evaluation.ladder import Rung, parse_ladder
from holdfast.evaluation.probe.settings import ChangeSettings, Sizes
from holdfast.studies.engine import toy as toy_settings
from holdfast.studies.engine.keys import ALLOWED, NAME, BaseStudySettings, SeedSettings

RATE = "learning_rate"
"""What every study varies."""
OWN = ("model_name_or_path", "seed", "data_seed", "output_dir", "evaluation", "retention")
"""Keys of a training configuration that the study sets itself."""
TRAIN: dict[str, Any] = {
    "num_train_epochs": 4,
    "per_device_train_batch_size": 64,
    "weight_decay": 0.0,
    "warmup_steps": 0.1,
    "lr_scheduler_type": "cosine",
    "report_to": "none",
}
"""Of a fine-tuning, where nothing else is said: Overtrained Language Models, table 4."""
EARLY: dict[str, Any] = {
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 1,
    "load_best_model_at_end": True,
    "early_stopping_patience": 1,
    "metric_for_best_model": "ce",
    "greater_is_better": False,
}
"""Early stopping over the epochs by the held-out loss. `ce` is the same of every method; a method's
own loss is not."""
STAGE_1: dict[str, Any] = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 256,
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "warmup_steps": 50,
    "lr_scheduler_type": "cosine",
    "report_to": "none",
}
"""Of a projector's training, where nothing else is said: Overtrained Language Models, table 2;
LLaVA's one epoch."""
WHICH_PARAMETERS = ("train_only", "use_peft")
"""Keys that say what is trained; in stage 1 that is the projector."""
BUT_THE_TOWER = ("^(?!.*vision_tower)",)
"""Names of the parameters that stage 2 trains: an untied head is among them."""
ADAPTED = (r".*(language_model.*_proj|multi_modal_projector\.linear_\d)",)
"""Names of the modules that an adapter gets in stage 2: the matrices of decoder and projector."""


@dataclass(frozen=True, kw_only=True)
class AlignSettings:
    """How checkpoints come to see: LLaVA's stage 1."""

    tower: Annotated[str, Meta(metavar="MODEL")]
    """A CLIP vision model with its image processor: a folder, or a hub id with `@revision`. It
    stays frozen in both training stages."""
    layer: int = -2
    """Layer of the vision tower whose hidden states go to the projector: 0 for the patches, -1 for
    the last layer, -2 for the layer before it, as in LLaVA."""
    train: dict[str, Any] = field(default_factory=dict)
    """Keys of 'holdfast train' for training the projector: its data, and changes to the defaults.
    The defaults are those of the paper's table 2 (batch 256, learning rate 1e-3, cosine after 50
    warm-up steps) with one epoch."""

    def problems(self) -> list[Problem]:
        """Data that is missing."""
        text = "is missing: pictures with captions for the projector."
        has_data = isinstance(self.train.get("dataset_name"), str)
        return [] if has_data else [Problem(("train", "dataset_name"), text)]


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What is learnt."""

    train: dict[str, Any] = field(default_factory=dict)
    """Keys of 'holdfast train' for this task: its data, and changes to the shared `train`."""
    validation: list[Any] = field(default_factory=list)
    """Evaluation entries as in 'holdfast train'. The first one chooses the learning rate."""
    learn: Annotated[list[Any], Meta(former=("test",))] = field(default_factory=list)
    """Evaluation entries as in 'holdfast train'. The first one is reported."""
    held_out: str | None = None
    """Rows like the training data, for early stopping. Default: the data of the first validation
    entry."""
    align: Annotated[
        AlignSettings | None,
        Meta(
            expected="a mapping such as {tower: MODEL, train: {dataset_name: captions.jsonl}}",
            json_schema=lambda: {"type": "object"},
        ),
    ] = None
    """Adds a vision tower to every checkpoint. A projector connects the two and is trained before
    the task: {tower: MODEL, layer: -2, train: {dataset_name: ...}}."""


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
        if not isinstance(task.train.get("dataset_name"), str):
            problems.append(
                Problem((name, "train", "dataset_name"), "is missing: the task's data.")
            )
        for key, what in (
            ("validation", "to choose the learning rate"),
            ("learn", "to report"),
        ):
            if not getattr(task, key):
                problems.append(Problem((name, key), f"is missing: entries {what}."))
    if problems:
        raise Refused(*problems)
    return tasks


def read_probe(value: Any) -> ChangeSettings | Literal[False]:
    """What every checkpoint is put through; False: nothing.

    Raises:
        ValueError: no mapping.
        Refused: what is wrong with it.
    """
    if value is False or isinstance(value, ChangeSettings):
        return value
    if not isinstance(value, Mapping):
        raise ValueError
    changes, problems = decode(
        ChangeSettings, {k: v for k, v in value.items() if v not in ((), [])}
    )
    if changes is not None and changes.toward:
        text = (
            "the study trains its own models. Leave out `toward`, or use 'holdfast probe --toward'."
        )
        problems = [*problems, Problem("toward", text)]
    if changes is None or problems:
        raise Refused(*problems)
    return changes


@dataclass(frozen=True, kw_only=True)
class DirectionSettings:
    """A fine-tuning whose direction the loss is followed along."""

    task: str
    """One of `tasks`."""
    learning_rate: Annotated[float, Meta(gt=0)]
    """One of the learning rates of direct fine-tuning. The study uses the run with the first
    seed."""
    steps: Sizes = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    """Points along the direction, as shares of the distance to the fine-tuned model. Values above 1
    lie beyond the fine-tuned model."""


@dataclass(frozen=True, kw_only=True)
class _What:
    ladder: Annotated[
        tuple[Rung, ...],
        Meta(
            parse=parse_ladder,
            metavar="FILE",
            expected="a list of models with their tokens, or a YAML file with such a list under "
            "'ladder:'",
            json_schema=lambda: {"type": ["array", "string"]},
        ),
    ] = ()
    """The checkpoints, from the smallest budget to the largest: a list as for 'holdfast probe
    --ladder', or the file that a ladder study writes."""
    probe: Annotated[
        ChangeSettings | Literal[False],
        Meta(
            parse=read_probe,
            expected="a mapping such as {noise: [0.01, 0.03], quantize: [int4]}, or false",
            json_schema=lambda: {"type": ["object", "boolean"]},
        ),
    ] = field(default_factory=ChangeSettings)
    """Changes to every checkpoint without training, with the options of 'holdfast probe' (noise,
    noise_seeds, std, quantize, prune). Default: the defaults of 'holdfast probe'. false: no
    changes."""
    curvature: Annotated[int, Meta(ge=0, section="refinements")] = 0
    """Number of documents of the first `keep` text on which the curvature of each checkpoint's loss
    is measured (float32 only)."""
    direction: Annotated[
        DirectionSettings | None,
        Meta(
            section="refinements",
            expected="a mapping such as {task: sentiment, learning_rate: 1.0e-4}",
            json_schema=lambda: {"type": "object"},
        ),
    ] = None
    """Compares each checkpoint's loss with its quadratic approximation in the direction of a
    fine-tuning, {task: NAME, learning_rate: X} (figure 10 of the paper). Needs `curvature`."""
    tasks: Annotated[
        dict[str, TaskSettings],
        Meta(
            parse=read_tasks,
            expected="tasks by name, each with train, validation and learn",
            json_schema=lambda: {"type": "object", "additionalProperties": {"type": "object"}},
        ),
    ] = field(default_factory=dict)
    """Tasks by name. `train` must name the data. The first entry of `validation` chooses the
    learning rate, and the first entry of `learn` is reported. A task with images also has `align`:
    the vision tower and the training of its projector."""
    keep: Annotated[list[Any], Meta(former=("generalist",))] = field(default_factory=list)
    """Evaluation entries that should not get worse, as in 'holdfast train'. The first one gives the
    main score."""


@dataclass(frozen=True, kw_only=True)
class _How:
    train: Annotated[dict[str, Any], Meta(json_schema=lambda: {"type": "object"})] = field(
        default_factory=dict
    )
    """Keys of 'holdfast train' for all fine-tunings. Defaults: 4 epochs, batch 64, cosine after 10
    % warm-up, no weight decay."""
    arms: list[Any] = field(default_factory=list)
    """Arms (ways to train) to compare, as in a sweep. Default: direct."""
    vary: Annotated[dict[str, Any], Meta(json_schema=lambda: {"type": "object"})] = field(
        default_factory=dict
    )
    """`learning_rate`: the learning rates to try with every arm, as in a sweep. Other keys of
    'holdfast train', such as per_device_train_batch_size or lr_scheduler_type, make further
    arms."""
    early_stopping: Annotated[bool, Meta(section="refinements")] = True
    """Ends a fine-tuning after the first epoch that does not lower the held-out loss, and uses the
    model of the best epoch."""
    max_perplexity: Annotated[
        float | None, Meta(gt=1, section="refinements", former=("most_perplexity",))
    ] = None
    """Charts and verdicts at a fixed learning rate leave out learning rates at which the first
    `keep` text exceeds this perplexity at any budget. Figure 5 of the paper leaves out values above
    6. These must be nats: on C4, a model of 30 million parameters has a perplexity of 24. With the
    paper's vocabulary of 50,304 tokens, 6 nats are a perplexity of 403. With a vocabulary of V
    tokens, use e^(0.554 log V)."""
    overlap: Annotated[Literal["refuse", "keep"], Meta(section="refinements")] = "refuse"
    """What to do if training text contains evaluation data: refuse, or keep it and report it on
    the page."""
    evaluation: Annotated[dict[str, Any], Meta(json_schema=lambda: {"type": "object"})] = field(
        default_factory=dict
    )
    """Settings of all measurements: batch_size, confidence, seed, allow_code_execution."""


def _toy_schema() -> dict[str, Any]:
    # a function, for a lambda in an annotation does not see the module's names
    return toy_settings.settings_schema("tasks")


@dataclass(frozen=True, kw_only=True)
class OvertrainingSettings(_How, _What, SeedSettings, BaseStudySettings):
    """Keys of an overtraining study."""

    toy_start: ClassVar[str] = "tasks"

    name: str = "overtraining"
    toy: Annotated[str | None, Meta(json_schema=_toy_schema, former=("small",))] = None
    """Makes tasks and held-out text offline. The ladder must come from the same small world.
    Choices: overtraining, overtraining_long, overtraining_tiny, pictures or pictures_tiny."""
    keep_weights: Literal["all", "none"] = "none"
    """Whether the weights of the fine-tuned models stay on disk."""

    def problems(self) -> list[Problem | str]:
        """What is missing, and what contradicts itself."""
        problems = super().problems()

        def wrong(key: str, text: str) -> None:
            problems.append(Problem(key, text))

        if len(self.ladder) < 2:
            wrong(
                "ladder",
                "expected checkpoints of one model at two or more budgets, got "
                f"{len(self.ladder)}.",
            )
        if not self.tasks and not self.probe:
            wrong(
                "tasks",
                "is missing: tasks to fine-tune on, or changes under `probe`.",
            )
        if self.curvature and not self.probe:
            wrong(
                "curvature",
                "needs `probe`, which is off. Leave out `curvature`, or set `probe`.",
            )
        direction = self.direction
        if direction is not None and not self.curvature:
            text = (
                "needs `curvature`, which measures the quadratic approximation. Set "
                "`curvature` to a number of documents."
            )
            wrong("direction", text)
        if direction is not None and direction.task not in self.tasks:
            near = did_you_mean(direction.task, self.tasks)
            tasks = ", ".join(self.tasks) or "tasks"
            wrong(
                "direction",
                Problem("task", f"expected one of {tasks}, got '{direction.task}'.{near}"),
            )
        if not self.keep:
            wrong(
                "keep",
                "is missing: entries that should not get worse, such as held-out text that "
                "resembles the pre-training data.",
            )
        if self.tasks and RATE not in self.vary and not self.arms:
            text = (
                "is missing: the learning rates to try, as in {learning_rate: {log: [1.0e-5, "
                "1.0e-3], points: 7}}."
            )
            wrong("vary", text)
        return problems + self._training_problems()

    def _training_problems(self) -> list[Problem]:
        """Keys of training configurations that the study sets itself."""
        by_study = dict.fromkeys(OWN, "is set by the study; leave it out.")
        fine_tuning = by_study | {RATE: "is what the study varies; set it under `vary`."}
        if self.early_stopping:
            text = "is set by early stopping. Leave it out, or set `early_stopping: false`."
            fine_tuning |= dict.fromkeys(EARLY, text)
        projector = by_study | dict.fromkeys(WHICH_PARAMETERS, by_study["seed"])
        parts: list[tuple[tuple[str, ...], Mapping[str, Any], dict[str, str]]]
        parts = [(("train",), self.train, fine_tuning)]
        for name, task in self.tasks.items():
            parts.append((("tasks", name, "train"), task.train, fine_tuning))
            if task.align is not None:
                parts.append((("tasks", name, "align", "train"), task.align.train, projector))
        problems = []
        for path, train, refused in parts:
            problems += [Problem((*path, key), refused[key]) for key in train if key in refused]
        return problems
