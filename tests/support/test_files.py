"""Records on disk: what is read is what was written, numbers that are not finite included."""

from __future__ import annotations

import contextlib
import gc
import json
import math

import pytest

from holdfast.errors import DataError
from holdfast.support.files import read_json, read_jsonl, write_json, write_jsonl

STRANGE = [
    {"a": math.inf, "b": [-math.inf, {"c": math.inf}], "d": {"e": {"f": -math.inf}}},
    {"float": 1.5},
    {"float": "nan"},
    {"float": "NaN", "more": 1},
    {"float": None},
    {"float": ["NaN"]},
    {"float": {"x": 1}},
    {"text": '{"float": "NaN"}', "empty": {}, "none": None, "list": [[], [{}]]},
]
"""Objects that come back as they are; only one whose single key is "float" with one of three names stands for a
number."""


def test_numbers_that_are_not_finite_come_back(tmp_path):
    assert read_json(write_json(tmp_path / "a.json", STRANGE)) == STRANGE
    assert list(read_jsonl(write_jsonl(tmp_path / "a.jsonl", STRANGE))) == STRANGE
    [row] = read_jsonl(write_jsonl(tmp_path / "b.jsonl", [{"x": math.nan, "y": [math.nan], "float": math.nan}]))
    assert math.isnan(row["x"]) and math.isnan(row["y"][0]) and math.isnan(row["float"])
    assert math.isnan(read_json(write_json(tmp_path / "b.json", math.nan)))
    (tmp_path / "c.json").write_text('{"float": "-Infinity"}')
    assert read_json(tmp_path / "c.json") == -math.inf


def test_a_last_line_cut_short_is_skipped_and_any_other_bad_line_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n  {"a": 2}\r\n{"a": ')
    assert list(read_jsonl(path)) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 2: expected a JSON object, got '\{\"a\": '"):
        list(read_jsonl(path))
    path.write_text('{"a": 1} {"a": 2}\n{"a": 3}\n')
    with pytest.raises(DataError, match="line 1"):
        list(read_jsonl(path))
    with pytest.raises(DataError, match="cannot be parsed"):
        read_json(path)


@pytest.mark.parametrize("content", ['{"a": 1}\n', '{"a": \n{"a": 3}\n'])
@pytest.mark.parametrize("running", [True, False])
def test_the_garbage_collector_is_left_as_it_was(tmp_path, content, running):
    (tmp_path / "rows.jsonl").write_text(content)
    was = gc.isenabled()
    try:
        (gc.enable if running else gc.disable)()
        rows = read_jsonl(tmp_path / "rows.jsonl")
        with contextlib.suppress(DataError):
            next(rows)  # a reader that stops after one row
        assert gc.isenabled() is running
    finally:
        (gc.enable if was else gc.disable)()


def test_rows_are_read_as_fast_as_they_are_parsed(tmp_path):
    """Nothing is walked a second time in Python: what is done beside parsing costs less than parsing."""
    import time

    row = {
        "doc": "d" * 64,
        "question": "q" * 200,
        "choices": ["c" * 30] * 4,
        "loglikelihoods": [-1.23456789012345] * 40,
        "nested": [[1, 2], [3, 4]] * 20,
    }
    path = write_jsonl(tmp_path / "rows.jsonl", [row] * 1000)
    lines = path.read_text().splitlines()

    def seconds(work):
        best = math.inf
        for _ in range(5):
            began = time.process_time()
            work()
            best = min(best, time.process_time() - began)
        return best

    assert seconds(lambda: list(read_jsonl(path))) < 2 * seconds(lambda: [json.loads(line) for line in lines])
