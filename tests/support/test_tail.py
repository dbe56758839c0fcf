"""Following a JSON Lines file that another process writes."""

from __future__ import annotations

import math
import os

import pytest

from holdfast.support.tail import JsonlTail


@pytest.fixture
def log(tmp_path):
    return tmp_path / "metrics.jsonl"


def append(path, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


def steps(tail: JsonlTail) -> list[int]:
    return [row["step"] for row in tail.rows]


def test_a_look_takes_in_what_came_since(log):
    tail = JsonlTail(log)
    assert tail.read() is False  # not there yet
    append(log, '{"step": 1}\n')
    assert tail.read() is True
    assert tail.read() is False
    append(log, '{"step": 2, "loss": {"float": "NaN"}}\n{"step": 3}\n')
    assert tail.read() is True
    assert steps(tail) == [1, 2, 3]
    assert math.isnan(tail.rows[1]["loss"])


def test_only_what_is_new_is_read(log, monkeypatch):
    append(log, "".join(f'{{"step": {n}}}\n' for n in range(20_000)))
    tail = JsonlTail(log)
    tail.read()
    append(log, '{"step": 20000}\n')
    taken = []
    monkeypatch.setattr(tail, "_take", taken.append)
    tail.read()
    assert taken == [b'{"step": 20000}']


def test_a_half_written_line_waits_for_its_end(log):
    tail = JsonlTail(log)
    append(log, '{"step": 1}\n{"step": 2, "lo')
    tail.read()
    assert steps(tail) == [1]
    append(log, 'ss": 0.5}\n')
    assert tail.read() is True
    assert tail.rows[1] == {"step": 2, "loss": 0.5}
    assert tail.unreadable == 0


def test_a_line_that_is_no_object_is_passed_over_and_counted(log):
    log.write_bytes(b'{"step": 1}\n\xff\xfe\n[1]\nnot json\n\n{"step": 2}\n')
    tail = JsonlTail(log)
    tail.read()
    assert steps(tail) == [1, 2]
    assert tail.unreadable == 3


@pytest.mark.parametrize("how", ["replaced", "rewritten, shorter", "rewritten, longer"])
def test_a_file_of_a_continued_run_is_read_anew(log, how):
    append(log, '{"step": 1}\n{"step": 2}\n{"step": 3}\n')
    tail = JsonlTail(log)
    tail.read()
    if how == "replaced":
        new = log.with_name("new")
        new.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 99}\n')
        os.replace(new, log)
        wanted = [1, 2, 3, 99]
    elif how == "rewritten, shorter":
        log.write_text('{"step": 7}\n')
        wanted = [7]
    else:
        log.write_text('{"step": 5}\n{"step": 6}\n{"step": 7}\n{"step": 8}\n')
        wanted = [5, 6, 7, 8]
    assert tail.read() is True
    assert steps(tail) == wanted


def test_a_file_that_went_away_has_no_rows(log):
    append(log, '{"step": 1}\n')
    tail = JsonlTail(log)
    tail.read()
    log.unlink()
    assert tail.read() is True
    assert tail.rows == []
    append(log, '{"step": 4}\n')
    assert tail.read() is True
    assert steps(tail) == [4]
