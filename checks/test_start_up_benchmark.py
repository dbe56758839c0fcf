"""The benchmark of start-up time: what it prints, saves and calls short. No time is judged here."""

from __future__ import annotations

import json
import sys

import pytest


@pytest.fixture
def start_up(script):
    return script("start_up")


@pytest.mark.parametrize(("refusal", "short"), [(1.0, []), (8.0, ["refusal: 0.80 of the seconds of import of SFTC"])])
def test_what_falls_short_is_named(start_up, monkeypatch, tmp_path, capsys, refusal, short):
    seconds = {name: [10.0, 10.0] for ours, peer, _ in start_up.ROWS.values() for name in (ours, peer)}
    monkeypatch.setattr(start_up, "measure", lambda rounds: seconds | {"holdfast sequence": [refusal, refusal]})
    assert start_up.main(["--check", "--save", str(tmp_path / "figures.json")]) == bool(short)
    found = json.loads((tmp_path / "figures.json").read_text())
    assert [row["ratio"] for row in found["rows"]] == [1.0, 1.0, refusal / 10]
    assert len(found["short"]) == len(short) and all(map(str.startswith, found["short"], short))


def test_the_seconds_are_those_up_to_the_line(start_up, tmp_path):
    work = "sum(range(10**7)); print('now'); import time; time.sleep(600)"
    children = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    assert 0.05 < start_up.seconds_to_line([sys.executable, "-c", children], "now", tmp_path) < 60
    with pytest.raises(RuntimeError, match="ended without 'then':\nnow"):
        start_up.seconds_to_line([sys.executable, "-c", "print('now')"], "then", tmp_path)
