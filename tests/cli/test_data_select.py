"""`holdfast data select`: help, the folder that it writes, all mistakes at once, and kill -9 in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_files import jsonl, rows_of
from holdfast.cli.main import main
from holdfast.support.ledger import stream_ledger


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


def test_help_teaches(capsys):
    assert main(["data", "select", "--help"]) == 0
    shown = capsys.readouterr().out
    for word in ("--tokens N", "--probing N", "--overlap", "restoring.jsonl", "examples"):
        assert word in shown, word
    assert main(["data", "--help"]) == 0 and "select " in capsys.readouterr().out


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
    assert main(words()) == 0 and "Nothing to do: out has it" in capsys.readouterr().out
    assert main(words(tokens="2000")) == 2
    assert "choose another --output" in capsys.readouterr().err


def test_questions_are_said(capsys):
    text = json.loads(Path("corpus.jsonl").read_text().splitlines()[0])["text"]
    jsonl("q.jsonl", [{"question": " ".join(text.split()[20:60])}, {"question": "Why?"}])
    assert main(words(questions="q.jsonl")) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "passages share 13 words in a row with one of 1 questions;" in shown
    assert "--overlap drop leaves them out. 1 questions are too short to be looked for." in shown


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
            ["Expected a window of at most 128 tokens, which the model was built for, got 512"],
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


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_any_stop_goes_on_where_it_was(number, place):
    """Killed while passages are scored; the same command scores the rest and ends with the same bytes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words(batch_tokens="128")], stderr=subprocess.PIPE, text=True
    )
    ledger, until = Path("out/scores.ledger.jsonl"), time.monotonic() + 120
    while time.monotonic() < until and not (ledger.is_file() and ledger.read_bytes().count(b"\n") > 5):
        time.sleep(0.005)
    process.send_signal(number)
    explained = process.communicate(timeout=60)[1]
    assert process.returncode == (130 if number != signal.SIGKILL else -signal.SIGKILL), explained
    assert number == signal.SIGKILL or "What was scored is kept in out/scores.ledger.jsonl" in explained
    assert not Path("out/restoring.jsonl").exists()
    before = len(list(stream_ledger(ledger)))
    assert main(words(batch_tokens="128")) == 0
    rows = [name for row in stream_ledger(ledger) for name in row["passages"]]
    assert len(rows) == len(set(rows)) and before < len(list(stream_ledger(ledger)))
    assert main(words("whole", batch_tokens="128")) == 0
    assert len(list(stream_ledger("whole/scores.ledger.jsonl"))) == len(list(stream_ledger(ledger)))
    for name in ("restoring.jsonl", "probing.jsonl", "README.md"):
        assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()
    assert sorted(p.name for p in Path("out").iterdir()) == sorted(p.name for p in Path("whole").iterdir())
