"""Reading rows: every supported kind comes back as written, and every bad input is named with its file and line."""

import gzip
import io
import json
import math
import os
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.data import json_rows, readers, sources
from holdfast.data.sources import content_hash, data_files, is_path, left_out, load_rows, locate_rows
from holdfast.errors import DataError

ROWS = [{"text": f"row {i}", "n": i, "tags": ["a"] * (i % 3)} for i in range(25)]


def jsonl(rows) -> bytes:
    return "".join(json.dumps(r) + "\n" for r in rows).encode()


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def first_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def parquet(rows) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=4)
    return sink.getvalue().to_pybytes()


def fails(path, *parts, **options):
    """Loading raises DataError whose message names the file and holds every part."""
    with pytest.raises(DataError) as caught:
        load_rows(path, **options)
    message = str(caught.value)
    for part in (str(path), *parts):
        assert part in message, f"{part!r} is not in: {message}"
    return message


# ---------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", jsonl(ROWS)),
        ("a.json", json.dumps(ROWS).encode()),
        ("array.jsonl", json.dumps(ROWS).encode()),
        ("a.jsonl.gz", gzip.compress(jsonl(ROWS))),
        ("members.jsonl.gz", gzip.compress(jsonl(ROWS[:7])) + gzip.compress(jsonl(ROWS[7:]))),
        ("a.jsonl.zst", zstd(jsonl(ROWS))),
        ("crlf.jsonl", jsonl(ROWS).replace(b"\n", b"\r\n\r\n")),
        ("cut.jsonl", jsonl(ROWS).rstrip(b"\n")),
        ("a.parquet", parquet(ROWS)),
    ],
)
def test_rows_come_back_as_written_and_in_order(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert load_rows(path).to_list() == ROWS
    assert list(load_rows(path, streaming=True)) == ROWS


def test_csv_cells_stay_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('\ufeffquestion,answer\n"a, ""b""",007\n"two\nlines",\n2020-01-01,NA\n', encoding="utf-8")
    assert load_rows(path).to_list() == [
        {"question": 'a, "b"', "answer": "007"},
        {"question": "two\nlines", "answer": ""},
        {"question": "2020-01-01", "answer": "NA"},
    ]
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(b"q\ta\n1,5\t2\n"))
    assert load_rows(tmp_path / "b.tsv.gz").to_list() == [{"q": "1,5", "a": "2"}]


def test_text_documents(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\n \t\nthree\n")
    assert load_rows(path)["text"][:] == ["one\ntwo\n\n \t\nthree\n"]
    assert load_rows(path, documents="line")["text"][:] == ["one", "two", "three"]
    with pytest.raises(DataError, match="Did you mean 'line'"):
        load_rows(path, documents="lines")


def test_folder_with_split_names_never_mixes_train_and_test(tmp_path):
    for name in ("train-0.jsonl", "train-1.jsonl", "test.jsonl", "dev.jsonl"):
        (tmp_path / name).write_bytes(jsonl([{"text": name}]))
    assert load_rows(tmp_path)["text"][:] == ["train-0.jsonl", "train-1.jsonl"]
    assert load_rows(tmp_path, split="validation")["text"][:] == ["dev.jsonl"]
    fails(tmp_path, "'extra'", "test, train, validation", split="extra")


def test_saved_dataset(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "one"))
    assert load_rows(tmp_path / "one").to_list() == ROWS
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(str(tmp_path / "many"))
    assert len(load_rows(tmp_path / "many", split="train[:3]")) == 3
    fails(tmp_path / "many", "no split 'test'", "train", split="test")


def test_parts_of_a_split(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(ROWS))
    assert load_rows(path, split="train[3:5]")["n"][:] == [3, 4]
    assert load_rows(path, split="train[-2:]")["n"][:] == [23, 24]
    assert len(load_rows(path, split="train[:20%]")) == 5
    assert load_rows(path, split="train[:1]+train[3:5]")["n"][:] == [0, 3, 4]
    assert len(load_rows(path, split="train+train")) == 2 * len(ROWS), "as datasets reads it"
    with pytest.raises(DataError, match=r"train\[:1000\]"):
        load_rows(path, split="train[three]")


@pytest.mark.parametrize("split", ["train+test", "train[:1]+test[:1]"])
def test_several_splits_are_never_the_first_alone(tmp_path, split):
    (tmp_path / "folder").mkdir()
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / "folder" / name).write_bytes(jsonl(ROWS))
    one = datasets.Dataset.from_list(ROWS)
    one.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=one, test=one).save_to_disk(str(tmp_path / "many"))
    for name in ("folder", "folder/train.jsonl", "one", "many"):
        with pytest.raises(
            DataError,
            match=r"names train and test\. To train on all of them, list each as a separate entry under",
        ):
            load_rows(tmp_path / name, split=split)


# ----------------------------------------------------------------------------------- values that parsers like to change


def test_dates_big_numbers_and_mixed_types_keep_their_values(tmp_path):
    rows = [
        {"date": "2020-01-01", "big": 2**70, "mixed": 4, "empty": {}, "deep": [{"when": "2020-01-01T00:00:00"}]},
        {"date": "2021-05-05", "big": 1, "mixed": "four", "empty": {}, "deep": []},
        {"date": "2022-05-05", "big": None, "mixed": [1, {"x": None}], "empty": {}, "deep": None},
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(rows))
    loaded = load_rows(path).to_list()
    assert loaded[0]["big"] == str(2**70), "datasets.Json gives the digits of what no number type holds"
    assert loaded == [{**rows[0], "big": str(2**70)}, *rows[1:]]


@pytest.mark.parametrize("depth", [20, 60, 400])
def test_deep_values_survive(tmp_path, depth):
    value = "x"
    for _ in range(depth):
        value = [value]
    rows = [{"text": "[" * 2000, "deep": value}]
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(rows))
    assert load_rows(path).to_list() == rows


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["2020-01-01", "12:00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=int(os.environ.get("HOLDFAST_EXAMPLES", "200")), deadline=None)
@example([{"a": [None, False]}])
@example([{"a": [None, None]}])
@example([{"a": [{"b": None}, {"b": [None, 1]}]}])
@example([{"a": 1}, {"a": True}])
@example([{"a": "2020-01-01"}, {"a": None}])
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), json_values, min_size=1), min_size=1, max_size=6))
def test_values_of_any_kind_come_back_as_written(rows):
    stream = io.BufferedReader(io.BytesIO(jsonl(rows)))
    loaded = [row for table in json_rows.json_tables(stream, "f") for row in readers.plain_rows(table)]
    assert all(covers(got.get(key), value) for got, row in zip(loaded, rows, strict=True) for key, value in row.items())


def covers(got, wanted) -> bool:
    """Equal, but for whole numbers in a column of fractions, and those beyond 64 bits, which are their digits."""
    if isinstance(got, str) and isinstance(wanted, int) and not -(2**63) <= wanted < 2**64:
        return got == str(wanted)
    if isinstance(wanted, dict) and isinstance(got, dict):
        return list(got) == list(wanted) and all(covers(got[key], value) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(got, list):
        return len(got) == len(wanted) and all(map(covers, got, wanted))
    if isinstance(got, float) and isinstance(wanted, int) and not isinstance(wanted, bool):
        return math.isclose(got, wanted, rel_tol=1e-15)
    return got == wanted


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (b'{"text": "cut', ["one JSON object", '\'{"text": "cut\'', "Unterminated string"]),
        (b'{"text": 1} {"text": 2}', ["Extra data"]),
        (b"[1, 2]", ["an array"]),
        (b"{}", ["without any key"]),
        (b'{"text": "\xff"}', ["UTF-8", "0xff", "position 11"]),
        (b'{"text": "\\ud800"}', ["\\ud800", "surrogate"]),
        (b'{"text": 1, "text": 2}', ["'text' appears twice"]),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", ["nested too deeply"]),
    ],
)
@pytest.mark.parametrize("pack", [lambda b: b, gzip.compress], ids=["plain", "gz"])
def test_malformed_line_is_named(tmp_path, line, parts, pack):
    path = tmp_path / ("a.jsonl" if pack(b"") == b"" else "a.jsonl.gz")
    path.write_bytes(pack(jsonl(ROWS[:3]) + b"\n" + line + b"\n" + jsonl(ROWS[3:])))
    message = fails(path, "line 5:", *parts)
    assert len(message) < 400 + len(str(path))
    with pytest.raises(DataError, match="line 5:"):
        list(load_rows(path, streaming=True))


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.json", b'[{"a": 1}, 3]', ["element 2", "a number"]),
        ("a.json", b'[{"a": 1},\n{"a" 1}]', ["line 2:", "':'"]),
        ("a.json", b'[{"a": "\\udc00"}]', ["element 1", "surrogate"]),
        ("a.json", b'[{"a": 1},\n{"a": "\xff"}]', ["line 2:", "UTF-8"]),
        (
            "a.json",
            b'{\n "version": 1,\n "data": [\n  {"a": 1}\n ]\n}\n',
            ["line 1:", "one JSON object per line", "one array of objects"],
        ),
        ("a.json", b"[]", ["no rows"]),
        ("a.jsonl", '{"a": 1}\n'.encode("utf-16"), ["line 1:", "looks like UTF-16"]),
        ("a.jsonl.gz", first_half(gzip.compress(jsonl(ROWS * 200))), ["cut short or damaged"]),
        ("a.jsonl.zst", jsonl(ROWS), ["cut short or damaged"]),
        ("a.parquet", parquet(ROWS)[:-20], ["not a readable parquet file"]),
        ("a.csv", b"question,answer\n", ["holds no rows"]),
        ("a.csv", b"q,a\n1,2\n\n1,2,3\n", ["line 4:", "expected 2 cells (q, a), got 3", "'1,2,3'"]),
        ("a.csv", b"q,a\n1,\xff\n", ["line 2:", "UTF-8", "0xff"]),
        ("a.csv", b"q,q\n1,2\n", ["line 1:", "'q' appears twice"]),
        ("a.csv", b"q;a\n1;2\n", ["line 1:", "separated by ','", "'q;a'", "Save a .csv with commas"]),
        ("a.csv", b"q\ta\n1\t2\n", ["line 1:", "one column named 'q\\ta'"]),
        ("a.tsv", b"q,a\n1,2\n", ["line 1:", "separated by '\\t'", "'q,a'"]),
        ("a.txt", b" \n\t\n", ["holds no rows"]),
        ("a.txt", b"good\nbad \xe9\n", ["line 2:", "0xe9"]),
    ],
)
def test_malformed_files(tmp_path, name, content, parts):
    path = tmp_path / name
    path.write_bytes(content)
    fails(path, *parts)


def test_one_column_may_have_its_own_separator_in_its_quoted_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'"text, cleaned"\nRome\n')
    assert load_rows(path).to_list() == [{"text, cleaned": "Rome"}]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "txt", "parquet", "md", "jsonl.gz"])
def test_empty_file(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"")
    fails(path, "is empty (0 bytes)")


def test_missing_files_list_what_is_near(tmp_path):
    (tmp_path / "void").mkdir()
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_bytes(jsonl(ROWS))
    (data / "x.pkl").write_bytes(b"..")
    for path, parts in (
        (data / "trian.jsonl", ["Did you mean 'train.jsonl'"]),
        (data / "other.csv", ["holds train.jsonl"]),
        (data / "no" / "x.csv", ["does not exist"]),
        (data / "x.pkl", ["cannot be read", ".jsonl", ".parquet"]),
        (tmp_path / "void", ["no data files"]),
    ):
        fails(path, *parts)
    (data / "train.jsonl").rename(data / "a.jsonl")  # a file named after a split would be that split
    (data / "b.csv").write_text("text\nx\n")
    fails(data, "mixes kinds", "a.jsonl (json)", "b.csv (csv)")


def test_a_path_never_goes_to_the_hub(tmp_path, monkeypatch):
    def no_hub(*args, **options):
        raise AssertionError("went to the hub")

    monkeypatch.setattr(datasets, "load_dataset", no_hub)
    monkeypatch.chdir(tmp_path)
    for name in ("nope.jsonl", "./nope", "~/nope-nope", "/nope", "data/train/x", "user/data.csv", "a.jsonl.gz"):
        assert is_path(name)
        with pytest.raises(DataError, match="No file or folder"):
            load_rows(name)
    for name in ("squad", "openai/gsm8k", "user/name-v1.5"):
        assert not is_path(name)
        with pytest.raises(AssertionError):
            load_rows(name)
    (tmp_path / "squad").mkdir()
    assert is_path("squad")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(DataError, match="applies only to data sets of the hub"):
        load_rows("x.txt", config="main")


def test_hub_errors_become_data_errors(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_data").mkdir()

    def raising(error):
        def load_dataset(*args, **options):
            raise error

        return load_dataset

    monkeypatch.setattr(
        datasets, "load_dataset", raising(datasets.exceptions.DatasetNotFoundError("Dataset 'my_dta' doesn't exist"))
    )
    with pytest.raises(DataError, match=r"(?s)no such data set on the hub.*Did you mean 'my_data'"):
        load_rows("my_dta")
    monkeypatch.setattr(datasets, "load_dataset", raising(ConnectionError("no route")))
    with pytest.raises(DataError, match=r"Check the network"):
        load_rows("a/b")
    monkeypatch.setattr(
        datasets, "load_dataset", raising(ValueError("Unknown split \"trian\". Should be one of ['train']."))
    )
    with pytest.raises(DataError, match="Should be one of"):
        load_rows("a/b", split="trian")


def test_locate_rows_over_files(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\n{"a": 1}\n\n{"a": 2}\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"a": 1}\n')
    (tmp_path / "c.json").write_bytes(b'[{"a": 1}, {"a": 2}]')
    files = data_files([tmp_path / n for n in ("a.jsonl", "b.jsonl", "c.json")])
    assert [p.removeprefix(f"{tmp_path}/") for p in locate_rows(files, [1, 2, 4])] == [
        "a.jsonl, line 4",
        "b.jsonl, line 1",
        "c.json, row 2",
    ]


# ------------------------------------------------------------------------------------------------------- cache and hash


def test_cache_is_keyed_by_content(tmp_path, own_cache, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(ROWS))
    first = load_rows(path)
    assert first.cache_files, "rows should be memory-mapped, not in memory"
    with monkeypatch.context() as patch:
        patch.setattr(sources, "file_tables", lambda *a, **k: pytest.fail("read again"))
        assert load_rows(path)._fingerprint == first._fingerprint
    path.write_bytes(jsonl(ROWS[:3]))
    assert load_rows(path).to_list() == ROWS[:3]
    assert first.to_list() == ROWS
    path.write_bytes(jsonl(ROWS[:3]) + b"broken")
    fails(path, "line 4")
    assert len(list((own_cache / "holdfast_rows").iterdir())) == 2, "a failed read leaves nothing behind"


def test_content_hash(tmp_path):
    import hashlib

    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"x")
    one = content_hash(tmp_path / "d" / "a")
    assert one == hashlib.sha256(b"x").hexdigest() == content_hash([tmp_path / "d" / "a"])
    folder = content_hash(tmp_path / "d")
    (tmp_path / "d" / ".hidden").write_bytes(b"y")
    assert content_hash(str(tmp_path / "d")) == folder
    (tmp_path / "d" / "a").rename(tmp_path / "d" / "b")
    assert content_hash(tmp_path / "d") != folder
    with pytest.raises(DataError, match="No file or folder"):
        content_hash(tmp_path / "nope")


def test_a_saved_dataset_is_left_as_it_is(tmp_path: Path) -> None:
    import datasets

    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"text": ["a", "b", "c"]}).save_to_disk(str(folder))
    before, known = sorted(folder.rglob("*")), content_hash(folder)
    rows = load_rows(folder)
    rows.map(lambda row: {"text": row["text"] * 2})
    assert sorted(folder.rglob("*")) == before and content_hash(folder) == known, "mapping writes elsewhere"


def test_files_of_rows_in_a_folder_that_are_not_read(tmp_path):
    for name in ("train.jsonl", "test.jsonl", "more.jsonl", "README.md", "old.csv.bz2", "a.png"):
        (tmp_path / name).write_text('{"text": "a"}\n')
    files = data_files(tmp_path)
    assert [file.name for file in files] == ["train.jsonl"]
    assert left_out(tmp_path, files) == ["more.jsonl", "old.csv.bz2"]
    assert left_out(tmp_path / "train.jsonl", files) == []
