"""Selecting beyond one machine: datatrove's local executor with two workers, one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.support.ledger import stream_ledger
from runs import test_selecting_shards
from runs.test_selecting_shards import REQUEST, check_like_one_machine

place = test_selecting_shards.place
SCRIPT = """
import sys
from pathlib import Path, PosixPath
from datatrove.executor import LocalPipelineExecutor
from holdfast.runs.selecting import Selection
from holdfast.runs.selecting_shards import RankShard
if __name__ == "__main__":
    block = RankShard(request=Selection(output=Path("out"), **{request}))
    LocalPipelineExecutor([block], tasks=3, workers=2, logging_dir="logs").run()
"""


def test_two_workers_of_datatrove_one_killed():
    pytest.importorskip("datatrove")
    Path("pipeline.py").write_text(SCRIPT.replace("{request}", repr(REQUEST)))

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "pipeline.py"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    executor, until = start(), time.monotonic() + 150
    ledgers = lambda: [p for p in Path("out/ranks").glob("*.ledger.jsonl") if p.read_bytes().count(b"\n") > 3]
    while time.monotonic() < until and not ledgers():
        assert executor.poll() is None, executor.communicate()
        time.sleep(0.01)
    busy = ledgers()[0]
    holder = next(p for p in workers(executor.pid) if holds(p, busy))
    os.kill(holder, signal.SIGKILL)
    time.sleep(0.5)
    # the executor waits for a killed worker's task for ever: it is stopped, and the same command is run again
    os.killpg(executor.pid, signal.SIGKILL)
    executor.communicate()
    before = {name for row in stream_ledger(busy) for name in row["passages"]}
    done = not busy.with_name(f"{busy.name.partition('.')[0]}.json").exists()
    again = start()
    out = again.communicate(timeout=200)
    assert again.returncode == 0, out[1][-2000:]
    names = [name for row in stream_ledger(busy) for name in row["passages"]]
    assert done and before < set(names) and len(names) == len(set(names)), "nothing is scored twice"
    check_like_one_machine()


def workers(session: int) -> list[int]:
    """Processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return found


def holds(process: int, file: Path) -> bool:
    """Whether a process has a file open."""
    try:
        return any(
            Path(f"/proc/{process}/fd/{n}").resolve() == file.resolve() for n in os.listdir(f"/proc/{process}/fd")
        )
    except OSError:
        return False
