"""`holdfast data`: what is shown, and all mistakes at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.support.files import read_json


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a corpus."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    rows = [{"question": f"What is {i}+{i}?", "answer": f"{2 * i}"} for i in range(30)]
    documents = [{"text": f"{row['question']} {row['answer']}"} for row in rows]
    Path("news.json").write_text(json.dumps([*documents, documents[0]]))
    return tmp_path


# -------------------------------------------------------------------------------------------------------------- prepare


def test_prepare_shows_every_count_and_says_when_there_is_nothing_to_do(capsys):
    words = [
        "data",
        "prepare",
        "--input",
        "news.json",
        "--output",
        "out/train.jsonl",
        "--heldout",
        "0.2",
        "--seed",
        "1",
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    record = read_json("out/train.jsonl.json")
    counts = record["counts"]
    assert [line.rstrip().split(maxsplit=1) for line in shown.splitlines()] == [
        ["31", "records read"],
        [str(counts["train"]), "rows in out/train.jsonl"],
        [str(counts["heldout"]), "rows in out/train.heldout.jsonl"],
        ["1", "skipped: a duplicate of an earlier row"],
        ["1", "files read (1 rows)"],
        [str(counts["characters"]), "characters"],
        ["30", "rows without a date"],
    ], shown
    assert "Nothing to do" not in shown and record["options"]["seed"] == 1
    assert main(words) == 0
    assert "Nothing to do: out/train.jsonl exists" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["--input", "news.jsn", "--output", "a.json", "--limit", "0", "--heldout", "x", "--most_malformed", "3"],
            [
                "Did you mean 'news.json'?",
                "--output: expected a file that ends with .jsonl",
                "--limit: expected a whole number",
                "--heldout: expected a number",
                "--most_malformed: expected a number of at least 0 and at most 1",
            ],
        ),
        (
            ["--input", "news.json", "--outptu", "a.jsonl", "--heldout", "2"],
            ["'--output'?", "--heldout: expected a number of at least 0 and below 1", "output: is missing"],
        ),
        (
            ["--input", "news.json", "--output", "a.jsonl", "--text_column", "story"],
            ["31 of 31 records are malformed", "no 'story'", "element 10"],
        ),
    ],
    ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else "",
)
def test_mistakes_of_prepare(words, parts, capsys):
    assert main(["data", "prepare", *words]) == 2
    shown = capsys.readouterr().err
    for part in parts:
        assert part in shown, shown
    assert not list(Path().glob("a.json*"))
