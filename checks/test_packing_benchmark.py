"""The benchmark of packing: what it prints, saves and calls short. No speed is judged here."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def packing(script):
    return script("packing")


def rates(ratio):
    one = {"tokens_per_second": 500.0, "low": ratio - 0.1, "high": ratio + 0.1}
    return [
        {**one, "arm": "unmasked", "ratio": 1.0, "bar": None},
        {**one, "arm": "documents", "ratio": ratio, "bar": 0.97},
    ]


@pytest.mark.parametrize(
    ("ratio", "waste", "short"),
    [
        (1.1, 0.004, []),
        (0.9, 0.004, ["0.900 of the unmasked rate; bar 0.97"]),
        (1.1, 0.02, ["packing leaves 2.00% empty; bar 1%"]),
    ],
)
def test_what_falls_short_is_named(packing, monkeypatch, tmp_path, capsys, ratio, waste, short):
    monkeypatch.setattr(packing, "token_rates", lambda *a: rates(ratio))
    monkeypatch.setattr(packing, "wasted", lambda window: {"documents": 20_000, "ours": waste, "trl": 0.006})
    assert packing.main(["--check", "--save", str(tmp_path / "figures.json")]) == bool(short)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("falls short")]
    assert len(lines) == len(short) and all(said in line for said, line in zip(short, lines, strict=True))
    assert json.loads((tmp_path / "figures.json").read_text())["waste"]["ours"] == waste


def test_the_lengths_are_the_papers(packing):
    lengths = packing.lengths_of_news(50_000)
    assert lengths.min() == 156 and 640 < lengths.mean() < 660 and lengths.max() <= 6981


@pytest.mark.slow
def test_a_quick_run(packing, tmp_path, capsys):
    assert packing.main(["--quick", "--rounds", "1", "--save", str(tmp_path / "figures.json")]) == 0
    found = json.loads((tmp_path / "figures.json").read_text())
    assert [row["arm"] for row in found["rates"]] == ["unmasked", "documents", "mask"] and found["waste"]["ours"] < 0.01
