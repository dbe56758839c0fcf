"""Configuration files of LLaMA-Factory: those of 0.7 to 0.9 (stages `sft` and `pt`, full or LoRA),
and those of its v1. Data sets stand by name in a file of their own, which has to be at hand:
`dataset_info.json`, and in v1 a YAML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.config.yaml_text import from_yaml
from holdfast.data.layouts import BY_ENDING
from holdfast.errors import did_you_mean
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

_KEYS = (
    "file_name hf_hub_url subset split num_samples formatting columns tags dataset_dir converter "
    "size path source"
)

_TURNS = (("from", "value"), ("role", "content"))
"""Names of who speaks and of what is said."""


# ---------------------------------------------------------------------------------------- data sets


def _data(value: Any, values: Values) -> Values:
    file = Path(
        values.get("dataset_info") or Path(values.get("dataset_dir", "data"), "dataset_info.json")
    )
    return _rows(file, value.replace(" ", "").split(","), file.parent, values)


def _rows(file: Path, wanted: Sequence[str], folder: Path, values: Values) -> Values:
    """Settings that name data sets of a file, JSON or YAML.

    Args:
        file: data sets by name.
        wanted: names; none: all.
        folder: where their files are, unless they say.
        values: what the training file says.
    """
    if not file.is_file():
        raise ValueError(
            f"these names are defined in {file}, which was not found. Give the path of this file: "
            "--dataset_info FILE."
        )
    known, data_sets = from_yaml(file.read_text("utf-8")), []
    if not isinstance(known, dict):
        raise ValueError(f"{file}: expected data sets by name.")
    for name in wanted or known:
        if name not in known:
            raise ValueError(f"there is no {name} in {file}.{did_you_mean(name, known)}")
        entry = known[name]
        only(entry, _KEYS, name)
        columns, kind = (
            entry.get("columns") or {},
            entry.get("formatting") or entry.get("converter", "alpaca"),
        )
        if kind not in ("alpaca", "sharegpt"):
            raise ValueError(f"{name}: expected rows of alpaca or sharegpt, got {kind}.")
        chat = kind == "sharegpt"
        tags = entry.get("tags") or {}
        if (tags.get("role_tag", "from"), tags.get("content_tag", "value")) not in _TURNS:
            raise ValueError(f"{name}: expected turns of from and value, or of role and content.")
        only(columns, "messages" if chat else "prompt query response", f"columns of {name}")
        data_set = _data_set(
            entry, Path(entry.get("dataset_dir", folder)), values.get("max_samples")
        )
        data_set |= (
            {"chat": columns.get("messages", "messages")}
            if chat
            else {"data": _templates(columns, values)}
        )
        data_sets.append(data_set)
    return data_settings(data_sets)


def _data_set(entry: Values, folder: Path, most: Any) -> dict[str, Any]:
    """Where the rows are, and how many are taken."""
    split = entry.get("split")
    counts = [count for count in (entry.get("num_samples"), entry.get("size"), most) if count]
    if counts:
        split = f"{split or 'train'}[:{min(int(float(count)) for count in counts)}]"
    data_set, path = {"name": entry.get("subset"), "split": split}, entry.get("path")
    hub = path if entry.get("source") == "hf_hub" else entry.get("hf_hub_url")
    if hub:
        return data_set | {"path": hub}
    file = entry.get("file_name") or path
    if not file:
        raise ValueError("expected a data set of the hub, or a file.")
    return data_set | {
        "path": BY_ENDING.get(Path(file).suffix, "json"),
        "data_files": str(folder / file),
    }


def _templates(columns: Values, values: Values) -> dict[str, str] | None:
    """Columns of other names as templates; None where the usual ones are there."""
    prompt, answer = columns.get("prompt", "instruction"), columns.get("response", "output")
    query = columns.get("query") if columns else "input"
    if values.get("stage") == "pt":
        return {"text": f"{{{prompt}}}"}
    if (prompt, answer, query) == ("instruction", "output", "input"):
        return None
    more = f"\n{{{query}}}" if query else ""
    return {"prompt": f"{{{prompt}}}{more}\n", "completion": f"{{{answer}}}"}


def _finish(values: Values, settings: dict[str, Any]) -> None:
    if settings.get("use_peft"):
        settings.setdefault("lora_alpha", 2 * int(settings["lora_r"]))
        if is_on(values.get("bf16")):
            settings["dtype"] = "bfloat16"
    if is_on(values.get("galore_layerwise")) and settings.get("optim") == "galore_adamw":
        settings["optim"] = "galore_adamw_layerwise"
    hold_out(values, settings)


LLAMA_FACTORY = Tool(
    "llama_factory",
    {
        "loraplus_lr_ratio": lora_plus,
        "dataset": _data,
        "eval_dataset": held_out_file,
        "warmup_steps": warmup,
        "warmup_ratio": warmup,
    },
    _finish,
)


# ----------------------------------------------------------------------------------------------- v1


LLAMA_FACTORY_V1 = Tool(
    "llama_factory_v1",
    {
        "train_dataset": lambda value, values: _rows(
            Path(values.get("dataset_info") or value), [], Path(), values
        ),
        # of all processes together; how many there are is not in the file
        "global_batch_size": accumulation,
    },
    lambda values, settings: None,
)
