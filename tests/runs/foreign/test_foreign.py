"""Files of axolotl, LLaMA-Factory and older versions of trl: what each becomes, and what is said of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from data_files import jsonl, text_rows
from holdfast.cli.main import main
from holdfast.errors import ConfigError
from holdfast.evaluation.suite import parse_evaluation
from holdfast.runs.config import load_train_config, train_config
from holdfast.runs.foreign.axolotl import AXOLOTL
from holdfast.runs.foreign.conversion import as_yaml, read_foreign
from holdfast.runs.run import train

FILES = Path(__file__).parent / "files"
INFO = FILES / "llama_factory" / "dataset_info.json"


def converted(name: str, dataset_info: Path | None = None) -> dict[str, Any]:
    """What the file becomes."""
    if name.startswith("llama_factory/"):
        dataset_info = dataset_info or INFO
    tool, settings, template = read_foreign(FILES / name, dataset_info)
    text = as_yaml(FILES / name, tool, settings, template)
    assert yaml.safe_load(text) == settings
    shown = {note for setting, note in tool.table["notes"].items() if setting in settings}
    assert all((note in text) == (note in shown) for note in tool.table["notes"].values())
    return settings


def refused(tmp_path: Path, name: str, *, dataset_info: Path | None = None, **changed: Any) -> list[str]:
    """Everything that is said of a file with some keys changed."""
    plain = yaml.safe_load((FILES / name).read_text())
    (tmp_path / "theirs.yml").write_text(yaml.safe_dump({**plain, **changed}))
    with pytest.raises(ConfigError) as caught:
        read_foreign(tmp_path / "theirs.yml", dataset_info)
    return caught.value.problems


@pytest.mark.parametrize(
    ("name", "not_read"),
    [("axolotl/qlora-chat.yml", "chat_template: chatml"), ("llama_factory/lora-sft.yaml", "template: llama3")],
)
def test_a_chat_template_by_its_name_is_named_as_not_read(
    name: str, not_read: str, capsys: pytest.CaptureFixture[str]
) -> None:
    info = ["--dataset_info", str(INFO)] if name.startswith("llama") else []
    assert main(["convert", str(FILES / name), *info]) == 0
    assert f"# {not_read} is ignored. The model's own chat template is used" in capsys.readouterr().out


EXPECTED: dict[str, dict[str, Any]] = {
    "axolotl/full-alpaca.yml": {
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
    "axolotl/qlora-chat.yml": {
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
    "axolotl/completion-two.yaml": {
        "data": {"text": "{chapter}"},
        "datasets": [{"path": "acme/books"}, {"path": "json", "data_files": ["more.jsonl"]}],
        "bf16": True,
        "accelerate_config": "fsdp2",
        "activation_offloading": True,
    },
    "axolotl/pretrain.yml": {
        "dataset_streaming": True,
        "dataset_name": "acme/web",
        "dataset_config": "en",
        "max_steps": 200,
        "lr_scheduler_type": "linear",
        "attn_implementation": "sdpa",
    },
    "axolotl/own-prompt.yml": {
        "data": {"prompt": "Q: {question}\nA:", "completion": "{reply}"},
        "dataset_name": "train.jsonl",
        "learning_rate_multipliers": {r"^(?!.*(?:model\.layers\.2.|lm_head))": 0.0},
        "loss_type": "dft",
        "completion_only_loss": False,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.03,
        "gradient_checkpointing": False,
    },
    "llama_factory/lora-sft.yaml": {
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
    "llama_factory/full-galore.yaml": {
        "optim": "galore_adamw_layerwise",
        "optim_target_modules": ["mlp", "self_attn"],
        "optim_args": "rank=128, update_proj_gap=200, scale=2.0",
        "data": {"prompt": "{content}\n", "completion": "{summary}"},
        "dataset_config": "en",
        "test_split_size": 0.1,
        "eval_strategy": "steps",
        "dtype": "bfloat16",
    },
    "llama_factory/qlora-talk.yaml": {
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
    "llama_factory/pretrain.yaml": {
        "data": {"text": "{body_text}"},
        "packing": True,
        "datasets": [{"path": "json", "data_files": str(INFO.parent / "web.jsonl"), "split": "train[:1000]"}],
    },
}
REFUSED = {
    "axolotl/dpo.yaml": ["rl: has no counterpart", "datasets: expected type alpaca"],
    "llama_factory/dpo.yaml": ["stage: expected sft or pt", "pref_beta: has no counterpart", "pairs"],
    "llama_factory/freeze.yaml": ["expected full or lora, got 'freeze'", "use_llama_pro: has no counterpart"],
}
OLD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "reasoning": ({"use_liger_kernel": True, "warmup_steps": 0.05, "max_length": 16384}, []),
    "today": ({"packing": True}, []),
    "lora-line": (
        {"train_sampling_strategy": "group_by_length", "max_length": 512},
        ["TENSORBOARD_LOGGING_DIR", "weights are always saved as safetensors"],
    ),
    "mixture": ({"per_device_train_batch_size": 4, "use_cpu": True}, ["fp16_backend has no effect"]),
    "deepspeed": ({"hub_model_id": "tuned-8b", "warmup_steps": 0.03}, []),
}
"""Older files of trl: today's keys, and what is said."""
STOPS = {
    "phil": "unknown key 'dataset_id_or_path'",
    "twice": "is listed twice, as 'max_length' and under its old name 'max_seq_length'",
    "vlm": "unknown key 'vision_tower_lr'",
}
"""Those that do not run as they are, and why."""


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_of_another_tool_becomes_one_of_ours(name: str) -> None:
    settings = converted(name)
    assert {key: settings.get(key) for key in EXPECTED[name]} == EXPECTED[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_holdfast_does_not_do_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        converted(name)
    for words in REFUSED[name]:
        assert any(words in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize("name", sorted({*EXPECTED, *REFUSED, "llama_factory_v1/lora.yaml"}))
def test_training_says_whose_a_file_is(name: str) -> None:
    with pytest.raises(ConfigError, match=r"was written for (axolotl|LLaMA-Factory).* .*'holdfast convert .* --output"):
        load_train_config(["--config", str(FILES / name), "--use_cpu"])


@pytest.mark.parametrize("name", OLD)
def test_training_takes_old_names_and_notes_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runs.packages._is_there", lambda module: True)
    path = FILES / "trl" / f"{name}.yaml"
    config = load_train_config(["--config", str(path), "--use_cpu"])
    settings, sentences = OLD[name]
    assert {key: config.resolved.get(key) for key in settings} == settings
    keys = yaml.safe_load(path.read_text())
    for old, today in (("max_seq_length", "max_length"), ("torch_dtype", "dtype")):
        assert (f"{old} is called {today} today." in config.notes) == (old in keys)
    for sentence in sentences:
        assert any(sentence in note for note in config.notes), config.notes


@pytest.mark.parametrize("name", STOPS)
def test_what_no_version_of_trl_knows_stops(name: str) -> None:
    with pytest.raises(ConfigError, match=STOPS[name]):
        load_train_config(["--config", str(FILES / "trl" / f"{name}.yaml"), "--use_cpu"])


def test_the_v1_of_llama_factory() -> None:
    settings = converted("llama_factory_v1/lora.yaml", FILES / "llama_factory_v1" / "data_sets.yaml")
    expected = {"lora_r": 16, "load_in_4bit": True, "accelerate_config": "fsdp2", "max_length": 1024, "max_steps": 10}
    assert expected.items() <= settings.items()
    assert [entry["path"] for entry in settings["datasets"]] == ["json", "acme/instructions"]


def test_a_loss_of_llama_factory_is_a_method_here(tmp_path: Path) -> None:
    plain = yaml.safe_load((FILES / "llama_factory/full-galore.yaml").read_text())
    (tmp_path / "theirs.yml").write_text(yaml.safe_dump({**plain, "use_asft_loss": True, "asft_alpha": 0.05}))
    assert read_foreign(tmp_path / "theirs.yml", INFO)[1]["retention"] == [{"asft": {"weight": 0.05}}]


def test_old_names_are_options_too(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    words = ["--model_name_or_path", "acme/base", "--dataset_name", str(tmp_path / "train.jsonl"), "--use_cpu"]
    config = load_train_config([*words, "--max_seq_length", "64", "--warmup_ratio", "0.1", "--overwrite_output_dir"])
    assert (config.training.max_length, config.training.warmup_steps) == (64, 0.1)
    assert [note.split()[0] for note in config.notes[:3]] == ["max_seq_length", "warmup_ratio", "overwrite_output_dir"]
    (tmp_path / "old.yaml").write_text("max_seq_length: 64\nmax_length:\n")
    file = ["--config", str(tmp_path / "old.yaml")]
    assert load_train_config([*words, *file]).training.max_length == 64
    assert load_train_config([*words, *file, "--max_length", "32"]).training.max_length == 32, "the command line wins"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"datasets": [{"path": "a/b", "type": "oasst"}]}, "expected type alpaca, chat_template, sharegpt, completion"),
        (
            {"datasets": [{"path": "a/b", "type": "completion", "field": "x"}, {"path": "c/d", "type": "alpaca"}]},
            "expected the same templates for all data sets",
        ),
        (
            {"datasets": [{"path": "a/b", "type": "alpaca", "revision": "x"}]},
            "revision has no counterpart",
        ),
        ({"gptq": True}, "gptq: has no counterpart"),
        (
            {"plugins": ["axolotl.integrations.kd.KDPlugin"]},
            "plugins: expected axolotl.integrations.liger",
        ),
        ({"loraplus_lr_ratio": "many"}, "loraplus_lr_ratio: could not convert string to float"),
        ({"swanlab_api_key": "SECRET"}, "swanlab_api_key: has no counterpart"),
        ({"test_datasets": [{"path": "a/b"}]}, "test_datasets: is not converted. Remove it, and set eval_dataset_name"),
        ({"adapter": "lora", "unfrozen_parameters": ["lm_head"]}, "unfrozen_parameters: names no parameter of an"),
    ],
)
def test_what_is_wrong_in_a_file_of_axolotl_is_said(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    (found,) = refused(tmp_path, "axolotl/full-alpaca.yml", **changed)
    assert problem in found and "SECRET" not in found


@pytest.mark.parametrize(
    ("dataset", "problem"),
    [
        ("identiy", "Did you mean 'identity'"),
        ("pairs", "pairs: ranking has no counterpart"),
        ("photos", "columns of photos: images has no counterpart"),
        ("identity,web", "the same templates"),
        ("told", "told: expected turns of from and value, or of role and content."),
    ],
)
def test_what_is_wrong_with_a_data_set_of_llama_factory_is_said(tmp_path: Path, dataset: str, problem: str) -> None:
    (found,) = refused(tmp_path, "llama_factory/lora-sft.yaml", dataset_info=INFO, dataset=dataset)
    assert problem in found


def test_a_merge_request_is_sent_to_merge(tmp_path: Path) -> None:
    file = tmp_path / "merge.yml"
    file.write_text("merge_method: linear\nbase_model: a/b\nmodels: []\n")
    for words in (["convert", str(file)], ["train", "--config", str(file)]):
        assert main(words) != 0
    with pytest.raises(ConfigError, match="'holdfast merge --config"):
        load_train_config(["--config", str(file)])


def test_a_converted_file_trains(tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"What is {n}?", "reply": f" It is {n * n}."} for n in range(24)]
    jsonl(tmp_path / "train.jsonl", rows)
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
    assert main(words) == 0 and "Wrote" in capsys.readouterr().out
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
    text_rows(tmp_path / "a.jsonl", texts[:12])
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


def axolotl(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Settings of a least file."""
    least = {"base_model": "acme/base", "micro_batch_size": 1, "sequence_len": 64, "num_epochs": 1}
    data = {"datasets": [{"path": "acme/rows", "type": "completion"}], "learning_rate": 1e-4}
    (tmp_path / "a.yml").write_text(yaml.safe_dump({**least, **data, **more}))
    return read_foreign(tmp_path / "a.yml")[1]


def converted_text(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "theirs.yaml").write_text(text)
    return read_foreign(tmp_path / "theirs.yaml", INFO)[1]


FULL = "stage: sft\nmodel_name_or_path: a/b\ndataset: identity\ncutoff_len: 64\ntemplate: qwen\n"


def test_the_order_of_keys_changes_nothing(tmp_path: Path) -> None:
    lines = [
        "finetuning_type: lora",
        "lora_rank: 4",
        "lora_dropout: 0.1",
        "lora_target: q_proj",
        "train_on_prompt: true",
    ]
    found = [converted_text(tmp_path, FULL + "\n".join(some) + "\n") for some in (lines, lines[::-1])]
    assert found[0] == found[1]
    assert (found[0]["lora_r"], found[0]["lora_alpha"], found[0]["lora_dropout"]) == (4, 8, 0.1)
    assert (found[0]["lora_target_modules"], found[0]["completion_only_loss"]) == (["q_proj"], False)


def test_settings_of_an_adapter_go_where_there_is_none(tmp_path: Path) -> None:
    full = converted_text(tmp_path, FULL + "finetuning_type: full\nlora_rank: 4\nlora_alpha: 8\n")
    assert not [key for key in full if "lora" in key or key == "use_peft"]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("flash_attn: fa9", "flash_attn: expected auto or disabled or sdpa or fa2 or fa3, got 'fa9'."),
        ("quantization_bit: 3", "quantization_bit: expected 4 or 8, got 3."),
        ("quantization_bit: {a: 1}", "quantization_bit: "),
        ("lora_ranks: 4", "lora_ranks: has no counterpart in holdfast. Remove it. Did you mean 'lora_r'?"),
    ],
)
def test_other_values_than_the_tables_are_refused(tmp_path: Path, key: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        converted_text(tmp_path, FULL + key + "\n")
    assert problem in str(caught.value)


def test_documents_of_llama_factory_are_not_cut(tmp_path: Path) -> None:
    found = converted_text(tmp_path, FULL.replace("sft", "pt"))
    assert (found["packing"], found["packing_strategy"]) == (True, "wrapped")


@pytest.mark.parametrize(
    ("entry", "more", "expected"),
    [
        ({"columns": {"prompt": "instruction"}}, "", {"prompt": "{instruction}\n", "completion": "{output}"}),
        ({"columns": {"prompt": "instruction", "query": "input"}}, "", None),
        ({}, "", None),
        ({"num_samples": 20}, "max_samples: 5\n", "train[:5]"),
        ({"num_samples": 5}, "max_samples: 20\n", "train[:5]"),
    ],
)
def test_rows_of_llama_factory_are_those_that_it_reads(
    tmp_path: Path, entry: dict[str, Any], more: str, expected: Any
) -> None:
    (tmp_path / "info.json").write_text(yaml.safe_dump({"identity": {"file_name": "rows.json", **entry}}))
    (tmp_path / "theirs.yaml").write_text(FULL + more)
    settings = read_foreign(tmp_path / "theirs.yaml", tmp_path / "info.json")[1]
    found = settings["datasets"][0]["split"] if more else settings.get("data")
    assert found == expected


def test_the_advice_in_a_converted_file_is_valid(tmp_path: Path) -> None:
    text = as_yaml(tmp_path / "a.yml", AXOLOTL, axolotl(tmp_path), "")
    advice = yaml.safe_load("\n".join(line[2:] for line in text.splitlines() if line.startswith("# evaluation:")))
    plan, problems = parse_evaluation(advice["evaluation"])
    assert [entry.suite for entry in plan.entries] == ["keep"]
    assert len(problems) == 2 and all("no such file or folder" in str(problem) for problem in problems)


def test_keys_of_parts_are_named_with_them(tmp_path: Path) -> None:
    text = "model: a/b\nmodel_class: llm\ncutoff_len: 64\npeft_config: {name: lora, dora: true}\n"
    with pytest.raises(ConfigError, match=r"peft_config.dora: has no counterpart"):
        converted_text(tmp_path, text)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"adapter": "lora", "lora_r": 8}, {"lora_dropout": 0.0}),
        ({"adapter": "lora", "lora_target_linear": True, "lora_dropout": 0.2}, {"lora_target_modules": "all-linear"}),
        ({"lora_r": 8, "lora_target_linear": True}, {"lora_r": None, "lora_target_modules": None}),
        (
            {"wandb_project": "p", "wandb_entity": "e"},
            {"report_to": ["wandb"], "env": {"WANDB_PROJECT": "p", "WANDB_ENTITY": "e"}},
        ),
        ({"plugins": ["axolotl.integrations.liger.LigerPlugin"]}, {"use_liger_kernel": True}),
        ({"warmup_steps": 0, "warmup_ratio": 0.2}, {"warmup_steps": 0.2}),
        ({}, {"warmup_steps": 0.03, "bf16": False, "save_strategy": "epoch", "save_total_limit": 4}),
        ({"use_eaft": True, "eaft_k": 20}, {"retention": [{"token_weighting": {"kind": "eaft", "alpha": 1.0}}]}),
        ({"val_set_size": 0.1, "eval_steps": 100}, {"eval_strategy": "steps", "eval_steps": 100}),
        ({"wandb_project": "p", "use_tensorboard": True}, {"report_to": ["tensorboard", "wandb"]}),
        ({"micro_batch_size": 2, "batch_size": 8}, {"gradient_accumulation_steps": 4}),
        ({"test_datasets": []}, {"eval_dataset_name": None}),
        ({"saves_per_epoch": 1}, {"save_strategy": "epoch", "save_steps": None}),
        ({"saves_per_epoch": 1, "num_epochs": 4, "max_steps": 100}, {"save_strategy": "steps", "save_steps": 0.25}),
        (
            {"datasets": None, "pretraining_dataset": [{"path": "acme/web"}], "max_steps": 9},
            {"dataset_streaming": True, "num_train_epochs": None, "max_steps": 9},
        ),
        (
            {
                "datasets": [
                    {
                        "path": "acme/talk",
                        "type": "chat_template",
                        "chat_template": "tokenizer_default",
                        "train_on_eos": "turn",
                        "roles_to_train": ["gpt"],
                        "message_property_mappings": {"role": "role", "content": "content"},
                    }
                ]
            },
            {"dataset_name": "acme/talk"},
        ),
        ({"chat_template_jinja": "my.jinja"}, {"chat_template_path": "my.jinja"}),
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
    settings = axolotl(tmp_path, **given)
    assert {key: settings.get(key) for key in expected} == expected
