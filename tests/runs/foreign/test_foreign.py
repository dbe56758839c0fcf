"""Files of axolotl, LLaMA-Factory and older versions of trl: what each becomes, and what is said of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from torch import equal

from holdfast.cli import convert
from holdfast.cli.main import main
from holdfast.errors import ConfigError, HoldfastError
from holdfast.records.run import RunFolder
from holdfast.runs.config import load_train_config, train_config
from holdfast.runs.run import train

FILES = Path(__file__).parent / "files"
INFO = FILES / "llama_factory" / "dataset_info.json"
GPU = ("bf16", "tf32", "fp16")


def converted(name: str, **options: Any) -> tuple[dict[str, Any], str]:
    """What the file becomes, and everything that is said of it."""
    if name.startswith("llama_factory"):
        options.setdefault("dataset_info", INFO)
    request = convert.ConvertRequest(file=FILES / name, **options)
    title, draft = convert.converted(request)
    left = [p for p in convert.remaining(draft.settings) if not any(word in p for word in GPU)]
    text = convert.as_yaml(title, request.file, draft, left)
    assert yaml.safe_load(text) == draft.settings
    return draft.settings, " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))


EXPECTED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "axolotl/full-alpaca.yml": (
        {
            "model_name_or_path": "acme/base-7b",
            "dataset_name": "acme/instructions",
            "max_length": 4096,
            "packing": True,
            "per_device_train_batch_size": 1,
            "num_train_epochs": 2,
            "optim": "adamw_bnb_8bit",
            "dtype": "bfloat16",
            "warmup_steps": 100,
            "test_split_size": 0.05,
            "eval_strategy": "steps",
            "eval_steps": 1 / 8,
            "save_strategy": "epoch",
            "attn_implementation": "flash_attention_2",
            "env": {"WANDB_PROJECT": "tuning"},
            "run_name": "first",
            "pad_token": "</s>",
            "use_peft": None,
            "tf32": None,
        },
        ["Alpaca's words where it has none", "special_tokens.bos_token", "axolotl leaves them out"],
    ),
    "axolotl/qlora-chat.yml": (
        {
            "use_peft": True,
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": True,
            "lora_target_modules": "all-linear",
            "learning_rate_multipliers": {"lora_B": 16.0},
            "assistant_only_loss": True,
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
            "warmup_steps": 0.1,
            "save_steps": 1 / 8,
            "use_liger_kernel": True,
            "eval_strategy": None,
            "eval_packing": None,
            "per_device_eval_batch_size": None,
        },
        ["chat_template: 'chatml'", "eot_tokens", "LoRA+ became a factor"],
    ),
    "axolotl/completion-two.yaml": (
        {
            "data": {"text": "{chapter}"},
            "datasets": [{"path": "acme/books"}, {"path": "json", "data_files": ["more.jsonl"]}],
            "bf16": True,
            "accelerate_config": "fsdp2",
            "activation_offloading": True,
        },
        ["sequence_parallel_degree: 8", "min_sample_len: 20000", "Say num_processes", "more.jsonl"],
    ),
    "axolotl/pretrain.yml": (
        {
            "dataset_streaming": True,
            "dataset_name": "acme/web",
            "dataset_config": "en",
            "max_steps": 200,
            "lr_scheduler_type": "linear",
            "attn_implementation": "sdpa",
        },
        [],
    ),
    "axolotl/own-prompt.yml": (
        {
            "data": {"prompt": "Be brief. Q: {question}\nA:", "completion": "{reply}"},
            "dataset_name": "train.jsonl",
            "learning_rate_multipliers": {r"^(?!.*(?:model\.layers\.2.|lm_head))": 0.0},
            "loss_type": "dft",
            "completion_only_loss": False,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0.03,
            "gradient_checkpointing": False,
        },
        ["relora_steps: 150", "test_datasets", "at most 100 of them", "no such file or folder: train.jsonl"],
    ),
    "llama_factory/lora-sft.yaml": (
        {
            "use_peft": True,
            "lora_r": 8,
            "lora_alpha": 16,
            "lora_dropout": 0.0,
            "lora_target_modules": "all-linear",
            "dtype": "bfloat16",
            "max_length": 2048,
            "datasets": [
                {"path": "json", "data_files": str(INFO.parent / name), "split": "train[:1000]"}
                for name in ("identity.json", "orders.jsonl")
            ],
        },
        ["template: llama3", "overwrite_output_dir: True", "identity.json"],
    ),
    "llama_factory/full-galore.yaml": (
        {
            "optim": "galore_adamw_layerwise",
            "optim_target_modules": ["mlp", "self_attn"],
            "optim_args": "rank=128, update_proj_gap=200, scale=2.0",
            "data": {"prompt": "{content}\n", "completion": "{summary}"},
            "dataset_config": "en",
            "test_split_size": 0.1,
            "eval_strategy": "steps",
            "dtype": "bfloat16",
        },
        ["hub_pairs: its columns became templates"],
    ),
    "llama_factory/qlora-talk.yaml": (
        {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "lora_r": 8,
            "lora_target_modules": ["q_proj", "v_proj"],
            "learning_rate_multipliers": {"lora_B": 16.0},
            "loss_type": "dft",
            "packing": True,
            "assistant_only_loss": True,
            "dataset_train_split": "train_sft",
            "test_split_size": 200,
            "attn_implementation": "flash_attention_2",
        },
        ["mask_history: True"],
    ),
    "llama_factory/pretrain.yaml": (
        {"data": {"text": "{body_text}"}, "packing": True, "dataset_train_split": "train[:1000]"},
        ["web.jsonl"],
    ),
    "trl/handbook-full.yaml": (
        {
            "dtype": "bfloat16",
            "attn_implementation": "flash_attention_2",
            "dataset_name": "acme/talks",
            "dataset_train_split": "train_sft[:50%]",
            "dataset_test_split": "test_sft",
            "dataset_num_proc": 12,
            "eval_strategy": "epoch",
            "max_length": 2048,
            "warmup_steps": 0.1,
            "overwrite_output_dir": None,
        },
        ["torch_dtype is called dtype today.", "overwrite_output_dir has no effect"],
    ),
    "trl/handbook-two.yaml": (
        {"datasets": [{"path": "acme/talks", "split": "train_sft"}, {"path": "acme/code", "split": "train_sft[:25%]"}]},
        [],
    ),
    "trl/reasoning.yaml": ({"use_liger_kernel": True, "warmup_steps": 0.05, "max_length": 16384}, []),
    "trl/today.yaml": ({"packing": True}, []),
    "trl/lora-line.yaml": (
        {"train_sampling_strategy": "group_by_length", "max_length": 512, "logging_dir": None},
        ["TENSORBOARD_LOGGING_DIR", "weights are always saved as safetensors"],
    ),
    "trl/phil.yaml": ({"max_length": 1024, "dtype": "bfloat16"}, ["dataset_id_or_path", "dataset_name: is missing"]),
    "trl/mixture.yaml": ({"per_device_train_batch_size": 4, "use_cpu": True}, ["fp16_backend has no effect."]),
    "trl/deepspeed.yaml": ({"hub_model_id": "tuned-8b", "eval_strategy": "no", "warmup_steps": 0.03}, []),
    "trl/vlm.yaml": ({"max_length": 2048}, ["vision_tower_lr", "freeze_vision_tower", "image_size"]),
}
REFUSED = {
    "axolotl/dpo.yaml": "for preferences and rewards use TRL's DPO, GRPO or reward trainers",
    "llama_factory/dpo.yaml": "stage: 'dpo'",
    "llama_factory/freeze.yaml": "Expected full or lora",
    "trl/twice.yaml": "stands twice, as 'max_length' and under its old name 'max_seq_length'",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_of_another_tool_becomes_one_of_ours(name: str) -> None:
    settings, said = converted(name)
    expected, sentences = EXPECTED[name]
    assert {key: settings.get(key) for key in expected} == expected
    for sentence in sentences:
        assert sentence in said, said


@pytest.mark.parametrize("name", REFUSED)
def test_what_holdfast_does_not_do_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[name].replace("(", r"\(")):
        converted(name)


def test_every_file_is_looked_at() -> None:
    files = {str(path.relative_to(FILES)) for path in FILES.rglob("*.y*ml")}
    assert files == {*EXPECTED, *REFUSED} and len(files) == 22


@pytest.mark.parametrize("name", sorted({*EXPECTED, *REFUSED}))
def test_training_takes_old_names_and_says_whose_another_file_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runs.packages._is_there", lambda module: True)
    words = ["--config", str(FILES / name), "--use_cpu"]
    if not name.startswith("trl/"):
        with pytest.raises(
            ConfigError, match=r"was written for (axolotl|LLaMA-Factory) .*'holdfast convert .* --output"
        ):
            load_train_config(words)
    elif (mistake := STOPS.get(name)) is not None:
        with pytest.raises(ConfigError, match=mistake):
            load_train_config(words)
    else:
        keys, notes = yaml.safe_load((FILES / name).read_text()), load_train_config(words).notes
        for old, today in (("max_seq_length", "max_length"), ("torch_dtype", "dtype")):
            assert (f"{old} is called {today} today." in notes) == (old in keys)


STOPS = {
    "trl/phil.yaml": "unknown key 'dataset_id_or_path'",
    "trl/twice.yaml": "stands twice",
    "trl/vlm.yaml": "unknown key 'vision_tower_lr'",
}
"""Files of trl's that do not run as they are, and why."""


def test_old_names_are_options_too(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    words = ["--model_name_or_path", "acme/base", "--dataset_name", str(tmp_path / "train.jsonl"), "--use_cpu"]
    config = load_train_config([*words, "--max_seq_length", "64", "--warmup_ratio", "0.1", "--overwrite_output_dir"])
    assert (config.training.max_length, config.training.warmup_steps) == (64, 0.1)
    assert [note.split()[0] for note in config.notes[:3]] == ["max_seq_length", "warmup_ratio", "overwrite_output_dir"]
    assert config.resolved["max_length"] == 64 and "max_seq_length" not in config.resolved
    (tmp_path / "old.yaml").write_text("max_seq_length: 64\nmax_length:\n")
    file = ["--config", str(tmp_path / "old.yaml")]
    assert load_train_config([*words, *file]).training.max_length == 64
    assert load_train_config([*words, *file, "--max_length", "32"]).training.max_length == 32, "the command line wins"
    (tmp_path / "new.yaml").write_text("max_length: 64\nwarmup_steps: 5\n")
    config = load_train_config([*words, "--config", str(tmp_path / "new.yaml"), "--max_seq_length", "16"])
    assert config.training.max_length == 16
    with pytest.raises(ConfigError, match="--max_length: expected a whole number of at least 2"):
        load_train_config([*words, "--max_seq_length", "1"])


def test_a_wrong_value_keeps_its_line(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model_name_or_path: acme/base\ndataset_name: acme/rows\nmax_seq_length: 1\n")
    with pytest.raises(ConfigError, match="line 3: max_length: expected a whole number of at least 2"):
        load_train_config(["--config", str(tmp_path / "run.yaml")])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"datasets": [{"type": "alpaca"}]}, r"datasets\[0\]: expected a mapping with a path"),
        ({"datasets": [{"path": "a/b", "type": "oasst"}]}, r"datasets\[0\].type: 'oasst'"),
        ({"datasets": [{"path": "a/b", "type": "chat_template", "field_messages": "turns"}]}, "Rename the column"),
        (
            {"datasets": [{"path": "a/b", "type": "completion", "field": "x"}, {"path": "c/d", "type": "alpaca"}]},
            "expected data sets that become text in one way",
        ),
        ({"adapter": "ia3"}, "Expected lora or qlora"),
        ({"gptq": True}, "GPTQ weights cannot be tuned"),
        ({"num_epochs": "many"}, "num_epochs: expected a number, got 'many'"),
    ],
)
def test_what_is_wrong_in_a_file_of_axolotl_is_said(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    plain = yaml.safe_load((FILES / "axolotl/full-alpaca.yml").read_text())
    (tmp_path / "a.yml").write_text(yaml.safe_dump({**plain, **changed}))
    with pytest.raises(ConfigError, match=said):
        convert.converted(convert.ConvertRequest(file=tmp_path / "a.yml"))


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("identiy", "Did you mean 'identity'"),
        ("pairs", "holds preferences"),
        ("photos", "holds images"),
        ("identity,web", "one way"),
    ],
)
def test_what_is_wrong_with_a_data_set_of_llama_factory_is_said(tmp_path: Path, dataset: str, said: str) -> None:
    plain = yaml.safe_load((FILES / "llama_factory/lora-sft.yaml").read_text())
    (tmp_path / "l.yaml").write_text(yaml.safe_dump({**plain, "dataset": dataset}))
    with pytest.raises(ConfigError, match=said):
        convert.converted(convert.ConvertRequest(file=tmp_path / "l.yaml", dataset_info=INFO))


def test_the_names_of_data_sets_have_to_be_at_hand() -> None:
    with pytest.raises(ConfigError, match=r"names of data/dataset_info\.json, which is not here.*--dataset_info FILE"):
        converted("llama_factory/lora-sft.yaml", dataset_info=None)
    with pytest.raises(ConfigError, match="belongs to a file of LLaMA-Factory"):
        converted("axolotl/full-alpaca.yml", dataset_info=INFO)


def test_a_merge_request_is_sent_to_merge(tmp_path: Path) -> None:
    file = tmp_path / "merge.yml"
    file.write_text("merge_method: linear\nbase_model: a/b\nmodels: []\n")
    for words in (["convert", str(file)], ["train", "--config", str(file)]):
        assert main(words) != 0
    with pytest.raises(ConfigError, match="'holdfast merge --config"):
        load_train_config(["--config", str(file)])


def test_a_converted_file_trains(tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"What is {n}?", "reply": f" It is {n * n}."} for n in range(24)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {
        "base_model": str(model_folder),
        "datasets": [
            {
                "path": str(tmp_path / "train.jsonl"),
                "type": {"field_instruction": "question", "field_output": "reply", "format": "Q: {instruction}\nA:"},
            }
        ],
        "val_set_size": 0.25,
        "sequence_len": 64,
        "micro_batch_size": 6,
        "num_epochs": 1,
        "learning_rate": 1e-3,
        "bf16": False,
        "evals_per_epoch": 1,
        "logging_steps": 1,
        "output_dir": str(tmp_path / "run"),
    }
    (tmp_path / "theirs.yml").write_text(yaml.safe_dump(asked))
    words = ["convert", str(tmp_path / "theirs.yml"), "--output", str(tmp_path / "ours.yaml")]
    assert main(words) == 0 and "a file of axolotl" in capsys.readouterr().out
    assert main(words) != 0 and "--overwrite" in capsys.readouterr().err
    config = load_train_config(["--config", str(tmp_path / "ours.yaml"), "--use_cpu"])
    run = train(config, console=Console(file=io.StringIO()))
    record = run.read()
    assert (record.status, record.training["steps"]) == ("finished", 3), "18 rows of 24, 6 a step"
    assert any("eval_ce" in row for row in run.metrics())


def rows_of(config: Any) -> tuple[list[str], list[str]]:
    from holdfast.runs.loading import load_data, load_tokenizer

    trained, _, held = load_data(config, load_tokenizer(config))
    return [row["text"] for row in trained], [row["text"] for row in held]


def test_held_out_rows_are_none_of_those_trained_on(tmp_path: Path, model_folder: Path) -> None:
    texts = [f"number {n}" for n in range(20)]
    for name, some in (("a", texts[:12]), ("b", texts[12:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in some))
    asked = {
        "model_name_or_path": str(model_folder),
        "use_cpu": True,
        "eval_strategy": "epoch",
        "test_split_size": 0.25,
    }
    one = {**asked, "dataset_name": str(tmp_path / "a.jsonl")}
    trained, held = rows_of(train_config(one))
    assert sorted(trained + held) == sorted(texts[:12]) and len(held) == 3
    assert rows_of(train_config(one)) == (trained, held), "a run that is continued holds out the same"
    assert rows_of(train_config({**one, "seed": 7}))[1] != held
    both = [{"path": "json", "data_files": str(tmp_path / f"{name}.jsonl")} for name in "ab"]
    trained, held = rows_of(train_config({**asked, "datasets": both, "test_split_size": 4}))
    assert sorted(trained + held) == sorted(texts) and len(held) == 4
    with pytest.raises(HoldfastError, match="test_split_size: 12 of 12 rows cannot be held out"):
        rows_of(train_config({**one, "test_split_size": 12}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"eval_dataset_name": "train.jsonl"}, "one of this and eval_dataset_name"),
        ({"dataset_streaming": True}, "has no end to split"),
        ({"test_split_size": 2.5}, "a share below 1, or a whole number"),
        ({"test_split_size": 0}, "expected a number above 0"),
    ],
)
def test_a_share_to_be_held_out_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    asked = {"model_name_or_path": "acme/base", "dataset_name": "train.jsonl", "use_cpu": True, "max_steps": 1}
    unread = train_config({**asked, "test_split_size": 0.5}).notes
    assert "test_split_size: nothing reads the rows that it takes out. Add eval_strategy: epoch." in unread
    with pytest.raises(ConfigError, match=said):
        train_config({**asked, "test_split_size": 0.5, "eval_strategy": "epoch", **changed})


def test_factors_of_lora_plus_reach_the_second_matrices(tmp_path: Path, model_folder: Path) -> None:
    """A factor of 0 on lora_B leaves the adapter without effect; on all others of unfrozen parameters, too."""
    (tmp_path / "train.jsonl").write_text('{"text": "Rome is the capital of Italy."}\n' * 4)
    asked = {
        "model_name_or_path": str(model_folder),
        "dataset_name": str(tmp_path / "train.jsonl"),
        "use_cpu": True,
        "max_steps": 2,
        "learning_rate": 1e-2,
        "use_peft": True,
        "learning_rate_multipliers": {"lora_B": 0.0},
        "output_dir": str(tmp_path / "run"),
        "report_to": "none",
    }
    from safetensors.torch import load_file

    train(train_config(asked), console=Console(file=io.StringIO()))
    folder = RunFolder(tmp_path / "run").path
    weights = load_file(next(folder.glob("adapter_model.safetensors")))
    second = [tensor for name, tensor in weights.items() if "lora_B" in name]
    assert second and all(equal(tensor, tensor * 0) for tensor in second)


def axolotl(tmp_path: Path, **more: Any) -> tuple[dict[str, Any], Any]:
    """Settings and the draft of a least file."""
    least = {"base_model": "acme/base", "micro_batch_size": 1, "sequence_len": 64, "num_epochs": 1}
    data = {"datasets": [{"path": "acme/rows", "type": "completion"}], "learning_rate": 1e-4}
    (tmp_path / "a.yml").write_text(yaml.safe_dump({**least, **data, **more}))
    _, draft = convert.converted(convert.ConvertRequest(file=tmp_path / "a.yml"))
    return draft.settings, draft


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"adapter": "lora", "lora_r": 8}, {"lora_dropout": 0.0}),
        ({"warmup_steps": 0}, {"warmup_steps": 0}),
        ({"warmup_steps": 0, "warmup_ratio": 0.2}, {"warmup_steps": 0.2}),
        ({}, {"warmup_steps": 0.03, "bf16": False, "save_strategy": "epoch", "save_total_limit": 4}),
        ({"bf16": False}, {"bf16": False, "dtype": None}),
        ({"cosine_min_lr_ratio": 0.1}, {"lr_scheduler_type": "cosine_with_min_lr"}),
        ({"lr_scheduler": "linear", "cosine_min_lr_ratio": 0.1}, {"lr_scheduler_type": "linear"}),
        ({"val_set_size": 0.1, "eval_steps": 100}, {"eval_strategy": "steps", "eval_steps": 100}),
        ({"hub_model_id": "me/x"}, {"push_to_hub": True, "hub_private_repo": True}),
        ({"lora_target_modules": r"layers.\d{1,2}.q_proj"}, {"lora_target_modules": [r"layers.\d{1,2}.q_proj"]}),
        ({"wandb_project": "p", "use_tensorboard": True}, {"report_to": ["tensorboard", "wandb"]}),
        ({"merge_method": "legacy"}, {"model_name_or_path": "acme/base"}),
        ({"chat_template": "jinja", "chat_template_jinja": "{{ messages }}"}, {"chat_template": "{{ messages }}"}),
        ({"chat_template_jinja": "my.jinja"}, {"chat_template_path": "my.jinja"}),
        (
            {"datasets": [{"path": "me/x", "ds_type": "json", "data_files": "part.jsonl", "type": "completion"}]},
            {"datasets": [{"path": "me/x", "data_files": "part.jsonl"}]},
        ),
        (
            {"datasets": [{"path": f"{name}.jsonl", "type": "completion"} for name in "ab"]},
            {"datasets": [{"path": "json", "data_files": f"{name}.jsonl"} for name in "ab"]},
        ),
        (
            {"datasets": [{"path": f"{name}.v2.jsonl", "type": "completion"} for name in "ab"]},
            {"datasets": [{"path": "json", "data_files": f"{name}.v2.jsonl"} for name in "ab"]},
        ),
    ],
)
def test_keys_of_axolotl_mean_what_they_mean_there(
    tmp_path: Path, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    settings, _ = axolotl(tmp_path, **given)
    assert {key: settings.get(key) for key in expected} == expected


def test_a_written_out_type_keeps_its_system_text(tmp_path: Path) -> None:
    kind = {"field_instruction": "q", "field_output": "a", "format": "Q {instruction}", "system_format": "<{system}> "}
    for more, prompt in (
        ({"field_system": "sys", "system_prompt": "x"}, "<{sys}> Q {q}"),
        ({"system_prompt": 'As JSON {"a": 1}'}, '<As JSON {{"a": 1}}> Q {q}'),
    ):
        settings, _ = axolotl(tmp_path, datasets=[{"path": "acme/rows", "type": {**kind, **more}}])
        assert settings["data"]["prompt"] == prompt


def test_nothing_of_a_data_set_is_dropped_in_silence_and_no_secret_is_told(tmp_path: Path) -> None:
    entry = {"path": "acme/rows", "type": "completion", "revision": "abc", "drop_system_message": True}
    _, draft = axolotl(tmp_path, datasets=[entry], swanlab_api_key="SECRET", hf_token="SECRET")
    said = "\n".join(draft.left_out)
    assert "revision: 'abc'" in said and "drop_system_message: True" in said
    assert "SECRET" not in said and "swanlab_api_key: not shown" in said


def test_what_llama_factory_has_beside_messages_is_said(tmp_path: Path) -> None:
    plain = yaml.safe_load((FILES / "llama_factory/qlora-talk.yaml").read_text())
    about = json.loads(INFO.read_text())
    about["talks"]["columns"]["system"] = "system"
    (tmp_path / "info.json").write_text(json.dumps(about))
    (tmp_path / "l.yaml").write_text(yaml.safe_dump({**plain, "max_samples": "1e3"}))
    request = convert.ConvertRequest(file=tmp_path / "l.yaml", dataset_info=tmp_path / "info.json")
    _, draft = convert.converted(request)
    assert any("the column 'system'" in line for line in draft.left_out)
    assert draft.settings["dataset_train_split"] == "train_sft[:1000]"
    about["talks"]["tags"]["user_tag"] = "Q"
    (tmp_path / "info.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match="roles called Q"):
        convert.converted(request)
    (tmp_path / "info.json").write_text("[]")
    with pytest.raises(ConfigError, match="JSON of data sets by name, got"):
        convert.converted(request)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dataset_mixer: {acme/rows: 0.004}", "expected shares of whole hundredths, got others for acme/rows"),
        ("dataset_mixer: []", "expected shares by data set"),
    ],
)
def test_shares_that_are_no_hundredths(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.yaml").write_text(f"model_name_or_path: acme/base\n{text}\n")
    with pytest.raises(ConfigError, match=said):
        load_train_config(["--config", str(tmp_path / "run.yaml"), "--use_cpu"])


def test_steps_of_warm_up_go_before_a_share(tmp_path: Path) -> None:
    text = "model_name_or_path: acme/base\ndataset_name: acme/rows\nwarmup_steps: 100\nwarmup_ratio: 0.1\n"
    (tmp_path / "run.yaml").write_text(text + "dataset_splits: [train_sft]\n")
    config = load_train_config(["--config", str(tmp_path / "run.yaml"), "--use_cpu"])
    assert config.training.warmup_steps == 100
    assert any(note.startswith("dataset_splits has no effect without dataset_mixer") for note in config.notes)
