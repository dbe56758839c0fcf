"""`holdfast data select`: help, the folder that it writes, all mistakes at once, and kill -9 in the middle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_files import jsonl, rows_of
from holdfast.cli.main import main


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> Path:
    """A working directory with a model and a corpus."""
    from holdfast.papers.worlds.embedded import embedded_corpus

    monkeypatch.chdir(tmp_path)
    Path("model").symlink_to(model_folder)
    jsonl("corpus.jsonl", [{"text": text, "url": f"u{n}"} for n, text in enumerate(embedded_corpus().prose_train[:12])])
    return tmp_path


def words(output: str = "out", **more: str) -> list[str]:
    given = {"model": "model", "input": "corpus.jsonl", "tokens": "3000", "probing": "20", "max_length": "128"}
    given |= {"minimum_tokens": "16", "disjoint": "passages", "output": output, **more}
    return ["data", "select", *(word for name, value in given.items() for word in (f"--{name}", value))]


def test_the_folder_and_what_is_shown(capsys, model_folder):
    from holdfast.evaluation.text.perplexity import score_documents
    from holdfast.models import load

    assert main(words()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    restoring, probing = rows_of("out/restoring.jsonl"), rows_of("out/probing.jsonl")
    assert len(probing) == 20 and not {r["text"] for r in restoring} & {r["text"] for r in probing}
    assert f"{len(restoring)} passages in out/restoring.jsonl" in shown and "documents read" in shown
    loaded = load(str(model_folder))
    again = score_documents(loaded.model, loaded.tokenizer, [row["text"] for row in restoring])
    ours = [row["nats_per_token"] for row in restoring]
    assert ours == pytest.approx([row["nats"] / row["tokens"] for row in again], abs=1e-4)
    record = json.loads(Path("out/selection.json").read_text())
    assert record["model"]["hash"] == loaded.identity["hash"] and record["status"] == "complete"
    assert main(words()) == 0 and "Nothing to do: out has the result" in capsys.readouterr().out
    assert main(words(tokens="2000")) == 2
    assert "Choose another --output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["--tokens", "0"], ["model: is missing", "input: is missing", "output: is missing", "--tokens: expected a"]),
        (
            ["--model=model", "--input", "corpus.jsnl", "--output=out", "--tokens=9", "--minimum_tokens", "900"],
            ["Did you mean 'corpus.jsonl'?", "--minimum_tokens: expected at most max_length (512), got 900"],
        ),
        (
            ["--model", "model", "--input", "corpus.jsonl", "--output", "out", "--tokens", "10"],
            ["Expected a window of at most 128 tokens, the model's context, got 512"],
        ),
        (["--model", "nothing", "--input", "corpus.jsonl", "--output", "out", "--tokens", "10"], ["nothing"]),
    ],
    ids=["nothing", "files", "length", "model"],
)  # fmt: skip
def test_mistakes(given, parts, capsys):
    assert main(["data", "select", *given]) == 2
    shown = capsys.readouterr().err
    for part in parts:
        assert part in shown, shown
    assert not Path("out").exists()
