"""Into a pipe or a file goes what holdfast has to say, a line a fact: no bars and no remarks of other libraries."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.support.environment import quiet_libraries
from tiny import SENTENCES

NOISE = re.compile(r"it/s|\d+%\||Writing model shards|Generating \w+ split|Loading weights|kernels-community|\r")


@pytest.fixture
def desk(checkpoints: Path, tmp_path: Path, monkeypatch) -> Path:
    """A working directory with rows to train on and a cache of its own, so that everything is made anew."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    rows = [json.dumps({"text": s}) for s in SENTENCES] * 4
    (tmp_path / "train.jsonl").write_text("\n".join(rows) + "\n")
    return checkpoints


def training(model: Path, *more: str) -> list[str]:
    small = "--max_steps 2 --use_cpu true --report_to none --per_device_train_batch_size 2 --max_length 32"
    data = ["--model_name_or_path", str(model), "--dataset_name", "train.jsonl", "--output_dir", "run"]
    return ["train", *data, *small.split(), *more]


def test_training_says_what_it_does_and_nothing_else(desk: Path, capfd) -> None:
    words = training(desk / "base", "--retention", "label_annealing:weight=0.3", "--keep", "train.jsonl")
    assert main(words) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert not NOISE.search(out), out
    figures = [line for line in out.splitlines() if re.match(r"train +nats_per_token", line)]
    assert len(figures) == 1, out  # a figure with its interval, its test and its verdict in one line
    assert re.search(r"n \d+ .*\[[−+\d.]+, [−+\d.]+\] +[<\d.]+( [<\d.]+)?$", figures[0])
    assert "bits/byte" not in out
    assert "perplexity" not in out
    assert "teacher_sharded" not in out.replace(" ", "_")
    assert all(line == line.rstrip() for line in out.splitlines())


def test_warnings_about_the_request_stay(recwarn) -> None:
    with quiet_libraries():
        warnings.warn("mind this", UserWarning, stacklevel=1)
        warnings.warn("old argument inside a library", FutureWarning, stacklevel=1)
    assert [str(w.message) for w in recwarn] == ["mind this"]
