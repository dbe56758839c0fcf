"""The benchmark of probing at a tiny size: figures of all arms, and the checker names what falls short. No speed is
judged here."""

from __future__ import annotations

import json

import pytest


@pytest.mark.slow
def test_figures_and_bars(script, monkeypatch, tmp_path, capsys):
    module = script("probe")
    tiny = {"width": 64, "layers": 1, "vocabulary": 300}
    monkeypatch.setattr(module, "SIZES", {"small": tiny, "default": tiny})
    monkeypatch.setattr(module, "SLOWER", 0.0)
    monkeypatch.setattr(module, "MEMORY", -1.0)
    monkeypatch.setattr(module, "TOKENS", 400)
    monkeypatch.setattr(module, "memory_of_noise", lambda threads: {"weights": 1, "share": 0.1, "kept": 0.01})
    assert module.main(["--check", "--rounds", "1", "--save", str(tmp_path / "figures.json")]) == 1
    told = capsys.readouterr()
    assert "of an evaluation's time, the bar is 0.0" in told.err and "of the weights' memory more" in told.err
    record = json.loads((tmp_path / "figures.json").read_text())
    assert [c["change"] for c in record["cells"]] == ["noise-0.01.seed-0", "int4", "prune-0.3"] * 2
    for cell in record["cells"]:
        assert cell["ours"] > 0 and cell["low"] <= cell["ratio"] <= cell["high"]
    assert len(record["short"]) == 3 and record["hardware"]


@pytest.mark.slow
def test_peaks(script):
    module = script("probe")
    module.SIZES["default"] = {"width": 64, "layers": 1, "vocabulary": 300}
    found = module.peak(noise=True, device="cpu")
    assert found["largest"] > found["weights"] > found["kept"] > 0
