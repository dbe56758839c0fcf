"""`holdfast data select` killed while passages are scored: the same command ends with the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli import test_data_select
from cli.test_data_select import words
from holdfast.cli.main import main
from holdfast.support.ledger import stream_ledger

place = test_data_select.place


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
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
    assert number == signal.SIGKILL or "Scores so far are kept in out/scores.ledger.jsonl" in explained
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
