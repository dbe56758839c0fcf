"""`holdfast data`: help that teaches, what is shown, all mistakes at once, stopping by any signal and going on, and the
key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from evaluation import fake_endpoint as fake
from evaluation.fake_endpoint import FakeEndpoint, completion
from holdfast.cli.main import main
from holdfast.support.files import read_json, write_jsonl

SECRET = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a corpus and with questions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    rows = [{"question": f"What is {i}+{i}?", "answer": f"{2 * i}"} for i in range(30)]
    documents = [{"text": f"{row['question']} {row['answer']}"} for row in rows]
    Path("news.json").write_text(json.dumps([*documents, documents[0]]))
    write_jsonl("qa.jsonl", rows)
    return tmp_path


def article(handler, asked) -> bool:
    """Answers every request with an article that differs with the prompt."""
    text = f"{hashlib.sha256(asked.message.encode()).hexdigest()} {'A section. ' * 40}"
    return fake.body(json.dumps(completion(text)).encode())(handler, asked)


def synthesis(server: FakeEndpoint | None, *more: str) -> list[str]:
    url = server.url if server is not None else "http://127.0.0.1:9/v1"
    return [
        "data",
        "synthesise",
        "--input",
        "qa.jsonl",
        "--output",
        "articles.jsonl",
        "--model",
        "writer",
        "--base_url",
        url,
        *more,
    ]


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
    assert "Nothing to do: out/train.jsonl is there" in capsys.readouterr().out


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


# ----------------------------------------------------------------------------------------------------------- synthesise

openai = pytest.importorskip("openai", reason="asking needs the package openai")


def test_a_dry_run_says_what_it_would_cost_and_sends_nothing(capsys):
    with FakeEndpoint(always=article) as server:
        assert main(synthesis(server, "--variations", "2", "--budget_usd", "1", "--dry_run")) == 0
        assert server.asked == []
    shown = capsys.readouterr().out
    for word in (
        "rows: 30, 3 in a prompt, 2 variations",
        "prompts: 20, of which 0 have a reply already; 20 to http://127.0.0.1",
        "at most 60,000 received",
        "cost: at most 0.04 USD at 0.15 and 0.6 USD",
        "budget: 1.00 USD, 1.00 left",
    ):
        assert word in shown, shown
    assert sorted(p.name for p in Path().iterdir()) == ["news.json", "qa.jsonl"]


def test_mistakes_of_synthesise(capsys):
    words = "--input qa.jsnl --output a.txt --model m --base_url localhost --prompt textbok --per_article 0 --workers 0"
    words += " --budget_usd 0 --temperature 9 --most_failures 2 --budgte 3"
    assert main(["data", "synthesise", *words.split()]) == 2
    shown = capsys.readouterr().err
    for part in (
        "Did you mean 'qa.jsonl'?",
        "--output: expected a file that ends with .jsonl",
        "--base_url: expected an address",
        "Did you mean 'textbook'?",
        "--per_article: expected a whole number of at least 1",
        "--workers: expected a whole number of at least 1",
        "--budget_usd: expected a number above 0",
        "--temperature: expected a number of at least 0 and at most 2",
        "--most_failures: expected a number",
        "unknown option '--budgte'. Did you mean '--budget_usd'?",
    ):
        assert part in shown, shown


def test_too_many_failures_fail_the_command(capsys):
    failing = lambda handler, asked: (
        fake.status(400, "too long")(handler, asked) if "What is 0+0?" in asked.message else article(handler, asked)
    )
    with FakeEndpoint(always=failing) as server:
        assert main(synthesis(server)) == 1
        assert "1 of 10 requests failed for good" in capsys.readouterr().err
        assert main(synthesis(server, "--most_failures", "0.1")) == 0
    assert len(server.asked) == 11


def test_the_key_goes_to_its_endpoint_alone_and_is_nowhere_else(place, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("MY_KEY", SECRET)
    with FakeEndpoint(always=article) as server:
        assert main(synthesis(server, "--limit", "1")) == 0
        assert SECRET not in str(server.asked[0].headers), "OpenAI's key does not go to another host"
        assert main(synthesis(server, "--limit", "2", "--api_key_variable", "MY_KEY")) == 0
        assert server.asked[1].headers["authorization"] == f"Bearer {SECRET}"
        assert main(synthesis(server, "--api_key_variable", SECRET)) == 2
    captured = capsys.readouterr()
    written = "".join(p.read_text() for p in place.rglob("*") if p.is_file())
    assert SECRET not in captured.out + captured.err + written and "the one given is not set" in captured.err
