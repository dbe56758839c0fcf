"""`holdfast data crawl`: help that teaches, what is shown, all mistakes at once, and going on after a stop."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.data import crawl as crawl_module
from local_newspaper import Newspaper, collection, needs_fundus, publisher

WORDS = ["data", "crawl", "--publishers", "xx", "--output", "news/articles.jsonl", "--delay", "0"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    return tmp_path


def local(monkeypatch: pytest.MonkeyPatch, paper: Newspaper) -> None:
    """Fundus knows one newspaper, that on this machine."""
    import fundus

    monkeypatch.setattr(fundus, "PublisherCollection", collection(xx={"Paper": publisher(paper.url, "The Paper")}))


def test_help_teaches(capsys):
    assert main(["data", "--help"]) == 0
    assert "crawl" in capsys.readouterr().out
    assert main(["data", "crawl", "--help"]) == 0
    shown = capsys.readouterr().out
    for word in (
        "--publishers",
        "--list_publishers",
        "--after",
        "--before",
        "--limit",
        "--languages",
        "--timeout",
        "robots.txt",
        "examples",
        "holdfast[crawl]",
    ):
        assert word in shown, word


@needs_fundus
def test_what_is_shown_and_that_the_corpus_reader_takes_it(monkeypatch, capsys):
    with Newspaper(5) as paper:
        local(monkeypatch, paper)
        assert main([*WORDS, "--after", "2024-03-02", "--limit", "3"]) == 0
        shown = capsys.readouterr().out
        assert "3 The Paper (not kept: 1 outside the dates)" in " ".join(shown.split())
        assert "3 articles were fetched, 3 are in news/articles.jsonl; the limit of 3 is reached." in shown
        assert main([*WORDS, "--after", "2024-03-02"]) == 0
        assert (
            "1 articles were fetched, 4 are in news/articles.jsonl; all sources are exhausted."
            in capsys.readouterr().out
        )
    assert (
        main(
            [
                "data",
                "prepare",
                "corpus",
                "--input",
                "news",
                "--output",
                "new.jsonl",
                "--after",
                "2024-03-04",
                "--near_duplicates",
                "1",
            ]
        )
        == 0
    )
    shown = " ".join(capsys.readouterr().out.split())
    for line in (
        "2 rows in new.jsonl",
        "2 skipped: dated before 2024-03-04",
        "1 files read (1 rows)",
        "1 other files in the folders (1 records of holdfast)",
        "2 rows dated 2024-03-04 to 2024-03-05 2 2024-03",
    ):
        assert line in shown, shown
    assert {json.loads(line)["date"] for line in Path("new.jsonl").read_text().splitlines()} == {
        "2024-03-04",
        "2024-03-05",
    }


@needs_fundus
def test_the_publishers_are_listed(capsys):
    assert main(["data", "crawl", "--list_publishers"]) == 0
    shown = capsys.readouterr().out
    assert "us.TheNewYorker" in shown and "https://www.newyorker.com" in shown and len(shown.splitlines()) > 100


@needs_fundus
def test_options_from_a_yaml(monkeypatch, capsys):
    Path("c.yaml").write_text("publishers: [xx.Paper]\noutput: a.jsonl\nafter: 2024-03-03\ndelay: 0\nlimit: 5\n")
    with Newspaper(4) as paper:
        local(monkeypatch, paper)
        assert main(["data", "crawl", "--config", "c.yaml", "--limit", "1"]) == 0
    assert len(Path("a.jsonl").read_text().splitlines()) == 1


@needs_fundus
def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys):
    with Newspaper(6) as paper:
        local(monkeypatch, paper)
        paper.before = lambda path: os.kill(os.getpid(), signal.SIGINT) if len(paper.articles) == 3 else None
        assert main(WORDS) == 130
        assert (
            "What was fetched is kept in news/articles.jsonl; the same command goes on from there"
            in capsys.readouterr().err
        )
        paper.before = lambda path: None
        assert main(WORDS) == 0
    assert len(Path("news/articles.jsonl").read_text().splitlines()) == 6


@needs_fundus
def test_a_kill_leaves_whole_lines(monkeypatch, place):
    """SIGKILL in the middle; the next session fetches what is missing only."""
    code = """
import sys, fundus
from local_newspaper import collection, publisher
from holdfast.cli.main import main
fundus.PublisherCollection = collection(xx={"Paper": publisher(sys.argv.pop(1), "The Paper")})
sys.exit(main(sys.argv[1:]))
"""
    folders = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with Newspaper(30) as paper:
        paper.before = lambda path: time.sleep(0.03)
        words = [sys.executable, "-c", code, paper.url, *WORDS]
        process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": folders}, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while len(paper.articles) < 8 and time.monotonic() < until:
            time.sleep(0.01)
        process.kill()
        process.wait()
        before = Path("news/articles.jsonl").read_text().splitlines()
        assert 5 <= len(before) < 20
        paper.before = lambda path: None
        local(monkeypatch, paper)
        assert main(WORDS) == 0
    after = Path("news/articles.jsonl").read_text().splitlines()
    assert (
        len(after) == 30 == len({json.loads(line)["url"] for line in after}) and after[: len(before) - 1] == before[:-1]
    )
    assert len(paper.articles) <= 31


@needs_fundus
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["publishers: is missing", "output: is missing"]),
        (
            [
                "--publishers",
                "us.TheNewYorke",
                "--output",
                "a.json",
                "--after",
                "2024-02-01",
                "--before",
                "2024-01-01",
                "--limit",
                "0",
                "--timeout",
                "x",
                "--languages",
                "English",
                "--publisher",
                "x",
            ],
            [
                "Did you mean 'us.TheNewYorker'?",
                "--output: expected a file that ends with .jsonl",
                "--after: expected an earlier day than before",
                "--limit: expected a whole",
                "--timeout: expected a number",
                "--languages: expected codes",
                "unknown option '--publisher'. Did you mean '--publishers'?",
            ],
        ),
    ],
    ids=["nothing", "everything"],
)
def test_mistakes(words, parts, capsys):
    assert main(["data", "crawl", *words]) == 2
    shown = capsys.readouterr().err
    for part in parts:
        assert part in shown, shown
    assert list(Path().iterdir()) == []


def test_without_fundus_it_says_what_to_install(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        crawl_module.importlib.util, "find_spec", lambda name, *rest: None if name == "fundus" else real(name, *rest)
    )
    assert main(WORDS) == 2
    assert "pip install 'holdfast[crawl]'" in capsys.readouterr().err
    assert main(["data", "crawl", "--list_publishers"]) == 2
    assert "pip install 'holdfast[crawl]'" in capsys.readouterr().err
    assert list(Path().iterdir()) == []
