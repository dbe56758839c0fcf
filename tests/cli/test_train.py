"""`holdfast train` up to the point where training begins: help, dry run, launching, hand-over."""

from __future__ import annotations

import json
import re
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from data_files import jsonl
from holdfast.cli import train as command
from holdfast.cli.main import main
from holdfast.config.declare import settings_of
from holdfast.records.run import RunFolder
from holdfast.retention.presets import PRESETS
from holdfast.retention.registry import METHODS, parse_retention
from holdfast.runs.settings import known_settings, parse_compact_method
from stand_ins import put_data


@pytest.fixture(autouse=True)
def folder(desk: Path, model_folder: Path) -> Path:
    shutil.copytree(model_folder, "tiny")
    put_data("train.jsonl")
    return desk


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list:
    """The configurations that were handed over for training."""
    configs: list = []
    monkeypatch.setitem(
        sys.modules,
        "holdfast.runs.run",
        types.SimpleNamespace(train=lambda config, console=None, evaluation_cache=None: configs.append(config)),
    )
    return configs


LEAST = ["train", "--model_name_or_path", "tiny", "--dataset_name", "train.jsonl"]


def test_mistakes_are_exit_code_2_and_nothing_is_trained(trained: list, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LEAST, "--lerning_rate", "1", "--retention", "l3"]) == 2
    shown = capsys.readouterr().err
    assert "2 problems" in shown
    assert "Did you mean '--learning_rate'?" in shown
    assert "unknown method 'l3'" in shown
    assert main(["train"]) == 2
    assert "nothing to train" in capsys.readouterr().err
    assert trained == []


def test_the_examples_in_the_help_are_sound(
    capsys: pytest.CaptureFixture[str], trained: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command and the YAML of the help text pass the checks, with files of those names in place."""
    import shlex
    from textwrap import dedent

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_exists", lambda self, name: name == "Qwen/Qwen3-0.6B")
    for name in ("prose.jsonl", "held_out.jsonl"):
        Path(name).write_text('{"text": "a"}\n')
    Path("my-model").symlink_to("tiny")
    text, yaml_text = (command.EPILOG + command.EXAMPLES).split("run.yaml\n")
    Path("run.yaml").write_text(dedent(yaml_text))
    lines = text.replace("\\\n", " ").splitlines()
    examples = [shlex.split(line)[1:] for line in lines if line.startswith("  holdfast train ")]
    assert len(examples) == 6
    for words in examples:
        assert main([*words, "--dry_run", "--quick"]) == 0, capsys.readouterr().err
    assert trained == []


def test_the_help_on_a_method_has_its_settings_and_a_sound_example(capsys: pytest.CaptureFixture[str]) -> None:
    put_data("old.jsonl")
    for name, cls in {**METHODS, **PRESETS}.items():
        assert main(["train", "--help", name]) == 0
        text = capsys.readouterr().out
        assert [s.name for s in settings_of(cls) if f"\n  {s.name} " not in text] == []
        (example,) = re.findall(r"^  --retention (.*)$", text, re.MULTILINE)
        in_yaml = yaml.safe_load(text.partition("as YAML\n")[2])["retention"]
        words = [entry for word in example.split(" --retention ") for entry in parse_compact_method(word)]
        assert parse_retention(words) == parse_retention(in_yaml)
        assert parse_retention(in_yaml)[1] == []
    assert main(["train", "--help", "label-anealing"]) == 2
    assert "Did you mean 'label_annealing'?" in capsys.readouterr().err


def test_the_help_knows_keys_of_trl_without_its_import(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help", "neftune_noise_alpha"]) == 0
    assert "--neftune_noise_alpha X" in capsys.readouterr().out
    text = command.train_help().text("all")
    assert [name for name in known_settings() if f"{name} " not in text and f"{name}\n" not in text] == []


def test_dry_run_prints_the_plan_and_trains_nothing(
    trained: list, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    words = [
        *LEAST,
        "--dry-run",
        "--quick",
        "--retention",
        "label_annealing:weight=0.5",
        "--retention",
        "l2:coefficient=0",
        "--keep",
        "arc_easy",
    ]
    assert (
        main(
            [
                *words,
                "--gradient_accumulation_steps",
                "4",
                "--max_steps",
                "9",
                "--use_peft",
                "--data",
                "{text: '{text}'}",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    for part in (
        "nothing was trained",
        "tiny (LoRA r=16 alpha=32, weights in float32, no autocast)",
        "train.jsonl (text template, at most 1024 tokens)",
        "9 steps, learning rate 2e-05 (linear), seed 42",
        "32 sequences a step = 8 x 4 accumulated x 1 process",
        "label_annealing(weight=0.5)",
        "l2(coefficient=0.0) (off)",
        "arc_easy (task)",
        "runs/tiny-label_annealing+l2 (run.json,",
        "bf16 is off on the CPU",
    ):
        assert part in shown
    assert trained == []
    assert sorted(folder.rglob("*")) == before


def test_a_dry_run_reads_the_data_to_the_end(
    folder: Path, tree: Callable[[Path], list[tuple[str, int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f'{{"text": "{n}"}}\n' for n in range(5000))
    Path("long.jsonl").write_text(rows + '{"text": [3]}\n')
    Path("cut.jsonl").write_text(rows + '{"text": "4')
    Path("chat.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    before = tree(folder)
    for words, expected in {
        ("--dataset_name", "long.jsonl"): "line 5001: 'text' holds a list",
        ("--dataset_name", "cut.jsonl"): "cut.jsonl",
        ("--keep", "long.jsonl"): "line 5001: 'text' holds a list",
        ("--retention", "replay:data=cut.jsonl"): "cut.jsonl",
        ("--dataset_name", "chat.jsonl"): "chat template",
    }.items():
        assert main([*LEAST, "--dry_run", *words]) == 2, words
        assert expected in " ".join(capsys.readouterr().err.split())
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("seed: -1", "seed: expected a whole number of at least 0 and at most 4,294,967,295, got -1"),
        (f"output_dir: {'x' * 300}", "output_dir: expected a folder"),
        ("output_dir: train.jsonl/out", "train.jsonl is a file, not a folder"),
        ("retention: [{label_annealing: {weight: .inf}}]", "label_annealing.weight: expected a number of at least 0"),
        (f"retention: [{{l2: {{coefficient: 1{'0' * 400}}}}}]", "l2.coefficient: expected a number of at least 0"),
        (f"retention: [{{replay: {{data: {'x' * 5000}.jsonl}}}}]", "x.jsonl"),
        (f"max_steps: {'9' * 5000}", "max_steps: expected a whole number"),
        ("max_steps: !!int foo", "run.yaml: not valid YAML: a value does not fit its tag"),
        (f"lr_scheduler_kwargs: {'[' * 600}", "mappings and lists are nested too deeply"),
        (f"env: {{A: {'[' * 90}{']' * 90}}}", "env.A: expected a value"),
    ],
)
def test_absurd_values_are_mistakes_of_their_key(
    line: str, words: str, trained: list, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run.yaml").write_text(f"model_name_or_path: tiny\ndataset_name: train.jsonl\n{line}\n")
    assert main(["train", "--config", "run.yaml"]) == 2, trained
    shown = capsys.readouterr().err
    assert words in shown and trained == [] and len(shown) < 2000


# ------------------------------------------------------------------------------------------- a dry run's look at a run


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model whose template marks what the assistant says, and conversations."""
    from tiny import build_model, build_tokenizer

    monkeypatch.chdir(tmp_path)
    tokenizer = build_tokenizer(320)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}<a>{% generation %}{{ m['content'] }}"
        "{{ eos_token }}{% endgeneration %}{% else %}<{{ m['role'] }}>{{ m['content'] }}{% endif %}"
        "{% if m.tool_calls %}{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}"
    )
    tokenizer.save_pretrained("model")
    build_model().save_pretrained("model")
    turns = [
        ("system", "Be brief."),
        ("user", "Rome?"),
        ("assistant", "Italy."),
        ("user", "Bern?"),
        ("assistant", "CH."),
    ]
    rows = [{"messages": [{"role": role, "content": f"{text} {n}"} for role, text in turns]} for n in range(240)]
    jsonl("chat.jsonl", rows)
    pairs = [{"prompt": f"Q {n}: ", "completion": f"A {n}."} for n in range(3)]
    jsonl("pairs.jsonl", pairs)
    return tmp_path


def dry(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    quick = [] if "--for" in words else ["--quick"]
    asked = ["train", "--model_name_or_path", "model", "--max_length", "128", "--dry_run", *quick, *words]
    assert main(asked) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def test_a_dry_run_shows_what_is_trained_in_three_rows(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = dry(capsys, "--dataset_name", "chat.jsonl", "--assistant_only_loss", "--use_cpu")
    assert "Trained tokens are between » and «" in said and said.count("  example ") == 3
    assert "<system>Be brief. 0<user>Rome? 0<a>»Italy. 0<|endoftext|>«<user>Bern? 0<a>»CH. 0<|endoftext|>«" in said
    assert "<user>Rome? 238<a>»Italy. 238<|endoftext|>«" in said, "the first, one of the middle, the last of the sample"
    assert "rows        240 rows, about " in said and "measured on 200 rows" in said
    assert "»<system>Be brief. 0<user>" in dry(capsys, "--dataset_name", "chat.jsonl"), "everything is trained"
    said = dry(capsys, "--dataset_name", "pairs.jsonl", "--flops_per_second", "4e14")
    assert "Q 0: »A 0.<|endoftext|>«" in said and "3 rows, " in said
    assert re.search(r"time +about \d+ ms, if each process does 4e\+14 operations per second", said)
    assert "operations  about " in said
    assert "model.safetensors, README.md" in said and "adapter_model" not in said
    for method in ("lora", "osf"):
        said = dry(capsys, "--dataset_name", "pairs.jsonl", "--use_peft", "--peft_method", method)
        assert "adapter_model.safetensors, README.md" in said, method
    assert "time        unknown; give the device's speed with --flops_per_second" in dry(
        capsys, "--dataset_name", "pairs.jsonl"
    )


def test_what_it_counts_is_what_the_run_trains_on(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--dataset_name",
        "pairs.jsonl",
        "--num_train_epochs",
        "2",
        "--use_cpu",
        "--per_device_train_batch_size",
        "2",
    ]
    said = dry(capsys, *words)
    counted = int(re.search(r"3 rows, (\d+) tokens an epoch", said)[1])  # type: ignore[index]
    assert main(["train", "--model_name_or_path", "model", *words, "--report_to", "none", "--output_dir", "out"]) == 0
    record = RunFolder("out").read()
    steps = int(re.search(r"steps +(\d+), ", said)[1])  # type: ignore[index]
    assert (record.training["steps"], record.training["tokens"]) == (steps, 2 * counted)


def test_a_dry_run_reads_the_weights_to_the_end(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file("model/model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(tensors, "model/model.safetensors", metadata={"format": "pt"})
    said = dry(capsys, "--dataset_name", "pairs.jsonl", code=2)
    assert "model.layers.1.mlp.up_proj.weight" in said and "1 NaN" in said


def test_a_dry_run_finds_what_a_run_would_stumble_over(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = dry(capsys, "--dataset_name", "chat.jsonl", "--assistant_only_loss", "--max_length", "4", code=2)
    assert "No training example is left after truncation to max_length=4" in said
    rows = Path("pairs.jsonl").read_text() + json.dumps({"prompt": "Q " * 200, "completion": "A."}) + "\n"
    Path("cut.jsonl").write_text(rows)
    said = dry(capsys, "--dataset_name", "cut.jsonl", "--max_length", "32")
    assert "1 of 4 training examples have no trained tokens" in said and said.count("  example ") == 3
    tokenizer = json.loads(Path("model/tokenizer_config.json").read_text())
    for file in Path("model").glob("*.jinja"):
        file.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    Path("model/tokenizer_config.json").write_text(json.dumps({**tokenizer, "chat_template": None}))
    said = dry(capsys, "--dataset_name", "chat.jsonl", "--assistant_only_loss")
    assert "Rome? 0»Italy. 0«Bern? 0»CH. 0«" in said, "what the assistant says is told without marks, too"


def test_a_dry_run_for_another_machine(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset_name", "pairs.jsonl", "--bf16", "--tf32", "--report_to", "wandb"]
    said = dry(capsys, *words, "--for", "gpu")
    assert "sound for a machine with a GPU" in said and "(all weights, weights in float32, bf16)" in said
    assert "pip install wandb" in said
    assert "bf16: needs an accelerator" in dry(capsys, *words, code=2)
    assert main(["train", "--model_name_or_path", "model", *words, "--for=gpu"]) == 2
    assert "with --dry_run" in capsys.readouterr().err


def test_a_chat_template_of_ones_own(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = "{% for m in messages %}[{{ m['role'] }}] {% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
    own += "{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    words = ["--dataset_name", "chat.jsonl", "--assistant_only_loss", "--chat_template", own]
    assert "[system] Be brief. 0[user] Rome? 0[assistant] »Italy. 0«[user]" in dry(capsys, *words)
    for wrong, part in (
        ("chatml", "expected a Jinja template, got 'chatml'"),
        ("{% for %}", "expected a Jinja template"),
    ):
        assert part in dry(capsys, "--dataset_name", "chat.jsonl", "--chat_template", wrong, code=2)
    Path("pairs.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    rest = ["--dataset_name", "pairs.jsonl", "--max_steps", "1", "--use_cpu", "--output_dir", "out"]
    assert main(["train", "--model_name_or_path", "model", "--max_length", "64", "--chat_template", own, *rest]) == 0
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained("out").chat_template == own


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--use_peft", "--lora_target_modules", "nonexistent"], "The adapter does not fit model"),
        (["--learning_rate_multipliers", "{nomatch: 0.1}"], "'nomatch' matches no trained parameter"),
        (["--attn_implementation", "spda"], "Did you mean 'sdpa'?"),
    ],
)
def test_a_dry_run_holds_settings_against_the_model(
    chat: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in dry(capsys, "--dataset_name", "pairs.jsonl", *words, code=2)
