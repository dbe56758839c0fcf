"""A corpus out of folders and files of any kind: what is read, what is left out and why, what counts as the same, and
every mistake."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from data_files import jsonl, prepared, rows_of, text
from holdfast.data.formats import detect
from holdfast.data.prepare.inputs import find_inputs
from holdfast.data.prepare.run import DUPLICATE
from holdfast.errors import ConfigError, DataError

# --------------------------------------------------------------------------------------------------- every kind of file


def test_a_folder_of_every_kind_becomes_one_corpus(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    text("in/a.txt", "\ufeffFrom a text file.\r\nSecond line.\n")
    with gzip.open("in/a.txt.gz", "wt") as file:
        file.write("Compressed text.")
    text("in/deep/er/b.md", "# From Markdown")
    jsonl(
        "in/c.jsonl",
        [
            {"text": "A line.", "title": "T", "date": "2024-01-15", "url": "https://x.org/1"},
            {"content": "Another.", "timestamp": 1705312800},
        ],
    )
    text("in/d.json", json.dumps([{"plaintext": "Of an array.", "publisher": "The Paper", "headline": "H"}]))
    pq.write_table(
        pa.Table.from_pylist([{"document": "Of Parquet.", "created": None, "path": "x/y.rst"}]), "in/e.parquet"
    )
    text("in/h.pdf", "%PDF")
    text("in/.hidden/z.txt", "Hidden.")
    text("in/.z.txt", "Hidden.")
    record = prepared("in")
    assert rows_of() == [
        {"text": "From a text file.\nSecond line.", "title": None, "date": None, "source": "a.txt"},
        {"text": "Compressed text.", "title": None, "date": None, "source": "a.txt.gz"},
        {"text": "A line.", "title": "T", "date": "2024-01-15", "source": "https://x.org/1"},
        {"text": "Another.", "title": None, "date": "2024-01-15", "source": "c.jsonl"},
        {"text": "Of an array.", "title": "H", "date": None, "source": "The Paper"},
        {"text": "# From Markdown", "title": None, "date": None, "source": "deep/er/b.md"},
        {"text": "Of Parquet.", "title": None, "date": None, "source": "x/y.rst"},
    ]
    counts = record["counts"]
    assert counts["kinds"] == {"rows": 3, "text": 3} and counts["other_files"] == {".pdf": 1}
    assert (
        counts["records"] == counts["documents"] == counts["rows"] == 7
        and counts["undated"] == 5
        and counts["malformed_dates"] == 0
    )
    assert counts["months"] == {"2024-01": 2} and (
        counts["first_date"],
        counts["last_date"],
    ) == (
        "2024-01-15",
        "2024-01-15",
    )
    assert counts["characters"] == sum(len(row["text"]) for row in rows_of())
    assert [one["name"] for one in record["inputs"]][:3] == ["a.txt", "a.txt.gz", "c.jsonl"] and str(
        tmp_path
    ) not in json.dumps(record)
    assert detect(list(rows_of()[0]), rows_of()[0]) == "text"


def test_titles_go_in_front_of_the_text_and_columns_may_have_other_names():
    rows = [
        {"text": "Body.", "title": " The\n title "},
        {"text": "Said already. Body.", "title": "Said already."},
        {"text": "Bare."},
    ]
    prepared(jsonl("a.jsonl", rows), titles=True)
    assert [row["text"] for row in rows_of()] == ["The title\n\nBody.", "Said already. Body.", "Bare."]
    jsonl("b.jsonl", [{"text": "Not this.", "story": "This.", "date": "2020-01-01", "seen": "2024-05-01"}])
    record = prepared("b.jsonl", output="b.train.jsonl", text_column="story", date_column="seen", after="2024-01-01")
    assert [(row["text"], row["date"]) for row in rows_of("b.train.jsonl")] == [("This.", "2024-05-01")]
    assert record["options"]["after"] == "2024-01-01" and record["format"] == "corpus"


# ----------------------------------------------------------------------------------------------------- what is left out


def test_duplicates_but_for_white_space_and_capitals_are_written_once():
    jsonl(
        "a.jsonl",
        [{"text": "The  same\nTEXT.", "url": "1"}, {"text": "the same text.", "url": "2"}, {"text": "Another."}],
    )
    text("b.txt", "THE SAME TEXT.\n")
    record = prepared("a.jsonl", "b.txt")
    assert [row["text"] for row in rows_of()] == ["The  same\nTEXT.", "Another."] and record["counts"]["skipped"] == {
        DUPLICATE: 2
    }


# ---------------------------------------------------------------------------------------------- folders and their files


def test_files_are_read_in_the_order_of_their_paths_each_once():
    for name in ("b/2.txt", "a/1.txt", "10.txt", "9.txt"):
        text(f"in/{name}", name)
    os.symlink("10.txt", "in/zz.txt")
    os.symlink("nowhere", "in/broken.txt")
    os.symlink(Path("in").resolve(), "in/loop")
    found = find_inputs([Path("in"), Path("in/9.txt")], lambda name: name.endswith(".txt"))
    assert [found.name(file) for file in found.files] == ["10.txt", "9.txt", "a/1.txt", "b/2.txt"] and found.others == {
        "broken links": 1
    }


# ------------------------------------------------------------------------------------------------------------- mistakes


def test_all_mistakes_at_once():
    text("empty/.keep", "")
    text("pictures/a.png", "x")
    text("pictures/b/c.png", "x")
    text("a.docx", "x")
    text("good/a.txt", "One.")
    with pytest.raises(ConfigError) as caught:
        prepared(
            "empty",
            "pictures",
            "a.docx",
            "goood",
            "good",
            output="good/train.jsonl",
            after="2024-01-02",
            before="2024-01-01",
            undated="no",
            minimum_characters=-1,
            text_column="",
            heldout=0.1,
        )
    explained = str(caught.value)
    for part in (
        "input: expected files of a corpus in the folder empty (endings .txt, .md, .jsonl,",
        "found nothing in it",
        "in the folder pictures",
        "found only 2 .png",
        "expected a file of a corpus",
        "got a.docx",
        "expected a file or folder at goood, found nothing. Did you mean 'good'?",
        "output: good/train.jsonl is inside the input good",
        "after: expected a day earlier",
        "undated: expected one of auto, keep, drop, got 'no'",
        "minimum_characters: expected a whole number",
        "text_column: expected the name of a column",
    ):
        assert part in explained, part
    assert len(caught.value.problems) == 9 and not Path("good/train.jsonl").exists()


def test_an_output_is_never_an_input():
    jsonl("a.jsonl", [{"text": "One."}])
    with pytest.raises(ConfigError, match=r"output: a\.jsonl is an input"):
        prepared("a.jsonl", output="a.jsonl")
    text("in/a.txt", "One.")
    os.symlink("in", "also")
    with pytest.raises(ConfigError, match="is inside the input in"):
        prepared("in", output="also/train.jsonl")


def test_dates_of_parquet_as_they_are():
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    when = datetime.datetime(2024, 1, 15, 12)
    table = pa.table(
        {
            "text": ["a", "b"],
            "date": pa.array([when, None], pa.timestamp("ns")),
        }
    )
    pq.write_table(table, "a.parquet")
    pq.write_table(pa.table({"text": ["c"], "date": pa.array([when.date()])}), "b.parquet")
    pq.write_table(pa.table({"text": ["d"], "date": pa.array([when], pa.timestamp("us", "Asia/Tokyo"))}), "c.parquet")
    record = prepared("a.parquet", "b.parquet", "c.parquet")
    assert [row["date"] for row in rows_of()] == ["2024-01-15", None, "2024-01-15", "2024-01-15"] and record["counts"][
        "malformed_dates"
    ] == 0


@pytest.mark.parametrize(
    ("rows", "explained"),
    [
        ([{"story": "a"}], "a.jsonl, line 1: no text (text, plaintext, content, body, document); the record has story"),
        ([{"text": 5}], "line 1: 'text' is int, expected text"),
    ],
)
def test_records_that_are_no_documents(rows, explained):
    with pytest.raises(DataError) as caught:
        prepared(jsonl("a.jsonl", rows))
    assert explained in str(caught.value) and not Path("train.jsonl").exists()


def test_files_that_are_no_text_are_named_or_left_out_where_allowed():
    text("in/a.txt", b"caf\xe9")
    text("in/b.txt.gz", gzip.compress(b"A text that goes on. " * 400)[:-20])
    for i in range(8):
        text(f"in/c{i}.txt", f"Text {i}.")
    with pytest.raises(DataError) as caught:
        prepared("in")
    assert "2 of 10 records are malformed" in str(
        caught.value
    ) and "in/a.txt, line 1: expected UTF-8, got byte 0xe9" in str(caught.value)
    assert "in/b.txt.gz: the file is cut short or damaged" in str(caught.value)
    assert prepared("in", most_malformed=0.2)["counts"]["documents"] == 8
