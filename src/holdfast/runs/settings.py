"""Every key a run may set, and what a value must look like.

The keys are those of `trl sft`, read from its dataclasses (so a new version's keys are known without a change here),
plus the options of `accelerate launch`. Each becomes a `Setting`; `coerce` turns a value as YAML or a shell gives it
(`1e-4` is a STRING in YAML 1.1) into what the dataclass wants, the way `transformers.HfArgumentParser` would, and says
what was expected where it cannot. `HfArgumentParser` checks no type of a YAML value that is not a string (`max_steps:
[3]` passes); this module checks them all.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import yaml

from holdfast.errors import did_you_mean

OWN_KEYS: dict[str, str] = {
    "retention": "What keeps the old skills: a list of methods with their parameters, or none.",
    "evaluation": "What is measured before and after: source (must be kept) and target (is learnt).",
    "data": "Templates that turn columns into training text: text, or prompt and completion.",
    "env": "Environment variables to set before anything is loaded.",
}
"""Keys beside TRL's and accelerate's; `env` is TRL's as well, but lives in its parser instead of a dataclass."""

RENAMED: dict[str, str] = {
    "evaluation_strategy": "'eval_strategy'",
    "fp16_backend": "'fp16: true'",
    "group_by_length": "'train_sampling_strategy: group_by_length'",
    "logging_dir": "the environment variable TENSORBOARD_LOGGING_DIR (under 'env:')",
    "max_seq_length": "'max_length'",
    "no_cuda": "'use_cpu'",
    "num_epochs": "'num_train_epochs'",
    "epochs": "'num_train_epochs'",
    "batch_size": "'per_device_train_batch_size'",
    "lr": "'learning_rate'",
    "model": "'model_name_or_path'",
    "dataset": "'dataset_name'",
    "overwrite_output_dir": "nothing: a run continues in its own folder, and another run needs another 'output_dir'",
    "per_gpu_train_batch_size": "'per_device_train_batch_size'",
    "push_to_hub_model_id": "'hub_model_id'",
    "save_safetensors": "nothing: weights are always saved as safetensors",
    "torch_dtype": "'dtype'",
    "use_flash_attention_2": "'attn_implementation: flash_attention_2'",
    "use_lora": "'use_peft'",
    "use_mps_device": "nothing: the device is found by itself",
    "warmup_ratio": "'warmup_steps', where a number below 1 is a share of all steps",
}
"""Names that older TRL and transformers versions or people's habits have for today's keys."""

_ALSO_CHOICES = {"packing_strategy": ("bfd-requeue",)}
_ALSO_TYPES: dict[str, tuple[Any, ...]] = {"resume_from_checkpoint": (bool,)}
_MAY_BE_FILES = {"accelerator_config", "deepspeed", "fsdp_config"}
"""Mappings that may be given as the path of a JSON file. For the others TRL's `str` means JSON text only."""
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


class SettingError(ValueError):
    """A value does not fit its key; `problems` holds one sentence a mistake."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One key, the type its value must have and where the value goes."""

    name: str
    group: str
    """"script", "training", "model", "mixture" or "launch": the dataclass that takes the value."""
    types: tuple[Any, ...]
    """The type hints accepted, `NoneType` left out."""
    default: Any
    optional: bool = False
    """Whether null is a value of its own."""
    choices: tuple[Any, ...] = ()
    help: str = ""

    @property
    def is_switch(self) -> bool:
        """True where the bare option (`--packing`) means true."""
        return bool in self.types

    @property
    def takes_many(self) -> bool:
        """True where the option takes several words (`--report_to wandb tensorboard`)."""
        return any(typing.get_origin(t) is list for t in self.types)

    @property
    def expected(self) -> str:
        """What a value looks like, in words: "a whole number", "true or false", ..."""
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        words: list[str] = []
        for hint in self.types:
            word = _in_words(hint)
            if word not in words:
                words.append(word)
        return " or ".join(words)


# ------------------------------------------------------------------------------------------------------------ the table


@functools.cache
def known_settings() -> dict[str, Setting]:
    """All keys of `trl sft` and of `accelerate launch` by name. Imports TRL (seconds); the result is kept."""
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig

    from holdfast.training.adapters import AdapterArguments

    table: dict[str, Setting] = {}
    sources = (
        ("script", ScriptArguments),
        ("training", SFTConfig),
        ("model", ModelConfig),
        ("model", AdapterArguments),
        ("mixture", DatasetMixtureConfig),
    )
    for group, cls in sources:
        for setting in settings_of(cls, group):
            table.setdefault(setting.name, setting)
    for setting in _launch_settings():
        if setting.name not in table and setting.name not in OWN_KEYS:
            table[setting.name] = setting
    return table


def settings_of(cls: type, group: str) -> list[Setting]:
    """The fields of one dataclass as settings."""
    hints = typing.get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        options, optional = _union(hints[field.name])
        options = options + _ALSO_TYPES.get(field.name, ())
        if (
            field.name not in _MAY_BE_FILES
            and len(options) == 2
            and str in options
            and any(_is_mapping(h) for h in options)
        ):
            options = tuple(h for h in options if h is not str)
        default = field.default
        if default is dataclasses.MISSING:
            default = (
                field.default_factory() if field.default_factory is not dataclasses.MISSING else dataclasses.MISSING
            )
        choices = tuple(field.metadata.get("choices", ()))
        for hint in options:
            if isinstance(hint, type) and issubclass(hint, enum.Enum):
                choices = tuple(member.value for member in hint)
        found.append(
            Setting(
                name=field.name,
                group=group,
                types=options,
                optional=optional,
                default=default.value if isinstance(default, enum.Enum) else default,
                choices=choices,
                help=str(field.metadata.get("help", "")).replace("%%", "%"),
            )
        )
    return found


def _launch_settings() -> list[Setting]:
    from accelerate.commands.launch import launch_command_parser

    found = [
        Setting(
            name="accelerate_config",
            group="launch",
            types=(str,),
            default=None,
            optional=True,
            help="A preset of TRL (single_gpu, multi_gpu, fsdp1, fsdp2, zero1, zero2, zero3) or an accelerate YAML "
            "file.",
        )
    ]
    for action in launch_command_parser()._actions:
        if not action.option_strings or action.dest in _NOT_FROM_ACCELERATE:
            continue
        kinds: tuple[Any, ...] = (
            (bool,) if action.nargs == 0 else (int,) if action.type is int else (str, int, float, bool)
        )
        found.append(
            Setting(
                name=action.dest,
                group="launch",
                types=kinds,
                default=None,
                optional=True,
                help=(action.help or "").replace("%%", "%"),
            )
        )
    return found


def _is_mapping(hint: Any) -> bool:
    return hint is dict or typing.get_origin(hint) is dict


def _union(hint: Any) -> tuple[tuple[Any, ...], bool]:
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(p for p in parts if p is not types.NoneType), types.NoneType in parts


# ----------------------------------------------------------------------------------------------------------- the values


def coerce(setting: Setting, value: Any) -> Any:
    """`value` as the dataclass wants it.

    Strings are converted as `HfArgumentParser` does (numbers, yes / no, JSON for mappings). Null stands for "not set":
    kept where null is a value, false for a switch, otherwise the default where that is empty.

    Raises:
        SettingError: the value does not fit, with what was expected and what came.
    """
    if value is None or (
        isinstance(value, str) and value.lower() in ("none", "null") and setting.optional and str not in setting.types
    ):
        return _coerce_null(setting)
    if value is False and "no" in setting.choices:  # YAML 1.1 reads the bare word `no` as false
        return "no"
    for hint in _in_order(setting.types, value):
        try:
            result = _convert(hint, value, setting.name)
        except SettingError:  # the right kind of value, with mistakes inside
            raise
        except (TypeError, ValueError):
            continue
        _check_choice(setting, result)
        return result
    advice = ""
    if setting.choices:
        advice = did_you_mean(str(value), map(str, setting.choices))
    elif str in setting.types and isinstance(value, (bool, float)):
        advice = " Put it in quotes if it is meant as text."
    raise SettingError([f"{setting.name}: expected {setting.expected}, got {show(value)}.{advice}"])


def _coerce_null(setting: Setting) -> Any:
    if setting.optional:
        return None
    if setting.is_switch:
        return False
    if setting.default is not dataclasses.MISSING and not setting.default:
        return setting.default
    raise SettingError(
        [
            f"{setting.name}: expected {setting.expected}, got nothing (null). Leave the key out for its default, "
            f"{setting.default}."
        ]
    )


def _check_choice(setting: Setting, value: Any) -> None:
    value = value.value if isinstance(value, enum.Enum) else value
    if setting.choices and value not in setting.choices and value not in _ALSO_CHOICES.get(setting.name, ()):
        near = did_you_mean(str(value), map(str, setting.choices))
        raise SettingError([f"{setting.name}: expected {setting.expected}, got {show(value)}.{near}"])


def _in_order(hints: tuple[Any, ...], value: Any) -> list[Any]:
    """The hints to try, those nearest to the value's own type first."""
    if isinstance(value, str):
        rank = {bool: 1, int: 2, float: 3, str: 6}
        collection = (
            4 if value.lstrip().startswith(("[", "{")) else 7
        )  # `report_to: wandb` stays a word where a word will do
        return sorted(
            hints, key=lambda h: collection if typing.get_origin(h) is list or _is_mapping(h) else rank.get(h, 0)
        )
    return sorted(hints, key=lambda h: 0 if isinstance(h, type) and type(value) is h else 2 if h is str else 1)


def _convert(hint: Any, value: Any, name: str) -> Any:
    """`value` as `hint`, or ValueError. Strings are parsed; other types must already be of the kind."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        for allowed in typing.get_args(hint):
            if value == allowed and type(value) is type(allowed):
                return value
        raise ValueError
    if origin is list or hint is list:
        return _to_list(hint, value, name)
    if _is_mapping(hint):
        return _to_dict(value, name)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value).value
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            return value
        raise ValueError
    return {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}.get(hint, _refuse)(value)


def _refuse(value: Any) -> Any:
    raise ValueError


def _to_bool(value: Any) -> bool:
    words = {
        "yes": True,
        "true": True,
        "t": True,
        "y": True,
        "1": True,
        "no": False,
        "false": False,
        "f": False,
        "n": False,
        "0": False,
    }
    if isinstance(value, str):
        if value.lower() in words:
            return words[value.lower()]
    elif value in (0, 1) and isinstance(value, (bool, int)):
        return bool(value)
    raise ValueError


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)  # "1e3"
    if isinstance(value, (int, float)) and value == int(value):
        return int(value)
    raise ValueError


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    if isinstance(value, int):  # `save_steps: 100` stays 100 for everybody who prints it
        return value
    result = float(value)
    if math.isnan(result):
        raise ValueError
    return result


def _to_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool):  # `run_name: 7`
        return str(value)
    raise ValueError


def _to_list(hint: Any, value: Any, name: str) -> list[Any]:
    (item_hint,) = typing.get_args(hint) or (Any,)
    if isinstance(value, str):
        value = yaml.safe_load(value) if value.lstrip().startswith("[") else [value]
    if not isinstance(value, (list, tuple)):
        raise ValueError
    if dataclasses.is_dataclass(item_hint):
        return _to_dataclasses(typing.cast(type, item_hint), list(value), name)
    if item_hint is Any:
        return list(value)
    result, problems = [], []
    for number, item in enumerate(value, 1):
        try:
            result.append(_convert(item_hint, item, name))
        except (TypeError, ValueError):
            problems.append(f"{name}, item {number}: expected {_in_words(item_hint)}, got {show(item)}.")
    if problems:
        raise SettingError(problems)
    return result


def _to_dict(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            json.loads(value)
            return value  # transformers parses it with its own rules for nested strings
        except ValueError:
            pass
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            parsed = None
        if isinstance(parsed, dict):
            return parsed
        raise SettingError(
            [
                f"""{name}: expected a mapping such as '{{"key": "value"}}', got {show(value)}, which is neither JSON nor YAML."""
            ]
        )
    raise ValueError


def _to_dataclasses(cls: type, items: list[Any], name: str) -> list[Any]:
    """A list of mappings as instances of `cls` (the entries under `datasets:`); all problems of all entries at once."""
    known = {s.name: s for s in settings_of(cls, "")}
    result, problems = [], []
    for number, item in enumerate(items, 1):
        where = f"{name}, entry {number}"
        if isinstance(item, cls):
            result.append(item)
            continue
        if not isinstance(item, Mapping):
            problems.append(f"{where}: expected a mapping with the keys {', '.join(known)}, got {show(item)}.")
            continue
        values = {}
        for key, value in item.items():
            if key not in known:
                problems.append(
                    f"{where}: unknown key "
                    f"{str(key)!r}.{did_you_mean(str(key), known) or ' Known: ' + ', '.join(known) + '.'}"
                )
                continue
            try:
                values[key] = coerce(known[key], value)
            except SettingError as error:
                problems.extend(f"{where}: {p}" for p in error.problems)
        missing = [s.name for s in known.values() if s.default is dataclasses.MISSING and s.name not in item]
        if any(key not in known for key in item):  # the missing one is probably there, mistyped
            continue
        problems.extend(f"{where}: '{m}' is missing." for m in missing)
        if not missing:
            result.append(cls(**values))
    if problems:
        raise SettingError(problems)
    return result


# ----------------------------------------------------------------------------------------------------- words for people


def show(value: Any) -> str:
    """A value in a message: itself, shortened, and what kind of thing it is."""
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{text} ({kind(value)})"


def kind(value: Any) -> str:
    """The YAML word for a value's type."""
    if value is None:
        return "null"
    for types_, word in (
        (bool, "true/false"),
        (int, "whole number"),
        (float, "number"),
        (str, "text"),
        (Mapping, "mapping"),
        ((list, tuple), "list"),
    ):
        if isinstance(value, types_):  # type: ignore[arg-type]
            return word
    return type(value).__name__


def _in_words(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return " or ".join(str(a).lower() for a in typing.get_args(hint))
    if origin is list or hint is list:
        (item,) = typing.get_args(hint) or (Any,)
        plural = {str: "texts", int: "whole numbers", float: "numbers"}.get(
            item, "mappings" if dataclasses.is_dataclass(item) else "values"
        )
        return f"a list of {plural}"
    if _is_mapping(hint):
        return "a mapping"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(str(m.value) for m in hint)
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )
