"""The key that somebody means who writes a name that is none: names that TRL, transformers, PEFT,
axolotl, LLaMA-Factory and lm-evaluation-harness, and people's habits, have for our keys."""

from __future__ import annotations

import difflib
from collections.abc import Collection

TRAINING: dict[str, str] = {
    "model_name_or_path model models base": "model_name model_id model_path base_model pretrained "
    "pretrained_model_name_or_path",
    "model_revision": "revision revision_of_model",
    "dataset_name corpus data text": "dataset dataset_path dataset_id data_path data_file train_file train_data "
    "train_dataset training_data pretraining_dataset file path",
    "dataset_config config": "dataset_config_name dataset_subset subset",
    "dataset_train_split split": "train_split",
    "eval_dataset_name": "eval_dataset eval_file eval_data validation_file validation_data val_file val_data",
    "test_split_size": "val_set_size val_size validation_split validation_split_percentage test_size",
    "dataset_num_proc": "num_proc preprocessing_num_workers dataset_processes",
    "dataloader_num_workers": "num_workers",
    "num_processes workers": "nproc nproc_per_node world_size num_gpus n_gpus gpus",
    "chat_template_path chat_template": "template",
    "max_length window context": "max_seq_length max_seq_len max_sequence_length sequence_len "
    "sequence_length seq_length seq_len cutoff_len block_size model_max_length max_tokens",
    "learning_rate": "lr max_lr peak_lr",
    "lr_scheduler_type": "lr_scheduler scheduler scheduler_type lr_schedule lr_decay_style",
    "warmup_steps": "warmup num_warmup_steps lr_warmup_steps warmup_iters warmup_ratio warmup_proportion",
    "weight_decay": "wd",
    "optim": "optimizer optimiser optimizer_type",
    "max_grad_norm": "grad_clip gradient_clip gradient_clip_val clip_grad clip_grad_norm grad_norm_clip",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "adam_eps epsilon eps",
    "per_device_train_batch_size batch_size": "micro_batch_size train_batch_size mini_batch_size "
    "per_device_batch_size train_micro_batch_size_per_gpu per_gpu_train_batch_size",
    "per_device_eval_batch_size batch_size": "eval_batch_size per_gpu_eval_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation grad_accumulation_steps grad_accum grad_accum_steps "
    "accumulation_steps accumulate_grad_batches",
    "num_train_epochs epochs": "num_epochs n_epochs max_epochs",
    "max_steps steps": "num_steps total_steps train_steps num_train_steps max_train_steps max_iters iters iterations",
    "logging_steps": "log_every log_interval logging_interval log_every_n_steps log_steps",
    "save_steps": "save_every save_interval checkpoint_every ckpt_interval",
    "save_total_limit": "max_checkpoints keep_checkpoints",
    "eval_steps": "eval_every eval_interval",
    "early_stopping_patience": "patience early_stopping_steps",
    "use_peft": "use_lora lora qlora peft adapter finetuning_type peft_config",
    "lora_r": "lora_rank rank r lora_dim adapter_rank",
    "lora_alpha": "alpha lora_scaling",
    "lora_dropout": "dropout adapter_dropout",
    "lora_target_modules": "target_modules lora_target lora_targets lora_modules lora_target_linear",
    "lora_target_parameters": "target_parameters",
    "lora_modules_to_save": "modules_to_save additional_target",
    "lora_task_type": "task_type",
    "use_dora": "dora peft_use_dora",
    "use_rslora": "rslora peft_use_rslora",
    "load_in_4bit": "use_4bit quantization quantization_bit",
    "load_in_8bit": "use_8bit",
    "bnb_4bit_quant_type": "quantization_type",
    "use_bnb_nested_quant": "double_quantization bnb_4bit_use_double_quant",
    "bf16": "bfloat16 use_bf16",
    "fp16": "float16 use_fp16",
    "dtype": "torch_dtype precision model_dtype",
    "use_cpu device": "cpu no_cuda",
    "gradient_checkpointing": "use_gradient_checkpointing grad_checkpointing enable_activation_checkpointing",
    "attn_implementation": "attention attention_implementation attn attn_impl flash_attn flash_attention "
    "use_flash_attn use_flash_attention use_flash_attention_2",
    "packing": "sample_packing neat_packing use_packing",
    "completion_only_loss": "completion_only train_on_completions_only train_on_responses_only response_only "
    "train_on_inputs train_on_prompt mask_prompt",
    "neftune_noise_alpha": "neftune noisy_embedding_alpha",
    "use_liger_kernel": "liger use_liger enable_liger_kernel",
    "deepspeed": "deepspeed_config ds_config",
    "report_to": "tracker trackers logger log_with wandb",
    "run_name name": "experiment_name wandb_name wandb_run_name",
    "resume_from_checkpoint": "resume resume_from",
    "hub_model_id": "repo_id hub_repo",
    "output_dir output": "out out_dir output_path output_folder save_dir save_path results_dir",
    "seed seeds": "random_seed random_state",
}
"""Keys of ours that mean the same, and other names of it; the first is one of 'holdfast train'. Of
a row the first key counts that a command has; of rows the first that has one. A key of ours is
itself another name of those in its row."""
OTHERS: dict[str, str] = {
    "tokenizer": "tokenizer_name tokenizer_path tokenizer_name_or_path",
    "max_new_tokens max_completion_length max_tokens": "max_gen_toks max_output_tokens max_response_length "
    "generation_max_length",
    "limit max_documents samples": "max_samples num_samples max_examples",
    "context_length": "max_length max_seq_length max_seq_len sequence_len seq_len cutoff_len max_model_len "
    "model_max_length",
    "num_fewshot": "n_shot num_shots fewshot few_shot shots k_shot",
    "tasks task": "benchmarks",
    "perplexity": "ppl",
    "coefficient weight alpha": "coef strength lambda lam reg_lambda reg_weight penalty_weight kl_coef kl_weight "
    "ewc_lambda beta",
    "fraction share": "ratio replay_ratio mix_ratio proportion",
    "temperature": "temp",
    "api_key_env api_key_variable": "api_key",
    "hidden_size n_embd d_model width": "hidden_dim embed_dim",
    "num_hidden_layers n_layer num_layers layers": "n_layers depth",
    "num_attention_heads n_head num_heads heads": "n_heads",
    "num_key_value_heads kv_heads": "n_kv_heads num_kv_heads",
    "intermediate_size ffn_dim n_inner d_ff": "ffn_hidden_size",
    "max_position_embeddings n_positions": "n_ctx max_length max_seq_len context_length",
}
"""The same of keys that 'holdfast train' has below others, or not at all."""
ALIKE = 0.86
"""Spellings this similar to another tool's name are a slip of it; below, only our own are looked
through."""


def did_you_mean_key(name: str, known: Collection[str], *, dashes: str = "") -> str:
    """`" Did you mean 'lora_r'?"`, with the key of the same meaning as a name that is none, else
    the one whose spelling is nearest; where a key of 'holdfast train' is meant and the command has
    a `train:`, that it goes there.

    Args:
        name: what stands there.
        known: the keys that there are.
        dashes: in front of a key.
    """
    meant = {plain(key): key for key in known}
    below_train: dict[str, str] = {}
    for ours, others in (TRAINING | OTHERS).items():
        keys = ours.split()
        key = next((key for key in keys if key in known), None)
        for word in (*keys, *others.split()):
            if key is not None:
                meant.setdefault(plain(word), key)
            if ours in TRAINING:
                below_train.setdefault(plain(word), keys[0])
    if "train" in known and plain(name) not in meant and plain(name) in below_train:
        return f" It goes below 'train:', as '{below_train[plain(name)]}'."
    near = difflib.get_close_matches(plain(name), meant, n=1, cutoff=ALIKE)
    keys = (
        [meant[near[0]]]
        if near
        else difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.6)
    )
    return f" Did you mean '{dashes}{keys[0]}'?" if keys else ""


def plain(name: str) -> str:
    """A name without the differences between ways to join words: `loraRank`, `lora-rank` and
    `lora_rank`."""
    return name.replace("-", "").replace("_", "").lower()
