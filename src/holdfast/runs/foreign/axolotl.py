"""Configuration files of axolotl (0.4 to 0.13): supervised fine-tuning, full or LoRA."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config.values import show
from holdfast.data.layouts import BUILDERS
from holdfast.runs.foreign.translation import (
    Draft,
    Rows,
    Rule,
    Tool,
    every,
    held_out,
    is_on,
    lora_plus,
    missing,
    read_rows,
    refuse,
    to,
    warmup,
    when_on,
    words,
)

_PREFERENCES = "holdfast tunes on texts; for preferences and rewards use TRL's DPO, GRPO or reward trainers."
_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "flex_attention": "flex_attention",
    "eager_attention": "eager",
}
_CONVERSATIONS = ("chat_template", "chat_template.default", "sharegpt", "sharegpt.load_role")
_PLAIN = ("completion", "pretrain")
_ENTRY = words("""
    path type name split train_on_split data_files ds_type field text_column field_messages message_property_mappings
    message_field_role message_field_content roles_to_train train_on_eos chat_template trust_remote_code
""")
"""Keys of a data set that are read here."""
_BRACES = re.compile(r"\{(\w+)\}")
_SCHEDULERS = {"one_cycle": "the closest is cosine with warmup_steps", "rex": "the closest is linear"}


def _adapter(key: str, value: Any, draft: Draft) -> None:
    if not is_on(value):
        return
    if value not in ("lora", "qlora"):
        draft.refused.append(f"adapter: {show(value)}. Expected lora or qlora, or no adapter.")
        return
    draft.settings["use_peft"] = True
    draft.settings["lora_dropout"] = draft.values.get("lora_dropout", 0.0)
    if value == "qlora":
        draft.settings.update(load_in_4bit=True, bnb_4bit_quant_type="nf4", use_bnb_nested_quant=True)


def _optimizer(key: str, value: Any, draft: Draft) -> None:
    names = {"adamw_hf": "adamw_torch", "muon": None, "optimi_adamw": None, "ao_adamw_8bit": "adamw_torch_8bit"}
    name = names.get(value, value)
    if name is None:
        draft.leave_out(key, "Choose one of optim's ('holdfast train --help_all' lists them).")
    draft.settings["optim"] = name


def _scheduler(key: str, value: Any, draft: Draft) -> None:
    if value in _SCHEDULERS:
        draft.leave_out(key, f"holdfast has no such schedule; {_SCHEDULERS[value]}.")
        return
    draft.settings["lr_scheduler_type"] = value


def _precision(key: str, value: Any, draft: Draft) -> None:
    if is_on(value):
        draft.settings["dtype"] = "bfloat16"
        draft.note(
            "axolotl holds the weights themselves in bfloat16 where bf16 is on, so dtype is bfloat16. At small "
            "learning rates steps are lost to its rounding; dtype: float32 keeps them, at twice the memory."
        )
        if value is True or value == "full":
            draft.settings["bf16"] = True
    elif not is_on(draft.values.get("bf16")) and not is_on(draft.values.get("bfloat16")):
        draft.settings["bf16"] = False


def _checkpointing(key: str, value: Any, draft: Draft) -> None:
    draft.settings["gradient_checkpointing"] = is_on(value)
    if value in ("offload", "unsloth", "offload_disk"):
        draft.settings["activation_offloading"] = True


def _modules(key: str, value: Any, draft: Draft) -> None:
    """A text is a pattern of PEFT's, commas and all."""
    draft.settings[key] = [value] if isinstance(value, str) and value != "all-linear" else value


def _template(key: str, value: Any, draft: Draft) -> None:
    """The template itself, or its file."""
    draft.settings["chat_template_path" if str(value).endswith((".jinja", ".j2")) else "chat_template"] = value


def _special_tokens(key: str, value: Any, draft: Draft) -> None:
    for name, token in (value or {}).items() if isinstance(value, Mapping) else ():
        if token and name in ("pad_token", "eos_token"):
            draft.settings[name] = token
        elif token:
            draft.note(f"special_tokens.{name}: the tokenizer's own is kept, which it usually equals.")


def _unfrozen(key: str, value: Any, draft: Draft) -> None:
    """Only these are trained: all others get a learning rate of 0."""
    patterns = [str(one) for one in value or ()]
    if any(re.search(r"\[\d*:\d*\]$", one) for one in patterns):
        draft.leave_out(key, "Rows of a matrix cannot be trained on their own; name whole parameters.")
    elif patterns:
        draft.settings["learning_rate_multipliers"] = {f"^(?!.*(?:{'|'.join(patterns)}))": 0.0}
        draft.note(
            "unfrozen_parameters became a learning rate of 0 for all others (learning_rate_multipliers); their "
            "gradients are computed all the same."
        )


def _plugins(key: str, value: Any, draft: Draft) -> None:
    for plugin in value if isinstance(value, list) else [value]:
        name = str(plugin).rpartition(".")[2]
        if name == "LigerPlugin":
            draft.settings["use_liger_kernel"] = True
        elif name != "CutCrossEntropyPlugin":  # memory alone; the loss here needs no table of logits either
            draft.left_out.append(f"plugins: {name}. holdfast has none like it; check what it did.")


def _sharding(key: str, value: Any, draft: Draft) -> None:
    if is_on(value):
        draft.settings["accelerate_config"] = "fsdp2"
        draft.note(
            "FSDP is set up by accelerate_config: fsdp2 in place of axolotl's keys. Say num_processes, and give an "
            "accelerate file of your own for offloading or other wrapping."
        )


def _chat_template(key: str, value: Any, draft: Draft) -> None:
    if value in ("tokenizer_default", "jinja") or str(value).startswith("tokenizer_default_fallback"):
        return  # "jinja": chat_template_jinja has the text
    draft.leave_out(
        key,
        "The model's own chat template is used. For another one give chat_template_path: a .jinja file, or a model "
        "that has it.",
    )


def _tracker(name: str) -> Rule:
    """A key that a tracker reads from the environment."""

    def rule(key: str, value: Any, draft: Draft) -> None:
        if not is_on(value):
            return
        trackers = draft.settings.setdefault("report_to", [])
        if name not in trackers:
            trackers.append(name)
        if name != "tensorboard":
            draft.settings.setdefault("env", {})[key.upper()] = str(value)

    return rule


def _bits(key: str, value: Any, draft: Draft) -> None:
    if is_on(value) and is_on(draft.values.get("adapter")):
        draft.settings[key] = True
    elif is_on(value):
        draft.leave_out(key, "Quantised weights are tuned through an adapter only.")


def _data(key: str, value: Any, draft: Draft) -> None:
    entries = value if isinstance(value, list) else [value]
    rows = [row for number, entry in enumerate(entries) if (row := _entry(f"{key}[{number}]", entry, draft))]
    read_rows(draft, rows, key=key)


def _entry(place: str, entry: Any, draft: Draft) -> Rows | None:
    if isinstance(entry, str):
        entry = {"path": entry, "type": "completion"}
    if not isinstance(entry, Mapping) or not entry.get("path"):
        draft.refused.append(f"{place}: expected a mapping with a path, got {show(entry)}.")
        return None
    kind, path = entry.get("type"), str(entry["path"])
    name = kind.split(":")[0] if isinstance(kind, str) else ""
    for key in entry:
        if key not in _ENTRY and is_on(entry[key]):
            draft.left_out.append(f"{place}.{key}: {show(entry[key])}. There is none like it; check what it did.")
    templates, chat = None, False
    if isinstance(kind, Mapping):
        templates = _prompted(place, kind, draft)
    elif name in _CONVERSATIONS:
        chat = True
        _conversations(place, entry, draft)
    elif name in _PLAIN or kind is None:
        column = str(entry.get("field") or entry.get("text_column") or "text")
        templates = {"text": f"{{{column}}}"} if column != "text" else None
    elif name in ("alpaca", "alpaca_chat"):
        draft.note(
            "Instructions go through the model's chat template where it has one, and into Alpaca's words where it has "
            "none; axolotl's alpaca uses the words in any case."
        )
    else:
        draft.refused.append(
            f"{place}.type: {show(kind)}. holdfast reads alpaca, chat_template, sharegpt, completion and types written "
            f"out (field_instruction, format, ...). Bring the rows into one of its layouts: messages, prompt and "
            f"completion, or text."
        )
        return None
    files = entry.get("data_files")
    return Rows(
        path=str(entry["ds_type"]) if files and entry.get("ds_type") and _is_local(path) else path,
        config=entry.get("name"),
        split=str(entry.get("split") or entry.get("train_on_split") or "train"),
        files=files,
        templates=templates,
        chat=chat,
    )


def _is_local(path: str) -> bool:
    """Whether a data set's name is a reader's, or a file or folder here: then its files are what is read."""
    return path in BUILDERS or Path(path).exists() or path.startswith((".", "/", "~"))


def _conversations(place: str, entry: Mapping[str, Any], draft: Draft) -> None:
    """What differs from messages, or conversations with `from` and `value`."""
    column = entry.get("field_messages")
    if column not in (None, "messages", "conversations", "conversation"):
        draft.refused.append(
            f"{place}.field_messages: {show(column)}. Rename the column to messages; holdfast finds conversations in "
            f"messages or conversations."
        )
    mapping = entry.get("message_property_mappings") or {}
    role, content = entry.get("message_field_role", mapping.get("role")), entry.get("message_field_content")
    content = content or mapping.get("content")
    if role not in (None, "role", "from") or content not in (None, "content", "value"):
        draft.refused.append(
            f"{place}: messages with {role!r} and {content!r}. Rename their keys to role and content, or from and "
            f"value."
        )
    trained = entry.get("roles_to_train")
    trained = [trained] if isinstance(trained, str) else trained
    if trained is not None and set(trained) - {"assistant", "gpt", "model", "bot"}:
        draft.left_out.append(f"{place}.roles_to_train: {show(trained)}. Replies of the assistant are trained.")
    if entry.get("train_on_eos") not in (None, "turn", "all"):
        draft.left_out.append(f"{place}.train_on_eos: {show(entry['train_on_eos'])}. The chat template decides.")
    if is_on(entry.get("chat_template")):
        _chat_template(f"{place}.chat_template", entry["chat_template"], draft)


def _prompted(place: str, kind: Mapping[str, Any], draft: Draft) -> dict[str, str]:
    """A type written out, as prompt and completion."""
    asked, more = str(kind.get("field_instruction") or "instruction"), str(kind.get("field_input") or "input")
    answer, system = str(kind.get("field_output") or "output"), kind.get("field_system")
    names = {"instruction": asked, "input": more, "output": answer, "system": str(system or "system")}
    text = str(kind.get("no_input_format") if kind.get("field_input") is None else kind.get("format") or "")
    if text in ("", "None"):
        text = str(kind.get("format") or kind.get("no_input_format") or "{instruction}\n")
    if kind.get("field_input") is not None and kind.get("no_input_format"):
        draft.note(f"{place}.type: 'format' is used for rows without an input, too.")
    said = str(kind.get("system_format") or "{system}")
    if system and "{system}" not in text:
        text = said + text
    text = _BRACES.sub(lambda m: f"{{{names.get(m[1], m[1])}}}", text)
    if not system and kind.get("system_prompt"):
        own = str(kind["system_prompt"]).replace("{", "{{").replace("}", "}}")
        text = said.replace("{system}", own) + text
    return {"prompt": text, "completion": f"{{{answer}}}"}


def _pretraining(key: str, value: Any, draft: Draft) -> None:
    draft.settings["dataset_streaming"] = True
    _data(key, value, draft)


def _finish(draft: Draft) -> None:
    on, settings = draft.values.get, draft.settings
    warmup(draft)
    if on("lr_scheduler", "cosine") == "cosine" and is_on(lowest := on("cosine_min_lr_ratio")):
        settings.update(lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr_rate": lowest})
    if is_on(on("lora_target_linear")):
        settings["lora_target_modules"] = "all-linear"
    if on("adapter") == "qlora" and is_on(on("load_in_8bit")):
        settings.pop("load_in_4bit", None)
    for key, name in _ATTENTION.items():
        if is_on(on(key)):
            settings["attn_implementation"] = name
    _epochs(draft)
    if is_on(on("val_set_size")):
        held_out("val_set_size", draft)
        if is_on(on("eval_steps")):
            settings["eval_strategy"] = "steps"
        settings.setdefault("eval_strategy", "epoch")
    elif not is_on(on("test_datasets")):
        for key in ("eval_strategy", "eval_steps", "eval_packing", "per_device_eval_batch_size"):
            settings.pop(key, None)  # nothing is held out
    if is_on(on("train_on_inputs")):
        settings["completion_only_loss"] = False
        settings.pop("assistant_only_loss", None)
    if is_on(on("early_stopping_patience")) and "eval_strategy" in settings:
        settings["load_best_model_at_end"] = True
    if is_on(on("wandb_project")) and is_on(on("wandb_name")):
        settings["run_name"] = on("wandb_name")
    if is_on(on("hub_model_id")):
        settings["push_to_hub"] = True
        settings.setdefault("hub_private_repo", True)  # as axolotl makes it
    if not {"bf16", "bfloat16", "fp16", "float16"} & set(draft.values):
        settings["bf16"] = False  # TRL's default is on
    if not is_on(on("excess_length_strategy")) or on("excess_length_strategy") == "drop":
        draft.note("Rows of more than max_length tokens are cut; axolotl leaves them out.")
    if "save_strategy" not in settings and "save_steps" not in settings:
        settings["save_strategy"] = "epoch"
    settings.setdefault("save_total_limit", 4)
    if "warmup_steps" not in settings:
        draft.note("Without a warm-up of its own axolotl takes 3 % of the steps, at most 100 of them.")


def _epochs(draft: Draft) -> None:
    """`saves_per_epoch` and `evals_per_epoch` as parts of the whole run."""
    epochs = max(draft.number("num_epochs", 1), 1e-9)
    for key, strategy, steps in (
        ("saves_per_epoch", "save_strategy", "save_steps"),
        ("evals_per_epoch", "eval_strategy", "eval_steps"),
    ):
        count = draft.number(key, 0)
        if count == 1:
            draft.settings[strategy] = "epoch"
        elif count > 0:
            draft.settings.update({strategy: "steps", steps: 1 / (count * epochs)})


AXOLOTL = Tool(
    title="axolotl",
    marks=words("""
        base_model micro_batch_size sequence_len sample_packing num_epochs adapter val_set_size dataset_prepared_path
        lora_target_linear saves_per_epoch evals_per_epoch train_on_inputs is_llama_derived_model tokenizer_type
        wandb_project
    """),
    enough=3,
    needs=words("base_model"),
    silent=words("""
        model_type tokenizer_type is_llama_derived_model is_mistral_derived_model is_falcon_derived_model
        is_qwen_derived_model cls_model_config strict tokenizer_use_fast tokenizer_legacy processor_type
        dataset_prepared_path push_dataset_to_hub hf_use_auth_token dataset_shard_idx shuffle_merged_datasets
        shuffle_before_merging_datasets pad_to_sequence_len sample_packing_group_size sample_packing_bin_size
        sample_packing_eff_est total_num_tokens curriculum_sampling multipack_real_batches train_on_inputs val_set_size
        lora_target_linear lora_fan_in_fan_out lora_on_cpu loraplus_lr_embedding lora_mlp_kernel lora_qkv_kernel
        lora_o_kernel lora_embedding_kernel merge_lora cosine_min_lr_ratio warmup_steps warmup_ratio
        loss_watchdog_patience flash_attention sdp_attention flex_attention eager_attention flash_attn_cross_entropy
        flash_attn_rms_norm flash_attn_fuse_qkv flash_attn_fuse_mlp liger_rope liger_rms_norm liger_glu_activation
        liger_swiglu liger_fused_linear_cross_entropy cut_cross_entropy tiled_mlp chunked_cross_entropy
        low_cpu_mem_usage fsdp_version heads_k_stride ring_attn_func gpu_memory_limit max_memory device_map
        saves_per_epoch evals_per_epoch save_safetensors save_first_step auto_resume_from_checkpoints eval_table_size
        eval_max_new_tokens eval_causal_lm_metrics debug wandb_name wandb_run_id wandb_watch wandb_log_model local_rank
        ddp_timeout experimental_skip_move_to_device use_ray merge_method
    """),
    table={
        "base_model": to("model_name_or_path"),
        "revision_of_model": to("model_revision"),
        "base_model_config": missing("The model's own configuration is used."),
        "tokenizer_config": missing("The model's own tokenizer is used."),
        **every("gptq gptq_disable_exllama", refuse("GPTQ weights cannot be tuned here.")),
        "overrides_of_model_config": missing("Change the model's config.json, or give model_init_kwargs."),
        "overrides_of_model_kwargs": to("model_init_kwargs"),
        "resize_token_embeddings_to_32x": missing("The vocabulary stays as it is."),
        **every("tokens added_tokens_overrides", missing("Add tokens to the model before training.")),
        "special_tokens": _special_tokens,
        "eot_tokens": missing("The chat template ends turns; eos_token ends rows."),
        # data
        "datasets": _data,
        "pretraining_dataset": _pretraining,
        "test_datasets": missing("Name held-out rows by eval_dataset_name, or list them under evaluation:."),
        "chat_template": _chat_template,
        "chat_template_jinja": _template,
        "default_system_message": missing("Put it into the rows, or into the chat template."),
        "dataset_exact_deduplication": missing("Deduplicate first: 'holdfast data prepare'."),
        "dataset_processes": to("dataset_num_proc"),
        "dataset_shard_num": missing("Name a part of the split, as train[:10%]."),
        "streaming": to("dataset_streaming"),
        "sequence_len": to("max_length"),
        "sample_packing": to("packing"),
        "eval_sample_packing": to("eval_packing"),
        "min_sample_len": missing("Take short rows out of the data."),
        "excess_length_strategy": missing("Rows that are too long are cut.", unless="truncate"),
        "group_by_length": when_on(train_sampling_strategy="group_by_length"),
        # adapters
        "adapter": _adapter,
        "lora_model_dir": missing("Merge the adapter into its base and start from that."),
        "lora_target_modules": _modules,
        "peft_use_dora": to("use_dora"),
        "peft_use_rslora": to("use_rslora"),
        "peft_layers_to_transform": missing("LoRA goes into all layers; name modules by lora_target_modules."),
        "peft_init_lora_weights": missing("LoRA begins as PEFT's default has it.", unless=True),
        "peft": missing("LoRA begins as PEFT's default has it."),
        "loraplus_lr_ratio": lora_plus,
        **every(
            "relora_steps relora_prune_ratio jagged_restart_steps lisa_n_layers lisa_step_interval",
            missing("holdfast has no such training; see its retention methods for ways to hold back."),
        ),
        "unfrozen_parameters": _unfrozen,
        # training
        "micro_batch_size": to("per_device_train_batch_size"),
        "batch_size": missing("Say gradient_accumulation_steps."),
        "eval_batch_size": to("per_device_eval_batch_size"),
        "num_epochs": to("num_train_epochs"),
        "optimizer": _optimizer,
        "lr_scheduler": _scheduler,
        "cosine_constant_lr_ratio": missing("The cosine goes to its end."),
        "embedding_lr": missing("learning_rate_multipliers: {embed_tokens: FACTOR} says it as a factor."),
        "embedding_lr_scale": missing("learning_rate_multipliers: {embed_tokens: FACTOR} says it."),
        "lr_groups": missing("learning_rate_multipliers says rates by pattern, as factors."),
        "noisy_embedding_alpha": to("neftune_noise_alpha"),
        "use_dft": when_on(loss_type="dft"),
        "use_eaft": missing("holdfast has no such loss."),
        "loss_watchdog_threshold": missing("A loss that is not finite ends a run; a large one does not."),
        # precision, memory
        **every("bf16 bfloat16", _precision),
        "fp16": when_on(fp16=True),
        "float16": missing("dtype: float16 holds the weights so; training in it is unstable."),
        "tf32": when_on(tf32=True),
        "fp8": missing("There is no training in 8-bit floating point."),
        "gradient_checkpointing": _checkpointing,
        "activation_offloading": when_on(activation_offloading=True),
        "xformers_attention": missing("attn_implementation: sdpa is what comes closest."),
        "s2_attention": refuse("Shifted sparse attention is not here."),
        "plugins": _plugins,
        **every("load_in_8bit load_in_4bit", _bits),
        **every("fsdp fsdp_config", _sharding),
        **every(
            "sequence_parallel_degree context_parallel_size tensor_parallel_size expert_parallel_size",
            missing("A sequence is not split over devices here; shorten max_length, or shard by FSDP.", unless=1),
        ),
        **every("dp_shard_size dp_replicate_size", missing("Set num_processes and accelerate_config.", unless=1)),
        # saving, logging
        "evaluation_strategy": to("eval_strategy"),
        "resume_from_checkpoint": missing("Continue by running the same command again."),
        **every("do_bench_eval bench_dataset", missing("Benchmarks go under evaluation:, by task.")),
        **every("wandb_project wandb_entity wandb_mode", _tracker("wandb")),
        **every("mlflow_tracking_uri mlflow_experiment_name", _tracker("mlflow")),
        "mlflow_run_name": to("run_name"),
        "use_tensorboard": _tracker("tensorboard"),
        "gc_steps": to("torch_empty_cache_steps"),
        # other kinds of training
        "rl": refuse(_PREFERENCES),
        **every("reward_model process_reward_model use_kto", refuse(_PREFERENCES)),
        "kd_trainer": refuse("Distillation from another model is not here; label_annealing holds on to the start."),
        "diffusion": refuse("holdfast tunes causal language models."),
    },
    defaults={
        "num_train_epochs": 1,
        "max_length": 512,
        "per_device_train_batch_size": 1,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.03,
        "gradient_checkpointing": False,
    },
    finish=_finish,
)
