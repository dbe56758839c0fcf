"""A run's configuration: one YAML that `trl sft` would take, plus holdfast's own keys, plus the command line, which
wins.

```yaml
model_name_or_path: Qwen/Qwen3-0.6B     # every key of trl sft ...
dataset_name: train.jsonl
learning_rate: 1e-5
retention:                              # ... and what keeps the old skills,
  - label_annealing: {weight: 1.0}
evaluation:                             # what is measured before and after,
  source: [prose.jsonl]
  target: [held_out.jsonl]
data:                                   # and how columns become text, where TRL's formats do not fit
  prompt: "Question: {question}\\nAnswer:"
  completion: " {answer}"
```

All mistakes are reported at once. Departures from `trl sft` (the first and the third are recorded in
`TrainConfig.notes` where they happen):

- bf16, TRL's default, is off on a machine that cannot do it, unless the user asks for it (TRL stops with an error
  there);
- `output_dir` defaults to `runs/<model>-<methods>` instead of `trainer_output`;
- `trust_remote_code: true` is honoured, because it was asked for, and noted in the run's record;
- `dataloader_pin_memory` is off on a machine without an accelerator, where it does nothing but warn;
- YAML values are type-checked (TRL checks strings only), a duplicate key is an error, and option names cannot be
  abbreviated.

Relative paths start from the working directory, as in TRL. Nothing heavy is imported until a function is called.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, did_you_mean
from holdfast.runs import config_checks, launch
from holdfast.runs.identity import SECRET, SECRET_NAME, deciding, explain_difference, resolve, set_fields
from holdfast.runs.settings import OWN_KEYS, Setting, SettingError, coerce, known_settings, show
from holdfast.runs.settings_source import Given, find_config, read_command_line, read_yaml, unknown_key
from holdfast.support.files import fingerprint, to_jsonable

if TYPE_CHECKING:
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig

    from holdfast.data.formats import Templates
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.retention.method import RetentionMethod
    from holdfast.training.adapters import AdapterArguments


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything a run was asked to do, checked. Made by `load_train_config` and `train_config`."""

    script: ScriptArguments
    """TRL's data arguments: `dataset_name`, splits, streaming."""
    training: SFTConfig
    """TRL's training arguments, a `transformers.TrainingArguments`."""
    model: ModelConfig
    """TRL's model arguments: name, revision, dtype, LoRA, quantisation."""
    adapter: AdapterArguments
    """Which PEFT method `use_peft` means, and OSF's settings."""
    mixture: DatasetMixtureConfig
    """TRL's `datasets:` list; empty where `dataset_name` is used."""
    retention: list[RetentionMethod]
    """What keeps the old skills; empty for direct fine-tuning."""
    evaluation: EvaluationPlan
    """What is measured before and after; empty for nothing."""
    templates: Templates | None = None
    """How columns become text; None leaves it to the formats that are recognised."""
    launch: dict[str, Any] = field(default_factory=dict)
    """Options of `accelerate launch` (`num_processes`, `accelerate_config`, ...)."""
    notes: list[str] = field(default_factory=list)
    """What was decided for the user and is worth knowing."""
    source_file: Path | None = None
    """The YAML, None without one."""
    resolved: dict[str, Any] = field(default_factory=dict)
    """What was set and the main defaults as plain JSON, secrets left out. Itself a valid configuration of the same
    run."""
    key: str = ""
    """Fingerprint of what decides the trained weights (SHA-256, hex): not the output folder, logging, saving, hub or
    evaluation settings. Settings only: whether a file's content changed is the run's to find out."""

    @property
    def processes(self) -> int:
        """Processes over all machines."""
        return launch.processes(self.launch)

    def explain_difference(self, old: Mapping[str, Any]) -> list[str]:
        """What sets the run whose `resolved` is `old` apart from this one; see the function of that name."""
        return explain_difference(old, self.resolved)


def load_train_config(argv: Sequence[str]) -> TrainConfig:
    """The configuration of `holdfast train argv`. Sets the variables under `env:` in `os.environ`, as TRL does.

    Raises:
        ConfigError: with every mistake at once.
    """
    path = find_config(argv)
    from_file = (
        read_yaml(path) if path is not None else Given()
    )  # before the slow import: a syntax error is reported at once
    _set_environment(from_file.values.get("env"))
    return _build(from_file, read_command_line(argv, known_settings()), source=path)


def train_config(settings: Mapping[str, Any] | None = None, /, **more: Any) -> TrainConfig:
    """The same from Python: `train_config({"model_name_or_path": ...}, learning_rate=1e-5,
    retention=[LabelAnnealing(weight=0.3)])`.

    Args:
        settings: keys as in the YAML; values may also be holdfast's own objects (methods, an `EvaluationPlan`,
            `Templates`).
        more: further keys, which win.

    Raises:
        ConfigError: with every mistake at once.
    """
    given = Given(values={**(settings or {}), **more})
    _set_environment(given.values.get("env"))
    return _build(given, Given(), source=None)


# ----------------------------------------------------------------------------------------------------------- assembling


def _build(from_file: Given, from_line: Given, *, source: Path | None) -> TrainConfig:
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig

    from holdfast.training.adapters import AdapterArguments

    known = known_settings()
    problems = [*from_file.problems, *from_line.problems]
    raw = {**from_file.values, **from_line.values}
    notes: list[str] = []

    for name in ("source", "target"):
        if name in from_file.values:
            problems.append(f"unknown key '{name}'. It goes under 'evaluation:'.")
            if name not in from_line.values:
                raw.pop(name)
    own = {k: raw.pop(k) for k in ("retention", "evaluation", "data", "env", "source", "target") if k in raw}
    methods = _retention(own.get("retention"), problems)
    templates = _templates(own.get("data"), problems)
    suites = _suites(own, problems)
    plan = _evaluation(suites, problems)
    environment = _environment(own.get("env"), problems)

    values = _settings(raw, known, problems)
    if values.get("trust_remote_code"):
        notes.append(
            "trust_remote_code is on: Python code that ships with the model is run. Turn it off unless you have read "
            "that code."
        )
    for name in ("model_name_or_path", "dataset_name"):
        if isinstance(values.get(name), str) and values[name].startswith("~"):
            values[name] = os.path.expanduser(values[name])
    launching = {k: v for k, v in values.items() if known[k].group == "launch" and v is not None}

    mistyped = {k for k in raw if k in known and k not in values}
    if "model_name_or_path" not in mistyped:
        problems += config_checks.check_model(values.get("model_name_or_path"))
    if not mistyped & {"dataset_name", "datasets"}:
        problems += config_checks.check_data(values.get("dataset_name"), values.get("datasets") or [], beside=source)
    for method in methods:
        problems += config_checks.check_method(method)
        problems += config_checks.check_task(method, plan.tasks)
        if isinstance(values.get("max_steps"), int) and values["max_steps"] > 0 and not method.off:
            problems += method.check_run(total_steps=values["max_steps"])
    problems += config_checks.check_ranges(values)
    problems += config_checks.check_combinations(values, has_accelerator=has_accelerator())
    if launching.get("accelerate_config"):
        problems += config_checks.check_preset(launching["accelerate_config"])
    for name in launch.ignored(launching, has_accelerator=has_accelerator()):
        notes.append(f"{name} has no effect here: this machine has no accelerator.")

    values.setdefault("output_dir", default_output_dir(values.get("model_name_or_path"), methods))
    if values["output_dir"] is None:
        values["output_dir"] = default_output_dir(values.get("model_name_or_path"), methods)
    sound = {k: v for k, v in values.items() if k not in _named_in(problems)}
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not has_accelerator() and sound.get("use_cpu") is None:
        sound["use_cpu"] = (
            True  # without it transformers starts no process group on CPUs, and every rank would train alone
        )
    _decide_precision(sound, given=values, notes=notes)
    parts: dict[str, Any] = {}
    own_keys = {f.name for f in dataclasses.fields(AdapterArguments)}
    for group, cls in (
        ("script", ScriptArguments),
        ("training", SFTConfig),
        ("model", ModelConfig),
        ("mixture", DatasetMixtureConfig),
    ):
        mine = {k: v for k, v in sound.items() if known[k].group == group and k not in own_keys}
        parts[group] = _construct(cls, mine, problems, notes, raw=raw, known=known)

    parts["adapter"] = AdapterArguments(**{k: v for k, v in sound.items() if k in own_keys})

    if parts["training"] is not None and "dataloader_pin_memory" not in raw and not has_accelerator():
        parts["training"].dataloader_pin_memory = False  # nothing to copy to; torch warns at every loader otherwise

    if problems:
        raise ConfigError(
            [_with_line(p, from_file.lines, from_line.values) for p in dict.fromkeys(problems)],
            source=str(source) if source else None,
        )

    resolved = resolve(parts, sound, known)
    resolved["retention"] = [m.setting() for m in methods]
    if suites:
        resolved["evaluation"] = to_jsonable(suites)
    for name, value in (
        ("data", set_fields(templates) if templates else None),
        ("env", environment),
        *launching.items(),
    ):
        if value and name not in SECRET:
            resolved[name] = to_jsonable(value)
    if launch.processes(launching) != 1:
        resolved["num_processes"] = launch.processes(launching)
    return TrainConfig(
        **parts,
        retention=methods,
        evaluation=plan,
        templates=templates,
        launch=launching,
        notes=notes,
        source_file=source,
        resolved=resolved,
        key=fingerprint(deciding(resolved)),
    )


_INTERLOCKED = re.compile(r"_(strategy|steps)$|^(bf16|fp16|use_cpu|report_to)$")
"""Keys that TRL's dataclass checks against each other."""


def _settings(raw: Mapping[str, Any], known: Mapping[str, Setting], problems: list[str]) -> dict[str, Any]:
    """The values that fit their keys; the others become problems."""
    values = {}
    for name, value in raw.items():
        if name not in known:
            problems.append(unknown_key(name, [*known, *OWN_KEYS]))
            continue
        try:
            values[name] = coerce(known[name], value)
        except SettingError as error:
            problems += error.problems
    return values


def _construct(
    cls: type,
    values: dict[str, Any],
    problems: list[str],
    notes: list[str],
    *,
    raw: Mapping[str, Any],
    known: Mapping[str, Setting],
) -> Any:
    """Builds one of TRL's dataclasses. What it refuses is a problem; what it calls deprecated is a note, where the user
    set it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = cls(**values)
        except (
            Exception
        ) as error:  # whatever a user's values make TRL or transformers raise is the user's to hear, with the others
            made = None
            left_out = [k for k in raw if k in known and k not in values and _INTERLOCKED.search(k)]
            if not any(
                known[k].group == "training" for k in left_out
            ):  # else it may be about the default that stands in for a reported mistake
                detail = re.sub(r"\s*\n[\s-]*", "; ", str(error)) or type(error).__name__
                problems.append(
                    detail if isinstance(error, ValueError) else f"{cls.__name__}: {type(error).__name__}: {detail}"
                )
    for warning in caught:
        text = str(warning.message)
        if not issubclass(warning.category, FutureWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif (
            any(f"`{name}" in text for name in raw) and "gradient_checkpointing" not in text
        ):  # both names do the same, and TRL's documentation uses the old
            notes.append(text)
    return made


def _decide_precision(sound: dict[str, Any], *, given: Mapping[str, Any], notes: list[str]) -> None:
    if sound.get("bf16") is not None or sound.get("fp16"):
        return
    if sound.get("use_cpu") or not has_bf16():
        sound["bf16"] = False
        if given.get("bf16") is None and not given.get("fp16"):
            where = (
                "on the CPU"
                if sound.get("use_cpu") or not has_accelerator()
                else "here: this accelerator has no bfloat16"
            )
            notes.append(
                f"bf16 is off {where}: training computes in the model's own dtype (set bf16 yourself to decide "
                f"otherwise)."
            )


def default_output_dir(model: str | None, methods: Sequence[RetentionMethod]) -> str:
    """`runs/<model>-<method>+<method>`, or `-direct` without any."""
    name = Path(model or "model").name or "model"
    if name in (".", ".."):
        name = Path(str(model)).resolve().name
    return f"runs/{name}-{'+'.join(dict.fromkeys(m.name for m in methods)) or 'direct'}"


def has_accelerator() -> bool:
    """Whether torch sees a GPU or its like."""
    import torch

    return torch.accelerator.is_available()


def has_bf16() -> bool:
    """Whether transformers would train in bfloat16 on this machine."""
    from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

    return bool(is_torch_bf16_gpu_available() or is_torch_xla_available())


# ------------------------------------------------------------------------------------------------------------- own keys


def _retention(value: Any, problems: list[str]) -> list[RetentionMethod]:
    from holdfast.retention.registry import parse_retention

    methods, found = parse_retention(value)
    problems += [m.sentence() for m in found]
    return methods


def _suites(own: Mapping[Any, Any], problems: list[str]) -> Any:
    """The evaluation section, with `--source` and `--target` appended to it."""
    value = own.get("evaluation")
    extra = {name: own[name] for name in ("source", "target") if own.get(name)}
    if not extra:
        return value
    if value is not None and not isinstance(value, Mapping):
        problems.append(f"evaluation: expected a mapping with source: and target: lists, got {show(value)}.")
        return None
    suites = dict(value or {})
    for name, entries in extra.items():
        old = suites.get(name)
        suites[name] = [*(old if isinstance(old, list) else [] if old is None else [old]), *entries]
    return suites


def _evaluation(value: Any, problems: list[str]) -> EvaluationPlan:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.suite import parse_evaluation

    if isinstance(value, EvaluationPlan):
        return value
    plan, found = parse_evaluation(value)
    problems += found
    return plan


def _templates(value: Any, problems: list[str]) -> Templates | None:
    from holdfast.data.formats import Templates

    if value is None or isinstance(value, Templates):
        return value
    if not isinstance(value, Mapping):
        problems.append(f"data: expected a mapping with 'text', or 'prompt' and 'completion', got {show(value)}.")
        return None
    known = [f.name for f in dataclasses.fields(Templates)]
    unknown = [str(name) for name in value if name not in known]
    problems += [f"data.{name}: unknown key.{did_you_mean(name, known)} Known: {', '.join(known)}." for name in unknown]
    if unknown:
        return None
    try:
        return Templates(**value)
    except ConfigError as error:
        problems += [f"data: {p.removeprefix('templates: ')}" for p in error.problems]
    return None


def _environment(value: Any, problems: list[str]) -> dict[str, str]:
    """The `env:` section as recorded: without anything that may be a secret."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.append(f"env: expected a mapping of environment variables, got {show(value)}.")
        return {}
    for name, item in value.items():
        if isinstance(item, (Mapping, list)) or item is None:
            problems.append(f"env.{name}: expected a value, got {show(item)}.")
    return {str(k): str(v) for k, v in value.items() if not SECRET_NAME.search(str(k)) and "@" not in str(v)}


def _set_environment(value: Any) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(item, (Mapping, list)) and item is not None:
                os.environ[str(name)] = str(item)


# ------------------------------------------------------------------------------------------------------------- messages


def _named_in(problems: Sequence[str]) -> set[str]:
    """The keys that the problems so far are about; they are left out when the dataclasses are built, so that each is
    reported once."""
    found: set[str] = set()
    for problem in problems:
        match = re.match(r"(\w+)(?: and (\w+))?(?::|,| is missing)", problem)
        found.update(g for g in match.groups() if g) if match else None
    return found


def _with_line(problem: str, lines: Mapping[str, int], overridden: Mapping[str, Any]) -> str:
    """Adds the line of the YAML key that a problem is about."""
    match = re.match(r"(\w+)(?=[:,])|unknown key '([^']+)'", problem)
    if match is None:
        return problem
    name = str(match.group(1) or match.group(2))
    if name not in lines or name in overridden:
        return problem
    return f"{problem[: match.end()]} (line {lines[name]}){problem[match.end() :]}"
