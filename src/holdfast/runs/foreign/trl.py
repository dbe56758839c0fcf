"""Keys of `trl sft` as older versions of TRL and transformers had them, and those of recipes written around it
(alignment-handbook): they run, each with a note of today's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.config.declare import Meta, Setting
from holdfast.config.decode import Given, plain_key
from holdfast.config.values import Mistake, show
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
    "logging_dir": "where TensorBoard writes is TENSORBOARD_LOGGING_DIR (under env:)",
    "overwrite_output_dir": "a run continues in its own folder, and another run needs another output_dir",
    "save_safetensors": "weights are always saved as safetensors",
    "use_mps_device": "the device is found by itself",
}
"""What needs no key, and why."""


def _switched(**settings: Any) -> Callable[[Any], dict[str, Any]]:
    return lambda value: settings if is_on(value) else {}


MADE: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dataset_mixer": lambda value: {},  # with dataset_splits: see `_mixer`
    "dataset_splits": lambda value: {},
    "fp16_backend": lambda value: {},
    "group_by_length": _switched(train_sampling_strategy="group_by_length"),
    "half_precision_backend": lambda value: {},
    "use_flash_attention_2": _switched(attn_implementation="flash_attention_2"),
    "warmup_ratio": lambda value: {"warmup_steps": value},
}
"""What other keys make of a value."""
OLD = (*RENAMED, *WITHOUT_EFFECT, *MADE)


def old_settings(known: Mapping[str, Setting]) -> dict[str, Setting]:
    """Old names as options of a command line.

    Args:
        known: today's settings by name.
    """
    aliases = {
        old: dataclasses.replace(known[new], name=old, meta=dataclasses.replace(known[new].meta, hidden=True))
        for old, new in RENAMED.items()
    }
    others = {
        name: Setting(name=name, types=(str, float, bool), optional=True, meta=Meta(hidden=True))
        for name in (*WITHOUT_EFFECT, *MADE)
        if name not in ("dataset_mixer", "dataset_splits")
    }
    return {**aliases, **others}


def modern(given: Given) -> tuple[Given, list[str]]:
    """A request with today's names, and a note on each that was replaced.

    A key that stands there under both names is a mistake, unless one is on the command line and the other in the file:
    the command line wins. `warmup_steps` above 0 wins over `warmup_ratio`, as in transformers.
    """
    old = {key: plain_key(key) for key in given.values if plain_key(key) in OLD}
    if not old:
        return given, []
    values = {key: value for key, value in given.values.items() if key not in old}
    now, notes = {plain_key(key): key for key in values}, list[str]()
    mistakes, lines, from_line = list(given.mistakes), dict(given.lines), set(given.from_line)
    for key, name in old.items():
        value = given.values[key]
        if name in RENAMED:
            made, told = {RENAMED[name]: value}, f"{key} is called {RENAMED[name]} today."
        elif name in WITHOUT_EFFECT:
            made, told = {}, f"{key} has no effect: {WITHOUT_EFFECT[name]}."
        elif name in ("dataset_mixer", "dataset_splits"):
            made, told = _mixer(given.values, mistakes) if name == "dataset_mixer" else {}, ""
            if name == "dataset_splits" and not any(plain_key(other) == "dataset_mixer" for other in given.values):
                told = "dataset_splits has no effect without dataset_mixer; dataset_train_split names a split today."
            if name == "dataset_mixer":
                told = f"dataset_mixer and dataset_splits became {' and '.join(made) or 'nothing'}."
        else:
            made = {} if value is None else MADE[name](value)
            told = f"{key} is {_said(made)} today." if made else f"{key} has no effect."
        if told and value is not None:
            notes.append(told)
        for new, setting in made.items():
            there = values.get(now.get(new, new))
            if name == "warmup_ratio" and there and new not in given.from_line:
                continue  # so many steps go before any share
            unset = there is None or (name == "warmup_ratio" and not there)
            on_line = name in given.from_line
            if not unset and on_line != (new in given.from_line):  # the command line wins over the file
                if not on_line:
                    continue
            elif not unset:
                text = f"stands twice, as {now[new]!r} and under its old name {key!r}. Keep one of them."
                mistakes.append(Mistake(path=(new,), text=text))
                continue
            values.pop(now.get(new, new), None)
            values[new] = setting
            if (line := given.lines.get((name,))) is not None:
                lines[(new,)] = line
            if on_line:
                from_line.add(new)
    return dataclasses.replace(given, values=values, mistakes=mistakes, lines=lines, from_line=from_line), notes


def _said(made: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in made.items())


def _mixer(values: Mapping[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    """alignment-handbook's shares of data sets, and the splits to take of each."""
    by_key = {plain_key(key): value for key, value in values.items()}
    mixer, splits = by_key.get("dataset_mixer"), by_key.get("dataset_splits") or ["train"]
    shares = dict(mixer) if isinstance(mixer, Mapping) else {}
    numbers = all(isinstance(share, (int, float)) and share > 0 for share in shares.values())
    if not shares or not numbers or not isinstance(splits, list):
        text = f"expected shares by data set, as {{'owner/name': 1.0}}, got {show(mixer)}."
        mistakes.append(Mistake(path=("dataset_mixer",), text=text))
        return {}
    train = next((str(s) for s in splits if "train" in str(s)), "train")
    test = next((str(s) for s in splits if "test" in str(s) or "valid" in str(s)), None)

    def part(share: float) -> str:
        return train if share >= 1 else f"{train}[:{round(100 * share)}%]"

    odd = [str(name) for name, share in shares.items() if share < 1 and abs(100 * share - round(100 * share)) > 1e-9]
    if odd:
        text = f"expected shares of whole hundredths, got others for {', '.join(odd)}. Name rows, as in train[:1000]."
        mistakes.append(Mistake(path=("dataset_mixer",), text=text))
        return {}

    if len(shares) > 1:
        return {"datasets": [{"path": str(name), "split": part(share)} for name, share in shares.items()]}
    name, share = next(iter(shares.items()))
    made = {"dataset_name": str(name), "dataset_train_split": part(share)}
    return {**made, "dataset_test_split": test} if test else made
