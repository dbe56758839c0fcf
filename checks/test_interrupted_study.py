"""A whole study by two worker processes, interrupted with Ctrl-C and continued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from holdfast.papers.claims.rules import HOLDS
from holdfast.studies.engine.session import execute_study, open_existing
from studies.test_engine_session import WAIT, quiet, toy


def test_two_workers_do_it_interrupted_and_continued(tmp_path):
    """Ctrl-C while both jobs run; the same call goes on, and what was made stays as it is."""
    out = tmp_path / "toy"
    start = f"import studies.test_engine_session as t, pathlib; t.execute_study(t.toy(pathlib.Path({str(out)!r})))"
    words = [sys.executable, "-c", start]
    process = subprocess.Popen(
        words, env={**os.environ, WAIT: "1.5", "PYTHONPATH": os.pathsep.join(sys.path)}, stderr=subprocess.PIPE
    )
    for _ in range(600):
        if len(list(out.glob("throws/*.json"))) >= 2:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert b"Run the same command to continue" in process.communicate(timeout=60)[1]
    made = {p: p.stat().st_mtime_ns for p in out.glob("throws/*.json")}
    assert 2 <= len(made) < 8
    with open_existing(out) as opened:
        assert opened.record()["status"] == "interrupted"
        assert not any(j.state == "running" for j in opened.state().jobs)
    record = execute_study(toy(out), console=(console := quiet()))
    assert record["status"] == "finished"
    assert {p: p.stat().st_mtime_ns for p in made} == made
    cells = [(r["world"], r["seed"]) for r in record["throws"]["speed 6"]]
    assert cells == [("earth", 0), ("earth", 1), ("moon", 0), ("moon", 1)]
    assert "toy: 2 jobs x 4 repetitions, 2 workers" in console.file.getvalue()
    assert [c["verdict"] for c in json.loads((out / "study.json").read_text())["claims"]] == [HOLDS]
    assert (out / "report.html").read_text() == "1. The faster ball flies farther. holds"
    assert len(list((out / "logs").glob("worker-*.log"))) == 2
