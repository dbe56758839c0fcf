"""`holdfast cost`: what it prints, JSON, a study, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from holdfast.cli.cost import run as run_cost
from holdfast.cli.cost import scaled, size
from holdfast.errors import ConfigError


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model's config.json and no weights."""
    from transformers import LlamaConfig

    monkeypatch.chdir(tmp_path)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained("model")
    Path("run.yaml").write_text(
        "model_name_or_path: model\ndataset_name: absent.jsonl\nmax_length: 128\nlearning_rate: 1e-5\npacking: true\n"
    )
    return tmp_path


def record(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert run_cost([*words, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cost(["--help"]) == 0
    shown = capsys.readouterr().out
    for word in ("--gpu", "--utilisation", "--tokens", "--window", "204800M", "2048 times", "examples", "--json"):
        assert word in shown


def test_help_loads_nothing_heavy() -> None:
    import subprocess

    code = (
        "import sys; from holdfast.cli.cost import run; run(['--help']); print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"


def test_a_run_without_a_yaml(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_cost(
            [
                "--model",
                "model",
                "--tokens",
                "1e6",
                "--epochs",
                "2",
                "--window",
                "128",
                "--gpu",
                "h100",
                "--gpu",
                "RTX 4090",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    for word in (
        "Operations",
        "6 x parameters x tokens x epochs",
        "Memory of one process",
        "largest sum",
        "H100",
        "RTX-4090",
        "fits",
        "Assumed",
    ):
        assert word in shown
    assert "2 M tokens" in shown and "a utilisation of 0.4" in shown


def test_a_yaml_and_the_command_line_over_it(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = record(capsys, "run.yaml", "--tokens", "1e6")
    assert plain["plan"]["packing"] == "bfd" and plain["plan"]["window"] == 128
    named = record(capsys, "--config", "run.yaml", "--tokens", "1e6")
    assert named == plain
    changed = record(
        capsys,
        "run.yaml",
        "--tokens",
        "1e6",
        "--use_peft",
        "--max-length",
        "64",
        "--retention",
        "label_annealing:weight=0.5",
        "--no_packing",
    )
    assert changed["plan"]["window"] == 64 and changed["plan"]["use_peft"] and changed["plan"]["packing"] is None
    assert changed["plan"]["teacher"]["kind"] == "adapter_off"
    steps = record(capsys, "run.yaml", "--max_steps", "10")
    assert steps["work"]["steps"] == 10


def test_the_papers_ratio_from_the_command_line(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (
        record(capsys, "--model", "model", "--tokens", tokens, "--epochs", "5", "--window", "128")
        for tokens in ("204800M", "100e6")
    )
    assert first["flops"]["paper"] / second["flops"]["paper"] == 2048


def test_json_to_a_file(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cost(["run.yaml", "--tokens", "1e6", "--json", "out/cost.json"]) == 0
    assert "JSON      out/cost.json" in capsys.readouterr().out
    assert json.loads(Path("out/cost.json").read_text())["flops"]["total"] > 0


def test_what_does_not_fit_is_told_what_would(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(Path("model/config.json").read_text())
    wide = {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "head_dim": 128,
        "vocab_size": 128256,
    }
    Path("model/config.json").write_text(json.dumps({**said, **wide}))
    assert run_cost(["--model", "model", "--tokens", "1e6", "--window", "1024", "--gpu", "A100"]) == 0
    shown = capsys.readouterr().out
    assert "does not fit" in shown and "would fit with" in shown and "GB" in shown


def test_every_mistake_at_once(desk: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run_cost(
            [
                "run.yaml",
                "--gpu",
                "H10",
                "--utilisation",
                "2",
                "--learning_rte",
                "1",
                "--mean_length",
                "short",
                "--max_length",
                "1",
            ]
        )
    said = str(caught.value)
    for word in (
        "'H10'",
        "Did you mean 'H100'?",
        "utilisation",
        "learning_rte",
        "--mean_length: expected a number of at least 1, got 'short'",
        "max_length",
        "absent.jsonl",
    ):
        assert word in said, word


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to estimate"),
        (["absent.yaml"], "no such file"),
        (["--model", "absent-folder/x/y", "--tokens", "1e6"], "no such folder"),
        (["--model", "model"], "tokens: expected how much is trained on"),
        (["--tokens", "1e6"], "model_name_or_path: is missing"),
        (["run.yaml", "--tokens", "many"], "--tokens: expected a number of tokens, such as 100M, got 'many'"),
    ],
)
def test_bad_requests(desk: Path, words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run_cost(words)


STUDY = """
train:
  {model_name_or_path: model, dataset_name: absent.jsonl, max_length: 128,
   evaluation: {source: [mmlu], target: [gsm8k]}}
vary:
  retention:
    - label_annealing: {weight: [0.3, 1, 3]}
    - l2: {coefficient: [0.01]}
seeds: [0, 1]
"""


def test_a_study_is_its_trials_together(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.yaml").write_text(STUDY)
    found = record(capsys, "study.yaml", "--tokens", "1e6")
    direct = record(capsys, "--model", "model", "--tokens", "1e6", "--window", "128")["flops"]["total"]
    annealed = record(
        capsys, "--model", "model", "--tokens", "1e6", "--window", "128", "--retention", "label_annealing"
    )["flops"]["total"]
    assert found["runs"] == 5 * 2
    assert found["flops"] == pytest.approx(2 * (2 * direct + 3 * annealed))
    assert found["largest"]["plan"]["methods"] == ["label_annealing"]
    assert run_cost(["study.yaml", "--tokens", "1e6"]) == 0
    assert "4 trials and direct fine-tuning, 2 seeds each: 10 runs" in capsys.readouterr().out


def test_drawn_trials_count_as_a_mean(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.yaml").write_text(STUDY + "search: {sampler: random, trials: 20}\n")
    found = record(capsys, "study.yaml", "--tokens", "1e6")
    assert found["runs"] == 21 * 2


def test_what_a_study_cannot_be_reckoned_with(desk: Path) -> None:
    Path("study.yaml").write_text(STUDY)
    with pytest.raises(ConfigError, match="a study's trials have the settings of its file"):
        run_cost(["study.yaml", "--tokens", "1e6", "--learning_rate", "1e-4"])
    Path("study.yaml").write_text("small: code\ntrain: {}\nvary: {learning_rate: [1.0e-5, 1.0e-4]}\n")
    with pytest.raises(ConfigError, match="small: code builds its model and data when the study runs"):
        run_cost(["study.yaml", "--tokens", "1e6"])


def test_words() -> None:
    assert scaled(1.234e18) == "1.234 E" and scaled(5e12) == "5 T" and scaled(12) == "12 "
    assert size(2.5e9) == "2.50 GB" and size(3e6) == "3.0 MB"
