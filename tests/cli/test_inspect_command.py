"""`holdfast inspect`: what it shows of one checkpoint and of two, its JSON, its page, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoints.distance import distance
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.summary import inspect_checkpoint
from holdfast.cli.main import main
from holdfast.support.files import to_jsonable


def test_a_model(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "base"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "base: model, LlamaForCausalLM\n",
        "  parameters  41,120 in 21 tensors; 2 layers\n",
        "  dtypes      F32: 41,120 parameters\n",
        "  files       1, 164 kB: model.safetensors\n",
        "  ok      vocabulary fits: 320 rows, ",
        "  ok      files, headers and index are valid: 21 tensors in 1 file",
        "  -       values are finite: not checked; --verify reads all bytes\n",
    ):
        assert part in shown, part
    assert "FAILED" not in shown


def test_damage_is_exit_code_1_and_named(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", "math", "code", "--output_dir", "out"]) == 0
    capsys.readouterr()
    entry = CheckpointReader("out").entries["model.layers.1.mlp.up_proj.weight"]
    np.memmap(entry.file, np.float32, "r+", entry.offset, (entry.size,))[7] = np.nan
    assert main(["inspect", "out"]) == 0, "the headers are sound"
    capsys.readouterr()
    assert main(["inspect", "out", "--verify"]) == 1
    shown = capsys.readouterr().out
    assert (
        "  FAILED  values are finite: NaN or infinities in 1 tensors: model.layers.1.mlp.up_proj.weight (1 of 2,048)\n"
        in shown
    )
    assert (
        "  FAILED  content matches the record: 1 tensors were changed after they were written: "
        "model.layers.1.mlp.up_proj.weight\n" in shown
    )


def test_json_is_the_inspection(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "adapter", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = to_jsonable(inspect_checkpoint("adapter"))
    assert found == {**expected, "sound": True}
    assert found["kind"] == "adapter"
    assert found["architecture"] == "LORA r=4 alpha=8 of base"
    file = Path("adapter/adapter_model.safetensors")
    file.write_bytes(file.read_bytes()[:-4])
    assert main(["inspect", "adapter", "--json", "--verify"]) == 1
    assert json.loads(capsys.readouterr().out)["sound"] is False


def test_two_tensor_by_tensor_as_json_and_as_a_page(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "base", "math", "--per", "tensor"]) == 0
    shown = capsys.readouterr().out
    names = [tensor.name for tensor in distance("base", "math").tensors]
    assert [line.split()[0] for line in shown.splitlines() if line.startswith(("model.", "lm_head."))] == names
    assert main(["inspect", "base", "math", "--json", "--plot", "a.html"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [tensor["name"] for tensor in found["tensors"]] == names and found["layers"][-1]["layer"] == "total"
    assert "plot: a.html" in captured.err and "heatmap" in Path("a.html").read_text()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["base", "math", "code", "--verfy"],
            ["expected one or two checkpoints, got 3", "unknown option '--verfy'. Did you mean '--verify'?"],
        ),
        (["./bas"], ["checkpoints: Expected a checkpoint folder at ./bas, found none. Did you mean 'base'?"]),
        (["base", "math", "--verify"], ["--verify: applies to one checkpoint"]),
        (["base", "--plot", "a.html"], ["--plot: applies to two checkpoints"]),
        (["."], ["found 6 in its subfolders. Choose one:\n  adapter\n  base\n"]),
    ],
    ids=lambda v: " ".join(v)[:50] if isinstance(v, list) else "",
)
def test_mistakes(desk: Path, words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert main(["inspect", *words]) == 2
    shown = capsys.readouterr().err
    for part in parts:
        assert part in shown, shown
