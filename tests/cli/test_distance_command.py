"""`holdfast distance`: the table and its order, JSON, the page, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.checkpoints.distance import distance
from holdfast.cli.main import main
from holdfast.records.run import LayerDistance
from holdfast.reports.distance_report import ordered
from holdfast.support.files import read_json


def rows(shown: str, first: str) -> list[list[str]]:
    """Cells of the table's rows, its head left out."""
    lines = shown.split(f"\n{first} ", 1)[1].splitlines()[1:]
    return [cells for line in lines if line.strip() and (cells := line.split())][
        : [line.split()[:1] for line in lines].index(["total"]) + 1
    ]


def test_layers_by_default(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distance", "base", "math"]) == 0
    shown = capsys.readouterr().out
    found = distance("base", "math")
    assert shown.startswith("base -> math: 21 tensors, 41,120 parameters\n")
    table = rows(shown, "layer")
    assert [r[0] for r in table] == ["embed", "0", "1", "norm", "head", "total"]
    for cells, layer in zip(table, found.layers, strict=True):
        assert cells[1:] == [
            f"{layer.parameters:,}",
            f"{layer.l2:.4g}",
            f"{layer.relative:.4g}",
            f"{layer.cosine:.8f}",
            f"{layer.sign_agreement:.4%}",
        ]


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
        ("none", ["10", "2", "embed"]),
        ("l2", ["2", "embed", "10"]),
        ("relative", ["embed", "2", "10"]),
        ("cosine", ["embed", "10", "2"]),
        ("name", ["2", "10", "embed"]),
    ):
        assert [row.layer for row in ordered(found, sort)] == expected, sort


def test_what_was_not_compared_is_said(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distance", "base", "adapter"]) == 0
    assert "total" in capsys.readouterr().out
    assert main(["distance", "math", "wide"]) == 2
    shown = capsys.readouterr().err
    assert "no tensor in common" in shown and "of different shapes" in shown


def test_json_on_stdout_is_clean_and_complete_and_the_page_is_written(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["distance", "base", "math", "--json", "-", "--plot", "a.html"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert len(found["tensors"]) == 21 and found["layers"][-1]["layer"] == "total"
    assert "plot: a.html" in captured.err and found["tensors"][0]["name"] in Path("a.html").read_text()
    assert main(["distance", "base", "math", "--json", "deep/a.json"]) == 0
    shown = capsys.readouterr().out
    assert "total" in shown and "deep/a.json" in shown
    assert read_json("deep/a.json")["tensors"] == found["tensors"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "checkpoints: is missing: expected two checkpoints, as in 'holdfast distance A B'"),
        (["base"], "checkpoints: expected two checkpoints, as in 'holdfast distance A B', got ['base'] (list)"),
        (["base", "./mth"], "Expected a checkpoint folder at ./mth, found none. Did you mean 'math'?"),
        (["base", "math", "--plot", "a.png"], "ends with .html, got a.png"),
    ],
)
def test_mistakes(desk: Path, words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["distance", *words]) == 2
    assert part in capsys.readouterr().err
