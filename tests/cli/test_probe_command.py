"""`holdfast probe`: what it measures, what it never does twice, what overflows, and what it refuses."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from data_files import text_rows
from holdfast.checkpoints.live import perturbed
from holdfast.checkpoints.perturb import perturb
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.cli.main import main
from holdfast.evaluation.kinds.perplexity import PerplexityEntry
from holdfast.evaluation.probe.outcome import trends
from holdfast.evaluation.text.perplexity import score_documents
from holdfast.models import load
from holdfast.records.evaluation import EvaluationFolder
from holdfast.records.figure import Figure
from holdfast.records.probe import ProbeRecord, Sensitivity, read_probe
from holdfast.training.fresh_init import init_stds
from tiny import build_model

TEXTS = [f"The quick brown fox {i} jumps over the lazy dog." for i in range(6)]
PROBE = ["probe", "base", "--corpus", "prose.jsonl", "--output_dir", "out"]


@pytest.fixture
def desk(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with models base and tuned, and text."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("base", 0), ("tuned", 3)):
        build_model(seed=seed).save_pretrained(name)
        tokenizer.save_pretrained(name)
    text_rows("prose.jsonl", TEXTS)
    return tmp_path


def of(record: ProbeRecord, kind: str, size: float, label: str = "") -> Sensitivity:
    return next(s for s in record.sensitivities if (s.kind, s.size, s.label) == (kind, size, label))


def nats(model: Any, tokenizer: Any) -> float:
    rows = score_documents(model, tokenizer, TEXTS)
    return sum(r["nats"] for r in rows) / sum(r["tokens"] for r in rows)


def test_every_change_is_measured_as_by_hand(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--noise", "1", "3", "--noise_seeds", "2", "--quantize", "int4", "--prune", "0.5"]
    assert main([*PROBE, *asked, "--toward", "tuned", "--steps", "0.5", "1"]) == 0
    shown = capsys.readouterr().out
    assert "noise-3.seed-1" in shown and "Report    out/report.html" in shown and "50 % pruned" in shown
    record = read_probe("out")
    assert record.status == "finished" and record.models[0].stds == "init" and not record.trends
    assert record.settings["corpus"] == ["prose.jsonl"] and "output_dir" not in record.settings
    loaded = load("base")
    before = nats(loaded.model, loaded.tokenizer)
    costs = []
    for seed in (0, 1):
        with perturbed(loaded.model, seed=seed, scale=3.0, stds=init_stds(loaded.model)):
            costs.append(nats(loaded.model, loaded.tokenizer) - before)
    found = of(record, "noise", 3.0)
    assert found.before == pytest.approx(before, abs=1e-9)
    assert found.by_seed == pytest.approx(costs, abs=1e-9)
    assert found.difference == pytest.approx(sum(costs) / 2, abs=1e-9)
    assert found.interval is not None and found.interval[0] < found.difference < found.interval[1]
    assert found.covers == "seeds and samples" and of(record, "quantize", 4.0, "int4").covers == "samples only"
    assert of(record, "toward", 1.0, "tuned").after == pytest.approx(
        nats(load("tuned").model, loaded.tokenizer), abs=1e-6
    )
    (desk / "out/report.html").unlink()
    assert main(["report", "out"]) == 0
    assert "50 % pruned" in capsys.readouterr().out and (desk / "out/report.html").is_file()


def test_nothing_is_measured_twice_and_an_interrupted_probe_goes_on(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, real = [], PerplexityEntry.measure

    def measure(*args: Any) -> Any:
        if len(measured) == 2:
            measured.append("stopped")
            raise KeyboardInterrupt
        measured.append("")
        return real(*args)

    monkeypatch.setattr(PerplexityEntry, "measure", measure)
    asked = [*PROBE, "--noise", "1", "--noise_seeds", "3"]
    assert main(asked) == 130
    assert read_probe("out").status == "interrupted"
    done = Path("out/base/noise-1.seed-0/measured.prose.json")
    first = done.read_bytes()
    assert main(asked) == 0
    assert len(measured) == 2 + 1 + 2 and done.read_bytes() == first
    assert main(asked) == 0
    assert len(measured) == 5
    assert main([*asked, "--quantize", "nf4"]) == 0
    assert len(measured) == 6


def test_noise_that_overflows_is_infinite_and_not_averaged_away(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PROBE, "--noise", "1", "1e41", "--noise_seeds", "2"]) == 0
    record = read_probe("out")
    broken = of(record, "noise", 1e41)
    assert broken.difference == math.inf and broken.interval is None
    assert broken.failed == "not finite with 2 of 2 seeds"
    assert math.isfinite(of(record, "noise", 1.0).difference)
    assert "∞" in capsys.readouterr().out


def test_a_model_that_is_not_finite_itself(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build_model()
    with torch.no_grad():
        model.model.norm.weight[0] = math.inf
    model.save_pretrained("base")
    assert main([*PROBE, "--noise", "1"]) == 4
    assert "finite figures of the unchanged model" in capsys.readouterr().err


def test_an_adapter_is_probed_merged(desk: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained("base"), LoraConfig(r=2, target_modules=["q_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.5)
    model.save_pretrained("adapter")
    shutil.copy("base/tokenizer.json", "adapter")
    shutil.copy("base/tokenizer_config.json", "adapter")
    assert main(["probe", "adapter", "--corpus", "prose.jsonl", "--output_dir", "out", "--quantize", "int8"]) == 0
    merged = model.merge_and_unload().eval()
    found = EvaluationFolder(Path("out/adapter/as-it-is")).find("measured", "prose")
    assert found is not None
    assert found.metrics["nats_per_token"].value == pytest.approx(nats(merged, load("base").tokenizer), abs=1e-5)


def test_what_overflows_at_one_end_of_a_ladder_is_not_left_out() -> None:
    found = Sensitivity(
        model="first", kind="noise", label="", size=1.0, entry="measured/prose", metric="nats_per_token",
        unit="nats/token", higher_is_better=False, before=3.0, after=3.1, difference=0.1, by_seed=[0.1, 0.1],
    )  # fmt: skip
    broken = dataclasses.replace(found, model="last", difference=math.inf, by_seed=[0.1, math.inf], failed="not finite")
    [trend] = trends([found, broken], "first", "last", confidence=0.95)
    assert (trend.difference, trend.verdict) == (Figure(value=math.inf), "grows")


def test_a_trend_is_of_pairs_over_samples(desk: Path) -> None:
    asked = ["--corpus", "prose.jsonl", "--noise", "0.1", "--output_dir", "out"]
    Path("ladder.yaml").write_text("ladder: [{model: base, tokens: 1.0e6}, {model: tuned, tokens: 4.0e6}]\n")
    assert main(["probe", "--ladder", "ladder.yaml", *asked]) == 0
    record = read_probe("out")
    moved = []
    for model in ("base", "tuned"):
        folders = [p for p in Path("out", model).iterdir() if p.is_dir()]
        parts = {}
        for folder in folders:
            rows = sorted(EvaluationFolder(folder).samples("measured", "prose"), key=lambda row: str(row["doc"]))
            nats, tokens = (np.array([row[column] for row in rows], dtype=float) for column in ("nats", "tokens"))
            parts[folder.name] = (nats - nats.sum() / tokens.sum() * tokens) / tokens.sum()
        start = parts.pop("as-it-is")
        assert len(parts) > 1
        moved.append(np.mean(list(parts.values()), axis=0) - start)
    rho = np.corrcoef(moved)[0, 1]
    first, last = (next(s for s in record.sensitivities if s.model == m) for m in ("base", "tuned"))
    seeds = np.array(last.by_seed) - np.array(first.by_seed)
    samples = first.samples_half**2 + last.samples_half**2 - 2 * rho * first.samples_half * last.samples_half
    t = {3: 4.302652729749464, 5: 2.7764451051977934, 10: 2.2621571628540993}[len(seeds)]
    half = np.sqrt(t**2 * seeds.var(ddof=1) / len(seeds) + samples)
    [trend] = record.trends
    middle = trend.difference.value
    assert trend.difference.interval == pytest.approx((middle - half, middle + half), rel=1e-3)


def test_dry_run(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PROBE, "--quantize", "int8", "int4", "--dry_run"]) == 0
    assert "base: int8, int4\n3 times prose; sound." in capsys.readouterr().out
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["probe", "base"], "expected --corpus FILE with held-out text, or --tasks TASK"),
        ([*PROBE, "--prune", "1"], r"--prune\[0\]: .*below 1"),
        (
            [*PROBE, "--noise", "1", "--std", "wide"],
            "std: expected base as it was before training, got wide, in which 20 tensors are missing or",
        ),
        ([*PROBE, "--toward", "wide"], "expected a model of base's shapes, but 20 tensors of wide are"),
        (["probe", "half", "--corpus", "prose.jsonl", "--curvature", "2"], "half is stored in bfloat16"),
        (["probe", "--ladder", "mixed.yaml", "--corpus", "prose.jsonl"], "one architecture, but base and wide differ"),
        ([*PROBE[:-1], "base"], "or the folder of an earlier probe"),
        (
            ["probe", "base", "--write", "noisy"],
            "--write: expected exactly one size of --noise, and no other kind of change",
        ),
    ],
)
def test_refused(
    desk: Path, words: list[str], message: str, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if any("wide" in w or "mixed" in w for w in words):
        build_model(width=64).save_pretrained("wide")
        tokenizer.save_pretrained("wide")
        Path("mixed.yaml").write_text("ladder: [{model: base, tokens: 1}, {model: wide, tokens: 2}]")
    if "half" in words:
        build_model().bfloat16().save_pretrained("half")
        tokenizer.save_pretrained("half")
    assert main(words) == 2
    assert re.search(message, capsys.readouterr().err.replace("\n    ", " "))
    assert not Path("out").exists()


@pytest.mark.parametrize("std", ["table", "tuned"])
def test_noise_by_a_table_or_by_the_model_before_its_training(desk: Path, std: str) -> None:
    """Each tensor's noise is scaled by what the table's pattern says, or by how widely the other model is spread."""
    loaded = load("base")
    if std == "table":
        Path("stds.yaml").write_text("std: {norm: 0, 'embed|head|_proj': 0.5}")
        stds = {name: 0.0 if "norm" in name else 0.5 for name, _ in loaded.model.named_parameters()}
    else:
        tensors = load("tuned").model.state_dict()
        stds = {name: float(tensor.double().std(correction=0)) for name, tensor in tensors.items()}
    given = {"table": "stds.yaml", "tuned": "tuned"}[std]
    assert main([*PROBE, "--noise", "0.5", "--noise_seeds", "2", "--std", given]) == 0
    record = read_probe("out")
    before, costs = nats(loaded.model, loaded.tokenizer), []
    for seed in (0, 1):
        with perturbed(loaded.model, seed=seed, scale=0.5, stds=stds):
            costs.append(nats(loaded.model, loaded.tokenizer) - before)
    assert of(record, "noise", 0.5).by_seed == pytest.approx(costs, abs=1e-6)
    assert record.models[0].stds == "init", "the same at every rung, unlike present standard deviations"


def test_olmo_1b_was_initialised_as_its_recipe_says() -> None:
    """Mitchell: 1 / sqrt(d), of the two projections that add to the residual 1 / sqrt(2 fan-in (l + 1)), cut at three
    standard deviations."""
    from holdfast.evaluation.probe.stds import read_std, std_problems

    file = Path(__file__).parents[2] / "configs" / "probe" / "olmo-1b.yaml"
    stds = read_std(file)
    phi = math.exp(-4.5) / math.sqrt(2 * math.pi)
    cut = math.sqrt(1 - 6 * phi / math.erf(3 / math.sqrt(2)))
    expected = {"model.embed_tokens.weight": 2048}
    for layer in range(16):
        name = f"model.layers.{layer}"
        expected |= {f"{name}.self_attn.{part}_proj.weight": 2048 for part in "qkv"}
        expected |= {f"{name}.mlp.{part}_proj.weight": 2048 for part in ("gate", "up")}
        expected[f"{name}.self_attn.o_proj.weight"] = 2 * 2048 * (layer + 1)
        expected[f"{name}.mlp.down_proj.weight"] = 2 * 8192 * (layer + 1)
    source = SimpleNamespace(entries=dict.fromkeys(expected), label="OLMo-1B")
    assert std_problems(stds, source) == []
    for name, inverse in expected.items():
        (std,) = [value for pattern, value in stds.items() if re.search(pattern, name)]
        assert std == pytest.approx(cut / math.sqrt(inverse), rel=3e-3)


@pytest.mark.parametrize(
    ("std", "message"),
    [
        ("{norm: 0}", "expected exactly one pattern that matches"),
        ("{weight: 1, norm: 0}", "got weight and norm."),
        ("{weight: 1, nothing: 0}", "'nothing' matches no tensor of base"),
        ("{weight: -1}", "a standard deviation of 0 or more for weight"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    desk: Path, std: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("stds.yaml").write_text(f"std: {std}")
    assert main([*PROBE, "--noise", "1", "--std", "stds.yaml"]) == 2
    assert re.search(message, capsys.readouterr().err.replace("\n    ", " "))
    assert not Path("out").exists()


@pytest.mark.parametrize("std", ["init", "tensor"])
def test_write_writes_what_the_function_writes(desk: Path, std: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["probe", "base", "--noise", "0.1", "--noise_seed", "3", "--std", std, "--write", "noisy"]
    assert main([*words, "--dry_run"]) == 0
    assert "perturb(seed=3, scale=0.1, stds=" in capsys.readouterr().out
    assert not Path("noisy").exists()
    assert main(words) == 0
    stds = "tensor" if std == "tensor" else init_stds("base", stored=True)
    perturb("base", "expected", scale=0.1, seed=3, stds=stds)
    with CheckpointReader("noisy") as found, CheckpointReader("expected") as expected, CheckpointReader("base") as base:
        assert found.entries.keys() == expected.entries.keys() == base.entries.keys()
        for name in base.entries:
            assert np.array_equal(found.mapped(name), expected.mapped(name))
            moved = not np.array_equal(found.mapped(name), base.mapped(name))
            # norms are initialised to constants and stay; as they are here they have no spread either
            assert moved == ("norm" not in name)
    assert not Path("probed").exists()
