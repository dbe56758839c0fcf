"""Workers end when the command that started them does, however it was started."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.support.processes import Workers

WORKER = """\
import pathlib, signal, sys, time
def ended(number, frame):
    pathlib.Path(sys.argv[1]).write_text("ended")
    sys.exit(0)
signal.signal(signal.SIGTERM, ended)
pathlib.Path(sys.argv[1] + ".begun").touch()
time.sleep(120)
"""
PARENT = """\
import sys, time
from pathlib import Path

import pytest

from holdfast.support.processes import Workers
from holdfast.support.processes import Workers
with Workers([sys.executable, "worker.py", "state"], count=1, logs=Path("logs"), environment={}) as workers:
    while not Path("state.begun").exists():
        time.sleep(0.05)
    print(workers.processes[0].pid, flush=True)
"""


def test_a_worker_of_a_command_in_the_background_ends_with_it(tmp_path: Path) -> None:
    """A shell starts what runs in the background with SIGINT ignored, and its children inherit that."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "parent.py").write_text(PARENT)
    ignoring = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    ignoring += "; os.execv(sys.executable, [sys.executable, 'parent.py'])"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", ignoring], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout.strip().isdigit(), done.stderr
    assert (tmp_path / "state").read_text() == "ended" and time.monotonic() - began < 60


@pytest.mark.parametrize("variable", [None, "", "7"])
def test_threads_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    """Where the variable is not set, or is empty as `VAR= command` leaves it, a worker has its share of the cores."""
    monkeypatch.setattr("holdfast.support.processes.cores", lambda: 4)
    if variable is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    program = "import os; print(os.environ['OMP_NUM_THREADS'])"
    with Workers([sys.executable, "-c", program], count=2, logs=tmp_path, environment={}) as workers:
        for process in workers.processes:
            process.wait()
    expected = variable or "2"
    assert [log.read_text().strip() for log in sorted(tmp_path.iterdir())] == [expected, expected]
