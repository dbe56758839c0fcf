"""Data files: rows that are none, compressed streams that end early or never, and strange files that are sound."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.case import Case
from fuzz.junk import cut, flipped

GOOD = [{"text": f"The quick brown fox jumps over the lazy dog {n}."} for n in range(12)]
TRAIN = [
    "train",
    "--model_name_or_path",
    "base",
    "--max_steps",
    "1",
    "--use_cpu",
    "--report_to",
    "none",
    "--max_length",
    "64",
    "--save_strategy",
    "no",
    "--output_dir",
    "out",
    "--dataset_name",
]
READERS: dict[str, tuple[list[str], list[str]]] = {
    "train": (TRAIN, []),
    "evaluate": (["evaluate", "base", "--output_dir", "out", "--perplexity"], []),
    "prepare": (["data", "prepare", "--output", "out.jsonl", "--input"], []),
    "update": (["update", "--config", "update.yaml", "--dry_run", "--corpus"], []),
}
"""Commands that read rows: the words before and after the file's name."""


def lines(rows: list[Any]) -> bytes:
    """JSON Lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "surrogatepass")


def zstd(content: bytes) -> bytes:
    """As a zstd stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


def rows_case(rng: random.Random) -> Case:
    """One data file."""
    reader = rng.choice(("train", "evaluate", "evaluate", "prepare", "prepare"))
    what, name, content, valid = rng.choice((_bad_line, _bad_line, _bad_file, _compressed, _parquet, _table, _sound))(
        rng
    )
    if what == "a row's text a number" or (reader == "prepare" and what.startswith("a row's")):
        valid = None  # a number is taken for its digits; a corpus counts and leaves out what has no text
    if reader == "prepare" and name.endswith(".csv"):
        valid = False  # a corpus has other forms
    before, after = READERS[reader]

    def prepare(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return Case(
        what=f"{reader} reads {what}", words=[*before, name, *after], valid=valid, names=(name,), prepare=prepare
    )


Made = tuple[str, str, bytes, bool | None]


def _bad_line(rng: random.Random) -> Made:
    """One line of a sound file is no row."""
    odd: dict[str, bytes] = {
        "an open brace": b'{"text": "a"',
        "a list": b'["text"]',
        "a number": b"7",
        "null": b"null",
        "an empty object": b"{}",
        "two objects": b'{"text": "a"} {"text": "b"}',
        "a comma after it": b'{"text": "a"},',
        "single quotes": b"{'text': 'a'}",
        "no quotes": b"{text: a}",
        "NaN": b'{"text": "a", "x": nan}',
        "a key twice": b'{"text": "a", "text": "b"}',
        "half a surrogate pair": b'{"text": "\\ud800"}',
        "Latin-1": '{"text": "ä"}'.encode("latin-1"),
        "a control character": b'{"text": "\x01"}',
        "3,000 brackets": b'{"text": "a", "x": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        "100,000 open brackets": b'{"text": "a", "x": ' + b"[" * 100_000,
        "5,000 digits": b'{"text": "a", "x": ' + b"9" * 5000 + b"}",
        "binary": b'{"text": "' + bytes(range(128, 256)) + b'"}',
        "zeros": bytes(50),
        "a row's text null": b'{"text": null}',
        "a row's text a number": b'{"text": 7}',
        "a row's text a list": b'{"text": ["a"]}',
        "a row's text an object": b'{"text": {"a": 1}}',
        "a row's text empty": b'{"text": ""}',
        "a row's text white space": b'{"text": " \\n"}',
        "a row's other column": b'{"body_of_text": "a"}',
    }
    what = rng.choice(list(odd))
    rows = lines(GOOD).splitlines(keepends=True)
    place = rng.randrange(len(rows) + 1)
    content = b"".join([*rows[:place], odd[what] + b"\n", *rows[place:]])
    return (what if what.startswith("a row's") else f"a line that is {what}"), "data.jsonl", content, False


def _bad_file(rng: random.Random) -> Made:
    good = lines(GOOD)
    made: dict[str, tuple[str, bytes]] = {
        "an empty file": ("data.jsonl", b""),
        "blank lines": ("data.jsonl", b"\n \n\n"),
        "an empty array": ("data.json", b"[]"),
        "an array of numbers": ("data.json", b"[1, 2]"),
        "an array that does not end": ("data.json", json.dumps(GOOD).encode()[:-1]),
        "one object over many lines": ("data.json", json.dumps({"rows": GOOD}, indent=1).encode()),
        "UTF-16": ("data.jsonl", good.decode().encode("utf-16")),
        "UTF-16 text": ("data.txt", "Ein Text.".encode("utf-16")),
        "Latin-1 text": ("data.txt", "Ein schöner Text.".encode("latin-1")),
        "white space": ("data.txt", b" \n\t\n"),
        "binary": ("data.jsonl", rng.randbytes(5000)),
        "binary text": ("data.txt", b"\xff" + rng.randbytes(5000)),
        "a picture": ("data.jsonl", b"\x89PNG\r\n\x1a\n" + rng.randbytes(900)),
        "another kind of file": ("data.docx", rng.randbytes(900)),
        "gzip without its ending": ("data.jsonl", gzip.compress(good)),
        "parquet without its ending": ("data.jsonl", b"PAR1" + rng.randbytes(900) + b"PAR1"),
        "no column of text": ("data.jsonl", lines([{"x": 1}, {"x": 2}])),
    }
    what = rng.choice(list(made))
    return what, *made[what], False


def _compressed(rng: random.Random) -> Made:
    packed, pack = rng.choice(((".gz", gzip.compress), (".zst", zstd)))
    good = lines(GOOD)
    what = rng.choice(
        (
            "cut short",
            "a changed bit",
            "no stream",
            "empty",
            "sound",
            "twice in a row",
            "twice packed",
        )
    )
    name = f"data.jsonl{packed}"
    if what == "cut short":
        content = pack(good)
        return f"{packed} {what}", name, content[: rng.randrange(1, len(content) - 4)], False
    if what == "a changed bit":
        return f"{packed} with {what}", name, flipped(pack(good), rng), None
    if what == "no stream":
        return f"{packed} that is {what}", name, good, False
    if what == "empty":
        return f"{packed} {what}", name, b"", False
    if what == "sound":
        return f"{packed}, {what}", name, pack(good), True
    if what == "twice in a row":
        return f"{packed} {what}", name, pack(good) + pack(good), True if packed == ".gz" else None
    return f"{packed} {what}", name, pack(pack(good)), False


def _parquet(rng: random.Random) -> Made:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    def file(table: Any) -> bytes:
        stream = io.BytesIO()
        pq.write_table(table, stream)
        return stream.getvalue()

    good = file(pa.table({"text": [row["text"] for row in GOOD]}))
    what = rng.choice(
        (
            "cut short",
            "a changed bit",
            "no rows",
            "no text",
            "numbers as text",
            "nulls",
            "bytes as text",
            "sound",
            "empty",
        )
    )
    if what == "cut short":
        return f"parquet {what}", "data.parquet", cut(good, rng), False
    if what == "a changed bit":
        return f"parquet with {what}", "data.parquet", flipped(good, rng), None
    tables = {
        "no rows": pa.table({"text": pa.array([], pa.string())}),
        "no text": pa.table({"x": [1, 2]}),
        "numbers as text": pa.table({"text": [1, 2]}),
        "nulls": pa.table({"text": pa.array([None, None], pa.string())}),
        "bytes as text": pa.table({"text": [b"\xff\xfe", b"a"]}),
        "sound": pa.table({"text": [row["text"] for row in GOOD]}),
    }
    content = b"" if what == "empty" else file(tables[what])
    valid = True if what == "sound" else None if what in ("nulls", "numbers as text", "bytes as text") else False
    return f"parquet: {what}", "data.parquet", content, valid


def _table(rng: random.Random) -> Made:
    header = b"text,other\n"
    row = b"The quick brown fox,1\n"
    made: dict[str, tuple[bytes, bool | None]] = {
        "sound": (header + row * 5, True),
        "a cell too many": (header + row * 3 + b"a,b,c\n", False),
        "a cell too few": (header + row * 3 + b"a\n", False),
        "an open quote": (header + row * 3 + b'"a,b\n', False),
        "a header alone": (header, False),
        "a column twice": (b"text,text\n" + row, False),
        "a blank header": (b"\n" + row, False),
        "Latin-1": (header + "schön,1\n".encode("latin-1"), False),
        "zeros": (header + bytes(20) + b",1\n", None),
        "quotes and breaks": (header + b'"a ""quoted"" fox,\nover two lines",1\n' + row, True),
    }
    what = rng.choice(list(made))
    return f"CSV: {what}", "data.csv", *made[what]


def _sound(rng: random.Random) -> Made:
    """Strange and right."""
    good = lines(GOOD)
    made: dict[str, tuple[str, bytes]] = {
        "a byte order mark": ("data.jsonl", b"\xef\xbb\xbf" + good),
        "Windows line ends": ("data.jsonl", good.replace(b"\n", b"\r\n")),
        "blank lines between rows": ("data.jsonl", good.replace(b"\n", b"\n\n")),
        "no line end at the end": ("data.jsonl", good[:-1]),
        "an array": ("data.json", json.dumps(GOOD, indent=1).encode()),
        "a column of many types": (
            "data.jsonl",
            lines([{**r, "x": x} for r, x in zip(GOOD, [1, "a", None, [1], {}, 1.5] * 2, strict=True)]),
        ),
        "large numbers": ("data.jsonl", lines([{**row, "x": 10**30} for row in GOOD])),
        "dates": ("data.jsonl", lines([{**row, "x": "2020-01-01"} for row in GOOD])),
        "deep values": ("data.jsonl", lines([{**row, "x": json.loads("[" * 60 + "]" * 60)} for row in GOOD])),
        "other scripts": ("data.jsonl", lines([{"text": "Zażółć gęślą jaźń 狐 🦊 \u202e"}] * 8)),
        "a long row": ("data.jsonl", lines([{"text": "fox " * 50_000}, *GOOD])),
        "a name with spaces": ("da ta[1].jsonl", good),
        "a name of another script": ("狐.jsonl", good),
    }
    what = rng.choice(list(made))
    return what, *made[what], None if "[" in made[what][0] else True


def places_case(rng: random.Random) -> Case:
    """Something that is no file where a data file should be."""
    made: dict[str, Callable[[Path], object]] = {
        "an empty folder": lambda p: p.mkdir(),
        "a folder of pictures": lambda p: (p.mkdir(), (p / "a.png").write_bytes(b"\x89PNG")),
        "a link to nothing": lambda p: p.symlink_to("nothing"),
        "a link to itself": lambda p: p.symlink_to(p.name),
        "a pipe": os.mkfifo,
    }
    what = rng.choice(list(made))
    reader = rng.choice(list(READERS))
    before, after = READERS[reader]
    return Case(
        what=f"{reader} reads {what}",
        words=[*before, "data.jsonl", *after],
        valid=False,
        names=("data.jsonl",),
        prepare=lambda folder: made[what](folder / "data.jsonl") and None,
    )
