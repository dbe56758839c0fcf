"""`holdfast data synthesise` stopped by any signal while requests are on their way: the same command goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli import test_data_command
from cli.test_data_command import article, synthesis
from evaluation.fake_endpoint import FakeEndpoint
from holdfast.cli.main import main
from holdfast.support.files import read_json
from holdfast.support.ledger import stream_ledger

pytest.importorskip("openai", reason="asking needs the package openai")

place = test_data_command.place


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_any_stop_goes_on_where_it_was(number, place):
    """Killed while requests are on their way; what was answered is not asked again, and the account has what is unknown
    at its most."""

    def slow(handler, asked):
        handler.server.stopped.wait(0.15)
        return article(handler, asked)

    with FakeEndpoint(always=slow) as server:
        words = synthesis(server, "--per_article", "1", "--workers", "3", "--budget_usd", "10")
        process = subprocess.Popen([sys.executable, "-m", "holdfast", *words], stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 30
        while len(server.asked) < 8 and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(number)
        explained = process.communicate(timeout=20)[1]
        assert process.returncode == (130 if number != signal.SIGKILL else -signal.SIGKILL)
        assert number == signal.SIGKILL or "What was answered is kept in articles.jsonl.ledger.jsonl" in explained
        assert not Path("articles.jsonl").exists()
        rows = list(stream_ledger("articles.jsonl.ledger.jsonl"))
        answered = {row["key"] for row in rows if row["outcome"] == "answered"}
        unknown = [row["most"] for row in rows if row["outcome"] == "sent" and row["key"] not in answered]
        assert 3 <= len(answered) < 30 and 1 <= len(unknown) <= 3
        server.always = article
        assert main(words) == 0
    keys = [row["key"] for row in stream_ledger("articles.jsonl.ledger.jsonl") if row["outcome"] == "answered"]
    assert len(keys) == len(set(keys)) == 30 == len(Path("articles.jsonl").read_text().splitlines())
    charged = 30 * (100 * 0.15 + 2 * 0.60) / 1e6
    assert read_json("articles.jsonl.json")["cost_usd"] == pytest.approx(charged + sum(unknown))
