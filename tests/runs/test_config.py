"""The configuration: what is accepted, what TRL would have made of it, every mistake's message, and what makes two runs
the same."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.runs import config as config_module
from holdfast.runs.config import TrainConfig, explain_difference, load_train_config, train_config
from stand_ins import put_data, put_model

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def folder(desk: Path) -> Path:
    """A working directory with a model folder and data, on a machine without an accelerator."""
    put_model("tiny")
    put_data("train.jsonl prose.jsonl held_out.jsonl")
    return desk


LEAST = ["--model_name_or_path", "tiny", "--dataset_name", "train.jsonl"]


def write(text: str, name: str = "run.yaml") -> list[str]:
    Path(name).write_text(text)
    return ["--config", name]


BEGIN = "model_name_or_path: tiny\ndataset_name: train.jsonl\n"


def load(text: str, *more: str) -> TrainConfig:
    return load_train_config([*write(BEGIN + text), *more])


def problems(argv: list[str]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_train_config(argv)
    return error.value.problems


def problem(text: str, *more: str) -> str:
    """The one problem of an otherwise sound configuration."""
    found = problems([*write("model_name_or_path: tiny\ndataset_name: train.jsonl\n" + text), *more])
    assert len(found) == 1, found
    return found[0]


# --------------------------------------------------------------------------------------------------------- as TRL reads

TRL_YAMLS = {
    "documentation": """
        learning_rate: 2.0e-5
        num_train_epochs: 1
        packing: true
        per_device_train_batch_size: 2
        gradient_accumulation_steps: 8
        eos_token: <|im_end|>
        eval_strategy: steps
        eval_steps: 100
        bf16: false
    """,
    "numbers that YAML 1.1 reads as strings": """
        learning_rate: 1e-4
        weight_decay: 5e-2
        adam_epsilon: 1e-9
        warmup_steps: 3e-2
        bf16: false
    """,
    "lora": """
        use_peft: true
        lora_r: 32
        lora_alpha: 16
        lora_target_modules: [q_proj, v_proj]
        bf16: "no"
        dtype: bfloat16
        lora_modules_to_save: [lm_head]
    """,
    "strings for switches": 'packing: "yes"\ngradient_checkpointing: "False"\nshuffle_dataset: "1"\nbf16: false',
    "mappings": """
        gradient_checkpointing_kwargs: {use_reentrant: false}
        lr_scheduler_type: cosine_with_min_lr
        lr_scheduler_kwargs:
          min_lr_rate: 0.1
        model_init_kwargs: {attn_implementation: sdpa}
        bf16: false
    """,
    "a mapping as JSON text": """lr_scheduler_kwargs: '{"num_cycles": "2"}'\nbf16: false""",
    "null": "max_length: null\neval_packing: null\nrun_name: null\nbf16: false",
    "integer text": 'seed: "7"\npad_to_multiple_of: "64"\nmax_steps: "1_000"\nbf16: false',
    "auto": "pad_to_multiple_of: auto\nbf16: false",
    "old name of a packing strategy": "packing: true\npacking_strategy: bfd-requeue\nbf16: false",
    "mixture": """
        datasets:
          - path: json
            data_files: train.jsonl
            split: train
            columns: [text]
          - path: json
            data_files: {train: prose.jsonl}
        streaming: false
        bf16: false
    """,
    "use_cpu and bf16": "use_cpu: true\nbf16: true",
}


@pytest.mark.parametrize("name", TRL_YAMLS)
def test_yaml_means_what_it_means_to_trl(name: str) -> None:
    from textwrap import dedent

    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser

    argv = write(
        "model_name_or_path: tiny\noutput_dir: out\ndataloader_pin_memory: false\n"
        + ("" if name == "mixture" else "dataset_name: train.jsonl\n")
        + dedent(TRL_YAMLS[name])
    )
    theirs = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig)).parse_args_and_config(argv)
    ours = load_train_config(argv)
    assert ours.script == theirs[0]
    assert vars(ours.training) == {**vars(theirs[1]), **_not_compared(ours, theirs[1])}
    assert ours.model == theirs[2]
    assert ours.mixture == theirs[3]


def _not_compared(ours: TrainConfig, theirs: object) -> dict:
    """Objects made anew for each instance; their fields are compared by the rest."""
    found = {}
    for name in ("distributed_state", "accelerator_config"):
        if hasattr(ours.training, name):
            assert str(getattr(ours.training, name)) == str(getattr(theirs, name))
            found[name] = getattr(ours.training, name)
    return found


@pytest.mark.parametrize(
    "extra",
    [
        ["--packing=false", "--no_gradient_checkpointing", "--seed", "1", "--seed", "2"],
        ["--learning-rate", "3e-5", "--max_steps", "-1", "--max_length", "none"],
        ["--lora_target_modules", "q_proj", "v_proj", "--use_peft"],
        ["--gradient_checkpointing_kwargs", '{"use_reentrant": false}'],
    ],
)
def test_command_line_means_what_it_means_to_trl(extra: list[str]) -> None:
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, SFTConfig, TrlParser

    argv = [*LEAST, "--output_dir", "out", "--bf16", "false", "--no_dataloader_pin_memory", *extra]
    theirs = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig)).parse_args_and_config(argv)
    ours = load_train_config(argv)
    assert (ours.script, ours.training, ours.model, ours.mixture) == theirs


def test_the_command_line_wins_over_the_yaml() -> None:
    config = load("learning_rate: 1e-4\nseed: 3\npacking: true\n", "--learning_rate", "5e-6", "--no_packing")
    assert config.training.learning_rate == 5e-6
    assert config.training.seed == 3
    assert config.training.packing is False


def test_env_is_set_and_secrets_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_TEST_MODE", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "before")  # so that monkeypatch puts things back
    config = load(
        "env:\n  HOLDFAST_TEST_MODE: 3\n  WANDB_API_KEY: abc123\nhub_token: abc123\nmodel_init_kwargs: {token: "
        "abc123, use_cache: false}\n"
    )
    assert os.environ["HOLDFAST_TEST_MODE"] == "3"
    assert os.environ["WANDB_API_KEY"] == "abc123"
    assert config.training.hub_token == "abc123"
    assert "abc123" not in json.dumps(config.resolved)
    assert config.resolved["env"] == {"HOLDFAST_TEST_MODE": "3"}
    assert config.resolved["model_init_kwargs"] == {"use_cache": False}


# ------------------------------------------------------------------------------------------------------------- own keys


def test_retention_in_yaml_and_in_its_compact_form_are_the_same() -> None:
    from_yaml = load("retention:\n  - label_annealing: {weight: 1e-1, temperature: 2}\n  - sfa\n")
    from_line = load_train_config(
        [*LEAST, "--retention", "label_annealing:weight=1e-1,temperature=2", "--retention", "sfa"]
    )
    in_one = load_train_config([*LEAST, "--retention", "[{label_annealing: {weight: 0.1, temperature: 2.0}}, sfa]"])
    assert [m.name for m in from_yaml.retention] == ["label_annealing", "sfa"]
    assert from_yaml.retention[0].weight == 0.1
    assert from_yaml.retention == from_line.retention == in_one.retention
    assert from_yaml.key == from_line.key == in_one.key


def test_retention_on_the_command_line_replaces_the_yaml() -> None:
    assert [m.name for m in load("retention: [l2, sfa]\n", "--retention", "l2:coefficient=0.5").retention] == ["l2"]
    assert load("retention: [l2, sfa]\n", "--retention", "none").retention == []


def test_python_objects_are_taken_as_they_are() -> None:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.retention.methods.label_annealing import LabelAnnealing

    method, plan = LabelAnnealing(weight=0.3), EvaluationPlan(batch_size=2)
    config = train_config(
        {"model_name_or_path": "tiny"}, dataset_name="train.jsonl", retention=[method], evaluation=plan
    )
    assert config.retention == [method]
    assert config.evaluation is plan
    assert config.source_file is None


def test_source_and_target_append_to_the_evaluation() -> None:
    config = load(
        "evaluation:\n  keep: [prose.jsonl]\n  batch_size: 4\n", "--keep", "arc_easy", "--learn", "held_out.jsonl"
    )
    assert [(e.suite, e.name) for e in config.evaluation.entries] == [
        ("keep", "prose"),
        ("keep", "arc_easy"),
        ("learn", "held_out"),
    ]
    assert config.evaluation.batch_size == 4


def test_launch_keys_are_collected() -> None:
    config = load("num_processes: 2\naccelerate_config: fsdp2\nuse_fsdp: true\n", "--num_processes", "4")
    assert config.launch == {"num_processes": 4, "accelerate_config": "fsdp2", "use_fsdp": True}
    assert config.processes == 4
    assert config.resolved["num_processes"] == 4
    assert any("use_fsdp has no effect" in note for note in config.notes)


# ---------------------------------------------------------------------------------------------- the machine's precision


@pytest.mark.parametrize("fast", [True, False])
def test_bf16_stays_as_the_user_sets_it(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runs.config.has_fast_bfloat16", lambda: fast)
    config = load("bf16: true\nuse_cpu: true\n")
    assert config.training.bf16 is True
    assert [note.split(",")[0] for note in config.notes] == (
        [] if fast else ["bf16: this processor has no instructions for bfloat16"]
    )
    assert load("bf16: false\n").notes == []


# --------------------------------------------------------------------------------------------------- every mistake said

MISTAKES = {
    "lr: 0.1": "line 3: unknown key 'lr'. Did you mean 'learning_rate'?",
    "lora_rank: 8": "line 3: unknown key 'lora_rank'. Did you mean 'lora_r'?",
    "retention: [{l2: {lambda: 1}}]": "line 3: retention[0].l2: unknown key 'lambda'. Did you mean 'coefficient'?",
    "evaluation: {keep: [{task: piqa, shots: 5}]}": "unknown key 'shots'. Did you mean 'num_fewshot'?",
    "max_seq_length: 1": "line 3: max_length: expected a whole number of at least 2, got 1 (whole number).",
    "keep: [prose.jsonl]": "line 3: keep: goes under 'evaluation:'.",
    "gradient_checkpointing_kwargs: '{use_reentrant'": "which is neither JSON nor YAML",
    "num_train_epochs: 0": "expected a number above 0, got 0.",
    "load_in_4bit: true": "add 'use_peft: true'",
    "fp16: true": "line 3: fp16: needs an accelerator",
    "output_dir: train.jsonl": "expected a folder, but train.jsonl is a file.",
    "output_dir: ./tiny/": "is the folder of the initial model, which would be overwritten",
    "load_best_model_at_end: true": "requires the save and eval strategy to match",
    "datasets: [{pth: json}]": "line 3: datasets[0]: unknown key 'pth'. Did you mean 'path'?",
    "datasets: [{path: json}]": "line 2: dataset_name: expected one of dataset_name and datasets, got both.",
    "use_peft: true\nbnb_4bit_quant_type: nf4": "line 4: bnb_4bit_quant_type: applies only to 4-bit weights",
    "resume_from_checkpoint: false": "line 3: resume_from_checkpoint: expected true or no value, got false",
    "retention: [{replay: {data: nowhere.jsonl}}]": "replay.data: no such file or folder: nowhere.jsonl",
    "evaluation: {keeps: 3}": "Did you mean 'keep'?",
    "data: {prompt: 'Q: {q}'}": "line 3: data: expected a template for text, or for both prompt and completion, "
    "got prompt.",
    "env: [A=1]": "line 3: env: expected a mapping of environment variables, got ['A=1'] (list).",
    "evaluation:\n  batch_size: 1\n  batch_size: 2": "'evaluation.batch_size' is listed twice, in line 4 and in "
    "line 5.",
}


NEEDED = {
    "report_to: wandb": "line 3: report_to: wandb needs the package wandb, which is not installed: pip install wandb",
    "attn_implementation: flash_attention_2": "pip install flash-attn --no-build-isolation",
    "use_liger_kernel: true": "pip install liger-kernel",
    "use_peft: true\nload_in_4bit: true": "line 4: load_in_4bit: true needs the package bitsandbytes",
    "optim: galore_adamw\noptim_target_modules: all-linear": "pip install galore-torch",
    "accelerate_config: zero3": "accelerate_config: zero3 needs the package deepspeed",
}


@pytest.mark.parametrize("text", NEEDED)
def test_packages_are_looked_for_before_any_work(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runs.packages._is_there", lambda module: False)
    assert NEEDED[text] in problem(text)
    monkeypatch.setattr("holdfast.runs.packages._is_there", lambda module: module == "tensorboardX")
    assert load("report_to: tensorboard\n").training.report_to == ["tensorboard"], "one of two is enough"


def test_settings_are_checked_for_the_machine_that_they_are_for() -> None:
    there = "bf16: true\ntf32: true\nuse_liger_kernel: true\nreport_to: wandb"
    config = load_train_config(write(BEGIN + there), machine=config_module.GPU)
    assert config.training.bf16 is True and config.training.tf32 is True and config.resolved["bf16"] is True
    assert any("wandb, which was not checked on the other machine: pip install wandb" in note for note in config.notes)
    assert load_train_config(write(BEGIN), machine=config_module.GPU).training.bf16 is True, "TRL's own"
    with pytest.raises(ConfigError, match="expected one of bf16 and fp16, got both"):
        load_train_config(write(BEGIN + "bf16: true\nfp16: true"), machine=config_module.GPU)


@pytest.mark.parametrize("text", MISTAKES)
def test_mistake_is_said(text: str) -> None:
    assert MISTAKES[text] in problem(text)


def test_data_sets_of_a_list_are_looked_for() -> None:
    begin = "model_name_or_path: tiny\ndatasets: [{path: json, data_files: %s}]\n"
    assert problems(write(begin % "nowhere.jsonl"))[0].startswith(
        "line 2: datasets[0].data_files: no such file or folder: nowhere.jsonl"
    )
    found = problems(
        [*write(begin % "train.jsonl" + "dataset_train_split: train[:5]\n"), "--dataset_name", "prose.jsonl"]
    )
    assert [text.split(":")[0] for text in found] == ["--dataset_name", "line 3"]
    assert "dataset_train_split: applies to dataset_name only" in found[1]


def test_a_switch_may_be_off_beside_its_settings() -> None:
    for text in (
        "use_peft: false\nlora_r: 8\nuse_dora: true\n",
        "use_peft: true\nload_in_4bit: false\nbnb_4bit_quant_type: fp4\n",
        "use_dora: false\nuse_bnb_nested_quant: false\n",
    ):
        config = load(text)
        assert train_config(config.resolved).resolved == config.resolved, "what is written down is a request, too"


LINE_MISTAKES = [
    (["--lerning_rate", "1"], "unknown option '--lerning_rate'. Did you mean '--learning_rate'?"),
    (["--seed"], "--seed: expected a whole number of at least 0 and at most 4,294,967,295, got nothing."),
    (["--packing", "perhaps"], "packing: expected true or false, got 'perhaps' (text)."),
    (["--retention", "sfa:p=1,p=2"], "parameter 'p' is listed twice."),
    (["--retention", "[sfa"], "not valid YAML"),
    (["--data", "prompt"], "--data: expected a mapping, got 'prompt' (text)."),
]


@pytest.mark.parametrize(("extra", "message"), LINE_MISTAKES, ids=[" ".join(e) for e, _ in LINE_MISTAKES])
def test_command_line_mistake_is_said(extra: list[str], message: str) -> None:
    found = problems([*LEAST, *extra])
    assert len(found) == 1
    assert message in found[0]


def test_all_mistakes_at_once() -> None:
    problems = [
        "dataset_name: trian.jsonl",
        "lerning_rate: 1",
        "seed: [1]",
        "warmup_steps: -1",
        "retention: [nothing]",
        "packing: 1",
        "packing: 0",
    ]
    argv = write("\n".join([*problems, "evaluation: {keep: [no.jsonl]}"]))
    with pytest.raises(ConfigError) as error:
        load_train_config([*argv, "--num_proceses", "2"])
    text = str(error.value)
    assert text.startswith("9 problems in run.yaml:")
    for part in (
        "'packing' is listed twice",
        "--num_proceses",
        "unknown method 'nothing'",
        "no.jsonl",
        "lerning_rate",
        "line 3: seed",
        "model_name_or_path: is missing",
        "Did you mean 'train.jsonl'?",
        "line 4: warmup_steps",
    ):
        assert part in text


def test_model_and_data_are_needed() -> None:
    found = problems(["--seed", "1"])
    assert [p.split(": is missing")[0] for p in found] == ["model_name_or_path", "dataset_name"]


def test_an_empty_data_file_is_found_before_anything_is_loaded() -> None:
    Path("empty.jsonl").touch()
    assert problems([*LEAST, "--dataset_name", "empty.jsonl", "--retention", "replay:data=empty.jsonl"]) == [
        "--dataset_name: empty.jsonl is empty (0 bytes).",
        "--retention.replay.data: empty.jsonl is empty (0 bytes).",
    ]


# --------------------------------------------------------------------------------------------------------- model folder


def model(name: str, *files: str) -> list[str]:
    path = Path(name)
    path.mkdir(exist_ok=True)
    for file in files:
        (path / file).write_text("{}")
    return ["--model_name_or_path", name, "--dataset_name", "train.jsonl"]


def test_model_folder_mistakes() -> None:
    assert "found nothing." in problems(model("empty"))[0]
    assert (
        "expected a model folder with config.json in other, found notes.txt."
        in problems(model("other", "notes.txt"))[0]
    )
    assert "Expected model.safetensors" in problems(model("bare", "config.json"))[0]
    assert "is a LoRA adapter, not a model" in problems(model("adapter", "adapter_config.json"))[0]
    assert (
        "no such folder: ./tinny. Did you mean 'tiny'?"
        in problems(["--model_name_or_path", "./tinny", "--dataset_name", "train.jsonl"])[0]
    )
    assert (
        "got the file tiny/model.safetensors. Give its folder: tiny."
        in problems(["--model_name_or_path", "tiny/model.safetensors", *LEAST[2:]])[0]
    )
    Path("broken").mkdir()
    Path("broken/config.json").write_text("{")
    assert "a model's configuration in broken/config.json, but it cannot be read" in problems(model("broken"))[0]


def test_pickled_weights_come_with_the_conversion() -> None:
    (found,) = problems(model("old", "config.json", "pytorch_model.bin"))
    assert "holds only pickled weights" in found
    assert "python -c" in found
    assert "old-safetensors" in found


def test_a_checkpoint_inside_is_named() -> None:
    Path("run").mkdir()
    model("run/checkpoint-10", "config.json", "model.safetensors")
    assert "its folder 'checkpoint-10' has: use run/checkpoint-10." in problems(model("run"))[0]


# ---------------------------------------------------------------------------------------------------------- YAML itself


def test_a_revision_in_the_models_name_is_the_setting_of_that_name() -> None:
    data = {"dataset_name": "trl-lib/Capybara"}
    config = train_config(model_name_or_path="owner/tiny@step1000-tokens4B", **data)
    assert (config.model.model_name_or_path, config.model.model_revision) == ("owner/tiny", "step1000-tokens4B")
    same = train_config(model_name_or_path="owner/tiny", model_revision="step1000-tokens4B", **data)
    assert config.key == same.key
    assert config.key != train_config(model_name_or_path="owner/tiny", **data).key
    with pytest.raises(ConfigError, match=r"model_revision: Expected one revision of owner/tiny, got a .* and b"):
        train_config(model_name_or_path="owner/tiny@a", model_revision="b", **data)


def test_a_folder_has_no_revisions(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    put_model(tmp_path / "runs" / "tuned")
    with pytest.raises(
        ConfigError, match="model_revision: Expected no revision for runs/tuned, which is a local folder"
    ) as caught:
        train_config(model_name_or_path="runs/tuned", model_revision="step1000", dataset_name="trl-lib/Capybara")
    assert len(caught.value.problems) == 1
    with pytest.raises(ConfigError, match=r"model_name_or_path: no such folder.*leave out @step1000") as caught:
        train_config(model_name_or_path="runs/tuned@step1000", dataset_name="trl-lib/Capybara")
    assert len(caught.value.problems) == 1


# ------------------------------------------------------------------------------------------------------- one run or two


def test_resolved_is_json_and_the_same_run_again() -> None:
    text = (
        "model_name_or_path: tiny\nlearning_rate: 1e-4\nretention: [{sfa: {p: 0.5}}, l2]\n"
        "evaluation: {keep: [prose.jsonl]}\ndata: {text: '{text}'}\nenv: {HOLDFAST_X: 1}\n"
        "lr_scheduler_type: cosine\ndatasets: [{path: json, data_files: train.jsonl}]\nuse_peft: "
        "true\nlora_target_modules: [q_proj]\n"
    )
    config = load_train_config(write(text))
    again = train_config(json.loads(json.dumps(config.resolved)))
    assert again.resolved == config.resolved
    assert again.key == config.key
    assert again.retention == config.retention
    assert again.training == config.training
    assert config.resolved["learning_rate"] == 1e-4
    assert config.resolved["lr_scheduler_type"] == "cosine"


SAME = [
    "output_dir: elsewhere",
    "report_to: tensorboard",
    "logging_steps: 1",
    "save_steps: 7",
    "save_total_limit: 2",
    "eval_strategy: steps\neval_steps: 5",
    "run_name: other",
    "evaluation: {keep: [prose.jsonl]}",
    "dataloader_num_workers: 2",
    "activation_checkpointing: false",
    "learning_rate: 2e-5",
    "num_train_epochs: 3.0",
    "model_name_or_path: ./tiny/",
    "retention: [{label_annealing: {weight: 0}}]",
    "retention: none",
]
OTHER = [
    "learning_rate: 1e-5",
    "seed: 1",
    "retention: [l2]",
    "data: {text: '{text}'}",
    "max_steps: 5",
    "per_device_train_batch_size: 4",
    "packing: true",
    "use_peft: true",
    "dataset_name: prose.jsonl",
    "model_name_or_path: other/model",
    "num_processes: 2",
    "neftune_noise_alpha: 5",
    "load_best_model_at_end: true\neval_strategy: steps\neval_steps: 500",
]


def _load_over(text: str) -> TrainConfig:
    base = {"model_name_or_path": "tiny", "dataset_name": "train.jsonl"}
    import yaml

    return train_config({**base, **yaml.safe_load(text)})


@pytest.mark.parametrize("text", SAME)
def test_settings_that_leave_the_weights_alone_keep_the_key(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runs.packages._is_there", lambda module: True)
    plain, changed = load(""), _load_over(text)
    assert changed.key == plain.key
    assert explain_difference(plain.resolved, changed.resolved) == []


@pytest.mark.parametrize("text", OTHER)
def test_settings_that_decide_the_weights_change_the_key(text: str) -> None:
    plain, changed = load(""), _load_over(text)
    assert changed.key != plain.key
    lines = changed.explain_difference(plain.resolved)
    assert any(line.startswith(text.split(":")[0] + ": ") for line in lines)


def test_the_number_of_processes_is_the_same_seen_from_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = load("num_processes: 2\n")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(
        config_module, "_construct", lambda cls, values, *rest, **more: getattr(outside, _part(cls))
    )  # no second process to meet
    assert load("num_processes: 2\n").key == outside.key
    assert load("").key == outside.key


def _part(cls: type) -> str:
    return {
        "ScriptArguments": "script",
        "SFTConfig": "training",
        "ModelConfig": "model",
        "DatasetMixtureConfig": "mixture",
        "AdapterArguments": "adapter",
    }[cls.__name__]
