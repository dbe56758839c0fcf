"""A corpus out of folders and files of any kind: what is read, what is left out and why, what counts as the same, and
every mistake."""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
from pathlib import Path

import pytest

import data_files
from data_files import INFO, jsonl, preparation, rows_of, text, warc
from holdfast.data.formats import detect
from holdfast.data.prepare import near_duplicates
from holdfast.data.prepare.inputs import found_inputs
from holdfast.data.prepare.near_duplicates import NearDuplicates, bands_of
from holdfast.data.prepare.reading import Reading
from holdfast.data.prepare.run import DUPLICATE, NEAR_DUPLICATE, prepare
from holdfast.data.prepare.wet import wet_records
from holdfast.errors import ConfigError, DataError, RunFolderError

request = functools.partial(preparation, "corpus")
prepared = functools.partial(data_files.prepared, "corpus")


ARTICLE = {
    "title": "A bridge opens",
    "body": {
        "summary": ["It took nine years."],
        "sections": [
            {"headline": [], "paragraphs": ["The first cars crossed.", "Many waved."]},
            {"headline": ["Cost"], "paragraphs": ["Less than feared."]},
        ],
    },
    "authors": ["A. Writer"],
    "publishing_date": "2024-03-05 07:30:00+01:00",
    "topics": ["bridges"],
    "free_access": True,
}
ARTICLE_TEXT = "It took nine years.\n\nThe first cars crossed.\n\nMany waved.\n\nCost\n\nLess than feared."


def page(number: int, **more) -> bytes:
    return warc(
        "conversion",
        f"Page {number}\nsays this, in Zürich.",
        Target_URI=f"https://example.com/{number}",
        Date="2024-02-21T07:35:11Z",
        **more,
    )


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
    text("in/f.warc.wet.gz", gzip.compress(INFO) + gzip.compress(page(1)))
    text("in/g.json", json.dumps({"The Daily": [ARTICLE]}, indent=4))
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
        {
            "text": "Page 1\nsays this, in Zürich.",
            "title": None,
            "date": "2024-02-21",
            "source": "https://example.com/1",
        },
        {"text": ARTICLE_TEXT, "title": "A bridge opens", "date": "2024-03-05", "source": "The Daily"},
    ]
    counts = record["counts"]
    assert counts["kinds"] == {"fundus": 1, "rows": 3, "text": 3, "wet": 1} and counts["other_files"] == {".pdf": 1}
    assert (
        counts["records"] == counts["documents"] == counts["rows"] == 9
        and counts["undated"] == 5
        and counts["malformed_dates"] == 0
    )
    assert counts["months"] == {"2024-01": 2, "2024-02": 1, "2024-03": 1} and (
        counts["first_date"],
        counts["last_date"],
    ) == (
        "2024-01-15",
        "2024-03-05",
    )
    assert counts["characters"] == sum(len(row["text"]) for row in rows_of())
    assert [one["name"] for one in record["inputs"]][:3] == ["a.txt", "a.txt.gz", "c.jsonl"] and str(
        tmp_path
    ) not in json.dumps(record)
    assert detect(list(rows_of()[0]), rows_of()[0]) == "text"


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (json.dumps({"The Daily": [ARTICLE]}, indent=4, ensure_ascii=False), "fundus"),
        (json.dumps({"The Daily": [], "Another": [ARTICLE]}, indent=4), "fundus"),
        (json.dumps({"The Daily": [ARTICLE]}), "fundus"),
        (json.dumps([ARTICLE]), "rows"),
        (json.dumps(ARTICLE) + "\n", "rows"),
        (json.dumps({**ARTICLE, "plaintext": ARTICLE_TEXT, "body": None}), "rows"),
    ],
    ids=["as it writes", "an empty publisher", "on one line", "an array", "a line", "plain text"],
)
def test_articles_of_fundus_in_every_form(written, kind):
    text("a.json", written)
    record = prepared("a.json")
    assert record["counts"]["kinds"] == {kind: 1} and [
        (row["text"], row["title"], row["date"]) for row in rows_of()
    ] == [(ARTICLE_TEXT, "A bridge opens", "2024-03-05")]


def test_a_large_file_of_fundus_is_read_piece_by_piece(monkeypatch):
    from holdfast.data.prepare import reading

    monkeypatch.setattr(reading, "_TEXT", 64)
    articles = {
        f"Paper {p}": [
            {
                "title": f'"{p}" {i}',
                "body": {"summary": [], "sections": [{"headline": [], "paragraphs": [f"{p}-{i} " + "é[{" * i]}]},
            }
            for i in range(20)
        ]
        for p in range(3)
    }
    text("a.json", json.dumps(articles, indent=4, ensure_ascii=False))
    prepared("a.json")
    assert [(row["source"], row["title"]) for row in rows_of()] == [
        (p, a["title"]) for p, own in articles.items() for a in own
    ]


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.95])
def test_a_file_of_fundus_that_is_cut_short_is_refused(cut):
    whole = json.dumps({"The Daily": [ARTICLE] * 3}, indent=4)
    text("a.json", whole[: int(len(whole) * cut)])
    with pytest.raises(DataError, match=r"a\.json, line \d+: expected .*(whole|cannot be read)"):
        prepared("a.json")


def test_an_empty_crawl_and_an_empty_folder_of_text():
    text("a.json", "{}")
    with pytest.raises(DataError, match="No row is left to train on out of 0 records"):
        prepared("a.json")
    text("in/a.txt", " \n")
    text("in/b.md", "")
    with pytest.raises(DataError, match=r"out of 2 records \(2 an empty text\)"):
        prepared("in")


def test_a_kind_that_is_asked_for_decides_which_files_are_read():
    text("in/a.txt", "Text.")
    jsonl("in/b.jsonl", [{"text": "Row."}])
    record = prepared("in", kind="rows")
    assert [row["text"] for row in rows_of()] == ["Row."] and record["counts"]["other_files"] == {".txt": 1}
    with pytest.raises(ConfigError, match=r"expected a file of corpus .*endings \.wet\), got in/a\.txt"):
        prepared("in/a.txt", kind="wet", output="b.jsonl")


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


# ------------------------------------------------------------------------------------------------------------------ WET


@pytest.mark.parametrize("pack", ["records", "whole", "plain", "zst"])
def test_wet_however_it_is_compressed(pack):
    parts = [INFO, page(1), page(2), warc("conversion", " ", Target_URI="https://example.com/3"), warc("metadata", "x")]
    if pack == "zst":
        import pyarrow as pa

        with pa.CompressedOutputStream("a.wet.zst", "zstd") as stream:
            stream.write(b"".join(parts))
    else:
        packed = {
            "records": b"".join(gzip.compress(part) for part in parts),
            "whole": gzip.compress(b"".join(parts)),
            "plain": b"".join(parts),
        }[pack]
        text(f"a.wet{'' if pack == 'plain' else '.gz'}", packed)
    record = prepared(*Path().glob("a.wet*"))
    assert [row["source"] for row in rows_of()] == ["https://example.com/1", "https://example.com/2"]
    assert (
        record["counts"]["skipped"] == {"an empty text": 1, "a WARC record of another type (metadata)": 1}
        and record["counts"]["records"] == 4
    )


def test_wet_with_folded_fields_small_letters_and_other_line_ends():
    content = b"Text."
    text(
        "a.wet",
        b"WARC/1.1\nwarc-type: conversion\nwarc-target-uri:\n  <https://example.com/x>\n"
        b"X-Y: a\n b\ncontent-length: 5\n\n" + content + b"\n\n",
    )
    prepared("a.wet")
    assert rows_of() == [{"text": "Text.", "title": None, "date": None, "source": "https://example.com/x"}]


@pytest.mark.parametrize(
    ("broken", "explained"),
    [
        (page(2, length="absent"), "record 3: no Content-Length; the text goes on to the next record"),
        (page(2, length="many"), "record 3: expected a Content-Length in bytes, got 'many'"),
        (page(2, length="-3"), "record 3: expected a Content-Length in bytes, got '-3'"),
        (page(2, length="9" * 40), "record 3: expected a Content-Length in bytes"),
        (
            page(2).replace(b"Content-Type: text/plain", b"no colon"),
            "record 3: expected fields as 'Name: value', got 'no colon'",
        ),
        (page(2, length=5), "record 4: expected a record that begins with 'WARC/1.0', got '2'"),
        (warc("conversion", b"caf\xe9"), "record 3: expected UTF-8, got byte 0xe9 at byte 4 of the text"),
    ],
)
def test_a_broken_record_of_wet_is_named_and_the_next_one_is_read(broken, explained):
    text("a.wet", INFO + page(1) + broken + page(3))
    with pytest.raises(DataError) as caught:
        prepared("a.wet")
    assert "1 of " in str(caught.value) and f"a.wet, {explained}" in str(caught.value)
    prepared("a.wet", most_malformed=0.5)
    assert {"https://example.com/1", "https://example.com/3"} <= {row["source"] for row in rows_of()}


@pytest.mark.parametrize(
    ("content", "explained"),
    [
        (gzip.compress(INFO + page(1) * 50)[:-40], "cut short or damaged"),
        (INFO + page(1)[:-20], r"record 2: the file ends \d+ bytes before its Content-Length of 29; it is cut short"),
        (INFO + page(1, length=10**12), "before its Content-Length of 1,000,000,000,000"),
        (INFO + b"WARC/1.0\r\nWARC-Type: conv", "record 2: the file ends in the middle of the record"),
        (b"<html>", "expected a WET file, whose records begin with 'WARC/1.0', got '<html>'"),
        (b"", "is empty; expected a WET file"),
        (INFO + warc("response", "HTTP/1.1 200 OK"), "none of its 2 records is text"),
    ],
)
def test_a_file_that_is_no_whole_wet_is_refused(content, explained):
    name = "a.wet.gz" if content.startswith(b"\x1f\x8b") else "a.wet"
    text(name, content)
    with pytest.raises(DataError, match=explained):
        prepared(name)
    assert not Path("train.jsonl").exists()


def test_a_page_of_any_length_is_read_block_by_block(monkeypatch):
    from holdfast.data.prepare import wet

    monkeypatch.setattr(wet, "_BLOCK", 7)
    long = "word " * 100
    text("a.wet", warc("response", "skipped " * 9) + warc("conversion", long))
    reading = Reading(files=[], options={}, scratch=Path())
    assert [record["text"] for _, record in wet_records(Path("a.wet"), reading)] == [long] and reading.records == 2


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
    rows = [*({"text": value} for value in texts), {"body": {"summary": [], "sections": []}}]
    counts = prepared(jsonl("a.jsonl", rows), minimum_characters=6)["counts"]
    assert counts["skipped"] == {"an empty text": 4, "a text of fewer than 6 characters": 1} and counts["rows"] == 1


def words(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices("abcdefghij", k=5)) for _ in range(count)]


def changed(of: list[str], share: float) -> str:
    """A text with a run of words at its end replaced: a share of the 5-grams is another."""
    kept = round(len(of) * (1 - share))
    return " ".join([*of[:kept], *words(len(of) - kept, 999)])


def test_near_duplicates_leave_the_first_published_whatever_the_order():
    base = words(400, 1)
    rows = [
        {"text": " ".join(base), "date": "2024-01-03", "url": "third"},
        {"text": changed(base, 0.03), "date": "2024-01-01", "url": "first"},
        {"text": ", ".join(base).title(), "url": "undated"},
        {"text": changed(base, 0.5), "date": "2024-01-02", "url": "half another"},
        *({"text": " ".join(words(300, 100 + i)), "url": f"other {i}"} for i in range(20)),
    ]
    kept = []
    for seed in range(3):
        random.Random(seed).shuffle(rows)
        record = prepared(jsonl("a.jsonl", rows), output=f"{seed}.jsonl", near_duplicates=0.8, seed=0)
        assert record["counts"]["skipped"] == {NEAR_DUPLICATE: 2} and record["counts"]["documents"] == 22
        kept.append(Path(f"{seed}.jsonl").read_text())
    assert kept[0] == kept[1] == kept[2]
    sources = {json.loads(line)["source"] for line in kept[0].splitlines()}
    assert {"first", "half another"} <= sources and not {"third", "undated"} & sources
    assert prepared("a.jsonl", output="all.jsonl")["counts"]["documents"] == 24


def test_near_duplicates_in_the_order_of_the_input_are_the_rows_that_are_counted():
    """Without a seed too the rows written, and their sides, are those chosen."""
    rows = [{"text": " ".join(words(80, i // 2)) + " x" * (i % 2), "date": f"2024-01-{30 - i:02d}"} for i in range(24)]
    record = prepared(jsonl("a.jsonl", rows), near_duplicates=0.8, heldout=0.3)
    sides = {name: [row["date"] for row in rows_of(f"train{name}.jsonl")] for name in ("", ".heldout")}
    assert sorted(sides[""] + sides[".heldout"]) == sorted(row["date"] for row in rows[1::2])
    kept = {row["text"] for name in ("", ".heldout") for row in rows_of(f"train{name}.jsonl")}
    assert record["counts"]["characters"] == sum(map(len, kept)) and sides[""] == sorted(sides[""], reverse=True)


def test_near_duplicates_are_taken_out_before_the_limit_and_on_both_sides():
    rows = [{"text": changed(words(300, i // 2), 0.01 * (i % 2))} for i in range(60)]
    record = prepared(jsonl("a.jsonl", rows), near_duplicates=True, limit=20, heldout=0.3)
    counts = record["counts"]
    assert (
        counts["documents"] == 20
        and counts["skipped"] == {NEAR_DUPLICATE: 30, "beyond the limit": 10}
        and counts["heldout"] > 0
    )
    assert counts["characters"] == sum(
        len(row["text"]) for name in ("train.jsonl", "train.heldout.jsonl") for row in rows_of(name)
    )


@pytest.mark.parametrize("similarity", [0.6, 0.8, 0.9])
def test_near_duplicates_are_found_as_the_theory_says(similarity, tmp_path):
    """Pairs well above the threshold are joined, pairs well below are not."""
    import numpy as np

    bands, rows = bands_of(similarity)
    assert 1 - (1 - similarity**rows) ** bands >= 0.95 and bands * rows <= 128
    found = NearDuplicates(similarity, tmp_path / "s")
    for seed in range(40):
        base = words(500, seed)
        # with a share of words replaced, 1 - share of each set is common: similarity (1 - share) / (1 + share)
        aimed = min(1.0, similarity + 0.12) if seed % 2 else similarity - 0.15
        found.add(" ".join(base))
        found.add(changed(base, (1 - aimed) / (1 + aimed)))
    left_out = found.left_out(np.arange(80))
    assert not left_out[0::2].any()
    assert left_out[1::4].sum() == 0 and left_out[3::4].sum() >= 19


def test_signatures_estimate_the_similarity(tmp_path):
    found, base = NearDuplicates(0.8, tmp_path / "s"), words(600, 3)
    one = found.signature(" ".join(base))
    for share in (0.1, 0.3, 0.6):
        expected = (1 - share) / (1 + share)
        assert (
            abs((one == found.signature(changed(base, share))).mean() - expected)
            < 3 * (expected * (1 - expected) / 128) ** 0.5 + 0.01
        )


def test_a_chain_of_near_duplicates_is_one_group_and_nothing_is_none(tmp_path):
    import numpy as np

    found, base = NearDuplicates(0.5, tmp_path / "s"), words(400, 5)
    for share in (0.0, 0.2, 0.4):  # the ends are alike by way of the middle only
        found.add(" ".join([*base[: round(400 * (1 - share))], *base[: round(400 * share)][::-1]]))
    found.add("Entirely other words stand here, many of them, so that it is a document of its own.")
    assert list(found.left_out(np.array([2, 1, 0, 3]))) == [True, True, False, False]
    assert list(NearDuplicates(0.8, tmp_path / "t").left_out(np.array([], dtype=int))) == []


@pytest.mark.parametrize("document", ["", "!!! ...", "one", "two words", "東京で新しい橋が開通した。", "\ud800"])
def test_any_text_has_a_signature(document, tmp_path):
    found = NearDuplicates(0.8, tmp_path / "s")
    assert (found.signature(document) == found.signature(document)).all() and (
        found.signature(document) != found.signature("other text")
    ).any()


def test_scripts_without_spaces_are_compared_by_their_characters(tmp_path):
    found, draw = NearDuplicates(0.8, tmp_path / "s"), random.Random(0)
    base = [chr(draw.randrange(0x4E00, 0x5E00)) for _ in range(400)]
    other = [*base[:390], *(chr(draw.randrange(0x6E00, 0x7E00)) for _ in range(10))]
    assert (found.signature("".join(base)) == found.signature("".join(other))).mean() > 0.8


def test_the_memory_of_common_words_is_bounded(monkeypatch):
    monkeypatch.setattr(near_duplicates, "_KNOWN_WORDS", 10)
    hashes = near_duplicates._WordHashes()
    many = [f"w{i}" for i in range(30)]
    assert list(hashes(many)) == [near_duplicates._hashed(w) for w in many]
    assert list(hashes(many[:5] * 3)) == [near_duplicates._hashed(w) for w in many[:5] * 3]
    assert list(hashes(many[5:14])) == [near_duplicates._hashed(w) for w in many[5:14]] and len(hashes._known) == 9


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
    text("news/new.jsonl.addresses", "{}")
    jsonl("news/new.jsonl.ledger.jsonl", [{"key": "x"}])
    record = prepared("news", output="again.jsonl")
    assert len(rows_of("again.jsonl")) == 2 and record["counts"]["other_files"] == {"records of holdfast": 3}


def test_a_renamed_or_a_new_file_makes_another_request():
    text("in/a.txt", "One.")
    assert not prepare(request("in")).done_before
    assert prepare(request("in", after=None, near_duplicates=None)).done_before, "options that were not given"
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
            kind="txt",
            after="2024-01-02",
            before="2024-01-01",
            undated="no",
            minimum_characters=-1,
            near_duplicates=0.3,
            text_column="",
            heldout=0.1,
            heldout_output=Path("good/deep/h.jsonl"),
        )
    explained = str(caught.value)
    for part in (
        "input: expected files of corpus in the folder empty (endings .txt, .md, .jsonl,",
        "found nothing in it",
        "in the folder pictures",
        "found only 2 .png",
        "expected a file of corpus",
        "got a.docx",
        "expected a file or folder at goood, found nothing. Did you mean 'good'?",
        "output: good/train.jsonl lies in the input good",
        "heldout_output: good/deep/h.jsonl lies in the input good",
        "kind: expected one of auto, text,",
        "Did you mean 'text'?",
        "after: expected an earlier day",
        "undated: expected one of auto, keep, drop, got 'no'",
        "minimum_characters: expected a whole number",
        "near_duplicates: expected a similarity from 0.5 to 1",
        "text_column: expected the name of a column",
    ):
        assert part in explained, part
    assert len(caught.value.problems) == 12 and not Path("good/train.jsonl").exists()


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
        (
            [{"body": {"summary": [], "sections": ["a"]}}],
            "'body' has a section that is str, expected headline and paragraphs",
        ),
        ([{"body": {"summary": [3], "sections": []}}], "'body' has a paragraph that is no text"),
        ([{"query": "a", "response": "b"}], "The columns are those of metamath"),
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
    content = (
        "".join(json.dumps(row) + "\n" for row in rows)
        if "jsonl" in name
        else json.dumps({"The Daily": rows}, indent=4)
    )
    text(name, gzip.compress(content.encode())[:-50])
    with pytest.raises(DataError, match="the file is cut short or damaged; fetch it again"):
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
    """Rust's book and a handbook as they are published: every document with its path, and the near duplicates among
    them."""
    files = [
        shared_data / "text_rust_book" / "rust_book.jsonl.gz",
        shared_data / "text_18f_handbook" / "18f_handbook.jsonl.gz",
    ]
    record = prepared(*files, minimum_characters=200, near_duplicates=0.8, heldout=0.02, seed=0)
    counts = record["counts"]
    assert counts["documents"] > 200 and counts["heldout"] > 0 and counts["undated"] == counts["documents"]
    sources = {row["source"] for row in rows_of()}
    assert len(sources) == counts["train"] and all(source.endswith(".md") for source in sources)
