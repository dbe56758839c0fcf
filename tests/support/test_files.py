"""Records on disk: what is read is what was written, numbers that are not finite included."""

from __future__ import annotations

import json
import math
import re

import pytest

from holdfast.errors import DataError, RunFolderError
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, Metric
from holdfast.records.run import LayerDistance, RunRecord
from holdfast.records.study import Objective, StudyRecord
from holdfast.support.files import (
    read_as,
    read_json,
    read_jsonl,
    read_object,
    record_from,
    to_jsonable,
    write_json,
    write_jsonl,
)

STRANGE = [
    {"a": math.inf, "b": [-math.inf, {"c": math.inf}], "d": {"e": {"f": -math.inf}}},
    {"float": 1.5},
    {"float": "NaN", "more": 1},
    {"float": None},
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


DEEP = b"[" * 100_000
DAMAGED = {
    "empty": b"",
    "cut": b'{"name": "x", "mod',
    "binary": bytes(range(256)),
    "deep": DEEP,
    "digits": b'{"name": ' + b"9" * 5000 + b"}",
}
"""Files that are no JSON."""


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_no_json_is_an_error_with_the_files_name(tmp_path, damage):
    path = tmp_path / "run.json"
    path.write_bytes(DAMAGED[damage])
    for read in (read_json, read_object, lambda p: read_as(p, RunRecord)):
        with pytest.raises(DataError, match=r"run\.json"):
            read(path)
    path.write_bytes(b'{"a": 1}\n' + DAMAGED[damage] + b'\n{"a": 2}\n')
    if damage != "empty":
        with pytest.raises(DataError, match=r"run\.json, line "):
            list(read_jsonl(path))


def test_a_last_line_cut_inside_a_character_is_skipped(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes('{"a": "ä"}\n{"a": "ä'.encode()[:-1])
    assert list(read_jsonl(tmp_path / "rows.jsonl")) == [{"a": "ä"}]


@pytest.mark.parametrize("read", [read_json, lambda p: list(read_jsonl(p))])
def test_what_cannot_be_read_is_an_error_with_its_name(tmp_path, read):
    for path in (tmp_path / "none", tmp_path, tmp_path / ("x" * 300), tmp_path / "file" / "x"):
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match=str(path.name)[:20]):
            read(path)


@pytest.mark.parametrize("content", ["[]", "7"])
def test_another_kind_of_json_is_an_error_with_the_files_name(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_text(content)
    for read in (read_object, lambda p: read_as(p, RunRecord), lambda p: read_as(p, StudyRecord)):
        with pytest.raises(DataError, match=r"run\.json.* got " + re.escape(content)):
            read(path)
    path.write_text(content + "\n" + '{"a": 1}\n')
    with pytest.raises(DataError, match=r"run\.json, line 1: expected a JSON object"):
        list(read_jsonl(path))


METRIC = Metric(value=0.5, n=3, unit="nats/token", higher_is_better=False, interval=(0.25, math.inf))
EVALUATION = Evaluation(
    suite="keep",
    name="prose",
    kind="perplexity",
    primary="nll",
    metrics={"nll": METRIC},
    settings={"any": [1, {"thing": None}]},
    model={},
    key="k",
)
OBJECTIVE = Objective(side="learn", entries=[("a", "b", "c")], label="a", unit="nats", higher_is_better=True)
STUDY = StudyRecord(
    name="s",
    status="finished",
    created="",
    config={},
    seeds=[0],
    learn=OBJECTIVE,
    keep=OBJECTIVE,
    pairs=[(OBJECTIVE, OBJECTIVE)],
    trials=[],
    selection={},
)


@pytest.mark.parametrize(
    "record",
    [
        EVALUATION,
        STUDY,
        RunRecord(
            name="r",
            distance=[LayerDistance(layer="0", parameters=7, l2=0.5, relative=math.inf, cosine=1, sign_agreement=1.0)],
        ),
    ],
    ids=lambda r: type(r).__name__,
)
def test_a_record_comes_back_and_a_later_versions_keys_are_passed_over(tmp_path, record):
    assert read_as(write_json(tmp_path / "a.json", record), type(record)) == record
    assert record_from(type(record), {**to_jsonable(record), "new": 1}) == record


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"nll": {"value": "x"}}}, "expected a number at 'metrics.nll.value', got \"x\""),
        ({"metrics": {"nll": {"value": 10**400}}}, "expected a number at 'metrics.nll.value', got 1000"),
        ({"metrics": {"nll": {"n": 1.5}}}, "expected a whole number at 'metrics.nll.n', got 1.5"),
        ({"metrics": {"nll": {"interval": ["a", "b"]}}}, "expected a number at 'metrics.nll.interval[0]', got \"a\""),
        ({"metrics": {"nll": None}}, "expected an object at 'metrics.nll', got null"),
        ({"name": ...}, "expected the key 'name', which is missing"),
        ({"primary": "other"}, "expected a metric named 'other' at 'metrics', got nll"),
    ],
)
def test_a_record_of_other_values_is_refused_with_file_and_key(tmp_path, changes, words):
    def merged(value, changed):
        if not (isinstance(value, dict) and isinstance(changed, dict)):
            return changed
        both = {**value, **{k: merged(value.get(k), v) for k, v in changed.items()}}
        return {k: v for k, v in both.items() if v is not ...}

    path = tmp_path / "prose.json"
    path.write_text(json.dumps(merged(to_jsonable(EVALUATION), changes)))
    with pytest.raises(DataError) as error:
        read_as(path, Evaluation)
    assert str(path) in str(error.value) and words in str(error.value)


def test_a_list_of_records_is_read_as_one(tmp_path):
    path = write_json(tmp_path / "comparisons.json", [{"suite": "a"}])
    with pytest.raises(DataError, match=r"comparisons\.json, but: expected the key '\[0\]\.name', which is missing"):
        read_as(path, list[Comparison])


def test_a_folder_in_the_place_of_a_file_is_named_and_stays(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(RunFolderError, match=r"a\.json: expected to write a file, found a folder of that name"):
        write_json(tmp_path / "a.json", {})
    assert (tmp_path / "a.json").is_dir() and [p.name for p in tmp_path.iterdir()] == ["a.json"]
