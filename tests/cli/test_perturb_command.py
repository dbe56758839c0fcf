"""`holdfast perturb`: the four meanings of --std, reproducibility, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoints.perturb import own_stds, perturb
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.cli.main import main

LEAST = ["perturb", "base", "--scale", "0.1", "--seed", "3", "--output_dir", "out"]


def weights(folder: str | Path) -> dict[str, np.ndarray]:
    with CheckpointReader(folder) as reader:
        return {name: np.array(reader.mapped(name)) for name in reader.entries}


def same(one: str | Path, other: str | Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perturb", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        word in shown for word in ("--scale", "--seed", "--std", "init ", "tensor ", "FOLDER ", "NUMBER ", "examples")
    )


@pytest.mark.parametrize("std", ["tensor", "code", "0.02"])
def test_writes_what_the_function_writes(desk: Path, std: str) -> None:
    assert main([*LEAST, "--std", std]) == 0
    reader = CheckpointReader("base")
    stds = {
        "tensor": "tensor",
        "code": own_stds(CheckpointReader("code")),
        "0.02": dict.fromkeys(reader.entries, 0.02),
    }[std]
    perturb("base", "expected", scale=0.1, seed=3, stds=stds)
    assert same("out", "expected")
    assert not same("out", "base")
    if std == "0.02":
        moved = np.concatenate(
            [(a - b).ravel() for a, b in zip(weights("out").values(), weights("base").values(), strict=True)]
        )
        assert moved.std() == pytest.approx(0.002, rel=0.02)


def test_the_default_is_the_spread_at_initialisation(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.training.fresh_init import init_stds

    assert main(LEAST) == 0
    assert "--std init: 16 tensors get noise (std 0.0" in capsys.readouterr().err
    perturb("base", "expected", scale=0.1, seed=3, stds=init_stds("base", stored=True))
    assert same("out", "expected")
    before, after = weights("base"), weights("out")
    assert all(np.array_equal(before[n], after[n]) == ("norm" in n) for n in before), (
        "norms are initialised to constants and stay"
    )


def test_dry_run_writes_nothing(desk: Path, tree, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(desk)
    assert main([*LEAST, "--std", "tensor", "--dry-run"]) == 0
    assert "perturb(seed=3, scale=0.1, stds=" in capsys.readouterr().out
    assert main([*LEAST, "--std", "tensor", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"]["seed"] == 3
    assert tree(desk) == before


def test_yaml(desk: Path) -> None:
    Path("a.yaml").write_text("model: base\nscale: 1e-1\nseed: 3\nstd: 0.02\noutput-dir: out\n")
    assert main(["perturb", "--config", "a.yaml"]) == 0
    perturb("base", "expected", scale=0.1, seed=3, stds=dict.fromkeys(CheckpointReader("base").entries, 0.02))
    assert same("out", "expected")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            "base --scael 1 --seed 1.5 --std tensr --dtype f33 --workers many",
            [
                "unknown option '--scael'. Did you mean '--scale'?",
                "--seed: expected a whole number, got '1.5'",
                "--std: expected init, tensor, a number or the folder of a checkpoint, got "
                "'tensr'. Did you mean 'tensor'?",
                "--dtype: expected one of",
                "--workers: expected a whole number of at least 1, got 'many'",
            ],
        ),
        ("", ["model: is missing", "scale: is missing", "output_dir: is missing"]),
        ("base code --scale 1 --output_dir out", ["unexpected argument 'code'"]),
        ("base --scale -1 --std tensor --output_dir out", ["--scale: expected a number of at least 0, got '-1'"]),
        ("base --scale 1 --std=-1e-3 --output_dir out", ["stds: expected a finite number of at least 0 for "]),
        (
            "./bas --scale 1 --output_dir out",
            ["model: Expected a checkpoint folder at ./bas, found none. Did you mean 'base'?"],
        ),
    ],
)
def test_mistakes(desk: Path, words: str, parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perturb", *words.split()]) == 2
    shown = capsys.readouterr().err
    assert all(part in shown for part in parts), shown
    assert not Path("out").exists()
