"""Every key that a run may set.

The keys are those of `trl sft`, read from its dataclasses (so a new version's keys are known
without a change here), the options of `accelerate launch`, and holdfast's own. What the dataclasses
themselves do not say stands in the tables below.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from holdfast.config.declare import MAX_SEED, Meta, Setting, settings_of
from holdfast.config.decode import expected
from holdfast.config.values import Refused, show
from holdfast.config.yaml_text import from_yaml
from holdfast.data.layouts import Templates
from holdfast.errors import Problem
from holdfast.runs.on_policy import OnPolicySettings
from holdfast.runs.stopping import Rules, StopRule, rules_of
from holdfast.runs.trainers import SFT, TRAINERS, TrainerName

_AT_LEAST_ONE, _NOT_NEGATIVE, _SHARE, _SEED = (
    Meta(ge=1),
    Meta(ge=0),
    Meta(ge=0, lt=1),
    Meta(ge=0, le=MAX_SEED),
)
_BOUNDS: dict[str, Meta] = {
    "per_device_train_batch_size": _AT_LEAST_ONE,
    "per_device_eval_batch_size": _AT_LEAST_ONE,
    "gradient_accumulation_steps": _AT_LEAST_ONE,
    "max_length": Meta(ge=2),
    "lora_r": _AT_LEAST_ONE,
    "learning_rate": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "warmup_steps": _NOT_NEGATIVE,
    "logging_steps": _NOT_NEGATIVE,
    "save_steps": _NOT_NEGATIVE,
    "eval_steps": _NOT_NEGATIVE,
    "eval_accumulation_steps": _AT_LEAST_ONE,
    "dataset_num_proc": _AT_LEAST_ONE,
    "dataloader_num_workers": _NOT_NEGATIVE,
    "adam_epsilon": _NOT_NEGATIVE,
    "max_grad_norm": Meta(ge=0, finite=False),
    "num_processes": _AT_LEAST_ONE,
    "seed": _SEED,
    "data_seed": _SEED,
    "adam_beta1": _SHARE,
    "adam_beta2": _SHARE,
    "lora_dropout": _SHARE,
    "label_smoothing_factor": _SHARE,
    "test_split_size": Meta(gt=0),
}
"""transformers checks few of these, and late."""
_ALSO_CHOICES = {"packing_strategy": ("bfd-requeue",)}
"""Values that TRL takes and calls deprecated."""
_ALSO_TYPES: dict[str, tuple[Any, ...]] = {"resume_from_checkpoint": (bool,)}
_MAY_BE_FILES = {"accelerator_config", "deepspeed", "fsdp_config"}
"""Mappings that may be given as the path of a JSON file. For the others TRL's `str` means JSON text
only."""
ACCELERATE_CONFIG = "accelerate_config"
"""TRL's option for a preset or a file of accelerate."""
_NOT_FROM_ACCELERATE = {
    "help",
    "quiet",
    "debug",
    "env",
    "module",
    "no_python",
    "training_script",
    "training_script_args",
}


# ----------------------------------------------------------------------------------- holdfast's own


_REFERENCE = re.compile(r"(?:[^:=,]+\.py:|\w+(?:\.\w+)+:|\w+:(?=[A-Z]))[A-Za-z_]\w*(?=:|$)")


def parse_compact_method(text: str) -> list[Any]:
    """One `--retention` argument as the list YAML would have given.

    `sfa` is `["sfa"]`, `sfa:p=0.25,beta=0.9` is `[{"sfa": {"p": 0.25, "beta": 0.9}}]`,
    `my_method.py:Dropback:rate=0.1` is `[{"my_method.py:Dropback": {"rate": 0.1}}]`; a YAML or JSON
    list or mapping is taken as it is.

    Raises:
        ValueError: what is wrong with the form (not with the method: the registry checks that).
    """
    text = text.strip()
    if text.startswith(("[", "{")):
        try:
            parsed = from_yaml(text)
        except ValueError as error:
            raise ValueError(f"not valid YAML ({error}).") from None
        return parsed if isinstance(parsed, list) else [parsed]
    reference = _REFERENCE.match(text)  # the colon in 'my_method.py:Dropback' is part of the name
    if reference is None:
        name, colon, rest = text.partition(":")
    else:
        name, after = reference[0], text[reference.end() :]
        colon, rest = after[:1], after[1:]
    if not colon:
        return [name]
    parameters: dict[str, Any] = {}
    for assignment in _split_outside(rest):
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise ValueError(
                "expected parameter=value, as in 'label_annealing:weight=1.0,temperature=2', got "
                f"{assignment!r}."
            )
        if key.strip() in parameters:
            raise ValueError(f"parameter {key.strip()!r} is listed twice.")
        try:
            parameters[key.strip()] = from_yaml(value)
        except ValueError:
            parameters[key.strip()] = value.strip()
    return [{name.strip(): parameters}]


def _split_outside(text: str) -> list[str]:
    """Splits at the commas that are outside brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _environment(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError
    problems = []
    for name, item in value.items():
        if isinstance(item, (Mapping, list)) or item is None:
            problems.append(Problem(str(name), f"expected a value, got {show(item)}."))
    if problems:
        raise Refused(*problems)
    return {str(name): item for name, item in value.items()}


def _multipliers(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise ValueError
    problems = []
    for pattern, factor in value.items():
        number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not number or not 0 <= factor < math.inf:
            problems.append(
                Problem(str(pattern), f"expected a number of at least 0, got {show(factor)}.")
            )
        try:
            re.compile(str(pattern))
        except re.error as error:
            problems.append(Problem(str(pattern), f"expected a regular expression: {error}."))
    if problems:
        raise Refused(*problems)
    return {str(pattern): float(factor) for pattern, factor in value.items()}


def _patterns(value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, (list, tuple)) or not all(
        isinstance(one, str) and one for one in values
    ):
        raise ValueError
    problems = []
    for number, pattern in enumerate(values):
        try:
            re.compile(pattern)
        except re.error as error:
            problems.append(Problem((number,), f"expected a regular expression: {error}."))
    if problems:
        raise Refused(*problems)
    return tuple(values)


def _retention_schema() -> dict[str, Any]:
    from holdfast.retention.registry import retention_schema

    return retention_schema()


@dataclass(frozen=True, kw_only=True)
class KeptSettings:
    """What keeps the old skills, and what is measured."""

    settings_group: ClassVar[str] = "entries to keep and to learn"

    retention: Annotated[
        Any,
        Meta(
            repeatable=True,
            metavar="METHOD[:KEY=VALUE,...]",
            expected="a method, as in 'label_annealing:weight=1.0'",
            parse_word=parse_compact_method,
            json_schema=_retention_schema,
        ),
    ] = None
    """Retention methods, which keep old skills. A list of methods with their parameters; none:
    plain fine-tuning. The option may be repeated, and replaces the YAML's list."""
    evaluation: Annotated[
        dict[str, Any] | None, Meta(metavar="'{batch_size: 4}'", section="evaluation")
    ] = None
    """What to measure before and after training: keep (should not get worse) and learn (should
    improve). The option replaces the YAML's section."""
    keep: Annotated[
        tuple[str, ...], Meta(repeatable=True, yaml=False, metavar="FILE|TASK", former=("source",))
    ] = ()
    """Entries that should not get worse. They are measured before and after training, and added to
    evaluation.keep."""
    learn: Annotated[
        tuple[str, ...], Meta(repeatable=True, yaml=False, metavar="FILE|TASK", former=("target",))
    ] = ()
    """Entries that should improve. They are measured before and after training, and added to
    evaluation.learn."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """holdfast's other keys of a run. `env` is TRL's as well, but lives in its parser."""

    settings_group: ClassVar[str] = "entries to keep and to learn"

    data: Annotated[Templates | None, Meta(metavar="'{text: \"{title}\"}'", section="data")] = None
    """Templates that turn columns into training text: text, or prompt and completion."""
    chat_template: Annotated[str | None, Meta(metavar="TEXT", section="data")] = None
    """A chat template instead of the model's own, as Jinja text. `chat_template_path` reads a
    template from a file."""
    train_on: Annotated[Literal["last", "all", "per_message"] | None, Meta(section="data")] = None
    """Messages of a conversation to train on: the assistant's last one, all of the assistant's, or
    those in which `train` or `weight` is set. train_on and assistant_only_loss work with every chat
    template."""
    train_thoughts: Annotated[bool, Meta(section="data")] = True
    """Train on the assistant's thoughts: text between <think> and </think>, and
    reasoning_content."""
    rewritten_turns: Annotated[Literal["refuse", "whole", "as_written"], Meta(section="data")] = (
        "refuse"
    )
    """What to do if the chat template rewrites earlier turns of a conversation (for example removes
    thoughts) and does not mark the assistant's messages. refuse: stop with an error; whole: train
    the whole text, user messages too; as_written: train the assistant's messages as rewritten."""
    learning_rate_multipliers: Annotated[
        dict[str, float],
        Meta(
            parse=_multipliers,
            expected="a mapping of patterns to factors of 0 or more",
            metavar="'{embed_tokens: 0.1}'",
            section="training",
            json_schema=lambda: {
                "type": "object",
                "additionalProperties": {"type": "number", "minimum": 0},
            },
        ),
    ] = dataclasses.field(default_factory=dict)
    """Factors on the learning rate, by a regular expression that matches parameter names; 0 freezes
    these parameters."""
    train_only: Annotated[
        tuple[str, ...],
        Meta(
            parse=_patterns,
            expected="a list of regular expressions",
            metavar="'[multi_modal_projector]'",
            section="training",
            json_schema=lambda: {"type": ["array", "string"], "items": {"type": "string"}},
        ),
    ] = ()
    """Regular expressions to search for in parameter names. Parameters without a match are
    frozen."""
    fused_layers: Annotated[bool, Meta(section="training")] = False
    """Fused RMSNorm and gated feed-forward layers for float32 training on CPUs: about 10 % faster
    for small models; results differ by rounding."""
    trainer: Annotated[TrainerName, Meta(section="training")] = "sft"
    """Trainer: sft: supervised fine-tuning; dpo: preference optimisation on pairs; kto: preference
    optimisation on single labelled answers; grpo: reinforcement learning with rewards; on_policy:
    distillation from a teacher on the model's own answers. The keys are those of TRL's settings
    for this trainer."""
    on_policy: Annotated[
        OnPolicySettings | None, Meta(metavar="'{max_completion_length: 256}'", section="training")
    ] = None
    """On-policy distillation: trains on the model's own answers, without labels. The loss is the KL
    to label_annealing's teacher."""
    eval_dataset_name: Annotated[str | None, Meta(metavar="FILE", section="evaluation")] = None
    """Held-out rows for `eval_strategy`, instead of a split of the training data."""
    eval_dataset_split: Annotated[str, Meta(metavar="SPLIT", section="evaluation")] = "train"
    """Split of eval_dataset_name, such as train[:500]; a file has the split "train"."""
    early_stopping_patience: Annotated[int | None, Meta(ge=1, section="evaluation")] = None
    """End training after N evaluations (`eval_strategy`) without improvement. The best checkpoint
    is the result, so this needs `load_best_model_at_end`."""
    early_stopping: Annotated[
        StopRule | tuple[StopRule, ...] | None,
        Meta(
            metavar="'{entry: learn/answers, patience: 2}'",
            section="evaluation",
            expected="a mapping with entry and patience, or a list of such mappings",
        ),
    ] = None
    """End training early, by measurements during training (evaluation.along). patience: when an
    entry no longer improves; max_loss: when an entry has lost more than this value."""
    env: Annotated[
        dict[str, Any],
        Meta(
            parse=_environment,
            expected="a mapping of environment variables",
            metavar="'{NAME: value}'",
            section="running",
            json_schema=lambda: {
                "type": "object",
                "additionalProperties": {"type": ["string", "number", "boolean"]},
            },
        ),
    ] = dataclasses.field(default_factory=dict)
    """Environment variables to set before anything is loaded."""

    @property
    def cuts_rows(self) -> bool:
        """Whether `max_length` cuts the rows that are trained on."""
        return self.trainer in ("sft", "dpo") and self.on_policy is None

    @property
    def stop_rules(self) -> Rules:
        """`early_stopping` as a list, however it was given."""
        return rules_of(self.early_stopping)


@dataclass(frozen=True, kw_only=True)
class OwnSettings(RunSettings, KeptSettings):
    """All of holdfast's own keys of a run."""


OWN: dict[str, Setting] = {setting.name: setting for setting in settings_of(OwnSettings)}
"""holdfast's own keys by name."""


# --------------------------------------------------------------------------- TRL's and accelerate's

COMMON: dict[str, dict[str, str]] = {
    "model and data": {
        "model_name_or_path MODEL": "A local folder or a hub id.",
        "dataset_name DATA": "A file, folder or hub id; see --help data.",
        "max_length N": "Maximum length of a row in tokens. Longer rows are cut.",
        "output_dir FOLDER": "Folder of weights, evaluations and report.html.",
    },
    "training": {
        "learning_rate X": "Learning rate; about 1e-4 with LoRA.",
        "num_train_epochs X": "Number of passes over the data.",
        "max_steps N": "Optimiser steps, instead of epochs.",
        "per_device_train_batch_size N": "Batch size per device, in rows.",
        "gradient_accumulation_steps N": "Batches per optimiser step.",
        "use_peft": "Train a LoRA adapter instead of all weights.",
        "lora_r N": "Rank of the LoRA adapter.",
        "load_in_4bit": "Load the model in 4 bits (QLoRA).",
        "num_processes N": "Number of processes, one per GPU.",
    },
}
"""Keys of TRL and accelerate that most runs set, with their values' names and short explanations,
by heading."""
SHIPPED = Path(__file__).parents[1] / "schemas" / "train.schema.json"


def shipped_settings() -> list[Setting]:
    """Keys of TRL and accelerate for the help, out of the JSON Schema that is shipped: TRL takes
    seconds to import. Those of `COMMON` are the first; the others are of the section "trl"."""
    schemas = json.loads(SHIPPED.read_text(encoding="utf-8"))["properties"]
    settings = []
    for group, keys in COMMON.items():
        for key, text in keys.items():
            name, _, value = key.partition(" ")
            settings.append(
                _of_schema(name, schemas.pop(name), Meta(group=group, metavar=value), text)
            )
    for name, schema in schemas.items():
        if name not in OWN:
            settings.append(
                _of_schema(
                    name, schema, Meta(group="trl", section="trl"), schema.get("description", "")
                )
            )
    return settings


_TYPES: dict[str, Any] = {
    "boolean": bool,
    "integer": int,
    "number": float,
    "object": dict,
    "array": list[str],
}


def _of_schema(name: str, schema: Mapping[str, Any], meta: Meta, text: str) -> Setting:
    kind = schema
    while "anyOf" in kind:
        kind = kind["anyOf"][0]
    hint = _TYPES.get(str(kind.get("type")), str)
    choices = tuple(kind.get("enum", ()))
    return Setting(
        name=name,
        types=(hint,),
        default=schema.get("default"),
        choices=choices,
        help=text,
        meta=meta,
    )


def sources(trainer: str = SFT) -> dict[str, type]:
    """The dataclasses that a run's settings are values of, by `Setting.source`. Imports TRL
    (seconds)."""
    import trl

    from holdfast.training.adapters import AdapterArguments

    module, _, name = TRAINERS[trainer].script.partition(":")
    return {
        "script": getattr(importlib.import_module(module), name),
        "training": getattr(trl, TRAINERS[trainer].settings),
        "model": trl.ModelConfig,
        "adapter": AdapterArguments,
        "mixture": trl.DatasetMixtureConfig,
    }


@functools.cache
def known_settings(trainer: str = SFT) -> dict[str, Setting]:
    """All keys of TRL's command for a trainer, such as `trl sft`, and of `accelerate launch`, by
    name; `Setting.source` is one of `sources()` or "launch". Imports TRL (seconds); the result is
    kept."""
    table: dict[str, Setting] = {}
    for source, cls in sources(trainer).items():
        for setting in settings_of(cls):
            table.setdefault(setting.name, _adjusted(setting, source))
    for setting in _launch_settings():
        if setting.name not in OWN:
            table.setdefault(setting.name, setting)
    return table


@functools.cache
def known_of_others(trainer: str) -> dict[str, Setting]:
    """Keys that runs with other trainers have and those with this one do not; `Setting.source`
    names the trainers that have it."""
    own_settings, table = known_settings(trainer), dict[str, Setting]()
    for other in TRAINERS:
        for name, setting in known_settings(other).items():
            if name in table:
                table[name] = dataclasses.replace(
                    table[name], source=f"{table[name].source} or {other}"
                )
            elif name not in own_settings:
                table[name] = dataclasses.replace(setting, source=other)
    return table


def settings_of_all() -> list[Setting]:
    """The keys of every trainer, those of `trl sft` first; what only others have says so in its
    help."""
    table = dict(known_settings())
    for name, setting in known_of_others(SFT).items():
        table[name] = dataclasses.replace(
            setting, help=f"With trainer: {setting.source}. {setting.help}"
        )
    for trainer in TRAINERS:
        for name, setting in known_settings(trainer).items():
            more = tuple(kind for kind in setting.types if kind not in table[name].types)
            if more:  # one name, another kind of value
                table[name] = dataclasses.replace(table[name], types=table[name].types + more)
    return list(table.values())


def training_keys() -> list[str]:
    """Keys of a training configuration that a study may set for all its runs: those of TRL and
    accelerate, and holdfast's own but for what decides the environment."""
    own_keys = [
        setting.name for setting in OWN.values() if setting.meta.yaml and setting.name != "env"
    ]
    return [*known_keys(), *own_keys]


def libraries() -> str:
    """Whose keys a run has, by name and version. Imports none of them."""
    return ", ".join(f"{name} {version(name)}" for name in ("trl", "transformers", "accelerate"))


def known_keys() -> list[str]:
    """The names of the keys of TRL and accelerate, of every trainer. Imports TRL (seconds) only
    where the JSON Schema that is shipped was made with other versions."""
    schema = json.loads(SHIPPED.read_text(encoding="utf-8"))
    names = (
        schema["properties"]
        if schema.get("$comment") == libraries()
        else [s.name for s in settings_of_all()]
    )
    return [name for name in names if name not in OWN]


def _adjusted(setting: Setting, source: str) -> Setting:
    """A setting of TRL's with what its dataclass does not say."""
    name, types = setting.name, setting.types + _ALSO_TYPES.get(setting.name, ())
    meta = _BOUNDS.get(name, setting.meta)
    if setting.is_mapping and str in types:
        file = name in _MAY_BE_FILES
        meta = dataclasses.replace(
            meta,
            parse=functools.partial(_json_or_mapping, file=file),
            expected="a mapping or the path of a JSON file" if file else "a mapping",
            json_schema=lambda: {"type": ["object", "string", "null"]},
        )
    choices = setting.choices + _ALSO_CHOICES.get(name, ())
    if choices != setting.choices:
        meta = dataclasses.replace(meta, expected=expected(setting))
    return dataclasses.replace(setting, types=types, meta=meta, source=source, choices=choices)


def _json_or_mapping(value: Any, *, file: bool) -> Any:
    """A mapping as it is, JSON text too: transformers reads that with its own rules for nested
    strings."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str):
        raise ValueError
    if not value.lstrip().startswith("{"):
        if file:
            return value
        raise ValueError
    try:
        json.loads(value)
        return value
    except (ValueError, RecursionError):
        pass
    try:
        parsed = from_yaml(value)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        form = """expected a mapping such as '{"key": "value"}'"""
        text = f"{form}, got {show(value)}, which is neither JSON nor YAML."
        raise Refused(Problem((), text))
    return parsed


def _launch_settings() -> list[Setting]:
    from accelerate.commands.launch import launch_command_parser

    presets = "single_gpu, multi_gpu, fsdp1, fsdp2, zero1, zero2, zero3"
    settings = [
        _launch_setting(
            ACCELERATE_CONFIG, (str,), f"A preset of TRL ({presets}) or an accelerate YAML file."
        )
    ]
    for action in launch_command_parser()._actions:
        if action.option_strings and action.dest not in _NOT_FROM_ACCELERATE:
            kinds = (
                (bool,)
                if action.nargs == 0
                else (int,)
                if action.type is int
                else (str, int, float, bool)
            )
            text = (action.help or "").replace("%%", "%")
            settings.append(_launch_setting(action.dest, kinds, text))
    return settings


def _launch_setting(name: str, types: tuple[Any, ...], text: str) -> Setting:
    return Setting(
        name=name,
        types=types,
        optional=True,
        help=text,
        source="launch",
        meta=_BOUNDS.get(name, Meta()),
    )
