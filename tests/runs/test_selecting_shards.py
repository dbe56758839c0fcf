"""Selecting beyond one machine: datatrove's local executor with two workers, one of them killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_files import jsonl, rows_of
from holdfast.errors import DataError
from holdfast.runs.selecting import Selection, select
from holdfast.runs.selecting_shards import RankShard, select_ranked
from holdfast.support.files import read_json

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
