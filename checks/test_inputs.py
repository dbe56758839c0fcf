"""The law of inputs: whatever a finished command was computed from changes, the same command says so, or computes anew;
no old figure is shown for a new input. Real commands made what is changed here (`gallery`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file, save

import gallery as examples
from holdfast.cli.main import main

STEPS = dict(examples.STEPS)
MODEL = ("model.safetensors", "config.json", "tokenizer.json")
MEASURED = ("prose.jsonl", "colours.yaml", "colours.jsonl", "letters.yaml", "choices.jsonl", "reviews.jsonl")
HELD: dict[str, list[str]] = {
    "train-direct": [f"base/{name}" for name in MODEL] + ["train.jsonl"],
    "sweep": [f"base/{name}" for name in MODEL] + ["train.jsonl", "prose.jsonl", "code.jsonl"],
    "update": [f"{model}/{name}" for model in ("base", "instruct") for name in MODEL] + ["news.jsonl", "old.jsonl"],
    "residual-study": [f"{model}/{name}" for model in ("base-b", "instruct", "math") for name in MODEL]
    + ["news.jsonl", "old.jsonl"],
}
"""Command: files that it is refused over once they have changed."""
MEASURED_ANEW = [f"math/{name}" for name in MODEL] + [*MEASURED, "instructions.jsonl"]
"""Files of which `holdfast evaluate` measures again what depends on them."""


def other(file: Path) -> bytes:
    """What a file could hold instead, so that it can still be read."""
    content = file.read_bytes()
    if file.suffix == ".safetensors":
        return save({name: tensor * 1.5 for name, tensor in load_file(file).items()}, metadata={"format": "pt"})
    if file.name == "config.json":
        return json.dumps({**json.loads(content), "rms_norm_eps": 0.5}).encode()
    if file.name == "tokenizer.json":
        rules = json.loads(content)
        rules["normalizer"] = {"type": "Lowercase"}
        return json.dumps(rules).encode()
    if file.suffix == ".yaml":
        return content.replace(b"Question", b"Asked").replace(b"Answer", b"Reply")
    return b"".join(content.splitlines(keepends=True)[:-1])


@contextmanager
def changed(file: Path) -> Iterator[None]:
    """The file with another content; afterwards it is as it was, its time included."""
    before, stat = file.read_bytes(), file.stat()
    after = other(file)
    assert after != before
    file.write_bytes(after)
    try:
        yield
    finally:
        file.write_bytes(before)
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(("step", "name"), [(step, name) for step, names in HELD.items() for name in names])
def test_finished_work_is_refused_over_other_inputs(
    step: str, name: str, gallery: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with changed(gallery / name):
        assert main(STEPS[step]) == 2
    said = capsys.readouterr().err
    assert "changed since" in said and name.split("/")[0] in said
    assert main(STEPS[step]) == 0  # and takes the old ones again, with nothing spoilt


@pytest.mark.parametrize("name", MEASURED_ANEW)
def test_what_depends_on_other_inputs_is_measured_anew(
    name: str, gallery: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into a folder of its own, so that the gallery stays as it is."""
    words = ["evaluate", "math", "--suite", "suite.yaml", "--output_dir", str(tmp_path / "measured")]
    assert main(words) == 0
    capsys.readouterr()
    assert main(words) == 0
    assert "nothing to do" in capsys.readouterr().out
    with changed(gallery / name):
        assert main(words) == 0
    assert "nothing to do" not in capsys.readouterr().out
