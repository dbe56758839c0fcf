"""The benchmark of selecting passages at a tiny size: both sides score as many tokens, and the checker names what falls
short. No speed is judged here."""

from __future__ import annotations

import json

import pytest


@pytest.mark.slow
def test_figures_and_bars(script, monkeypatch, tmp_path, capsys):
    module = script("selection")
    tiny = {"width": 64, "layers": 1, "vocabulary": 512}
    monkeypatch.setattr(module, "SIZES", {"small": tiny, "default": tiny})
    monkeypatch.setattr(module, "RATE", 1e9)
    monkeypatch.setattr(module, "texts", lambda texts=module.texts: texts()[:20])
    assert module.main(["--check", "--rounds", "1", "--save", str(tmp_path / "figures.json")]) == 1
    told = capsys.readouterr()
    assert "of the forward pass's rate, the bar is 1000000000.0" in told.err
    record = json.loads((tmp_path / "figures.json").read_text())
    assert [f["size"] for f in record["scoring"]] == ["small", "default"]
    for figure in record["scoring"]:
        assert figure["ours"] > 0 and figure["low"] <= figure["ratio"] <= figure["high"] and figure["padding"] < 0.3
    assert all(step["rate"] > 0 for step in record["before"].values())
    assert len(record["short"]) == 1 and record["hardware"] and record["torch"]
