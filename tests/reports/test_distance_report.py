"""The page of a distance: figures of the record, a heat map of layers and modules, short names."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from synthetic_distances import LLAMA, checkpoint, llama, tensor
from test_report_pages import figures_of, words_of

from holdfast.checkpoints.distance import TensorDistance
from holdfast.reports.distance_report import write_distance_report


def write(path: Path, *tensors: TensorDistance, **changes: Any) -> str:
    return write_distance_report(checkpoint(tensors, **changes), path / "d.html").read_text(encoding="utf-8")


def heat(page: str) -> dict[str, Any]:
    """The heat map's trace."""
    (figure,) = figures_of(page)
    (trace,) = figure["data"]
    assert trace["type"] == "heatmap"
    return trace


def rows_of(page: str) -> list[str]:
    (figure,) = figures_of(page)
    return figure["layout"]["yaxis"]["ticktext"]


def test_cells_of_the_heat_map_are_the_tensors(tmp_path: Path) -> None:
    tensors = {t.name: t for t in llama()}
    page = write(tmp_path, *tensors.values())
    assert rows_of(page) == sorted(LLAMA)
    for module, row in zip(sorted(LLAMA), heat(page)["z"], strict=True):
        expected = [tensors[f"model.layers.{layer}.{module}.weight"].relative for layer in range(3)]
        assert row == pytest.approx(expected, rel=1e-5)
    assert heat(page)["text"][0][1] == "input_layernorm, layer 1<br>0.51 %"


def test_a_tensor_that_is_in_one_layer_only_leaves_gaps(tmp_path: Path) -> None:
    page = write(tmp_path, *llama(), tensor("model.layers.1.self_attn.q_proj.bias"))
    row = heat(page)["z"][rows_of(page).index("self_attn.q_proj.bias")]
    assert row[0] is None and row[2] is None and row[1] is not None


def test_experts_of_a_layer_share_a_cell(tmp_path: Path) -> None:
    moves = (0.1, 0.3)
    page = write(tmp_path, *(tensor(f"model.layers.0.mlp.experts.{n}.w1.weight", m) for n, m in enumerate(moves)))
    assert rows_of(page) == ["mlp.experts.w1"]
    assert heat(page)["z"] == [[pytest.approx(math.sqrt((0.01 + 0.09) / 2), rel=1e-5)]]


def test_figures_that_cannot_be_drawn_are_gaps_and_said(tmp_path: Path) -> None:
    odd = [tensor("h.0.c_fc.weight", relative=math.inf, cosine=math.nan), tensor("wte.weight", relative=math.inf)]
    page = write(tmp_path, tensor("h.1.c_fc.weight"), *odd)
    assert heat(page)["z"] == [[None, pytest.approx(0.01)]]
    assert "∞" in words_of(page)


def test_without_numbered_layers_or_without_a_move_there_is_no_heat_map(tmp_path: Path) -> None:
    assert "heatmap" not in words_of(write(tmp_path, tensor("wte.weight")))
    page = words_of(write(tmp_path, *(tensor(t.name, 0.0) for t in llama())))
    assert "heatmap" not in page and "base and tuned are the same" in page


@pytest.mark.parametrize(
    ("start", "result", "title"),
    [
        ("/data/mine/base", "/data/mine/tuned", "base → tuned"),
        ("/data/mine/a/final", "/data/mine/b/final", "a/final → b/final"),
        (
            "/cache/models--Qwen--Qwen3-0.6B/snapshots/abc/",
            "adapter on /cache/models--Qwen--Qwen3-0.6B/snapshots/abc",
            "Qwen/Qwen3-0.6B → adapter on Qwen/Qwen3-0.6B",
        ),
    ],
)
def test_checkpoints_are_called_by_the_ends_of_their_folders(
    tmp_path: Path, start: str, result: str, title: str
) -> None:
    page = write(tmp_path, *llama(), start=start, result=result)
    assert re.findall(r"<h1>(.*?)</h1>", page.replace("<wbr>", "")) == [title]
    assert "/data" not in page
