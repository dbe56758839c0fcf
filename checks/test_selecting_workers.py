"""Selecting beyond one machine: datatrove's local executor with two workers, one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_files import jsonl, rows_of
from holdfast.errors import DataError
from holdfast.runs.selecting import Selection, select
from holdfast.runs.selecting_shards import RankShard, select_ranked
from holdfast.support.files import read_json
from holdfast.support.ledger import stream_ledger

REQUEST = {"model": "model", "input": (Path("in"),), "tokens": 3000, "probing": 20, "max_length": 128}
REQUEST |= {"minimum_tokens": 16, "disjoint": "passages", "batch_tokens": 128, "device": "cpu"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> Path:
    """A working directory with a model and a corpus of four files."""
    from holdfast.papers.worlds.embedded import embedded_corpus

    monkeypatch.chdir(tmp_path)
    Path("model").symlink_to(model_folder)
    texts = embedded_corpus().prose_train[:16]
    for number in range(4):
        own = texts[number * 4 : number * 4 + 4]
        jsonl(f"in/{number}.jsonl", [{"text": t, "url": f"u{number}-{i}"} for i, t in enumerate([*own, texts[0]])])
    return tmp_path


def check_like_one_machine() -> None:
    """The sets are those of one machine; scores differ by what other batches change."""
    select_ranked(Selection(output=Path("out"), **REQUEST))
    select(Selection(output=Path("one"), **REQUEST))
    for name in ("restoring", "probing"):
        ours, other = rows_of(f"out/{name}.jsonl"), rows_of(f"one/{name}.jsonl")
        assert {row["text"] for row in ours} == {row["text"] for row in other}
        assert [r["nats_per_token"] for r in ours] == pytest.approx([r["nats_per_token"] for r in other], abs=1e-5)
    record = read_json("out/selection.json")
    assert record["ranks"]["count"] == 3 and record["ranks"]["counts"]["records"] == 20
    assert record["counts"]["skipped"], "the document that every file has"


def test_ranks_one_after_another_and_a_missing_one():
    block = RankShard(request=Selection(output=Path("out"), **REQUEST))
    block(None, 0, 3)
    block(None, 1, 3)
    with pytest.raises(
        DataError, match=r"Expected 3 ranks in out/ranks that one model has scored, found 2 that are done"
    ):
        select_ranked(block.request)
    block(None, 2, 3)
    check_like_one_machine()
    assert select_ranked(block.request).done_before


def test_documents_of_an_earlier_block():
    from types import SimpleNamespace

    texts = [row["text"] for path in sorted(Path("in").iterdir()) for row in rows_of(path)]
    block = RankShard(request=Selection(output=Path("out"), **REQUEST))
    block((SimpleNamespace(text=t, id=f"id{n}", metadata={}) for n, t in enumerate(texts)), 0, 1)
    select_ranked(block.request)
    assert {row["source"] for row in rows_of("out/restoring.jsonl")} <= {f"id{n}" for n in range(len(texts))}


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
