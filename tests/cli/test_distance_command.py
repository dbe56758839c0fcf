"""`holdfast distance`: the table and its order, JSON, the page, and what it refuses."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from holdfast.checkpoints.distance import distance
from holdfast.cli.distance import ordered
from holdfast.cli.main import main
from holdfast.records.run import LayerDistance
from holdfast.support.files import read_json


def rows(shown: str, first: str) -> list[list[str]]:
    """Cells of the table's rows, its head left out."""
    lines = shown.split(f"\n{first} ", 1)[1].splitlines()[1:]
    return [cells for line in lines if line.strip() and (cells := line.split())][
        : [line.split()[:1] for line in lines].index(["total"]) + 1
    ]


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distance", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("--per", "--sort", "--top", "--json", "--plot", "cosine", "examples"))


def test_layers_by_default(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distance", "base", "math"]) == 0
    shown = capsys.readouterr().out
    found = distance("base", "math")
    assert shown.startswith("base -> math: 21 tensors, 41,120 parameters\n")
    table = rows(shown, "layer")
    assert [r[0] for r in table] == ["embed", "0", "1", "norm", "head", "total"]
    for cells, layer in zip(table, found.layers, strict=True):
        assert cells[1:] == [
            f"{layer.parameters:,}", f"{layer.l2:.4g}", f"{layer.relative:.4g}", f"{layer.cosine:.8f}", f"{layer.sign_agreement:.4%}"
        ]  # fmt: skip


def test_tensors_sorted_and_cut(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distance", "base", "math", "--per", "tensor", "--sort", "relative", "--top", "3"]) == 0
    shown = capsys.readouterr().out
    table = rows(shown, "tensor")
    expected = sorted(distance("base", "math").tensors, key=lambda t: -t.relative)[:3]
    assert [r[0] for r in table] == [*(t.name for t in expected), "total"]
    assert "3 of 21 tensors shown (--top)" in shown
    assert main(["distance", "base", "math", "--per", "total"]) == 0
    assert [r[0] for r in rows(capsys.readouterr().out, "total")] == ["total"]


def test_order() -> None:
    nan = float("nan")
    found = [
        LayerDistance(layer=name, parameters=1, l2=l2, relative=relative, cosine=cosine)
        for name, l2, relative, cosine in (("10", 1, nan, 0.9), ("2", 3, 0.1, nan), ("embed", 2, float("inf"), 0.5))
    ]
    for sort, expected in (
        ("none", ["10", "2", "embed"]), ("l2", ["2", "embed", "10"]), ("relative", ["embed", "2", "10"]), ("cosine", ["embed", "10", "2"]),
        ("name", ["2", "10", "embed"]),
    ):  # fmt: skip
        assert [row.layer for row in ordered(found, sort)] == expected, sort


def test_what_was_not_compared_is_said(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distance", "base", "adapter"]) == 0
    assert "total" in capsys.readouterr().out
    assert main(["distance", "math", "wide"]) == 2
    shown = capsys.readouterr().err
    assert "no tensor in common" in shown and "of different shapes" in shown


def test_json_on_stdout_is_clean_and_complete(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distance", "base", "math", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["tensors"]) == 21
    assert found["layers"][-1]["layer"] == "total"
    assert main(["distance", "base", "math", "--json", "deep/a.json"]) == 0
    shown = capsys.readouterr().out
    assert "total" in shown and "deep/a.json" in shown
    assert read_json("deep/a.json")["tensors"] == found["tensors"]


def test_the_page_gets_the_record(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def write_distance_report(record, path):
        seen.append((record, path))
        return path

    monkeypatch.setitem(
        sys.modules,
        "holdfast.reports.distance_report",
        types.SimpleNamespace(write_distance_report=write_distance_report),
    )
    assert main(["distance", "base", "math", "--plot", "a.html", "--json", "-"]) == 0
    captured = capsys.readouterr()
    ((record, path),) = seen
    assert record["tensors"] == json.loads(captured.out)["tensors"]
    assert path == Path("a.html")
    assert "plot: a.html" in captured.err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["checkpoints: is missing: expected two checkpoints, as in 'holdfast distance A B'"]),
        (["base"], ["checkpoints: expected two checkpoints, as in 'holdfast distance A B', got ['base'] (list)"]),
        (["base", "./mth"], ["Expected a checkpoint folder at ./mth, found none. Did you mean 'math'?"]),
        (["base", "math", "--per", "tensors", "--sort", "realtive", "--top", "0", "--plot", "a.png", "--tpo", "3"],
         ["Did you mean 'tensor'?", "Did you mean 'relative'?", "--top: expected a whole number of at least 1", "ends with .html, got a.png", "'--top'?"]),
    ],
    ids=lambda v: " ".join(v)[:50] if isinstance(v, list) else "",
)  # fmt: skip
def test_mistakes(desk: Path, words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distance", *words]) == 2
    shown = capsys.readouterr().err
    for part in parts:
        assert part in shown, shown
