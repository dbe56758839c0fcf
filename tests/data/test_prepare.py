"""A request to prepare a corpus: order, limit, both sides of a split, doing it again, stops, and every mistake."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from data_files import jsonl, preparation, prepared, rows_of
from holdfast.data.outputs import record_path
from holdfast.data.prepare.run import DUPLICATE, prepare
from holdfast.errors import DataError, RunFolderError


def documents(count: int) -> list[dict]:
    return [{"text": f"Number {i} is {i}."} for i in range(count)]


# ------------------------------------------------------------------------------------------------------ what is read


def test_an_array_lines_and_parquet_give_the_same_rows():
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = documents(25)
    Path("a.json").write_text(json.dumps(made, indent=2))
    Path("b.json").write_text(json.dumps(made))
    jsonl("c.jsonl", made)
    with gzip.open("d.jsonl.gz", "wt") as file:
        file.write(Path("c.jsonl").read_text())
    pq.write_table(pa.Table.from_pylist(made), "e.parquet")
    for name in ("a.json", "b.json", "c.jsonl", "d.jsonl.gz", "e.parquet"):
        record = prepared(name, output=f"{name}.jsonl")
        assert [row["text"] for row in rows_of(f"{name}.jsonl")] == [row["text"] for row in made], name
        counts = {"records": 25, "rows": 25, "train": 25, "heldout": 0, "skipped": {}, "malformed": 0}
        assert counts.items() <= record["counts"].items(), name


def test_columns_with_values_that_are_not_read_are_counted():
    jsonl("a.jsonl", [{"text": "a", "body": "b", "title": "t", "date": "2024-01-15", "tags": [1], "n": None}])
    assert prepared("a.jsonl")["counts"]["not_read"] == {"body": 1, "tags": 1}


@pytest.mark.parametrize(
    ("text", "explained"),
    [
        ('[{"text": "a"}', "a.json, line 1: expected an array of JSON objects, got "),
        ('[{"text": "a"},\n{"text": "a', "line 2"),
        ('[{"text": "a"},\n 3]', "element 2 of the array: expected one JSON object"),
        ("[" + '{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_array_is_refused_with_its_line(text, explained):
    Path("a.json").write_text(text)
    with pytest.raises(DataError) as caught:
        prepared("a.json")
    assert explained in str(caught.value)
    assert not Path("train.jsonl").exists() and not record_path(Path("train.jsonl")).exists()


def test_malformed_records_are_an_error_that_names_ten_or_are_left_out_where_allowed():
    good = [json.dumps(row) for row in documents(40)]
    bad = ['{"text": "a"', "[1]", '{"text": 3}', '{"response": "b"}', "nonsense", '{"query": null}'] * 2
    Path("a.jsonl").write_text("\n".join([good[0], bad[0], "", *bad[1:], *good[1:]]) + "\n")
    with pytest.raises(DataError) as caught:
        prepared("a.jsonl")
    explained = str(caught.value)
    assert explained.startswith("12 of 52 records are malformed; nothing was written.") and "and 2 more" in explained
    places = [line.split(":")[0].strip() for line in explained.splitlines()[1:11]]
    assert places == [f"a.jsonl, line {n}" for n in (2, *range(4, 13))]
    assert "the record has response" in explained and "'text' is int, expected text" in explained
    assert not Path("train.jsonl").exists()
    with pytest.raises(DataError, match="12 of 52"):
        prepared("a.jsonl", most_malformed=0.2)
    record = prepared("a.jsonl", most_malformed=0.25)
    assert record["counts"]["malformed"] == 12 and len(record["malformed_places"]) == 10 and len(rows_of()) == 40


# -------------------------------------------------------------------------------------------------- order, limit, sides


def test_a_seed_shuffles_in_an_order_that_the_input_does_not_decide():
    made = documents(200)
    prepared(jsonl("a.jsonl", made), output="one.jsonl", seed=3)
    random.Random(0).shuffle(made)
    prepared(jsonl("b.jsonl", made), output="two.jsonl", seed=3)
    prepared("a.jsonl", output="other.jsonl", seed=4)
    one, two, other = ([row["text"] for row in rows_of(f"{name}.jsonl")] for name in ("one", "two", "other"))
    assert one == two != other
    assert sorted(one) == sorted(other) and one != [row["text"] for row in rows_of("a.jsonl")]


def test_a_limit_takes_the_first_rows_or_with_a_seed_a_sample_of_all():
    jsonl("a.jsonl", documents(300))
    first = prepared("a.jsonl", output="first.jsonl", limit=30)
    assert [row["text"] for row in rows_of("first.jsonl")] == [row["text"] for row in documents(30)]
    assert first["counts"]["records"] == 30
    sample = prepared("a.jsonl", output="sample.jsonl", limit=30, seed=0)
    places = sorted(int(r["text"].split()[1]) for r in rows_of("sample.jsonl"))
    assert len(places) == 30 and places[-1] > 200 and places[0] < 100
    assert sample["counts"]["skipped"] == {"beyond the limit": 270}
    prepared("a.jsonl", output="all.jsonl", seed=0)
    assert rows_of("all.jsonl")[:30] == rows_of("sample.jsonl")


@pytest.mark.parametrize("seed", [None, 5])
def test_no_document_is_on_both_sides(seed):
    """Also not in other capitals and white space, in another file, or in another preparation."""
    made = documents(600)
    record = prepared(jsonl("a.jsonl", [*made, *made[:50]]), heldout=0.2, seed=seed)
    train, held = ({row["text"] for row in rows_of(name)} for name in ("train.jsonl", "train.heldout.jsonl"))
    assert train.isdisjoint(held) and len(train) + len(held) == 600 and 80 <= len(held) <= 160
    assert record["counts"]["train"] == len(train) and record["counts"]["heldout"] == len(held)
    assert record["counts"]["skipped"] == {DUPLICATE: 50}
    assert [one["rows"] for one in record["outputs"]] == [len(train), len(held)]
    other = jsonl("b.jsonl", [{"text": f"  {row['text'].upper()}\n"} for row in made])
    prepared(other, output="other.jsonl", heldout=0.2, seed=None if seed else 1)
    assert {row["text"].capitalize() for row in rows_of("other.heldout.jsonl")} == held


# ----------------------------------------------------------------------------------------------------- doing it again


def test_the_same_request_does_nothing_and_another_does_not_overwrite():
    def times() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in Path().iterdir() if p.name != "a.jsonl"}

    jsonl("a.jsonl", documents(10))
    first = prepared("a.jsonl", heldout=0.3)
    before = times()
    again = prepare(preparation("a.jsonl", heldout=0.3))
    assert again.done_before and again.record == first and times() == before
    for change in ({"limit": 5}, {"seed": 1}, {"heldout": 0.5}):
        with pytest.raises(RunFolderError, match="records different input or options"):
            prepared("a.jsonl", **{"heldout": 0.3, **change})
    jsonl("a.jsonl", documents(11))
    with pytest.raises(RunFolderError, match="not overwritten"):
        prepared("a.jsonl", heldout=0.3)
    assert times() == before


def test_files_of_others_are_not_touched():
    jsonl("a.jsonl", documents(10))
    Path("train.jsonl").write_text("mine\n")
    with pytest.raises(RunFolderError, match="there is no record that 'holdfast data prepare' wrote it"):
        prepared("a.jsonl")
    Path("train.jsonl").unlink()
    Path("train.heldout.jsonl").write_text("mine\n")
    with pytest.raises(RunFolderError, match=r"train\.heldout\.jsonl already exists"):
        prepared("a.jsonl", heldout=0.3)
    assert Path("train.heldout.jsonl").read_text() == "mine\n" and not Path("train.jsonl").exists()
    prepared("a.jsonl")
    with open("train.jsonl", "a") as file:
        file.write("edited\n")
    with pytest.raises(RunFolderError, match="was changed after it was prepared"):
        prepared("a.jsonl")


def test_a_stop_between_the_files_leaves_no_half_and_the_same_command_finishes(monkeypatch):
    jsonl("a.jsonl", documents(50))
    replace, left = os.replace, [1]

    def dying(source, target):
        if str(target).endswith("train.jsonl"):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        prepared("a.jsonl", heldout=0.2)
    assert not Path("train.jsonl").exists() and [p.name for p in Path().iterdir() if p.name.startswith(".")] == []
    record = prepared("a.jsonl", heldout=0.2)
    assert record["status"] == "complete" and len(rows_of()) + len(rows_of("train.heldout.jsonl")) == 50
