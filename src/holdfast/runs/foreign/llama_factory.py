"""Configuration files of LLaMA-Factory (0.7 to 0.9): stages `sft` and `pt`, full or LoRA. Its data sets stand by name
in a `dataset_info.json`, which has to be at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config.values import show
from holdfast.data.layouts import BY_ENDING, ROLES
from holdfast.errors import did_you_mean
from holdfast.runs.foreign.translation import (
    Draft,
    Rows,
    Tool,
    every,
    held_out,
    is_on,
    lora_plus,
    lora_targets,
    missing,
    one_of,
    read_rows,
    refuse,
    to,
    warmup,
    when_on,
    words,
)

INFO_FILE = "dataset_info.json"
INFO = "dataset_info"
"""Key that names the file where `dataset_dir` does not lead to it; 'holdfast convert --dataset_info' sets it."""
_PREFERENCES = "holdfast tunes on texts (stages sft and pt); for preferences and rewards use TRL's trainers."
_IMAGES = (
    "'holdfast convert' takes over text alone. holdfast trains on rows with a column images, and parts of a model by "
    "train_only: write those keys yourself."
)


def _tuning(key: str, value: Any, draft: Draft) -> None:
    if value == "lora":
        draft.settings["use_peft"] = True
        rank = int(draft.number("lora_rank", 8))
        draft.settings.update(
            lora_r=rank,
            lora_alpha=draft.values.get("lora_alpha", 2 * rank),
            lora_dropout=draft.values.get("lora_dropout", 0.0),
            lora_target_modules=lora_targets(draft.values.get("lora_target", "all")),
        )
        if "additional_target" in draft.values:
            draft.settings["lora_modules_to_save"] = lora_targets(draft.values["additional_target"])
    elif value != "full":
        draft.refused.append(
            f"finetuning_type: {show(value)}. Expected full or lora. learning_rate_multipliers: {{PATTERN: 0}} holds "
            f"parameters where they are."
        )


def _bits(key: str, value: Any, draft: Draft) -> None:
    if value not in (4, 8):
        draft.refused.append(f"quantization_bit: {show(value)}. Expected 4 or 8 (bitsandbytes).")
        return
    draft.settings[f"load_in_{value}bit"] = True
    if value == 4:
        draft.settings["bnb_4bit_quant_type"] = draft.values.get("quantization_type", "nf4")
        draft.settings["use_bnb_nested_quant"] = draft.values.get("double_quantization", True)


def _galore(key: str, value: Any, draft: Draft) -> None:
    if not is_on(value):
        return
    on = draft.values.get
    layerwise = "_layerwise" if is_on(on("galore_layerwise")) else ""
    draft.settings["optim"] = f"galore_adamw{layerwise}"
    draft.settings["optim_target_modules"] = lora_targets(on("galore_target", "all"))
    draft.settings["optim_args"] = (
        f"rank={on('galore_rank', 16)}, update_proj_gap={on('galore_update_interval', 200)}, "
        f"scale={on('galore_scale', 2.0)}"
    )


def _part(key: str, value: Any, draft: Draft) -> None:
    draft.settings["bf16"] = True
    draft.settings["dtype"] = "bfloat16"


def _finish(draft: Draft) -> None:
    on, settings = draft.values.get, draft.settings
    warmup(draft)
    _data(draft)
    if is_on(on("bf16")) and on("finetuning_type", "lora") == "lora":
        settings.setdefault("dtype", "bfloat16")  # full tuning holds its weights in float32, LoRA the base in bfloat16
    if "finetuning_type" not in draft.values:
        _tuning("finetuning_type", "lora", draft)
    if is_on(on("val_size")):
        held_out("val_size", draft)
        settings.setdefault("eval_strategy", "steps" if is_on(on("eval_steps")) else "no")
        if settings["eval_strategy"] == "no":
            draft.note("val_size without eval_strategy only takes rows away; they are held out here as well.")
            settings.update(eval_strategy="epoch")
    elif not is_on(on("eval_dataset")):
        for key in ("eval_strategy", "eval_steps", "per_device_eval_batch_size"):
            settings.pop(key, None)
    if is_on(on("neat_packing")) or (on("stage") == "pt" and on("packing") is None):
        settings["packing"] = True
    if is_on(on("train_on_prompt")):
        settings.pop("assistant_only_loss", None)
        settings["completion_only_loss"] = False
    if on("template") not in (None, "empty", "default"):
        draft.note(
            f"template: {on('template')}. The model's own chat template is used; chat_template_path names another."
        )
    if is_on(on("disable_gradient_checkpointing")):
        settings["gradient_checkpointing"] = False


def _data(draft: Draft) -> None:
    names = lora_targets(draft.values.get("dataset"))
    if names is None or draft.refused:
        return
    names = ["all"] if names == "all-linear" else names
    folder = Path(str(draft.values.get("dataset_dir") or "data"))
    file = Path(str(draft.values[INFO])) if INFO in draft.values else folder / INFO_FILE
    if not file.is_file():
        draft.refused.append(
            f"dataset: {', '.join(names)}. These are names of {file}, which is not here. Say where it is: "
            f"--dataset_info FILE."
        )
        return
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        draft.refused.append(f"{file}: expected LLaMA-Factory's JSON of data sets: {error}.")
        return
    if not isinstance(about, Mapping):
        draft.refused.append(f"{file}: expected LLaMA-Factory's JSON of data sets by name, got {show(about)}.")
        return
    limit = draft.number("max_samples", 0)
    rows = [row for name in names if (row := _named(name, about, file, draft, limit)) is not None]
    if len(rows) == len(names):
        read_rows(draft, rows, key="dataset")


def _named(name: str, about: Mapping[str, Any], file: Path, draft: Draft, limit: Any) -> Rows | None:
    entry = about.get(name)
    if not isinstance(entry, Mapping):
        draft.refused.append(f"dataset: {name}. There is none of that name in {file}.{did_you_mean(name, list(about))}")
        return None
    columns, place = dict(entry.get("columns") or {}), f"dataset {name}"
    if is_on(entry.get("ranking")) or columns.get("kto_tag"):
        draft.refused.append(f"{place}: holds preferences. {_PREFERENCES}")
    if {"images", "videos", "audios"} & set(columns):
        draft.refused.append(f"{place}: holds images, videos or sound. {_IMAGES}")
    if draft.refused:
        return None
    path, files = entry.get("hf_hub_url"), None
    if path is None and entry.get("file_name"):
        own = file.parent / str(entry["file_name"])
        path, files = BY_ENDING.get(own.suffix, "json"), str(own)
    if path is None:
        draft.refused.append(f"{place}: expected hf_hub_url or file_name in {file}; other places are not read.")
        return None
    split = str(entry.get("split") or "train")
    most = min((int(n) for n in (limit, entry.get("num_samples")) if isinstance(n, (int, float)) and n), default=None)
    chat = entry.get("formatting") == "sharegpt"
    return Rows(
        path=str(path),
        config=entry.get("subset"),
        files=files,
        split=f"{split}[:{most}]" if most else split,
        templates=None if chat else _alpaca(columns, place, draft),
        chat=chat and _messages(entry, columns, place, draft),
    )


def _alpaca(columns: Mapping[str, Any], place: str, draft: Draft) -> dict[str, str] | None:
    """Columns of other names as templates; None where the usual ones are there."""
    if draft.values.get("stage") == "pt":
        column = str(columns.get("prompt", "instruction"))
        return None if column == "text" else {"text": f"{{{column}}}"}
    for extra in ("system", "history"):
        if columns.get(extra):
            draft.left_out.append(f"{place}: the column {columns[extra]!r} ({extra}) is not read; make it messages.")
    asked, answer = str(columns.get("prompt", "instruction")), str(columns.get("response", "output"))
    known = {("instruction", "output"), ("instruction", "response"), ("prompt", "response"), ("question", "answer")}
    if (asked, answer) in known and columns.get("query") in (None, "input"):
        return None
    more = f"\n{{{columns['query']}}}" if columns.get("query") else ""
    draft.note(f"{place}: its columns became templates (data:), which take no chat template.")
    return {"prompt": f"{{{asked}}}{more}\n", "completion": f"{{{answer}}}"}


def _messages(entry: Mapping[str, Any], columns: Mapping[str, Any], place: str, draft: Draft) -> bool:
    tags = dict(entry.get("tags") or {})
    column = columns.get("messages", "conversations")
    if column not in ("messages", "conversations", "conversation"):
        draft.refused.append(f"{place}: its conversations are in {column!r}. Rename the column to messages.")
    for extra in ("system", "tools"):
        if columns.get(extra) and columns[extra] != "tools":
            draft.left_out.append(f"{place}: the column {columns[extra]!r} ({extra}) is not read; make it a message.")
    roles = {tags.get(f"{role}_tag") for role in ("user", "assistant", "system", "observation", "function")} - {None}
    if strange := sorted(str(role) for role in roles if str(role) not in {*ROLES, "function_call"}):
        draft.refused.append(f"{place}: roles called {', '.join(strange)}. Rename them to user and assistant.")
    pair = (tags.get("role_tag", "from"), tags.get("content_tag", "value"))
    if pair not in (("from", "value"), ("role", "content")):
        draft.refused.append(f"{place}: messages with {pair[0]!r} and {pair[1]!r}. Rename them to role and content.")
    return True


_NO_COUNTERPART = missing("holdfast has no counterpart.")

LLAMA_FACTORY = Tool(
    title="LLaMA-Factory",
    marks=words("""
        finetuning_type stage cutoff_len template dataset_dir lora_rank lora_target max_samples val_size plot_loss
        overwrite_cache preprocessing_num_workers quantization_bit flash_attn
    """),
    enough=3,
    silent=words("""
        do_train lora_rank lora_alpha lora_dropout lora_target additional_target create_new_adapter galore_layerwise
        galore_target galore_rank galore_scale galore_update_interval dataset dataset_dir dataset_info template
        max_samples val_size overwrite_cache preprocessing_batch_size tokenized_path buffer_size train_on_prompt
        efficient_eos neat_packing quantization_type double_quantization disable_gradient_checkpointing upcast_layernorm
        use_fast_tokenizer infer_dtype warmup_steps warmup_ratio plot_loss compute_accuracy predict_with_generate
        include_effective_tokens_per_second ray_run_name ray_storage_path ray_num_workers resources_per_worker
        placement_strategy include_mfu include_num_input_tokens_seen
    """),
    table={
        "stage": refuse(_PREFERENCES, unless=("sft", "pt")),
        "do_predict": refuse("Evaluation is 'holdfast evaluate'."),
        "finetuning_type": _tuning,
        "loraplus_lr_ratio": lora_plus,
        "adapter_name_or_path": missing("Merge the adapter into its base and start from that."),
        **every(
            "pissa_init use_badam use_llama_pro use_adam_mini use_apollo use_muon mixture_of_depths shift_attn "
            "rope_scaling train_from_scratch fp8 use_eaft_loss disable_shuffling",
            _NO_COUNTERPART,
        ),
        "use_galore": _galore,
        "use_dft_loss": when_on(loss_type="dft"),
        # data
        "eval_dataset": missing("Name its file by eval_dataset_name, or list it under evaluation:."),
        "cutoff_len": to("max_length"),
        "streaming": to("dataset_streaming"),
        "mix_strategy": missing("Data sets stand one after the other.", unless="concat"),
        "interleave_probs": missing("fraction: under datasets: says shares."),
        "preprocessing_num_workers": to("dataset_num_proc"),
        "mask_history": missing("All replies of a conversation are trained."),
        "default_system": missing("Put it into the rows, or into the chat template."),
        "enable_thinking": missing("The chat template decides."),
        **every("image_max_pixels video_max_pixels freeze_vision_tower freeze_multi_modal_projector", missing(_IMAGES)),
        # model
        "quantization_bit": _bits,
        "quantization_method": refuse("Expected bitsandbytes.", unless=("bitsandbytes", "bnb")),
        "flash_attn": one_of(
            "attn_implementation",
            {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "sdpa": "sdpa", "disabled": "eager", "auto": None},
            "attn_implementation names the kernels of transformers.",
        ),
        "enable_liger_kernel": to("use_liger_kernel"),
        "use_unsloth": missing("It saves time and memory alone."),
        "pure_bf16": _part,
        "resize_vocab": missing("The vocabulary stays as it is."),
        "add_tokens": missing("Add tokens to the model before training."),
        "cache_dir": missing("Set HF_HOME."),
        "hf_hub_token": missing("Set HF_TOKEN, or log in ('hf auth login'); tokens do not belong in files."),
        # training
        "evaluation_strategy": to("eval_strategy"),
        "overwrite_output_dir": missing("A run continues in its own folder; another run needs another output_dir."),
        "resume_from_checkpoint": missing("Continue by running the same command again."),
        "use_swanlab": missing("report_to names trackers that transformers knows."),
        "early_stopping_steps": to("early_stopping_patience"),
    },
    defaults={"learning_rate": 5e-5, "max_length": 2048},
    finish=_finish,
)
