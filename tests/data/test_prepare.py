"""Published files of every format become rows that training and evaluation read, whole or not at all, with every count
and reason."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import types
from dataclasses import replace
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from data_files import jsonl, preparation, prepared, rows_of
from holdfast.data.outputs import record_path
from holdfast.data.prepare.html_text import markdown
from holdfast.data.prepare.reading import Reading, records
from holdfast.data.prepare.registry import FORMATS
from holdfast.data.prepare.run import DUPLICATE, Preparation, prepare
from holdfast.errors import ConfigError, DataError, RunFolderError, StorageError
from holdfast.support.files import read_json


def metamath(count: int, *, originals: int | None = None) -> list[dict]:
    return [
        {
            "query": f"What is {i} + {i}?",
            "response": f"It is {2 * i}.",
            "type": "GSM_Rephrased",
            "original_question": f"q{i % (originals or count)}",
        }
        for i in range(count)
    ]


# ------------------------------------------------------------------------------------------------------------- metamath


def test_metamath_as_an_array_lines_and_parquet_gives_the_same_rows():
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = metamath(25)
    Path("a.json").write_text(json.dumps(made, indent=2))
    Path("b.json").write_text(json.dumps(made))
    jsonl("c.jsonl", made)
    with gzip.open("d.jsonl.gz", "wt") as file:
        file.write(Path("c.jsonl").read_text())
    pq.write_table(pa.Table.from_pylist(made), "e.parquet")
    expected = [{"question": r["query"], "answer": r["response"], "type": "GSM_Rephrased"} for r in made]
    for name in ("a.json", "b.json", "c.jsonl", "d.jsonl.gz", "e.parquet"):
        record = prepared("metamath", name, output=f"{name}.jsonl")
        assert rows_of(f"{name}.jsonl") == expected, name
        assert record["counts"] == {
            "records": 25,
            "rows": 25,
            "train": 25,
            "heldout": 0,
            "skipped": {},
            "shortened": {},
            "malformed": 0,
        }, name


def test_an_array_is_read_piece_by_piece(monkeypatch):
    """Elements lie across the borders of the pieces; none of the text read is more than a few pieces."""
    from holdfast.data.prepare import reading

    monkeypatch.setattr(reading, "_TEXT", 64)
    made = [{"query": "q" * length + '\\"é[{', "response": f"{length}"} for length in (1, 10, 63, 64, 65, 500, 3, 4)]
    Path("a.json").write_text("  \n" + json.dumps(made, indent=1, ensure_ascii=False) + "\n ")
    found = list(records(Path("a.json"), Reading(files=[], options={}, scratch=Path())))
    assert [record for _, record in found] == made
    assert found[2][0] == "a.json, element 3 (line 11)"


def test_a_byte_order_mark_makes_no_record_of_a_blank_line():
    Path("a.jsonl").write_bytes(b'\xef\xbb\xbf\r\n{"a": 1}\n')
    reading = Reading(files=[], options={}, scratch=Path())
    assert [record for _, record in records(Path("a.jsonl"), reading)] == [{"a": 1}] and reading.malformed == 0


@pytest.mark.parametrize(
    ("text", "explained"),
    [
        (
            '[{"query": "a", "response": "b"}',
            "line 1: expected ',' or ']' after element 1 of the array, got the end of the file",
        ),
        ('[{"query": "a", "response": "b"},\n{"query": "a', "line 2"),
        ('[{"query": "a", "response": "b"}\n{"query": 1}]', "line 2: expected ',' or ']' after element 1"),
        (
            '[{"query": "a", "response": "b"},\n{"query" "a", "padding": "' + "x" * 100 + '"}]',
            "line 2: expected an array of JSON objects",
        ),
        ("[" + '{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_array_is_refused_with_its_line(text, explained):
    Path("a.json").write_text(text)
    with pytest.raises(DataError) as caught:
        prepared("metamath", "a.json")
    assert explained in str(caught.value)
    assert not Path("train.jsonl").exists() and not record_path(Path("train.jsonl")).exists()


def test_what_is_skipped_is_counted_by_reason():
    bad = [{"query": " ", "response": "b"}, {"query": "a", "response": ""}, {"query": "a", "response": " \n"}]
    record = prepared("metamath", jsonl("a.jsonl", [*metamath(3), *metamath(2), *bad]))
    assert record["counts"]["skipped"] == {DUPLICATE: 2, "an empty 'response'": 2, "an empty 'query'": 1}
    assert record["counts"]["records"] == 8 and len(rows_of()) == 3


def test_malformed_records_are_an_error_that_names_ten_or_are_left_out_where_allowed():
    good = [json.dumps(row) for row in metamath(40)]
    bad = [
        '{"query": "a"',
        "[1]",
        '{"query": 3, "response": "b"}',
        '{"response": "b"}',
        "nonsense",
        '{"query": null, "response": "b"}',
    ] * 2
    Path("a.jsonl").write_text("\n".join([good[0], bad[0], "", *bad[1:], *good[1:]]) + "\n")
    with pytest.raises(DataError) as caught:
        prepared("metamath", "a.jsonl")
    explained = str(caught.value)
    assert explained.startswith("12 of 52 records are malformed, nothing was written.") and "and 2 more" in explained
    assert [line.split(":")[0].strip() for line in explained.splitlines()[1:11]] == [
        f"a.jsonl, line {n}" for n in (2, *range(4, 13))
    ]
    assert (
        "line 6: no 'query' (keys: response)" in explained.replace("line 7", "line 6")
        and "'query' is int, expected text" in explained
    )
    assert not Path("train.jsonl").exists()
    with pytest.raises(DataError, match="12 of 52"):
        prepared("metamath", "a.jsonl", most_malformed=0.2)
    record = prepared("metamath", "a.jsonl", most_malformed=0.25)
    assert record["counts"]["malformed"] == 12 and len(record["malformed_places"]) == 10 and len(rows_of()) == 40


def test_another_format_is_recognised_and_reading_stops_early():
    jsonl("a.jsonl", metamath(5000))
    with pytest.raises(DataError, match="The first 100 records are all malformed"):
        prepared("ultrachat", "a.jsonl")
    jsonl("b.jsonl", metamath(5))
    with pytest.raises(DataError, match="those of metamath: 'holdfast data prepare metamath'"):
        prepared("ultrachat", "b.jsonl")


# -------------------------------------------------------------------------------------------------- order, limit, sides


def test_a_seed_shuffles_in_an_order_that_the_input_does_not_decide():
    made = metamath(200)
    prepared("metamath", jsonl("a.jsonl", made), output="one.jsonl", seed=3)
    random.Random(0).shuffle(made)
    prepared("metamath", jsonl("b.jsonl", made), output="two.jsonl", seed=3)
    prepared("metamath", "a.jsonl", output="other.jsonl", seed=4)
    one, other = Path("one.jsonl").read_text(), Path("other.jsonl").read_text()
    assert one == Path("two.jsonl").read_text() != other
    assert sorted(one.splitlines()) == sorted(other.splitlines()) and rows_of("one.jsonl") != rows_of("a.jsonl")


def test_a_limit_takes_the_first_rows_or_with_a_seed_a_sample_of_all():
    jsonl("a.jsonl", metamath(300))
    first = prepared("metamath", "a.jsonl", output="first.jsonl", limit=30)
    assert [r["question"] for r in rows_of("first.jsonl")] == [r["query"] for r in metamath(30)] and first["counts"][
        "records"
    ] == 30
    sample = prepared("metamath", "a.jsonl", output="sample.jsonl", limit=30, seed=0)
    places = sorted(int(r["question"].split()[2]) for r in rows_of("sample.jsonl"))
    assert len(places) == 30 and places[-1] > 200 and places[0] < 100
    assert sample["counts"]["skipped"] == {"beyond the limit": 270}
    prepared("metamath", "a.jsonl", output="all.jsonl", seed=0)
    assert rows_of("all.jsonl")[:30] == rows_of("sample.jsonl")


@pytest.mark.parametrize("seed", [None, 5])
def test_no_question_is_on_both_sides(seed):
    """Also not in another wording, in other capitals, or in a file of another format."""
    made = metamath(600, originals=60)
    record = prepared("metamath", jsonl("a.jsonl", made), heldout=0.2, seed=seed)
    train, held = rows_of(), rows_of("train.heldout.jsonl")
    original = {r["query"]: r["original_question"] for r in made}
    sides = [{original[r["question"]] for r in side} for side in (train, held)]
    assert sides[0].isdisjoint(sides[1]) and len(train) + len(held) == 600
    assert (
        record["counts"]["train"] == len(train) and record["counts"]["heldout"] == len(held) and 40 <= len(held) <= 220
    )
    assert [one["rows"] for one in record["outputs"]] == [len(train), len(held)]
    other = jsonl("b.jsonl", [{"prompt": f"  Q{i}\n", "response": "x"} for i in range(60)])
    prepared("starcoder_instructions", other, output="code.jsonl", heldout=0.2, seed=None if seed else 1)
    assert {r["prompt"].strip().lower() for r in rows_of("code.heldout.jsonl")} == sides[1]


def test_a_side_without_rows_is_refused():
    with pytest.raises(DataError, match="No row is held out"):
        prepared("metamath", jsonl("a.jsonl", metamath(3)), heldout=0.0001)
    with pytest.raises(DataError, match=r"No row is left to train on out of 1 records \(1 an empty 'query'\)"):
        prepared("metamath", jsonl("b.jsonl", [{"query": "", "response": "b"}]))
    assert not Path("train.jsonl").exists()


# ----------------------------------------------------------------------------------------------------- doing it again


def test_the_same_request_does_nothing_and_another_does_not_overwrite():
    def times() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in Path().iterdir() if p.name != "a.jsonl"}

    jsonl("a.jsonl", metamath(10))
    first = prepared("metamath", "a.jsonl", heldout=0.3)
    before = times()
    again = prepare(preparation("metamath", "a.jsonl", heldout=0.3))
    assert again.done_before and again.record == first and times() == before
    for change in ({"limit": 5}, {"seed": 1}, {"heldout": 0.5}):
        with pytest.raises(RunFolderError, match="came from other input or options"):
            prepared("metamath", "a.jsonl", **{"heldout": 0.3, **change})
    jsonl("a.jsonl", metamath(11))
    with pytest.raises(RunFolderError, match="not overwritten"):
        prepared("metamath", "a.jsonl", heldout=0.3)
    assert times() == before


def test_files_of_others_are_not_touched():
    jsonl("a.jsonl", metamath(10))
    Path("train.jsonl").write_text("mine\n")
    with pytest.raises(RunFolderError, match="nothing says that 'holdfast data prepare' wrote it"):
        prepared("metamath", "a.jsonl")
    Path("train.jsonl").unlink()
    Path("train.heldout.jsonl").write_text("mine\n")
    with pytest.raises(RunFolderError, match=r"train\.heldout\.jsonl is there already"):
        prepared("metamath", "a.jsonl", heldout=0.3)
    assert Path("train.heldout.jsonl").read_text() == "mine\n" and not Path("train.jsonl").exists()
    prepared("metamath", "a.jsonl")
    with open("train.jsonl", "a") as file:
        file.write("edited\n")
    with pytest.raises(RunFolderError, match="was changed after it was prepared"):
        prepared("metamath", "a.jsonl")


def test_a_stop_between_the_files_leaves_no_half_and_the_same_command_finishes(monkeypatch):
    jsonl("a.jsonl", metamath(50))
    replace, left = os.replace, [1]

    def dying(source, target):
        if str(target).endswith("train.jsonl"):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        prepared("metamath", "a.jsonl", heldout=0.2)
    assert not Path("train.jsonl").exists() and [p.name for p in Path().iterdir() if p.name.startswith(".")] == []
    record = prepared("metamath", "a.jsonl", heldout=0.2)
    assert record["status"] == "complete" and len(rows_of()) + len(rows_of("train.heldout.jsonl")) == 50


def test_a_full_disk_leaves_nothing_half(monkeypatch):
    jsonl("a.jsonl", metamath(5))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match="No space left on device"):
        prepared("metamath", "a.jsonl")
    assert sorted(p.name for p in Path().iterdir()) == ["a.jsonl"]


def test_the_record_says_how_it_came_about():
    import hashlib

    path = jsonl("a.jsonl", metamath(10))
    record = prepared("metamath", path, seed=1)
    assert record == read_json("train.jsonl.json")
    assert record["inputs"] == [
        {"name": "a.jsonl", "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    ]
    assert record["outputs"][0]["sha256"] == hashlib.sha256(Path("train.jsonl").read_bytes()).hexdigest()
    assert record["options"]["seed"] == 1 and record["versions"]["holdfast"] and record["status"] == "complete"


def test_all_mistakes_at_once():
    jsonl("a.jsonl", metamath(1))
    Path("folder").mkdir()
    options = {"limit": 0, "heldout": 1.0, "heldout_output": Path("a.jsonl"), "most_malformed": 2}
    wrong = preparation("metamath", "a.jsnl", "folder", "a.jsonl", output="a.jsonl", **options)
    with pytest.raises(ConfigError) as caught:
        prepare(replace(wrong, options={"tags": ["a"], "questions": True, "after": "x"}))
    assert len(caught.value.problems) == 11
    for word in (
        "Did you mean 'a.jsonl'?",
        "found a folder; name the files in it",
        "tags: belongs to the format stackexchange",
        "questions: belongs to the format quality",
        "after: belongs to the format corpus, not to metamath",
        "a.jsonl is an input",
        "limit",
        "heldout: expected a number of at least 0 and below 1",
        "most_malformed",
        "another file than the output",
    ):
        assert word in str(caught.value), word
    for name, explained in (
        ("metmath", "Did you mean 'metamath'"),
        ("stackexchange", r"a file of stackexchange .*got a\.jsonl"),
    ):
        with pytest.raises(ConfigError, match=explained):
            prepare(Preparation(format=name, inputs=(Path("a.jsonl"),), output=Path("b.jsonl")))


# -------------------------------------------------------------------------------------------------------- stackexchange


def post(key: int, kind: int, body: str, **more) -> str:
    attributes = {"Id": key, "PostTypeId": kind, "Body": body, "Score": 0, **more}
    return f"  <row {' '.join(f'{name}={quoteattr(str(value))}' for name, value in attributes.items())} />"


def dump(*rows: str, name="Posts.xml") -> Path:
    Path(name).write_text(
        '<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "\n".join(rows) + "\n</posts>\n", encoding="utf-8-sig"
    )
    return Path(name)


POSTS = (
    post(
        1, 1, "<p>Why is $a^2 &lt; b$?</p>", Title="Squares", Tags="<algebra><inequality>", AcceptedAnswerId=5, Score=7
    ),
    post(2, 1, "<p>How?</p>", Title="Integrals", Tags="|calculus|", Score=3),
    post(3, 1, "<p>Nobody knows</p>", Title="Alone", Tags="<algebra>", Score=9),
    post(4, 2, "<p>popular</p>", ParentId=1, Score=50),
    post(5, 2, "<p>accepted</p>", ParentId=1, Score=1),
    post(6, 2, "<p>worse</p>", ParentId=2, Score=1),
    post(7, 2, "<p>better</p>", ParentId=2, Score=4),
    post(8, 2, "<p>as good, but later</p>", ParentId=2, Score=4),
    post(9, 4, "<p>a tag</p>"),
    post(10, 2, "<p>to a question that is not there</p>", ParentId=99),
)


@pytest.mark.parametrize("posts", [POSTS, POSTS[::-1]], ids=["in order", "answers first"])
def test_the_accepted_answer_else_the_best(posts):
    record = prepared("stackexchange", dump(*posts), site="math.stackexchange.com")
    assert [list(row.values()) for row in rows_of()] == [
        ["Squares\n\nWhy is $a^2 < b$?", "accepted", "1", "https://math.stackexchange.com/q/1"],
        ["Integrals\n\nHow?", "better", "2", "https://math.stackexchange.com/q/2"],
    ]
    assert list(rows_of()[0]) == ["question", "answer", "id", "url"]
    assert record["counts"]["skipped"] == {
        "a post that is no question and no answer": 1,
        "a question without an answer (of that score)": 1,
    }
    assert record["counts"]["records"] == 10


def test_scores_and_tags():
    record = prepared("stackexchange", dump(*POSTS), output="scored.jsonl", min_score=3)
    assert [(r["id"], r["answer"]) for r in rows_of("scored.jsonl")] == [("1", "popular"), ("2", "better")]
    assert record["counts"]["skipped"]["an answer with a score below 3"] == 3
    prepared("stackexchange", "Posts.xml", output="tagged.jsonl", tags=["Calculus", "geometry"])
    assert [r["id"] for r in rows_of("tagged.jsonl")] == ["2"]
    assert "url" not in rows_of("tagged.jsonl")[0]


def test_broken_rows_are_named_and_reading_goes_on(monkeypatch):
    """Forbidden characters, missing quotes and rows without an id, wherever the pieces of the file end."""
    from holdfast.data.prepare import stackexchange

    rows = [
        *POSTS[:2],
        '  <row Id="20" PostTypeId="1" Body="bad &#x1F; character" />',
        *POSTS[2:6],
        '  <row Id="21 PostTypeId="2" />',
        *POSTS[6:],
        '  <row PostTypeId="1" Body="x" />',
        '  <row Id="x1" PostTypeId="1" Body="x" />',
    ]
    dump(*rows)
    expected = [(5, "well-formed"), (10, "well-formed"), (15, "no 'Id'"), (16, "invalid literal")]
    for size in (1 << 20, 7, 64, 150, 333):
        monkeypatch.setattr(stackexchange, "_CHUNK", size)
        with pytest.raises(DataError) as caught:
            prepared("stackexchange", "Posts.xml", output=f"{size}.jsonl")
        lines = str(caught.value).splitlines()[1:]
        assert len(lines) == 4, lines
        for line, (number, reason) in zip(lines, expected, strict=True):
            assert line.strip().startswith(f"Posts.xml, line {number}: ") and reason in line, (size, line)
        prepared("stackexchange", "Posts.xml", output=f"{size}.jsonl", most_malformed=0.5)
        assert [r["id"] for r in rows_of(f"{size}.jsonl")] == ["1", "2"]


@pytest.mark.parametrize(
    ("content", "explained"),
    [
        (
            '<?xml version="1.0"?><!DOCTYPE p [<!ENTITY a "b">]><posts><row Id="1"/></posts>',
            "document type or entities",
        ),
        ('<!DOCTYPE p SYSTEM "file:///etc/passwd"><posts/>', "document type or entities"),
        ("<posts>\n" + POSTS[0] + "\n", "ends before it is whole"),
        ("<posts>\n</posts>", "found none"),
        ("", "ends before it is whole"),
    ],
    ids=["entity", "external", "cut", "none", "empty"],
)
def test_xml_that_is_not_read(content, explained):
    Path("Posts.xml").write_text(content)
    with pytest.raises(DataError, match=explained):
        prepared("stackexchange", "Posts.xml")
    assert sorted(p.name for p in Path().iterdir()) == ["Posts.xml"]


def test_an_entity_is_not_expanded():
    Path("Posts.xml").write_text(
        "<posts>\n" + POSTS[0].replace("Why", "&lol;") + "\n" + "\n".join(POSTS[1:]) + "\n</posts>\n"
    )
    record = prepared("stackexchange", "Posts.xml", most_malformed=0.5)
    assert [r["id"] for r in rows_of()] == ["2"] and "undefined entity" in record["malformed_places"][0]


def test_a_7z_dump_needs_its_package(monkeypatch):
    Path("site.7z").write_bytes(b"7z")
    monkeypatch.setitem(sys.modules, "py7zr", None)
    with pytest.raises(DataError, match="pip install py7zr, or unpack"):
        prepared("stackexchange", "site.7z")

    class Archive:
        def __init__(self, path):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def getnames(self):
            return ["Badges.xml", "Posts.xml"]

        def extract(self, path, targets):
            assert targets == ["Posts.xml"]
            dump(*POSTS, name=str(Path(path) / "Posts.xml"))

    fake = types.SimpleNamespace(SevenZipFile=Archive, exceptions=types.SimpleNamespace(ArchiveError=ValueError))
    monkeypatch.setitem(sys.modules, "py7zr", fake)
    prepared("stackexchange", "site.7z")
    assert len(rows_of()) == 2


def test_memory_does_not_grow_with_the_dump(monkeypatch):
    """Six times the posts, the same memory but for a few numbers a row."""
    import tracemalloc

    from holdfast.data.prepare import stackexchange

    monkeypatch.setattr(stackexchange, "_CHUNK", 1 << 16)
    monkeypatch.setattr(stackexchange, "_BATCH", 50)

    def peak(count: int) -> int:
        rows = []
        for i in range(count):
            rows += [
                post(2 * i + 1, 1, f"{i} {'why ' * 1500}", Title=f"t{i}"),
                post(2 * i + 2, 2, "so " * 1500, ParentId=2 * i + 1),
            ]
        dump(*rows, name=f"{count}.xml")
        tracemalloc.start()
        prepared("stackexchange", f"{count}.xml", output=f"{count}.jsonl")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(rows_of(f"{count}.jsonl")) == count
        return most

    peak(10)  # what is loaded once
    small, large = peak(150), peak(900)
    assert Path("900.xml").stat().st_size - Path("150.xml").stat().st_size > 6 << 20
    assert large < small + (1 << 20), (small, large)


# ----------------------------------------------------------------------------------------------------- HTML as Markdown


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a <strong>b</strong> <em>c</em> <code>d`e</code></p>", "a **b** *c* ``d`e``"),
        ("<p>one</p>\n\n<p>two<br>three</p>", "one\n\ntwo\nthree"),
        (
            "<p>$$\\begin{align}\nx_1 &amp;= a * b \\\\ % c\ny &lt; 2\n\\end{align}$$</p>",
            "$$\\begin{align}\nx_1 &= a * b \\\\ % c\ny < 2\n\\end{align}$$",
        ),
        ("<p>$a_1*b_2*c$ and <em>$x$</em></p>", "$a_1*b_2*c$ and *$x$*"),
        (
            '<pre class="lang-py prettyprint-override"><code>'
            "def f():\n    return 1 &lt; 2\n\n\n\n# &amp;\n</code></pre>",
            "```py\ndef f():\n    return 1 < 2\n\n\n\n# &\n```",
        ),
        ("<pre><code>```\n</code></pre>", "````\n```\n````"),
        (
            "<ul>\n<li>a</li>\n<li><p>b</p>\n<pre><code>x\n\ny</code></pre></li>\n</ul>",
            "- a\n- b\n\n  ```\n  x\n  \n  y\n  ```",
        ),
        ("<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>", "1. a\n   - b\n2. c"),
        ("<blockquote><p>a</p><p>b</p></blockquote>", "> a\n>\n> b"),
        (
            '<a href="http://x.y">z</a> <a href="http://x.y">http://x.y</a> <img src="i.png" alt="k">',
            "[z](http://x.y) http://x.y ![k](i.png)",
        ),
        ("<h2>t</h2><hr>x<sup>2</sup>", "## t\n\n---\n\nx<sup>2</sup>"),
        (
            "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>",
            "| a | b |\n| --- | --- |\n| 1 | 2 |",
        ),
        ("<p>open <i>a <b>b</i> c<p>next", "open *a **b*** c\n\nnext"),
        ("</p></div>text", "text"),
        ("<script>x()</script>", ""),
    ],
)
def test_markdown(html, text):
    assert markdown(html) == text


# ---------------------------------------------------------------------------------------------------------- the others


def test_starcoder_instructions():
    whole = {
        "instruction": "Write f.",
        "response": "def f(): ...",
        "prompt": "(for the model that made it)",
        "seed": "s",
    }
    prepared("starcoder_instructions", jsonl("a.jsonl", [whole, {"prompt": "Write g.", "response": "def g(): ..."}]))
    assert rows_of() == [
        {"prompt": "Write f.\n\n", "completion": "def f(): ..."},
        {"prompt": "Write g.\n\n", "completion": "def g(): ..."},
    ]


def test_magicoder():
    prepared("magicoder", jsonl("a.jsonl", [{"instruction": "Write f.", "response": "def f(): ..."}]))
    assert rows_of() == [{"prompt": "Write f.\n\n", "completion": "def f(): ..."}]


HOLDINGS = [f"holding that {i} is so" for i in range(5)]
LAW = {
    "lexglue.jsonl": [{"context": "See Roe (<HOLDING>).", "endings": HOLDINGS, "label": 3}],
    "casehold.csv": "id,citing_prompt,holding_0,holding_1,holding_2,holding_3,holding_4,label\n"
    '0,"A, B (<HOLDING>)",a,b,c,d,e,1\n',
    "tos.jsonl": [{"text": "We may end this.", "labels": [1, 4]}, {"text": "Hello.", "labels": []}],
    "tos2.jsonl": [{"text": "We may change this.", "label": 1}],
    "overruling.jsonl": [{"index": 0, "text": "We overrule Roe.", "answer": "Yes"}],
}


def test_law_from_every_release_mixed():
    for name, content in LAW.items():
        Path(name).write_text(content) if isinstance(content, str) else jsonl(name, content)
    prepared("law", *LAW)
    rows = {(r["task"], r["prompt"].split("\n")[0]): r for r in rows_of()}
    assert {key: (row["completion"], row["answer"]) for key, row in rows.items()} == {
        ("casehold", "See Roe (<HOLDING>)."): (" holding that 3 is so", 3),
        ("casehold", "A, B (<HOLDING>)"): (" b", 1),
        ("terms_of_service", "We may end this."): (" Yes", 1),
        ("terms_of_service", "Hello."): (" No", 0),
        ("terms_of_service", "We may change this."): (" Yes", 1),
        ("overruling", "We overrule Roe."): (" Yes", 1),
    }
    assert all(
        r["completion"] == r["options"][r["answer"]] and r["prompt"].endswith("\nAnswer:") for r in rows.values()
    )


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"context": "a", "endings": HOLDINGS[:4], "label": 0}, "expected 5 holdings"),
        ({"context": "a", "endings": HOLDINGS, "label": 5}, "'label' is 5, expected a number from 0 to 4"),
        ({"context": "a", "endings": HOLDINGS, "label": None}, "'label' is None"),
        ({"text": "a", "labels": "unfair"}, "expected a list of kinds"),
        ({"text": "a", "answer": "perhaps"}, "expected Yes or No"),
        ({"text": "a", "label": True}, "expected a number from 0 to 1"),
        ({"question": "a"}, "no 'text'"),
    ],
)
def test_law_that_is_not_as_published(record, words):
    with pytest.raises(DataError, match=words):
        prepared("law", jsonl("a.jsonl", [record]))


def test_law_is_asked_as_choices(tmp_path):
    """The rows are what the `choices` entry reads, each task with its own accuracy."""
    from holdfast.evaluation.suite import parse_evaluation
    from holdfast.evaluation.text.choices import read_choices
    from tiny import build_tokenizer

    prepared("law", jsonl("a.jsonl", LAW["tos.jsonl"] + LAW["lexglue.jsonl"]), output="law.jsonl")
    plan, problems = parse_evaluation({"target": [{"choices": "law.jsonl", "name": "law", "group": "task"}]})
    assert not problems
    questions = read_choices(plan.entries[0], build_tokenizer())
    assert len(questions) == 3


def turn(role: str, content: str | None) -> dict:
    return {"role": role, "content": content}


def test_ultrachat_in_both_forms():
    rows = [
        {"id": "7", "data": ["hi", "hello", "and?", "so"]},
        {"prompt": "hi", "prompt_id": "p", "messages": [turn("user", "hi"), turn("assistant", "hello")]},
        {"id": "8", "data": ["hi", "hello", "unanswered"]},
        {"id": "9", "data": ["without answer"]},
        {"id": "10", "data": ["hi", " "]},
        {"messages": [turn("system", "be short"), turn("user", "hi"), turn("assistant", "yes")]},
    ]
    record = prepared("ultrachat", jsonl("a.jsonl", rows))
    messages = [turn("user", "hi"), turn("assistant", "hello"), turn("user", "and?"), turn("assistant", "so")]
    assert rows_of()[0] == {"messages": messages, "id": "7"}
    assert [len(r["messages"]) for r in rows_of()] == [4, 2, 3]
    assert record["counts"]["skipped"] == {DUPLICATE: 1, "a conversation without an answer": 1, "an empty turn": 1}
    assert record["counts"]["shortened"] == {"a last turn of the user without an answer": 1}


def test_chosen_conversations():
    chosen = "\n\nHuman: Why? They say Human: x\n\nand more\n\nAssistant: So.\n\nHuman: And?\n\nAssistant: Yes."
    rows = [
        {"chosen": chosen, "rejected": "\n\nHuman: Why?\n\nAssistant: No."},
        {"chosen": "\n\nHuman: a\n\nHuman: b\n\nAssistant: c", "rejected": ""},
        {"chosen": "\n\nHuman: a\n\nAssistant:", "rejected": ""},
        {"chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c", "rejected": ""},
    ]
    record = prepared("hh", jsonl("a.jsonl", rows))
    asked = "Why? They say Human: x\n\nand more"
    messages = [turn("user", asked), turn("assistant", "So."), turn("user", "And?"), turn("assistant", "Yes.")]
    assert rows_of() == [{"messages": messages}]
    assert record["counts"]["skipped"] == {
        "turns that do not alternate": 1,
        "an empty turn": 1,
        "a conversation without an answer": 1,
    }


def test_alpaca():
    rows = [
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        {"instruction": "Name a colour.", "input": "", "output": "red"},
        {"instruction": "Say nothing.", "input": None, "output": " "},
    ]
    record = prepared("alpaca", jsonl("a.jsonl", rows))
    assert [r["messages"][0]["content"] for r in rows_of()] == ["Add.\n\n1 and 2", "Name a colour."]
    assert record["counts"]["skipped"] == {"an empty answer": 1}


def quality_row(article: str, writer: int, *questions, **more) -> dict:
    return {
        "article_id": article,
        "set_unique_id": f"{article}_{writer}",
        "title": "Toy Shop",
        "author": "Harrison, Harry",
        "year": 1968,
        "article": f"\nText of {article}.\n",
        "questions": list(questions),
        **more,
    }


def asked(text: str, gold=2, **more) -> dict:
    return {
        "question": text,
        "options": ["a", "b ", "c", "d"],
        "gold_label": gold,
        "difficult": 1,
        "question_unique_id": text,
        **more,
    }


def test_quality_articles_come_once():
    rows = [
        quality_row("1", 1, asked("Why?")),
        quality_row("1", 2, asked("Who?")),
        quality_row("2", 1, title="", author=None),
    ]
    Path("QuALITY.v1.0.1.htmlstripped.train").write_text("".join(json.dumps(r) + "\n" for r in rows))
    record = prepared("quality", "QuALITY.v1.0.1.htmlstripped.train")
    assert [r["text"] for r in rows_of()] == ["Toy Shop\nby Harry Harrison\n\nText of 1.", "Text of 2."]
    assert record["counts"]["skipped"] == {
        "an article that is there already (one line for each writer of questions)": 1
    }


def test_quality_questions_are_what_the_task_reads():
    import yaml

    from holdfast.evaluation import shipped

    rows = [
        quality_row("1", 1, asked("Why did he go?"), asked("I said what?", gold=4)),
        quality_row("1", 2, asked("NASA?", gold=None), asked("Why did he go?")),
    ]
    record = prepared("quality", jsonl("a.jsonl", rows), output="questions.jsonl", questions=True)
    first, second = rows_of("questions.jsonl")
    assert first["question"] == 'In the context of "Toy Shop", written by Harry Harrison in 1968, why did he go?'
    assert second["question"].endswith("in 1968, I said what?") and (first["answer"], second["answer"]) == (1, 3)
    assert first["options"] == ["a", "b", "c", "d"] and first["article"] == "Text of 1." and first["hard"] is True
    assert record["counts"]["skipped"] == {DUPLICATE: 1, "a question without a published answer": 1}
    task = yaml.safe_load((Path(shipped.__file__).parent / "tasks" / "benchmarks" / "quality.yaml").read_text())
    assert (
        "{{question" in task["doc_to_text"]
        and "{{options[3]}}" in task["doc_to_text"]
        and task["doc_to_target"] == "answer"
    )


def test_quality_questions_are_not_taken_for_the_release():
    """The release's own form is converted by evaluation; what is prepared is in the task's form already, and left
    alone."""
    import datasets

    from holdfast.evaluation.tasks.data_forms import convert

    prepared("quality", jsonl("a.jsonl", [quality_row("1", 1, asked("Why?"))]), output="q.jsonl", questions=True)
    rows, form = convert(datasets.Dataset.from_list(rows_of("q.jsonl")), "quality", "q.jsonl")
    assert form is None and rows[0]["answer"] == 1


@pytest.mark.parametrize(
    ("kind", "row", "explained"),
    [
        ("ultrachat", {"data": "text"}, "no 'messages' and no 'data'"),
        ("ultrachat", {"data": []}, "holds no turns"),
        ("ultrachat", {"messages": [turn("assistant", "a")]}, "expected user and assistant in turn, got assistant"),
        ("ultrachat", {"messages": [turn("user", "a"), turn("user", "b")]}, "got user, user"),
        ("ultrachat", {"messages": [turn("human", "a")]}, "turn 1: expected a role"),
        ("ultrachat", {"messages": [turn("user", None)]}, "turn 1"),
        ("ultrachat", {"messages": [turn("system", "a")]}, "no turn of theirs"),
        ("hh", {"chosen": "What is that?", "rejected": ""}, "expected a conversation that begins with 'Human: '"),
        ("alpaca", {"instruction": "a", "input": 3, "output": "b"}, "'input' and 'output' to be text"),
        ("quality", {"options": ["a"]}, "four options"),
        ("quality", {"gold_label": 5}, "from 1 to 4"),
        ("quality", {"question": 3}, "'question' is int"),
        ("quality", {"gold_label": "2"}, "got '2'"),
    ],
)
def test_records_that_are_malformed(kind, row, explained):
    options = {"questions": True} if kind == "quality" else {}
    row = quality_row("1", 1, {**asked("Why?"), **row}) if kind == "quality" else row
    with pytest.raises(DataError, match=explained):
        prepared(kind, jsonl("a.jsonl", [row]), **options)


def test_every_format_is_read_by_training(tmp_path):
    """Rows that are written load, are recognised, and pass the check of every row."""
    from holdfast.data.formats import standardise
    from holdfast.data.sources import load_rows
    from tiny import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    inputs = {
        "metamath": jsonl("m.jsonl", metamath(5)),
        "stackexchange": dump(*POSTS),
        "starcoder_instructions": jsonl("s.jsonl", [{"prompt": "a", "response": "b"}]),
        "magicoder": jsonl("mc.jsonl", [{"instruction": "a", "response": "b"}]),
        "law": jsonl("l.jsonl", LAW["tos.jsonl"]),
        "classification": jsonl("cl.jsonl", [{"question": "a", "passage": "b", "answer": True}]),
        "ultrachat": jsonl("u.jsonl", [{"id": "1", "data": ["a", "b"]}]),
        "alpaca": jsonl("al.jsonl", [{"instruction": "a", "input": "", "output": "b"}]),
        "hh": jsonl("hh.jsonl", [{"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": ""}]),
        "tulu": jsonl(
            "t.jsonl", [{"dataset": "d", "id": "1", "messages": [turn("user", "a"), turn("assistant", "b")]}]
        ),
        "quality": jsonl("q.jsonl", [quality_row("1", 1)]),
        "corpus": jsonl("c.jsonl", [{"text": "A document.", "date": "2024-01-15"}]),
    }
    assert set(inputs) == set(FORMATS)
    found = {}
    for name, path in inputs.items():
        prepared(name, path, output=f"out/{name}.jsonl")
        _, found[name] = standardise(load_rows(f"out/{name}.jsonl"), tokenizer)
    assert found == {
        "metamath": "question_answer",
        "stackexchange": "question_answer",
        "starcoder_instructions": "prompt_completion",
        "magicoder": "prompt_completion",
        "law": "prompt_completion",
        "classification": "prompt_completion",
        "ultrachat": "chat",
        "alpaca": "chat",
        "hh": "chat",
        "tulu": "chat",
        "quality": "text",
        "corpus": "text",
    }
