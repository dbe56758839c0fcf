"""The benchmark of evaluation at a tiny size: both sides compute the same, and the checker names what falls short. No
speed is judged here."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def evaluation(script, monkeypatch):
    module = script("evaluation")
    tiny = {"width": 64, "layers": 1, "vocabulary": 300, "questions": 3, "characters": 900}
    monkeypatch.setattr(module, "SIZES", {"small": tiny, "default": tiny})
    monkeypatch.setattr(module, "BATCHES", (2,))
    return module


@pytest.mark.slow
def test_figures_and_bars(evaluation, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(evaluation, "startup", lambda: {"ours, one task": 9.0, "the harness's own index": 30.0})
    monkeypatch.setattr(evaluation, "BARS", {**evaluation.BARS, "choice, texts": 1e9})
    assert evaluation.main(["--check", "--rounds", "1", "--save", str(tmp_path / "figures.json")]) == 1
    said = capsys.readouterr()
    assert (
        "choice, texts" in said.err
        and "the bar is 1000000000.0" in said.err
        and "start-up, ours, one task: 9.00 s" in said.err
    )
    record = json.loads((tmp_path / "figures.json").read_text())
    assert [f["arm"] for f in record["figures"]] == list(evaluation.BARS)
    for figure in record["figures"]:
        assert figure["ours"] > 0 and figure["low"] <= figure["ratio"] <= figure["high"]
        if figure["arm"].startswith("choice"):
            assert figure["difference"] <= 1e-4 and figure["shared"] is True
    assert record["short"] and record["hardware"] and record["torch"]


@pytest.mark.slow
def test_start_up_is_measured_in_fresh_processes(evaluation):
    seconds = evaluation.startup()
    assert set(seconds) == {"ours, one task", "ours, a group of 57", "the harness's own index"}
    assert all(0 < value < 120 for value in seconds.values())
