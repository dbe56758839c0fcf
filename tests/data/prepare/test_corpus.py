"""A corpus out of folders and files of any kind: what is read, what is left out and why, what counts as the same, and
every mistake."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from data_files import jsonl, prepared, rows_of, text
from data_files import preparation as request
from holdfast.data.formats import detect
from holdfast.data.prepare.inputs import found_inputs
from holdfast.data.prepare.run import DUPLICATE, prepare
from holdfast.errors import ConfigError, DataError, RunFolderError

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


def test_a_folder_of_empty_texts_gives_no_row():
    text("in/a.txt", " \n")
    text("in/b.md", "")
    with pytest.raises(DataError, match=r"No row is left to train on out of 2 records \(2 an empty text\)"):
        prepared("in")


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


def test_starcoder_as_it_is_published():
    """Its columns beside the source are left out, and what is held out is no training row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = Path("starcoderdata/python")
    place.mkdir(parents=True)
    for part in range(2):
        numbers = range(20 * part, 20 * part + 20)
        sources = [f"def add_{n}(x):\n    # {n} more\n    return x + {n}\n" for n in numbers]
        columns = {"max_stars_repo_path": [f"a{n}.py" for n in numbers], "id": [str(n) for n in numbers]}
        pq.write_table(
            pa.table({**columns, "max_stars_count": [1] * 20, "content": sources}),
            place / f"train-{part:05}-of-00059.parquet",
        )
    record = prepared("starcoderdata/python", output="python.jsonl", limit=30, seed=0, heldout=0.2)
    learnt, held = (
        {row["text"] for row in map(json.loads, Path(f"python{kind}.jsonl").read_text().splitlines())}
        for kind in ("", ".heldout")
    )
    assert len(learnt) + len(held) == 30 and held and not learnt & held and record["format"] == "corpus"
    assert all(text.startswith("def add_") and "\n    return x + " in text for text in learnt | held)


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


def test_empty_and_short_texts_are_counted_apart():
    texts = ["", None, " \n", "short", "long enough"]
    rows = [{"text": value} for value in texts]
    counts = prepared(jsonl("a.jsonl", rows), minimum_characters=6)["counts"]
    assert counts["skipped"] == {"an empty text": 3, "a text of fewer than 6 characters": 1} and counts["rows"] == 1


# ---------------------------------------------------------------------------------------------- folders and their files


def test_files_are_read_in_the_order_of_their_paths_each_once():
    for name in ("b/2.txt", "a/1.txt", "10.txt", "9.txt"):
        text(f"in/{name}", name)
    os.symlink("10.txt", "in/zz.txt")
    os.symlink("nowhere", "in/broken.txt")
    os.symlink(Path("in").resolve(), "in/loop")
    found = found_inputs([Path("in"), Path("in/9.txt")], lambda name: name.endswith(".txt"))
    assert [found.name(file) for file in found.files] == ["10.txt", "9.txt", "a/1.txt", "b/2.txt"] and found.others == {
        "broken links": 1
    }


def test_what_holdfast_wrote_into_a_folder_is_read_without_its_records():
    jsonl("raw.jsonl", [{"text": "One."}, {"text": "Two."}])
    prepared("raw.jsonl", output="news/new.jsonl")
    jsonl("news/new.jsonl.ledger.jsonl", [{"key": "x"}])
    record = prepared("news", output="again.jsonl")
    assert len(rows_of("again.jsonl")) == 2 and record["counts"]["other_files"] == {"records of holdfast": 2}


def test_a_renamed_or_a_new_file_makes_another_request():
    text("in/a.txt", "One.")
    assert not prepare(request("in")).done_before
    assert prepare(request("in", after=None, text_column=None)).done_before, "options that were not given"
    text("in/b.md", "Two.")
    with pytest.raises(RunFolderError, match="came from other input or options"):
        prepare(request("in"))
    Path("in/b.md").unlink()
    assert prepare(request("in")).done_before
    Path("in/a.txt").rename("in/c.txt")
    with pytest.raises(RunFolderError):
        prepare(request("in"))


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
            heldout_output=Path("good/deep/h.jsonl"),
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
        "output: good/train.jsonl lies in the input good",
        "heldout_output: good/deep/h.jsonl lies in the input good",
        "after: expected an earlier day",
        "undated: expected one of auto, keep, drop, got 'no'",
        "minimum_characters: expected a whole number",
        "text_column: expected the name of a column",
    ):
        assert part in explained, part
    assert len(caught.value.problems) == 10 and not Path("good/train.jsonl").exists()


def test_an_output_is_never_an_input():
    jsonl("a.jsonl", [{"text": "One."}])
    with pytest.raises(ConfigError, match=r"output: a\.jsonl is an input"):
        prepared("a.jsonl", output="a.jsonl")
    text("in/a.txt", "One.")
    os.symlink("in", "also")
    with pytest.raises(ConfigError, match="lies in the input in"):
        prepared("in", output="also/train.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"expected a column with the text \(text, .*, the file has story, day\. Name it with --text_column"),
        ({"text_column": "stroy"}, r"column 'stroy' \(--text_column\), the file has story, day\. Did you mean 'story'"),
        ({"text_column": "story", "date_column": "date"}, r"column 'date' \(--date_column\), the file has story, day"),
    ],
)
def test_parquet_without_the_text_lists_its_columns(options, message):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([{"story": "a", "day": "2024-01-01"}]), "a.parquet")
    with pytest.raises(DataError, match=rf"a\.parquet: expected .*{message.removeprefix('expected ')}"):
        prepared("a.parquet", **options)
    text("b.parquet", "PAR1 nonsense")
    with pytest.raises(DataError, match=r"b\.parquet is not a readable parquet file"):
        prepared("b.parquet")


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
    assert "in/b.txt.gz: the file cannot be read to its end, it is cut short or damaged" in str(caught.value)
    assert prepared("in", most_malformed=0.2)["counts"]["documents"] == 8


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz"])
def test_a_truncated_gzip_is_refused(name):
    rows = [{"text": f"Document {i} {random.Random(i).random()}."} for i in range(500)]
    content = "".join(json.dumps(row) + "\n" for row in rows) if "jsonl" in name else json.dumps(rows, indent=4)
    text(name, gzip.compress(content.encode())[:-50])
    with pytest.raises(DataError, match="cut short or damaged; fetch"):
        prepared(name)
    assert not Path("train.jsonl").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_what_may_not_be_read_is_named():
    text("in/a.txt", "One.").chmod(0)
    with pytest.raises(DataError, match=r"in/a\.txt cannot be read \(Permission denied\)"):
        prepared("in")
    text("in/shut/b.txt", "Two.")
    Path("in/shut").chmod(0)
    try:
        with pytest.raises(ConfigError, match=r"cannot read the folder in/shut \(Permission denied\)"):
            prepared("in")
    finally:
        Path("in/shut").chmod(0o755)


def test_real_corpora(shared_data):
    """Rust's book and a handbook as they are published: every document with its path."""
    files = [
        shared_data / "text_rust_book" / "rust_book.jsonl.gz",
        shared_data / "text_18f_handbook" / "18f_handbook.jsonl.gz",
    ]
    record = prepared(*files, minimum_characters=200, heldout=0.02, seed=0)
    counts = record["counts"]
    assert counts["documents"] > 200 and counts["heldout"] > 0 and counts["undated"] == counts["documents"]
    sources = {row["source"] for row in rows_of()}
    assert len(sources) == counts["train"] and all(source.endswith(".md") for source in sources)
