"""The benchmark of studies: what it prints, saves and calls short. No speed is judged here."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def sweep(script, monkeypatch):
    monkeypatch.setenv("HOLDFAST_CACHE", "set back afterwards")
    return script("sweep")


def figures(*, seconds=400.0, overhead=0.01, ratio=1.05) -> tuple[dict, dict]:
    bookkeeping = {"mean": overhead, "largest": 2 * overhead, "seconds_per_trial": 0.2}
    study = {"seconds": seconds, "base_seconds": 60.0, "workers": 2, "trials": 12, "runs": 36, "overhead": bookkeeping}
    one = {"ratio": ratio, "range": [ratio - 0.1, ratio + 0.1], "direct_seconds": 10.0}
    return study, {"trial": one, "training": one}


@pytest.mark.parametrize(
    ("changes", "short"),
    [
        ({}, []),
        ({"seconds": 760.0}, ["the study took 12.7 minutes; bar 12"]),
        ({"overhead": 0.03}, ["bookkeeping took 3.00 % of a trial; bar 2 %"]),
        ({"ratio": 1.2}, ["a label annealing trial took 1.200 of a direct one; bar 1.1"]),
        ({"seconds": 760.0, "ratio": 1.2}, ["12.7 minutes", "1.200 of a direct one"]),
    ],
)
def test_what_falls_short_is_named(sweep, monkeypatch, tmp_path, capsys, changes, short):
    study, ratio = figures(**changes)
    monkeypatch.setattr(sweep, "whole_study", lambda place, **how: study)
    monkeypatch.setattr(sweep, "annealing_ratio", lambda place, **how: ratio)
    assert sweep.main(["--check", "--save", str(tmp_path / "figures.json")]) == bool(short)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("falls short")]
    assert len(lines) == len(short)
    assert all(said in line for said, line in zip(short, lines, strict=True))
    assert json.loads((tmp_path / "figures.json").read_text())["study"]["trials"] == 12


@pytest.mark.slow
def test_a_quick_run(sweep, tmp_path, capsys):
    assert sweep.main(["--quick", "--save", str(tmp_path / "figures.json")]) == 0
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["study"]["trials"] == found["study"]["runs"] == 4
    assert 0 < found["study"]["overhead"]["mean"] < 1
    assert found["annealing"]["trial"]["ratio"] > 0
    assert "4 trials, 4 runs, 2 workers" in capsys.readouterr().out
