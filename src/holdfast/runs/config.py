"""A run's configuration: one YAML with the keys of `trl sft`, plus holdfast's own keys, plus the
command line, which wins.

```yaml
model_name_or_path: Qwen/Qwen3-0.6B     # the keys of trl sft ...
dataset_name: train.jsonl
learning_rate: 1e-5
retention:                              # ... and what keeps the old skills,
  - label_annealing: {weight: 1.0}
evaluation:                             # what is measured before and after,
  keep: [prose.jsonl]
  learn: [held_out.jsonl]
data:                                   # and how columns become text, where TRL's formats do not fit
  prompt: "Question: {question}\\nAnswer:"
  completion: " {answer}"
```

All mistakes are reported at once. Departures from `trl sft` (the first and the third are recorded
in `TrainConfig.notes` where they happen):

- bf16, TRL's default, is off on a machine that cannot do it, unless the user asks for it (TRL stops
  with an error there);
- `output_dir` defaults to `runs/<model>-<methods>` instead of `trainer_output`;
- `trust_remote_code: true` is honoured, because it was asked for, and noted in the run's record;
- `dataloader_pin_memory` is off on a machine without an accelerator, where it does nothing but
  warn;
- YAML values are type-checked (TRL checks strings only), a duplicate key is an error, and option
  names cannot be abbreviated.

Relative paths start from the working directory, as in TRL. Nothing heavy is imported until a
function is called.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.named import at_revision, folder_without_revision
from holdfast.config.command_line import CONFIG, find_option, parse_words
from holdfast.config.declare import settings_of
from holdfast.config.decode import coerce_all
from holdfast.config.raw_request import RawRequest, plain_key
from holdfast.config.values import show
from holdfast.config.yaml_file import read_yaml
from holdfast.config.yaml_text import from_yaml
from holdfast.errors import ConfigError, ModelError, Note, Problem, problem_of
from holdfast.retention.protocol import PACKED_WHOLE, packing_problem, problems_below
from holdfast.retention.registry import parse_retention
from holdfast.runs import config_checks, launch, on_policy, trainers
from holdfast.runs.foreign.tools import marks_in, tool_of
from holdfast.runs.foreign.trl import modern, old_settings
from holdfast.runs.identity import deciding, explain_difference, resolve, set_fields
from holdfast.runs.on_policy import OnPolicySettings
from holdfast.runs.packages import check_packages, judges_need
from holdfast.runs.packing import check_packing
from holdfast.runs.settings import OWN, RunSettings, known_of_others, known_settings, sources
from holdfast.runs.stopping import check_rules
from holdfast.runs.trainers import SFT, trainer_named
from holdfast.support.environment import has_fast_bfloat16
from holdfast.support.files import fingerprint, to_jsonable
from holdfast.support.paths import real
from holdfast.support.secrets import SECRET, is_secret
from holdfast.training.arguments import add_defaults

if TYPE_CHECKING:
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig

    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.retention.protocol import RetentionMethod
    from holdfast.training.adapters import AdapterArguments


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainConfig:
    """The checked configuration of a training run. `load_train_config` and `train_config` return
    it."""

    script: ScriptArguments
    """TRL's data arguments: `dataset_name`, splits, streaming."""
    training: SFTConfig
    """TRL's training arguments, a `transformers.TrainingArguments`. For another trainer than sft,
    they are that trainer's arguments, plus the fields that only `SFTConfig` has, at their
    defaults."""
    model: ModelConfig
    """TRL's model arguments: name, revision, dtype, LoRA, quantisation."""
    adapter: AdapterArguments
    """The PEFT method that `use_peft` selects, the settings of orthogonal subspace fine-tuning, and
    LoRA's initialisation."""
    mixture: DatasetMixtureConfig
    """TRL's `datasets:` list; empty if `dataset_name` is used."""
    retention: list[RetentionMethod]
    """The retention methods; empty for direct fine-tuning."""
    evaluation: EvaluationPlan
    """What to measure before and after training; empty: nothing."""
    holdfast: RunSettings = field(default_factory=RunSettings)
    """holdfast's own keys, as the user wrote them."""
    launch: dict[str, Any] = field(default_factory=dict)
    """Options of `accelerate launch` (`num_processes`, `accelerate_config`, ...)."""
    notes: list[Note] = field(default_factory=list)
    """Decisions that holdfast made for the user, as notes."""
    source_file: Path | None = None
    """The YAML file; None: the settings come from no file."""
    resolved: dict[str, Any] = field(default_factory=dict)
    """All settings and the main defaults as plain JSON, without secrets. It is a valid
    configuration of the same run."""
    key: str = ""
    """Fingerprint (SHA-256, hex) of the settings that decide the trained weights. Output folder,
    logging, saving, hub and evaluation settings are not part of it. It covers settings only: the
    run itself checks whether the content of a file has changed."""

    @property
    def processes(self) -> int:
        """Number of processes on all machines together."""
        return launch.processes(self.launch)

    def explain_difference(self, old: Mapping[str, Any]) -> list[str]:
        """Returns the settings in which this run differs from the run whose `resolved` is `old`,
        one line a setting; see `holdfast.runs.identity.explain_difference`."""
        return explain_difference(old, self.resolved)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What settings are checked for."""

    accelerator: bool
    bf16: bool
    """Whether the accelerator has bfloat16."""
    here: bool = True
    """False: another machine than this one, whose packages are not known."""


GPU = Machine(accelerator=True, bf16=True, here=False)
"""A machine with a GPU of today."""
BF16_OFF = "bf16_off"
"""Code of the note that TRL's default, bfloat16, is off because of this machine."""
_ON_A_GPU = ("bf16", "fp16", "tf32", "bf16_full_eval", "fp16_full_eval", "deepspeed")
"""What transformers refuses where there is none, or where a package is not."""


def this_machine() -> Machine:
    """The machine that this runs on."""
    accelerator = has_accelerator()
    return Machine(accelerator=accelerator, bf16=has_bf16())


def load_train_config(argv: Sequence[str], *, machine: Machine | None = None) -> TrainConfig:
    """Reads the configuration of the command `holdfast train argv`. It sets the variables under
    `env:` in `os.environ`, as TRL does.

    Args:
        argv: the words of the command line after `holdfast train`.
        machine: the machine that will run it; None: this one.

    Raises:
        ConfigError: the configuration has mistakes; the message lists all of them.
    """
    path = find_option(argv, "config")
    file = read_file(path)  # before the slow import: a syntax error is reported at once
    _set_environment(_environment(argv, file))
    trainer = trainer_named(
        {**file.values, "trainer": find_option(argv, "trainer") or file.values.get("trainer")}
    )
    return checked(given_words(argv, trainer).over(file), machine)


def _environment(argv: Sequence[str], file: RawRequest) -> Any:
    """What `env` comes to, before the import that reads all words and says what is wrong with this
    one."""
    try:
        word = find_option(argv, "env")
        return file.values.get("env") if word is None else from_yaml(word)
    except (ConfigError, ValueError):
        return None


def given_words(argv: Sequence[str], trainer: str = SFT) -> RawRequest:
    """What the words after `holdfast train` say, without `--config`, of a run with that trainer.
    Imports TRL."""
    known = {**known_of_others(trainer), **known_settings(trainer)}
    line = parse_words(argv, {"config": CONFIG, **OWN, **known, **old_settings(known)})
    line.values.pop("config", None)
    return line


def read_file(path: str | None) -> RawRequest:
    """The YAML; nothing without one.

    Raises:
        ConfigError: it cannot be read, or was written for another tool (which, and how to convert
            it).
    """
    if path is None:
        return RawRequest()
    file = read_yaml(path, needs="'model_name_or_path:' and 'dataset_name:'")
    if (tool := tool_of(file)) is not None:
        marks = ", ".join(marks_in(file, tool)[:4])
        raise ConfigError(
            f"{path} was written for {tool.table['title']} ({marks}, ...). Convert it: 'holdfast "
            f"convert {path} --output run.yaml', which also names keys without a counterpart."
        )
    for name in file.take("keep", "learn", "source", "target"):
        file.problems.append(Problem(name, "goes under 'evaluation:'."))
    return file


def train_config(settings: Mapping[str, Any] | None = None, /, **more: Any) -> TrainConfig:
    """Builds the configuration of a training run from Python: `train_config({"model_name_or_path":
    ...}, learning_rate=1e-5, retention=[LabelAnnealing(weight=0.3)])`.

    Args:
        settings: the keys of the YAML file. Values may also be holdfast's own objects (methods, an
            `EvaluationPlan`, `Templates`).
        more: further keys, which override those in `settings`.

    Raises:
        ConfigError: the configuration has mistakes; the message lists all of them.
    """
    request = RawRequest(values={**(settings or {}), **more})
    _set_environment(request.values.get("env"))
    return checked(request)


# --------------------------------------------------------------------------------------- assembling


def checked(given: RawRequest, machine: Machine | None = None) -> TrainConfig:
    """The configuration out of what a file and a command line say.

    Args:
        given: what they say.
        machine: that it is for; None: this one.

    Raises:
        ConfigError: with every mistake at once.
    """
    given, notes = modern(given)
    request = _Request(given=given, machine=machine or this_machine(), notes=notes)
    request.read()
    request.check_rows_and_methods()
    request.check_trainer()
    parts = request.build()
    given.check(request.problems)
    add_defaults(parts["training"], sources()["training"])
    if "dataloader_pin_memory" not in request.raw and not request.machine.accelerator:
        parts[
            "training"
        ].dataloader_pin_memory = False  # nothing to copy to; torch warns at every loader otherwise
    resolved = request.resolve(parts)
    return TrainConfig(
        **parts,
        holdfast=request.holdfast,
        retention=request.methods,
        evaluation=request.plan,
        launch=request.launching,
        notes=request.notes,
        source_file=request.source,
        resolved=resolved,
        key=fingerprint(deciding(resolved)),
    )


class _Request:
    """What a file and a command line say, while it is read and checked; `mistakes` and `notes` grow
    meanwhile.

    Args:
        given: what they say, in today's words.
        machine: that it is for.
        notes: gets what is worth knowing.
    """

    def __init__(self, *, given: RawRequest, machine: Machine, notes: list[Note]) -> None:
        self.given, self.machine, self.notes = given, machine, notes
        self.trainer = trainer_named(given.values)
        self.known = known_settings(self.trainer)
        self.source = Path(given.file) if given.file is not None else None
        self.problems: list[Problem] = []
        self.raw = dict(given.values)
        """TRL's and accelerate's keys as they were given."""
        self.stated: dict[str, Any] = {}
        """holdfast's own that were given and are valid, but for methods and what is measured."""
        self.values: dict[str, Any] = {}
        """TRL's and accelerate's keys with a sound value."""

    def add(self, problems: Iterable[str]) -> None:
        """Takes what checks say of settings."""
        self.problems.extend(map(problem_of, problems))

    def read(self) -> None:
        """Reads every value by its declaration."""
        own_values = {name: self.raw.pop(name) for name in OWN if name in self.raw}
        others = known_of_others(self.trainer)
        of_others = [name for name in self.raw if name in others]
        for name in of_others:
            self.raw.pop(name)
        plain = {setting.name: setting for setting in settings_of(RunSettings)}
        self.stated, wrong = coerce_all(
            plain, {name: value for name, value in own_values.items() if name in plain}
        )
        self.holdfast = RunSettings(
            **{name: value for name, value in self.stated.items() if value is not None}
        )
        if self.trainer == "on_policy" and self.holdfast.on_policy is None:
            self.holdfast = dataclasses.replace(self.holdfast, on_policy=OnPolicySettings())
        self.methods, self.wrong_methods = parse_retention(own_values.get("retention"))
        self.problems += [*self.wrong_methods, *wrong]
        for name in of_others:
            text = (
                f"is a key of trainer: {others[name].source}; this run has trainer: {self.trainer}."
            )
            self.problems.append(Problem(name, text))
        self.suites, self.plan = _evaluation(own_values, self.problems)
        self.values, wrong = coerce_all(self.known, self.raw, also=list(OWN))
        self.problems += wrong
        if self.values.get("trust_remote_code"):
            text = (
                "trust_remote_code is on: Python code that ships with the model is run. Turn it "
                "off unless you have "
            )
            self.notes.append(Note("remote_code", f"{text}read that code."))
        for name in ("model_name_or_path", "dataset_name"):
            if isinstance(self.values.get(name), str) and self.values[name].startswith("~"):
                self.values[name] = os.path.expanduser(self.values[name])
        self.add(_split_revision(self.values))
        self.launching: dict[str, Any] = {}
        for name, value in self.values.items():
            if self.known[name].source == "launch" and value is not None:
                self.launching[name] = value

    def check_rows_and_methods(self) -> None:
        """Looks at the model's and the data's names, and at what methods and held-out rows need."""
        values, held_out = self.values, self.holdfast.eval_dataset_name
        refused = {key for key in self.raw if key in self.known and key not in values}
        if "model_name_or_path" not in refused:
            self.add(config_checks.check_model(values.get("model_name_or_path")))
        if not refused & {"dataset_name", "datasets"}:
            self.add(config_checks.check_data(values, beside=self.source))
        for method in self.methods:
            problems: list[str] = [*config_checks.check_method(method)]
            problems += config_checks.check_best(method, values, bool(self.holdfast.stop_rules))
            if (
                isinstance(values.get("max_steps"), int)
                and values["max_steps"] > 0
                and not method.off
            ):
                problems += method.check_run(total_steps=values["max_steps"])
            self.problems += [
                problem.below("retention") for problem in problems_below(method, problems)
            ]
        if held_out is not None:
            self.add(config_checks.check_path("eval_dataset_name", held_out, beside=self.source))
        if isinstance(values.get("deepspeed"), str) and not values["deepspeed"].lstrip().startswith(
            "{"
        ):
            self.add(config_checks.check_path("deepspeed", values["deepspeed"], beside=self.source))
        self.add(config_checks.check_chat_template(self.holdfast.chat_template, values))
        self.add(config_checks.check_turns(self.holdfast, values))
        self.add(config_checks.check_split_off(values, held_out))
        if values.get("test_split_size") and str(values.get("eval_strategy") or "no") == "no":
            text = (
                "test_split_size: the held-out rows are never evaluated. Add eval_strategy: epoch."
            )
            self.notes.append(Note("unread_split", text))
        self.add(config_checks.check_streaming(values, self.methods, self.raw))
        if values.get("packing"):
            strategy = str(values.get("packing_strategy") or PACKED_WHOLE[0])  # TRL's default
            self.add(
                packing_problem(
                    self.methods, "bfd_split" if strategy == "bfd-requeue" else strategy
                )
            )
        self.add(check_packing(values, here=self.machine.here))

    def check_trainer(self) -> None:
        """Looks at what does not go together, with the trainer, with the machine and with what is
        installed."""
        values, holdfast, machine = self.values, self.holdfast, self.machine
        held_out, patience = holdfast.eval_dataset_name, holdfast.early_stopping_patience
        if not self.wrong_methods:
            self.add(trainers.problems(holdfast, self.methods, values))
            if holdfast.on_policy is not None:
                self.add(
                    on_policy.problems(
                        self.methods, {**values, **vars(holdfast)}, self.given.values
                    )
                )
        split = self.stated.get("eval_dataset_split")
        self.add(config_checks.check_early_stopping(patience, held_out, split, values))
        self.add(check_rules(holdfast.stop_rules, self.plan))
        self.add(config_checks.check_stopping(holdfast.stop_rules, patience, values))
        self.add(config_checks.check_ranges(values))
        keys = {plain_key(key) for key in self.raw}
        self.add(
            config_checks.check_combinations(values, keys, has_accelerator=machine.accelerator)
        )
        packages = check_packages(values, here=machine.here)
        if machine.here:
            self.add([*packages, *judges_need(self.plan)])
        else:
            self.notes += [Note("package", package) for package in packages]
        if self.launching.get("accelerate_config"):
            self.add(config_checks.check_preset(self.launching["accelerate_config"]))
        if holdfast.stop_rules:
            self.add(config_checks.check_stopping_processes(self.launching))
        for name in launch.ignored(self.launching, has_accelerator=machine.accelerator):
            text = f"{name} has no effect here: this machine has no accelerator."
            self.notes.append(Note("no_effect", text))

    def build(self) -> dict[str, Any]:
        """TRL's dataclasses of the sound values, by `Setting.source`; None for what refuses
        them."""
        values, machine = self.values, self.machine
        if values.get("output_dir") is None:
            values["output_dir"] = default_output_dir(
                values.get("model_name_or_path"), self.methods
            )
        wrong_keys = {problem.path[0] for problem in self.problems if problem.path}
        self.sound = {key: value for key, value in values.items() if key not in wrong_keys}
        several = int(os.environ.get("WORLD_SIZE") or 1) > 1
        if several and not machine.accelerator and self.sound.get("use_cpu") is None:
            # without it transformers starts no process group on CPUs, and every rank would train
            # alone
            self.sound["use_cpu"] = True
        _decide_precision(self.sound, given=values, notes=self.notes, machine=machine)
        parts: dict[str, Any] = {}
        for name, cls in sources(self.trainer).items():
            own_values = {
                key: value for key, value in self.sound.items() if self.known[key].source == name
            }
            training = name == "training"
            left_out = [key for key in self.raw if key in self.known and key not in own_values]
            doubtful = training and any(
                self.known[key].source == "training" and _INTERLOCKED.search(key)
                for key in left_out
            )
            gpu_only = (
                {k: own_values.pop(k) for k in _ON_A_GPU if k in own_values}
                if not machine.here and training
                else {}
            )
            own_values |= {"bf16": False} if gpu_only else {}
            parts[name] = _construct(
                cls, own_values, self.problems, self.notes, given=self.raw, doubtful=doubtful
            )
            for key, value in gpu_only.items() if parts[name] is not None else ():
                setattr(parts[name], key, value)
        if self.holdfast.train_only and values.get("use_peft"):
            self.add(
                [
                    "train_only: with use_peft, lora_target_modules decides which weights are "
                    "trained. Leave one out."
                ]
            )
        return parts

    def resolve(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration as plain JSON, see `TrainConfig.resolved`."""
        resolved = resolve(parts, self.sound, self.known)
        if resolved.keys() & {*config_checks.OF_FOUR_BITS} and not resolved.keys() & {
            *config_checks.BITS
        }:
            resolved["load_in_4bit"] = (
                False  # or what is written down would be refused when it is read again
            )
        resolved["retention"] = [method.setting() for method in self.methods]
        if self.suites:
            resolved["evaluation"] = to_jsonable(self.suites)
        templates, env = self.holdfast.data, {}
        for name, value in self.holdfast.env.items():
            if not is_secret(name, value):
                env[name] = str(value)
        written = {
            **vars(self.holdfast),
            "data": set_fields(templates) if templates else None,
            "env": env,
            "early_stopping": [set_fields(rule) for rule in self.holdfast.stop_rules],
        }
        for name, value in (*written.items(), *self.launching.items()):
            if value and name not in SECRET and (name not in OWN or value != OWN[name].default):
                resolved[name] = to_jsonable(value)
        if launch.processes(self.launching) != 1:
            resolved["num_processes"] = launch.processes(self.launching)
        return resolved


def _split_revision(values: dict[str, Any]) -> Iterator[str]:
    """`model_name_or_path: owner/name@revision` becomes the two settings that TRL knows; yields
    what is wrong."""
    name = values.get("model_name_or_path")
    try:
        bare, revision = at_revision(str(name or ""), str(values.get("model_revision") or "main"))
    except ModelError as error:
        # any other problem of the name is said where the model is looked at
        if ("@" in str(name) or values.get("model_revision")) and not folder_without_revision(
            str(name or "")
        ):
            yield Problem("model_revision", f"{error}")
        return
    if isinstance(name, str) and name == f"{bare}@{revision}":
        values["model_name_or_path"], values["model_revision"] = bare, revision


_INTERLOCKED = re.compile(r"_(strategy|steps)$|^(bf16|fp16|use_cpu|report_to)$")
"""Keys that TRL's dataclass checks against each other."""


def _construct(
    cls: type,
    values: dict[str, Any],
    problems: list[Problem],
    notes: list[Note],
    *,
    given: Mapping[str, Any],
    doubtful: bool,
) -> Any:
    """Builds one of the dataclasses. What it refuses is a mistake, unless it may be about the
    default that stands in for a reported one (`doubtful`); what it calls deprecated is a note,
    where the user set it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = cls(**values)
        except (
            Exception
        ) as error:  # whatever a user's values make TRL or transformers raise is one more mistake
            value = None
            detail = re.sub(r"\s*\n[\s-]*", "; ", str(error)) or type(error).__name__
            if not isinstance(error, ValueError):
                detail = f"{cls.__name__}: {type(error).__name__}: {detail}"
            if not doubtful:
                problems.append(Problem((), detail))
    for warning in caught:
        text = str(warning.message)
        if not issubclass(warning.category, FutureWarning):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif (
            any(f"`{name}" in text for name in given) and "gradient_checkpointing" not in text
        ):  # both names do the same, and TRL's documentation uses the old
            notes.append(Note("deprecated", text))
    return value


def _decide_precision(
    sound: dict[str, Any], *, given: Mapping[str, Any], notes: list[Note], machine: Machine
) -> None:
    on_cpu = sound.get("use_cpu") or not machine.accelerator
    if sound.get("bf16") and on_cpu and not has_fast_bfloat16():
        text = (
            "bf16: this processor has no instructions for bfloat16, and emulation is many times "
            "slower than "
        )
        text += (
            "float32. Leave bf16 out here, unless you want to reproduce a run of another machine."
        )
        notes.append(Note("bf16_slow", text))
    if sound.get("bf16") is not None or sound.get("fp16"):
        return
    if not machine.here and not sound.get("use_cpu"):
        sound["bf16"] = True  # what TRL decides there
    elif sound.get("use_cpu") or not machine.bf16:
        sound["bf16"] = False
        if given.get("bf16") is None and not given.get("fp16"):
            where = "on the CPU" if on_cpu else "here: this accelerator has no bfloat16"
            text = (
                f"bf16 is off {where}: training computes in the model's own dtype (set bf16 "
                "yourself to decide "
            )
            notes.append(Note(BF16_OFF, f"{text}otherwise)."))


def default_output_dir(model: str | None, methods: Sequence[RetentionMethod]) -> str:
    """`runs/<model>-<method>+<method>`, or `-direct` without any."""
    name = Path(model or "model").name or "model"
    if name in (".", ".."):
        name = real(str(model)).name
    return f"runs/{name}-{'+'.join(dict.fromkeys(m.name for m in methods)) or 'direct'}"


def has_accelerator() -> bool:
    """Whether torch sees a GPU or its like."""
    import torch

    return torch.accelerator.is_available()


def has_bf16() -> bool:
    """Whether transformers would train in bfloat16 on this machine."""
    from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

    return bool(is_torch_bf16_gpu_available() or is_torch_xla_available())


# ----------------------------------------------------------------------------------------- own keys


def _evaluation(own: Mapping[str, Any], problems: list[Problem]) -> tuple[Any, EvaluationPlan]:
    """The evaluation section, with `--keep` and `--learn` appended to it, and the plan that it
    is."""
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.suite import parse_evaluation

    value = own.get("evaluation")
    extra = {name: own[name] for name in ("keep", "learn") if own.get(name)}
    if extra and value is not None and not isinstance(value, Mapping):
        text = f"expected a mapping with the lists keep and learn, got {show(value)}."
        problems.append(Problem("evaluation", text))
        value, extra = None, {}
    if extra:
        value = dict(value or {})
        for name, entries in extra.items():
            old = value.get(name)
            value[name] = [
                *(old if isinstance(old, list) else [] if old is None else [old]),
                *entries,
            ]
    if isinstance(value, EvaluationPlan):
        return value, value
    plan, plan_problems = parse_evaluation(value)
    problems += _unknown_tasks(plan)
    problems += plan_problems
    return value, plan


def _unknown_tasks(plan: EvaluationPlan) -> list[Problem]:
    """Tasks that there are none of, by name: what they would ask is looked at when the run
    begins."""
    from holdfast.evaluation.kinds.task import TaskEntry
    from holdfast.evaluation.tasks.tasks import check_name

    problems = []
    for entry in plan.entries:
        try:
            if isinstance(entry, TaskEntry):
                check_name(entry)
        except ConfigError as error:
            problems.append(Problem(("evaluation", entry.suite), str(error)))
    return problems


def _set_environment(value: Any) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(item, (Mapping, list)) and item is not None:
                os.environ[str(name)] = str(item)
