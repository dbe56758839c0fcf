"""Configuration files of axolotl (0.4 to 0.13): supervised fine-tuning, full or LoRA."""

from __future__ import annotations

import re
from typing import Any

from holdfast.runs.foreign.translation import (
    Tool,
    Values,
    accumulation,
    data_settings,
    held_out_file,
    hold_out,
    is_on,
    lora_plus,
    only,
    warmup,
)

_DATA = (
    "path name split train_on_split data_files ds_type type field text_column field_messages "
    "trust_remote_code"
)
_AS_HERE: dict[str, tuple[Any, ...]] = {
    "roles_to_train": (["assistant"], ["gpt"]),
    "message_property_mappings": (
        {"role": "from", "content": "value"},
        {"role": "role", "content": "content"},
    ),
    "chat_template": ("tokenizer_default",),
    "train_on_eos": ("turn",),
}
"""Keys of a data set with the values that mean what is done here."""


def _modules(value: Any, values: Values) -> Values:
    """A text is a pattern of PEFT's, commas and all."""
    return {
        "lora_target_modules": [value]
        if isinstance(value, str) and value != "all-linear"
        else value
    }


def _scheduler(value: Any, values: Values) -> Values:
    name, lowest = values.get("lr_scheduler", "cosine"), values.get("cosine_min_lr_ratio")
    if name == "cosine" and is_on(lowest):
        return {
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr_rate": lowest},
        }
    return {"lr_scheduler_type": name}


def _unfrozen(value: Any, values: Values) -> Values:
    """Only these are trained: all others get a learning rate of 0."""
    if is_on(values.get("adapter")):
        raise ValueError(
            "names no parameter of an adapter, so nothing would be trained. Remove it, or the adapter."
        )
    if any(re.search(r"\[\d*:\d*\]$", pattern) for pattern in value):
        raise ValueError("single rows of a matrix cannot be trained. Name whole parameters.")
    return {"learning_rate_multipliers": {f"^(?!.*(?:{'|'.join(value)}))": 0.0}}


def _data(value: Any, values: Values) -> Values:
    return data_settings(
        [_data_set(entry) for entry in (value if isinstance(value, list) else [value])]
    )


def _data_set(entry: Any) -> Values:
    if isinstance(entry, str):
        entry = {"path": entry, "type": "completion"}
    only(
        {key: value for key, value in entry.items() if value not in _AS_HERE.get(key, ())},
        _DATA,
        "a data set",
    )
    kind = entry.get("type")
    data_set = {key: entry.get(key) for key in ("path", "name", "data_files")}
    data_set |= {"split": entry.get("split") or entry.get("train_on_split")}
    if isinstance(kind, dict):
        return data_set | {"data": _prompted(kind)}
    if kind in ("chat_template", "sharegpt"):
        return data_set | {"chat": entry.get("field_messages", "messages")}
    if kind in ("completion", "pretrain", None):
        column = entry.get("field") or entry.get("text_column") or "text"
        return data_set | ({"data": {"text": f"{{{column}}}"}} if column != "text" else {})
    if kind != "alpaca":
        raise ValueError(
            f"expected type alpaca, chat_template, sharegpt, completion or a mapping, got {kind}."
        )
    return data_set


def _prompted(kind: Values) -> Values:
    """A type written out, as prompt and completion."""
    only(
        kind, "field_instruction field_input field_output format no_input_format", "a type of data"
    )
    text = kind.get("format") or kind.get("no_input_format") or "{instruction}\n"
    if not kind.get("field_input"):
        text = kind.get("no_input_format") or text
    for name in ("instruction", "input"):
        text = text.replace(f"{{{name}}}", f"{{{kind.get(f'field_{name}') or name}}}")
    return {"prompt": text, "completion": f"{{{kind.get('field_output') or 'output'}}}"}


def _finish(values: Values, settings: dict[str, Any]) -> None:
    for kind in ("save", "eval"):
        count = values.get(f"{kind}s_per_epoch") or 0
        if count == 1 and not values.get("max_steps"):
            settings[f"{kind}_strategy"] = "epoch"
        elif count:
            settings |= {
                f"{kind}_strategy": "steps",
                f"{kind}_steps": 1 / (count * values.get("num_epochs", 1)),
            }
    if settings.get("dataset_streaming"):
        settings["num_train_epochs"] = None  # a stream ends with max_steps
    hold_out(values, settings)
    if "save_steps" not in settings:
        settings.setdefault("save_strategy", "epoch")


AXOLOTL = Tool(
    "axolotl",
    {
        "datasets": _data,
        "pretraining_dataset": lambda value, values: {
            "dataset_streaming": True,
            **_data(value, values),
        },
        "chat_template_jinja": lambda value, values: {
            "chat_template_path" if value.endswith((".jinja", ".j2")) else "chat_template": value
        },
        "lora_target_modules": _modules,
        "test_datasets": held_out_file,
        "batch_size": accumulation,
        "loraplus_lr_ratio": lora_plus,
        "unfrozen_parameters": _unfrozen,
        "lr_scheduler": _scheduler,
        "cosine_min_lr_ratio": _scheduler,
        "warmup_steps": warmup,
        "warmup_ratio": warmup,
    },
    _finish,
)
