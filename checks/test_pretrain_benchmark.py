"""The benchmark of pre-training at a tiny size: figures of both arms on one decoder, and the checker names what falls
short. No speed is judged here."""

from __future__ import annotations

import json

import pytest
import torch


@pytest.mark.slow
def test_figures_and_bars(script, monkeypatch, tmp_path, capsys):
    module = script("pretrain")
    tiny = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 330, "context": 16, "rows": 2}
    monkeypatch.setattr(module, "SIZES", {"1M": tiny, "3M": tiny})
    monkeypatch.setattr(module, "FASTER", {"1M": 1e9})
    monkeypatch.setattr(module, "STEPS", 8)
    monkeypatch.setattr(module, "device_name", lambda: "cpu")
    assert module.main(["--check", "--rounds", "2", "--save", str(tmp_path / "figures.json")]) == 1
    assert "times a plain Trainer's tokens a second, the bar is" in capsys.readouterr().err
    record = json.loads((tmp_path / "figures.json").read_text())
    assert [f["size"] for f in record["sizes"]] == ["1M", "3M"] and len(record["short"]) == 1
    for found in record["sizes"]:
        assert found["low"] <= found["ratio"] <= found["high"]
        assert set(found["tokens_per_second"]) == {"holdfast", "Trainer"} and found["tokens_per_step"] == 32


def test_both_arms_train_the_same_decoder_on_the_same_windows(script, tmp_path):
    module = script("pretrain")
    tiny = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 330, "context": 16, "rows": 2}
    ours, plain = (make(tiny, tmp_path, "cpu") for make in (module.ours, module.plain))
    first, second = (dict(t.model.named_parameters()) for t in (ours, plain))
    assert first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
    assert ours.train_dataset[3]["input_ids"] == plain.train_dataset[3]["input_ids"]
    assert ours.args.learning_rate == plain.args.learning_rate and ours.args.weight_decay == plain.args.weight_decay
