"""Configuration files of LLaMA-Factory: those of 0.7 to 0.9 (stages `sft` and `pt`, full or LoRA), and those of its v1.
Data sets stand by name in a file of their own, which has to be at hand: `dataset_info.json`, and in v1 a YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.data.layouts import BY_ENDING
from holdfast.errors import did_you_mean
from holdfast.runs.foreign.translation import (
    Tool,
    Values,
    data_settings,
    eaft,
    expect,
    is_on,
    lora_plus,
    only,
    switch,
    warmup,
)

INFO = "dataset_info"
"""Key that names the file of data sets; 'holdfast convert --dataset_info' sets it."""
_ATTENTION = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "disabled": "eager", "auto": None}
_KNOWN_PAIRS = (("instruction", "output"), ("instruction", "response"), ("prompt", "response"), ("question", "answer"))
_CHAT_TEMPLATE = "The model's own chat template is used; chat_template_path names another."


def _names(value: Any) -> Any:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    return "all-linear" if names == ["all"] else names


def _stage(value: Any, values: Values) -> Values:
    if value not in ("sft", "pt"):
        raise ValueError(f"expected sft or pt, got {value!r}: for preferences and rewards use TRL's trainers.")
    return {"packing": values.get("packing", True)} if value == "pt" else {}


def _tuning(value: Any, values: Values) -> Values:
    if value == "full":
        return {}
    if value != "lora":
        raise ValueError(f"expected full or lora, got {value!r}. learning_rate_multipliers holds parameters still.")
    rank = int(values.get("lora_rank", 8))
    return {
        "use_peft": True,
        "lora_r": rank,
        "lora_alpha": values.get("lora_alpha", 2 * rank),
        "lora_dropout": values.get("lora_dropout", 0.0),
        "lora_target_modules": _names(values.get("lora_target", "all")),
        "lora_modules_to_save": _names(values.get("additional_target")),
        "dtype": "bfloat16" if is_on(values.get("bf16")) else None,
    }


def _bits(value: Any, values: Values) -> Values:
    if value not in (4, 8):
        raise ValueError("expected 4 or 8.")
    if value == 8:
        return {"load_in_8bit": True}
    nested, kind = values.get("double_quantization", True), values.get("quantization_type", "nf4")
    return {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "use_bnb_nested_quant": nested}


def _galore(value: Any, values: Values) -> Values:
    if not is_on(value):
        return {}
    rank, gap = values.get("galore_rank", 16), values.get("galore_update_interval", 200)
    return {
        "optim": "galore_adamw_layerwise" if is_on(values.get("galore_layerwise")) else "galore_adamw",
        "optim_target_modules": _names(values.get("galore_target", "all")),
        "optim_args": f"rank={rank}, update_proj_gap={gap}, scale={values.get('galore_scale', 2.0)}",
    }


def _asft(value: Any, values: Values) -> Values:
    return {"retention": [{"asft": {"weight": values.get("asft_alpha", 0.1)}}]} if is_on(value) else {}


# ------------------------------------------------------------------------------------------------------------ data sets


def _data_sets(file: Path) -> dict[str, Any]:
    """A file of data sets by name, JSON or YAML."""
    import yaml

    if not file.is_file():
        raise ValueError(f"these are names of {file}, which is not here. Say where it is: --dataset_info FILE.")
    try:
        return dict(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file}: expected data sets by name ({error}).") from None


def _data_set(entry: Values, folder: Path, most: Any) -> dict[str, Any]:
    """Where the rows are, and how many are taken."""
    hub, file = entry.get("hf_hub_url"), entry.get("file_name")
    split, count = entry.get("split") or "train", entry.get("num_samples") or entry.get("size") or most
    limited = f"{split}[:{int(float(count))}]" if count else split
    data_set = {"name": entry.get("subset"), "split": limited if limited != "train" else None}
    if hub:
        return data_set | {"path": hub}
    if not file:
        raise ValueError("expected a data set of the hub or a file of its own.")
    return data_set | {"path": BY_ENDING.get(Path(file).suffix, "json"), "data_files": str(folder / file)}


def _data(value: Any, values: Values) -> Values:
    file = Path(values.get(INFO) or Path(values.get("dataset_dir", "data"), "dataset_info.json"))
    known, data_sets = _data_sets(file), []
    for name in value.split(","):
        entry = known.get(name.strip())
        if entry is None:
            raise ValueError(f"there is no {name} in {file}.{did_you_mean(name, list(known))}")
        only(entry, "file_name hf_hub_url subset split num_samples formatting columns tags", name)
        columns, chat = entry.get("columns") or {}, entry.get("formatting") == "sharegpt"
        only(columns, "messages" if chat else "prompt query response", f"columns of {name}")
        if chat and columns.get("messages", "conversations") not in ("messages", "conversations"):
            raise ValueError(f"{name}: conversations are read from messages or conversations. Rename the column.")
        templates = None if chat else _templates(columns, values)
        data_set = _data_set(entry, file.parent, values.get("max_samples"))
        data_sets.append(data_set | {"data": templates, "chat": chat})
    return data_settings(data_sets)


def _templates(columns: Values, values: Values) -> dict[str, str] | None:
    """Columns of other names as templates; None where the usual ones are there."""
    prompt, answer = columns.get("prompt", "instruction"), columns.get("response", "output")
    if values.get("stage") == "pt":
        return {"text": f"{{{prompt}}}"} if prompt != "text" else None
    if (prompt, answer) in _KNOWN_PAIRS and columns.get("query") in (None, "input"):
        return None
    more = f"\n{{{columns['query']}}}" if columns.get("query") else ""
    return {"prompt": f"{{{prompt}}}{more}\n", "completion": f"{{{answer}}}"}


def _finish(values: Values, settings: dict[str, Any]) -> None:
    if "finetuning_type" not in values:
        settings |= _tuning("lora", values)
    if is_on(values.get("val_size")):
        settings.setdefault("eval_strategy", "steps" if is_on(values.get("eval_steps")) else "epoch")
    else:
        for key in ("eval_strategy", "eval_steps", "per_device_eval_batch_size"):
            settings.pop(key, None)
    if is_on(values.get("train_on_prompt")):
        settings |= {"completion_only_loss": False, "assistant_only_loss": None}


LLAMA_FACTORY = Tool(
    title="LLaMA-Factory",
    marks="""
        finetuning_type stage cutoff_len template dataset_dir lora_rank lora_target max_samples val_size plot_loss
        overwrite_cache preprocessing_num_workers quantization_bit flash_attn
    """,
    no_effect="""
        do_train lora_rank lora_alpha lora_dropout lora_target additional_target galore_layerwise galore_target
        galore_rank galore_scale galore_update_interval dataset_dir dataset_info template max_samples overwrite_cache
        overwrite_output_dir preprocessing_batch_size tokenized_path train_on_prompt quantization_type
        double_quantization use_fast_tokenizer infer_dtype plot_loss compute_accuracy
        predict_with_generate asft_alpha eaft_alpha include_num_input_tokens_seen use_unsloth
    """,
    table={
        "stage": _stage,
        "finetuning_type": _tuning,
        "loraplus_lr_ratio": lora_plus,
        "use_galore": _galore,
        "use_dft_loss": switch(loss_type="dft"),
        "use_eaft_loss": eaft,
        "use_asft_loss": _asft,
        "dataset": _data,
        "val_size": lambda value, values: {"test_split_size": value or None},
        "cutoff_len": "max_length",
        "streaming": "dataset_streaming",
        "preprocessing_num_workers": "dataset_num_proc",
        "neat_packing": switch(packing=True),
        "quantization_bit": _bits,
        "quantization_method": expect("bnb", "bitsandbytes"),
        "flash_attn": lambda value, values: {"attn_implementation": _ATTENTION.get(value, value)},
        "enable_liger_kernel": "use_liger_kernel",
        "pure_bf16": switch(bf16=True, dtype="bfloat16"),
        "warmup_steps": warmup,
        "warmup_ratio": warmup,
        "evaluation_strategy": "eval_strategy",
        "disable_gradient_checkpointing": switch(gradient_checkpointing=False),
        "early_stopping_steps": "early_stopping_patience",
    },
    defaults={"learning_rate": 5e-5, "max_length": 2048},
    finish=_finish,
    notes=(_CHAT_TEMPLATE,),
)


# ------------------------------------------------------------------------------------------------------------------- v1


def _adapter_v1(value: Any, values: Values) -> Values:
    only(value, "name r lora_alpha lora_dropout target_modules", "an adapter")
    if value.get("name") != "lora":
        raise ValueError("expected the name lora.")
    defaults = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": "all"}
    names = {"r": "lora_r", "target_modules": "lora_target_modules"}
    settings = {names.get(key, key): _names(value.get(key, default)) for key, default in defaults.items()}
    return {"use_peft": True, **settings}


def _data_v1(value: Any, values: Values) -> Values:
    data_sets = []
    for name, entry in _data_sets(Path(values.get(INFO) or value)).items():
        only(entry, "file_name hf_hub_url dataset_dir converter split size num_samples path source", name)
        if entry.get("converter") not in ("alpaca", "sharegpt"):
            raise ValueError(f"{name}: expected the converter alpaca or sharegpt.")
        place = "hf_hub_url" if entry.get("source") == "hf_hub" else "file_name"
        data_set = _data_set({place: entry.get("path"), **entry}, Path(entry.get("dataset_dir", "")), None)
        data_sets.append(data_set | {"chat": entry["converter"] == "sharegpt"})
    return data_settings(data_sets)


def _batch_v1(value: Any, values: Values) -> Values:
    """Of all processes together; how many there are is not in the file."""
    return {"gradient_accumulation_steps": max(1, int(value) // int(values.get("micro_batch_size", 1)))}


LLAMA_FACTORY_V1 = Tool(
    title="LLaMA-Factory v1",
    marks="""
        model model_class peft_config kernel_config dist_config quant_config train_dataset global_batch_size cutoff_len
        sample_backend
    """,
    no_effect="model_class template kernel_config sample_backend max_new_tokens dataset_info",
    table={
        "model": "model_name_or_path",
        "train_dataset": _data_v1,
        "peft_config": _adapter_v1,
        "quant_config": lambda value, values: _bits(value.get("quantization_bit"), {}),
        "dist_config": lambda value, values: {"accelerate_config": value["name"]},
        "micro_batch_size": "per_device_train_batch_size",
        "global_batch_size": _batch_v1,
        "cutoff_len": "max_length",
        "enable_activation_checkpointing": "gradient_checkpointing",
    },
    defaults={"learning_rate": 1e-4, "max_length": 2048, "per_device_train_batch_size": 1, "bf16": False},
    finish=lambda values, settings: None,
    notes=(
        _CHAT_TEMPLATE,
        "global_batch_size became gradient_accumulation_steps of one process: divide it by their number.",
    ),
)
