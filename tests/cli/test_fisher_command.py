"""`holdfast fisher` and `compute_fisher`: what is written, that a run takes it, that merging takes it, and what is
refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_files import jsonl
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.cli.main import main
from holdfast.errors import ConfigError
from holdfast.retention.fisher import SavedFisher
from holdfast.runs.fisher import FisherSettings, compute_fisher

LEAST = ["fisher", "base", "--data", "old.jsonl", "--device", "cpu"]


@pytest.fixture
def desk(desk: Path) -> Path:
    rows = [{"prompt": f"Question {i}?", "completion": f" The answer is {i}, again and again."} for i in range(9)]
    jsonl(desk / "old.jsonl", rows)
    return desk


def contents(folder: str | Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}


def test_writes_beside_the_model_and_leaves_it_alone(desk, capsys):
    before = contents("base")
    assert main([*LEAST, "--samples", "6"]) == 0
    assert contents("base") == before
    found = SavedFisher("base-fisher")
    model = CheckpointReader("base")
    assert {n: e.shape for n, e in found.reader.entries.items()} == {n: e.shape for n, e in model.entries.items()}
    assert all(float(found.reader.tensor(n).min()) >= 0 for n in found.reader.names())
    assert max(float(found.reader.tensor(n).max()) for n in found.reader.names()) > 0
    assert (found.record["samples"], found.record["estimator"], found.record["data"]["name"]) == (
        6,
        "empirical",
        "old.jsonl",
    )
    assert found.record["tokens"] > 6
    assert "base-fisher" in capsys.readouterr().out
    written = (Path("base-fisher") / "fisher.safetensors").stat().st_mtime_ns
    assert main([*LEAST, "--samples", "6"]) == 0
    assert "Nothing to do" in capsys.readouterr().out
    assert (Path("base-fisher") / "fisher.safetensors").stat().st_mtime_ns == written


def test_another_request_replaces_only_when_told(desk, capsys):
    assert main(LEAST) == 0
    assert main([*LEAST, "--estimator", "sampled"]) == 2
    stated = capsys.readouterr().err
    assert "base on 9 samples of old.jsonl, empirical" in stated
    assert "--overwrite" in stated
    assert main([*LEAST, "--estimator", "sampled", "--overwrite"]) == 0
    assert SavedFisher("base-fisher").record["estimator"] == "sampled"
    assert [p.name for p in desk.iterdir() if p.name.startswith(".")] == []


def test_the_command_is_the_function_and_a_run_takes_it(desk):
    """The folder is what a run would compute on the same data itself, bit for bit."""
    from cases import largest_difference, make_trainer, weights
    from transformers import AutoModelForCausalLM

    from holdfast.retention.methods.ewc import EWC

    assert main([*LEAST, "--samples", "5", "--output_dir", "one", "--max_length", "64"]) == 0
    compute_fisher("base", "old.jsonl", FisherSettings(samples=5, max_length=64, device="cpu"), output_dir="two")
    assert contents("one") == contents("two")

    ends = []
    for folder, method in (
        ("a", EWC(coefficient=30.0, fisher="one")),
        ("b", EWC(coefficient=30.0, data="old.jsonl", samples=5)),
    ):
        trainer = make_trainer(Path(folder), [method], model=AutoModelForCausalLM.from_pretrained("base"))
        trainer.train()
        ends.append(weights(trainer))
    assert largest_difference(*ends) == 0.0


def test_all_mistakes_show_at_once(desk, capsys):
    words = "--data x --samples 0 --estimator exact --max_length 1 --dtype int8"
    assert main(["fisher", "nowhere/at/all", *words.split()]) == 2
    stated = capsys.readouterr().err
    for word in (
        "nowhere/at/all",
        "--samples: expected a whole number of at least 1",
        "--estimator: expected one of empirical",
        "--max_length",
        "--dtype",
    ):
        assert word in stated, word
    assert main(["fisher"]) == 2
    assert "data: is missing" in capsys.readouterr().err
    wrong = FisherSettings(samples=0, estimator="exact", dtype="int8", device="tpu")
    with pytest.raises(ConfigError) as caught:
        compute_fisher("./nowhere", "gone.jsonl", wrong)
    assert len(caught.value.problems) == 6
