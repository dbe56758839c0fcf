"""`holdfast residual extract` and `apply`: in two steps, in one pass, and what they refuse."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.residual import apply_residual, extract_residual, transfer_residual
from holdfast.cli.main import main

EXTRACT = ["residual", "extract", "--instruct", "math", "--base", "base", "--output_dir", "residual"]
APPLY = ["residual", "apply", "--residual", "residual", "--base", "code", "--output_dir", "out"]
TRANSFER = ["residual", "apply", "--instruct", "math", "--old-base", "base", "--base", "code", "--output_dir", "out"]


def weights(folder: str | Path) -> dict[str, np.ndarray]:
    with CheckpointReader(folder) as reader:
        return {name: np.array(reader.mapped(name)) for name in reader.entries}


def same(one: str | Path, other: str | Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


def errors(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert not Path("out").exists()
    return captured.err


def test_two_steps_one_pass_and_the_functions_agree(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EXTRACT, "--no_sync"]) == 0
    assert main([*APPLY, "--scale", "5e-1"]) == 0
    extract_residual("math", "base", "r")
    apply_residual("r", "code", "expected", scale=0.5)
    assert same("residual", "r") and same("out", "expected")
    assert main([*TRANSFER, "--scale=0.5", "--overwrite", "--dtype", "bf16", "--tokenizer", "base"]) == 0
    transfer_residual("math", "base", "code", "one-pass", scale=0.5, dtype="bfloat16", tokenizer="base")
    assert same("out", "one-pass")


def test_strangers_are_warned_about_with_the_evidence(desk: Path, tree, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(desk)
    assert (
        main(["residual", "extract", "--instruct", "math", "--base", "stranger", "--output_dir", "out", "--dry_run"])
        == 0
    )
    shown = capsys.readouterr().out
    assert "  WARNING: instruct does not look like a fine-tune of base" in " ".join(shown.split("note        "))
    table = shown.split("on a sample of every layer:")[1].split()
    assert table[:4] == ["layer", "relative", "norm", "cosine"]
    assert [word for word in table[4:] if word in ("embed", "0", "1", "norm", "head", "total")] == [
        "embed",
        "0",
        "1",
        "norm",
        "head",
        "total",
    ]
    assert tree(desk) == before
    assert main([*EXTRACT, "--dry_run"]) == 0
    assert "WARNING" not in capsys.readouterr().out


def test_yaml(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.yaml").write_text(
        yaml.safe_dump({"instruct": "math", "old-base": "base", "base": "code", "scale": "2", "output_dir": "out"})
    )
    assert main(["residual", "apply", "--config", "a.yaml", "--scale", "1"]) == 0
    transfer_residual("math", "base", "code", "expected")
    assert same("out", "expected")
    shutil.rmtree("out")
    capsys.readouterr()
    Path("b.yaml").write_text(yaml.safe_dump({"instrct": "math", "bsae": "code"}))
    shown = errors(["residual", "apply", "--config", "b.yaml"], capsys)
    assert "unknown key 'instrct'. Did you mean 'instruct'?" in shown
    assert "unknown key 'bsae'. Did you mean 'base'?" in shown


def test_all_mistakes_show_at_once(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--instrct math --scale big --dtype f33 --tokenizer mine --unmatched keeep"
    shown = errors(["residual", "apply", *words.split()], capsys)
    for part in (
        "unknown option '--instrct'. Did you mean '--instruct'?",
        "base: is missing",
        "output_dir: is missing",
        "--scale: expected a number, got 'big'",
        "--dtype: expected one of",
        "--tokenizer: expected one of residual, instruct, base, got 'mine'",
        "--unmatched: expected one of error, keep, drop, got 'keeep' (text). Did you mean 'keep'?",
    ):
        assert part in shown, part


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("extrct", "got 'extrct'. Did you mean 'extract'?"),
        ("extract", "instruct: is missing: expected text (the tuned model"),
        ("apply --residual base --base code", "Expected a residual (residual.safetensors) in base"),
        (
            "apply --residual r --instruct math --base code",
            "--residual: expected either --residual, or --instruct with --old_base, got both",
        ),
        ("apply --residual base --adapter_base base --base code", "--adapter_base: needs --instruct"),
        ("apply --instruct math --base code", "--old_base missing"),
        ("extract --instruct math --base wide", "do not fit together"),
    ],
)
def test_mistakes(desk: Path, words: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["--output_dir", "out"] if "base" in words else []
    assert part in errors(["residual", *words.split(), *output], capsys)
