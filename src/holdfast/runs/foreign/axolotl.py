"""Configuration files of axolotl (0.4 to 0.13): supervised fine-tuning, full or LoRA."""

from __future__ import annotations

import re
from typing import Any

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

_DATA = "path name split train_on_split data_files ds_type type field text_column field_messages trust_remote_code"
_AS_HERE = {"roles_to_train": ["assistant"], "message_property_mappings": {"role": "from", "content": "value"}}
"""Keys of a data set with the values that mean what is done here."""


def _adapter(value: Any, values: Values) -> Values:
    if not is_on(value):
        return {}
    if value not in ("lora", "qlora"):
        raise ValueError("expected lora or qlora, or no adapter.")
    settings = {"use_peft": True, "lora_dropout": values.get("lora_dropout", 0.0)}
    if is_on(values.get("lora_target_linear")):
        settings["lora_target_modules"] = "all-linear"
    if value == "qlora":
        settings |= {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "use_bnb_nested_quant": True}
    return settings


def _modules(value: Any, values: Values) -> Values:
    """A text is a pattern of PEFT's, commas and all."""
    return {"lora_target_modules": [value] if isinstance(value, str) and value != "all-linear" else value}


def _scheduler(value: Any, values: Values) -> Values:
    name, lowest = values.get("lr_scheduler", "cosine"), values.get("cosine_min_lr_ratio")
    if name == "cosine" and is_on(lowest):
        return {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": lowest}}
    return {"lr_scheduler_type": name}


def _precision(value: Any, values: Values) -> Values:
    if not is_on(value):
        return {"bf16": False}
    return {"dtype": "bfloat16", "bf16": True if value is True or value == "full" else None}


def _checkpointing(value: Any, values: Values) -> Values:
    offload = value in ("offload", "unsloth", "offload_disk")
    return {"gradient_checkpointing": is_on(value), **({"activation_offloading": True} if offload else {})}


def _unfrozen(value: Any, values: Values) -> Values:
    """Only these are trained: all others get a learning rate of 0."""
    if any(re.search(r"\[\d*:\d*\]$", pattern) for pattern in value):
        raise ValueError("rows of a matrix cannot be trained on their own; name whole parameters.")
    return {"learning_rate_multipliers": {f"^(?!.*(?:{'|'.join(value)}))": 0.0}}


def _plugins(value: Any, values: Values) -> Values:
    names = {str(plugin).rpartition(".")[2] for plugin in value}
    others = names - {"LigerPlugin", "CutCrossEntropyPlugin"}  # the second saves memory alone
    if others:
        raise ValueError(f"there is nothing like {', '.join(sorted(others))}.")
    return {"use_liger_kernel": True} if "LigerPlugin" in names else {}


def _special_tokens(value: Any, values: Values) -> Values:
    """The others are the tokenizer's own, which they usually equal."""
    return {name: value.get(name) or None for name in ("pad_token", "eos_token")}


def _trackers(value: Any, values: Values) -> Values:
    """Trackers read their keys from the environment."""
    keys = [key for key, on in values.items() if key.startswith(("wandb_", "mlflow_")) and is_on(on)]
    environment = {key.upper(): str(values[key]) for key in keys if key in _TRACKED}
    trackers = dict.fromkeys(key.partition("_")[0] for key in keys)
    board = ["tensorboard"] if is_on(values.get("use_tensorboard")) else []
    return {"report_to": [*board, *trackers] or None, "env": environment or None}


_TRACKED = ("wandb_project", "wandb_entity", "wandb_mode", "mlflow_tracking_uri", "mlflow_experiment_name")


def _data(value: Any, values: Values) -> Values:
    return data_settings([_data_set(entry) for entry in (value if isinstance(value, list) else [value])])


def _data_set(entry: Any) -> Values:
    if isinstance(entry, str):
        entry = {"path": entry, "type": "completion"}
    only({key: value for key, value in entry.items() if _AS_HERE.get(key) != value}, _DATA, "a data set")
    kind = entry.get("type")
    data_set = {key: entry.get(key) for key in ("path", "name", "data_files")}
    split = entry.get("split") or entry.get("train_on_split")
    data_set["split"] = split if split != "train" else None
    if isinstance(kind, dict):
        return data_set | {"data": _prompted(kind)}
    if kind in ("chat_template", "sharegpt"):
        if entry.get("field_messages", "messages") not in ("messages", "conversations"):
            raise ValueError("conversations are read from messages or conversations. Rename the column.")
        return data_set | {"chat": True}
    if kind in ("completion", "pretrain", None):
        column = entry.get("field") or entry.get("text_column") or "text"
        return data_set | ({"data": {"text": f"{{{column}}}"}} if column != "text" else {})
    if kind != "alpaca":
        raise ValueError(f"expected type alpaca, chat_template, sharegpt, completion or one written out, got {kind}.")
    return data_set


def _prompted(kind: Values) -> Values:
    """A type written out, as prompt and completion."""
    only(kind, "field_instruction field_input field_output format no_input_format", "a type of data")
    formats = [kind.get("format"), kind.get("no_input_format")]
    text = next(filter(None, formats if kind.get("field_input") else formats[::-1]), "{instruction}\n")
    for name in ("instruction", "input"):
        text = text.replace(f"{{{name}}}", f"{{{kind.get(f'field_{name}') or name}}}")
    return {"prompt": text, "completion": f"{{{kind.get('field_output') or 'output'}}}"}


def _finish(values: Values, settings: dict[str, Any]) -> None:
    for kind in ("save", "eval"):
        count = values.get(f"{kind}s_per_epoch") or 0
        if count == 1:
            settings[f"{kind}_strategy"] = "epoch"
        elif count:
            settings |= {f"{kind}_strategy": "steps", f"{kind}_steps": 1 / (count * values.get("num_epochs", 1))}
    if is_on(values.get("val_set_size")):
        settings.setdefault("eval_strategy", "steps" if is_on(values.get("eval_steps")) else "epoch")
    else:
        for key in ("eval_strategy", "eval_steps", "eval_packing", "per_device_eval_batch_size"):
            settings.pop(key, None)  # nothing is held out
    if is_on(values.get("train_on_inputs")):
        settings |= {"completion_only_loss": False, "assistant_only_loss": None}
    if "save_steps" not in settings:
        settings.setdefault("save_strategy", "epoch")


AXOLOTL = Tool(
    title="axolotl",
    marks="""
        base_model micro_batch_size sequence_len sample_packing num_epochs adapter val_set_size dataset_prepared_path
        lora_target_linear saves_per_epoch evals_per_epoch train_on_inputs is_llama_derived_model tokenizer_type
        wandb_project
    """,
    no_effect="""
        model_type tokenizer_type is_llama_derived_model is_mistral_derived_model is_qwen_derived_model strict
        tokenizer_use_fast chat_template eot_tokens dataset_prepared_path shuffle_merged_datasets pad_to_sequence_len
        train_on_inputs lora_target_linear merge_method eaft_alpha lora_mlp_kernel
        lora_qkv_kernel lora_o_kernel loss_watchdog_threshold loss_watchdog_patience
        flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_qkv
        flash_attn_fuse_mlp liger_rope liger_rms_norm liger_glu_activation liger_fused_linear_cross_entropy
        cut_cross_entropy tiled_mlp low_cpu_mem_usage fsdp_version saves_per_epoch evals_per_epoch save_safetensors
        save_first_step eval_table_size debug wandb_watch wandb_log_model wandb_run_id local_rank ddp_timeout
        excess_length_strategy
    """,
    table={
        "base_model": "model_name_or_path",
        "revision_of_model": "model_revision",
        "overrides_of_model_kwargs": "model_init_kwargs",
        "special_tokens": _special_tokens,
        "datasets": _data,
        "pretraining_dataset": lambda value, values: {"dataset_streaming": True, **_data(value, values)},
        "chat_template_jinja": lambda value, values: {
            "chat_template_path" if value.endswith((".jinja", ".j2")) else "chat_template": value
        },
        "val_set_size": lambda value, values: {"test_split_size": value or None},
        "dataset_processes": "dataset_num_proc",
        "streaming": "dataset_streaming",
        "sequence_len": "max_length",
        "sample_packing": "packing",
        "eval_sample_packing": "eval_packing",
        "group_by_length": switch(train_sampling_strategy="group_by_length"),
        "adapter": _adapter,
        "lora_target_modules": _modules,
        "peft_use_dora": "use_dora",
        "peft_use_rslora": "use_rslora",
        "loraplus_lr_ratio": lora_plus,
        "unfrozen_parameters": _unfrozen,
        "micro_batch_size": "per_device_train_batch_size",
        "eval_batch_size": "per_device_eval_batch_size",
        "num_epochs": "num_train_epochs",
        "optimizer": "optim",
        "lr_scheduler": _scheduler,
        "cosine_min_lr_ratio": _scheduler,
        "early_stopping_patience": "early_stopping_patience",
        "warmup_steps": warmup,
        "warmup_ratio": warmup,
        "noisy_embedding_alpha": "neftune_noise_alpha",
        "use_dft": switch(loss_type="dft"),
        "use_eaft": eaft,
        "bf16": _precision,
        "bfloat16": _precision,
        "fp16": switch(fp16=True),
        "flash_attention": switch(attn_implementation="flash_attention_2"),
        "sdp_attention": switch(attn_implementation="sdpa"),
        "flex_attention": switch(attn_implementation="flex_attention"),
        "eager_attention": switch(attn_implementation="eager"),
        "tf32": switch(tf32=True),
        "eaft_k": expect(20),
        "gradient_checkpointing": _checkpointing,
        "activation_offloading": switch(activation_offloading=True),
        "plugins": _plugins,
        "fsdp": switch(accelerate_config="fsdp2"),
        "fsdp_config": switch(accelerate_config="fsdp2"),
        "evaluation_strategy": "eval_strategy",
        **dict.fromkeys((*_TRACKED, "use_tensorboard"), _trackers),
        "wandb_name": "run_name",
        "mlflow_run_name": "run_name",
        "hub_model_id": lambda value, values: {"hub_model_id": value, "push_to_hub": True, "hub_private_repo": True},
        "gc_steps": "torch_empty_cache_steps",
    },
    defaults={
        "num_train_epochs": 1,
        "max_length": 512,
        "per_device_train_batch_size": 1,
        "save_total_limit": 4,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.03,
        "gradient_checkpointing": False,
        "bf16": False,
    },
    finish=_finish,
    notes=(
        "Rows of more than max_length tokens are cut; axolotl leaves them out unless excess_length_strategy says so.",
        "With bf16 axolotl holds the weights themselves in bfloat16, so dtype is bfloat16. dtype: float32 keeps small "
        "steps, at twice the memory.",
        "The model's own chat template is used, by Alpaca's rows too; chat_template_path names another.",
        "fsdp became accelerate_config: fsdp2. Say num_processes, or give an accelerate file of your own.",
    ),
)
