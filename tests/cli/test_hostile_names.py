"""Names of others in every command's output: options, folders, files, keys, columns, tensors and entries whose names
would act on a terminal or a build server."""

from __future__ import annotations

import json
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from evaluation.test_compare_folders import TEXT, answers, texts, write
from holdfast.cli.main import COMMANDS, main
from holdfast.records.evaluation import EvaluationRecord
from holdfast.records.run import RunFolder, RunRecord
from holdfast.support.files import write_json
from test_printable import HOSTILE, RAW, is_safe

WORDS = {
    "data": ["prepare"],
    "models": ["get"],
    "study": ["ladder"],
    "residual": ["apply"],
    "reproduce": [],
    "convert": [],
    "schema": [],
}
"""What stands before the hostile word, where a command has commands of its own."""


@pytest.mark.parametrize("command", list(COMMANDS))
@pytest.mark.parametrize("way", ["word", "option", "key", "file"])
def test_names_of_a_request(command: str, way: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if (command, way) == ("quickstart", "key"):
        pytest.skip("has no file")
    (desk / "request.yaml").write_text(json.dumps({HOSTILE: HOSTILE, "base": HOSTILE, "model_name_or_path": HOSTILE}))
    (desk / HOSTILE.replace("/", " ")).write_text("{")
    words = {
        "word": [HOSTILE],
        "option": [f"--{HOSTILE}={HOSTILE}"],
        "key": ["request.yaml"] if command == "convert" else ["--config", "request.yaml"],
        "file": [HOSTILE.replace("/", " ")] if command == "convert" else ["--config", HOSTILE.replace("/", " ")],
    }
    assert main([command, *WORDS.get(command, []), *words[way]]) != 0
    said = capsys.readouterr()
    assert said.err and is_safe(said.out) and is_safe(said.err), said.err


def test_columns_and_rows(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, row in enumerate([{HOSTILE: HOSTILE}, {"prompt": HOSTILE, "completion": {HOSTILE: 1}}]):
        (desk / f"{number}.jsonl").write_text(json.dumps(row) + "\n")
        data = ["--dataset_name", f"{number}.jsonl", "--model_name_or_path", "base", "--output_dir", "out"]
        assert main(["train", *data, "--dry_run", "--use_cpu", "--bf16", "false"]) == 2
        assert is_safe(capsys.readouterr().err)


def test_tensors_of_a_checkpoint(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = desk / "base" / "model.safetensors"
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    header[HOSTILE] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    for words in (["inspect", "base"], ["inspect", "base", "math"], ["merge", "linear", "base", "math", "-o", "out"]):
        main(words)
        said = capsys.readouterr()
        assert is_safe(said.out) and is_safe(said.err)
    main(["inspect", "base", "--json"])
    out = capsys.readouterr().out
    assert not RAW.search(out) and json.loads(out)["folder"] == "base"


def measure(folder: Path, shift: float) -> None:
    write(folder, HOSTILE, HOSTILE, answers([float(i % 7 > shift) for i in range(60)]), note=HOSTILE)
    write(folder, "keep", f"other {HOSTILE}", texts([30 + shift + i % 5 for i in range(40)]), metrics=TEXT)


def test_entries_of_an_evaluation(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Models and entries with names of that kind, in every form of `compare` and `report`."""
    labels = [f"{label} {HOSTILE.partition('::')[0]}" for label in ("base", "tuned")]
    for shift, label in enumerate(labels):
        measure(desk / "two" / label, 2.0 * shift)
    models = [{"label": label, "error": HOSTILE} for label in labels]
    write_json(desk / "two" / "evaluate.json", EvaluationRecord(models=models, status="finished"))
    run = RunFolder(desk / "run")
    run.write(RunRecord(name=HOSTILE, status="failed", error=HOSTILE, notes=[HOSTILE], stage=HOSTILE))
    measure(run.evaluated("start").path, 0.0)
    measure(run.evaluated("result").path, 2.0)
    forms = ["--html", "c.html", "--markdown", "c.md", "--junit", "c.xml"]
    for words in (
        ["compare", "two", "--fail_if", "any drop > 1%", *forms],
        ["compare", "two", "--json", "-"],
        ["compare", "two", "--markdown", "-"],
        ["compare", "run"],
        ["report", "two"],
        ["report", "run"],
    ):
        assert main(words) in (0, 3)
        said = capsys.readouterr()
        assert is_safe(said.out) and is_safe(said.err), words
    assert is_safe((desk / "c.md").read_text())
    suites = ET.fromstring((desk / "c.xml").read_bytes())
    assert len(list(suites.iter("testcase"))) == 2
    for page in (desk / "c.html", *desk.glob("*/*.html")):
        body = page.read_text().partition("</head>")[2]
        shown = body[: body.index("<script")]
        assert not RAW.search(shown) and "\\u202e" in shown, page
