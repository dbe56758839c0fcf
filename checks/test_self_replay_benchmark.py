"""The benchmark of self-replay: what it measures, prints and calls short. No speed is judged here."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def bench(script):
    return script("self_replay")


@pytest.mark.parametrize(("drawn", "short"), [(0.96, []), (0.8, ["drawn: 0.800 of the bare rate; bar 0.9"])])
def test_what_falls_short_is_named(bench, monkeypatch, tmp_path, capsys, drawn, short):
    one = {"tokens_per_second": 500.0, "low": 0.7, "high": 1.1}
    rows = [
        {**one, "arm": "bare", "ratio": 1.0, "bar": None},
        {**one, "arm": "drawn", "ratio": drawn, "bar": bench.RATE},
        {**one, "arm": "found", "ratio": 30.0, "bar": bench.RATE / bench.FOUND},
    ]
    monkeypatch.setattr(bench, "measured", lambda *a, **k: rows)
    assert bench.main(["--check", "--save", str(tmp_path / "figures.json")]) == bool(short)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("falls short")]
    assert lines == [f"falls short: {said}" for said in short]
    assert json.loads((tmp_path / "figures.json").read_text())["rates"] == rows


def test_all_arms_write_the_same_number_of_tokens(bench):
    """Smallest case: every arm runs, and `found` draws nothing."""
    size = {"width": 64, "layers": 1, "vocabulary": 64}
    found = bench.measured(size, "cpu", batches=2, length=4, at_once=2, rounds=1)
    assert [row["arm"] for row in found] == ["bare", "drawn", "found"]
    assert all(row["tokens_per_second"] > 0 for row in found) and found[0]["ratio"] == 1.0
