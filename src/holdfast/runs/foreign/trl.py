"""Keys of `trl sft` as older versions of TRL and transformers had them: they run, each with a note
of today's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.config.declare import Meta, Setting
from holdfast.config.raw_request import RawRequest, plain_key
from holdfast.errors import Note, Problem
from holdfast.runs.foreign.translation import is_on

RENAMED: dict[str, str] = {
    "evaluation_strategy": "eval_strategy",
    "max_seq_length": "max_length",
    "no_cuda": "use_cpu",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "preprocessing_num_workers": "dataset_num_proc",
    "push_to_hub_model_id": "hub_model_id",
    "torch_dtype": "dtype",
    "use_liger": "use_liger_kernel",
}
"""Another name for the same."""
WITHOUT_EFFECT: dict[str, str] = {
    "dataset_batch_size": "rows are tokenised in batches of a fixed size",
    "fp16_backend": "there is one backend",
    "half_precision_backend": "there is one backend",
    "logging_dir": "TENSORBOARD_LOGGING_DIR (under env:) sets the folder of TensorBoard",
    "overwrite_output_dir": "a run continues in its own folder; a new run needs another output_dir",
    "save_safetensors": "weights are always saved as safetensors",
    "use_mps_device": "the device is chosen automatically",
}
"""What needs no key, and why."""
MADE: dict[str, Callable[[Any], dict[str, Any]]] = {
    "group_by_length": lambda value: (
        {"train_sampling_strategy": "group_by_length"} if is_on(value) else {}
    ),
    "use_flash_attention_2": lambda value: (
        {"attn_implementation": "flash_attention_2"} if is_on(value) else {}
    ),
    "warmup_ratio": lambda value: {"warmup_steps": value},
}
"""What other keys make of a value."""


def old_settings(known: Mapping[str, Setting]) -> dict[str, Setting]:
    """Old names as options of a command line.

    Args:
        known: today's settings by name.
    """
    settings = {}
    for old, new in RENAMED.items():
        hidden = dataclasses.replace(known[new].meta, hidden=True)
        settings[old] = dataclasses.replace(known[new], name=old, meta=hidden)
    for name in (*WITHOUT_EFFECT, *MADE):
        settings[name] = Setting(
            name=name, types=(str, float, bool), optional=True, meta=Meta(hidden=True)
        )
    return settings


def modern(given: RawRequest) -> tuple[RawRequest, list[Note]]:
    """A request with today's names, and a note on each that was replaced.

    A key that stands there under both names is a mistake, unless one is on the command line and the
    other in the file: the command line wins. `warmup_steps` above 0 wins over `warmup_ratio`, as in
    transformers.
    """
    values, notes = dict(given.values), list[Note]()
    problems, lines, from_line = list(given.problems), dict(given.lines), set(given.from_line)
    for key in given.values:
        name = plain_key(key)
        if name not in RENAMED and name not in WITHOUT_EFFECT and name not in MADE:
            continue
        value = values.pop(key)
        if name in WITHOUT_EFFECT:
            notes.append(Note("no_effect", f"{key} has no effect: {WITHOUT_EFFECT[name]}."))
            continue
        if value is None:
            continue
        settings = MADE[name](value) if name in MADE else {RENAMED[name]: value}
        today = ", ".join(f"{new}: {setting}" for new, setting in settings.items())
        now = f"called {RENAMED[name]}" if name in RENAMED else today or "off"
        notes.append(Note("renamed", f"{key} is {now} today."))
        on_line = name in given.from_line
        for new, setting in settings.items():
            present = next((other for other in values if plain_key(other) == new), new)
            present_value, new_on_line = values.get(present), new in given.from_line
            if name == "warmup_ratio" and present_value and not new_on_line:
                continue  # so many steps go before any share
            is_set = present_value is not None and not (
                name == "warmup_ratio" and not present_value
            )
            if is_set and on_line == new_on_line:
                text = (
                    f"is listed twice, as {present!r} and under its old name {key!r}. Keep one of "
                    "them."
                )
                problems.append(Problem(new, text))
            if is_set and (on_line == new_on_line or not on_line):
                continue  # the command line wins over the file
            values.pop(present, None)
            values[new] = setting
            if (name,) in given.lines:
                lines[(new,)] = given.lines[(name,)]
            if on_line:
                from_line.add(new)
    return dataclasses.replace(
        given, values=values, problems=problems, lines=lines, from_line=from_line
    ), notes
