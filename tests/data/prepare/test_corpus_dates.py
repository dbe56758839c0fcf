"""Days out of all the ways in which dates are written, what is no date, and the cut-off dates that keep new text
new."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

import data_files
from data_files import jsonl, rows_of
from holdfast.data.prepare import dates
from holdfast.data.prepare.corpus import NO_DATE

NOW = date(2025, 6, 1)
DAY = date(2024, 1, 15)


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dates, "today", lambda: NOW)


@pytest.mark.parametrize(
    "value",
    [
        "2024-01-15",
        " 2024-01-15 ",
        "20240115",
        20240115,
        "2024/01/15",
        "2024/1/15",
        "2024.01.15",
        "2024-01-15 23:59",
        "2024-01-15T10:00:00",
        "2024-01-15T10:00:00Z",
        "2024-01-15 10:00:00+00:00",
        "2024-01-15T10:00:00.123456789Z",
        "2024-01-15 10:00:00 UTC",
        "2024-01-15 10:00:00 +0100",
        "2024-01-15T10:00:00-05:00",
        "Mon, 15 Jan 2024 10:00:00 GMT",
        "Mon, 15 Jan 2024 10:00:00 -0500",
        "15 Jan 2024 10:00:00 +0000",
        1705312800,
        1705312800.5,
        "1705312800",
        1705312800000,
        1705312800000000,
        1705312800000000000,
        DAY,
        datetime(2024, 1, 15, 23, 59),
        datetime(2024, 1, 15, 12, tzinfo=UTC),
    ],
    ids=str,
)
def test_a_day_however_it_is_written(value):
    assert dates.day_of(value, now=NOW) == DAY


@pytest.mark.parametrize(
    ("value", "day"),
    [
        ("2024-01-16T00:30:00+02:00", DAY),
        ("2024-01-14T23:30:00-02:00", DAY),
        ("Mon, 15 Jan 2024 23:30:00 -0500", date(2024, 1, 16)),
        (datetime(2024, 1, 16, 1, tzinfo=timezone(timedelta(hours=3))), DAY),
        (str(int(NOW.strftime("%Y%m%d")) + 1), date(2025, 6, 2)),
    ],
)
def test_a_time_zone_is_brought_to_utc_and_tomorrow_may_be_today_elsewhere(value, day):
    assert dates.day_of(value, now=NOW) == day


@pytest.mark.parametrize("value", [None, "", "  \n", float("nan")], ids=repr)
def test_nothing_is_no_date_and_no_mistake(value):
    assert dates.day_of(value, now=NOW) is None


@pytest.mark.parametrize(
    "value",
    [
        "yesterday",
        "2024",
        2024,
        "2024-01",
        202401,
        "01/02/2024",
        "2024-13-01",
        "2024-02-30",
        "20240230",
        0,
        -5,
        123456,
        True,
        [2024, 1, 15],
        {"y": 2024},
        "2024-01-15 10:00:00 EST",
        float("inf"),
        1e300,
        "9" * 25,
        "0001-01-01T00:00:00+14:00",
    ],
    ids=repr,
)
def test_what_leaves_the_day_open_is_no_date(value):
    with pytest.raises(ValueError, match=r"expected a date such as 2024-01-15, got|lies in the future"):
        dates.day_of(value, now=NOW)


# ----------------------------------------------------------------------------------------------------- in a preparation


def corpus(*days: object) -> None:
    jsonl(
        "a.jsonl",
        (
            {"text": f"Number {i}.", "date": day} if day != "absent" else {"text": f"Number {i}."}
            for i, day in enumerate(days)
        ),
    )


def prepared(**options):
    record = data_files.prepared("a.jsonl", **options)
    return record, rows_of(options.get("output", "train.jsonl"))


def test_the_first_day_is_in_the_range_and_the_last_is_not():
    corpus("2023-11-30", "2023-12-01", "2024-02-29T23:59:59Z", "2024-03-01", "2024-03-01T00:30:00+01:00")
    record, rows = prepared(after="2023-12-01", before="2024-03-01")
    assert [row["date"] for row in rows] == ["2023-12-01", "2024-02-29", "2024-02-29"]
    counts = record["counts"]
    assert counts["skipped"] == {"dated before 2023-12-01": 1, "dated 2024-03-01 or later": 1}
    assert (counts["documents"], counts["first_date"], counts["last_date"]) == (3, "2023-12-01", "2024-02-29")
    assert counts["months"] == {"2023-12": 1, "2024-02": 2} and counts["undated"] == counts["malformed_dates"] == 0


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 5),
        ({"after": "2024-01-01"}, 1),
        ({"before": "2024-12-31"}, 1),
        ({"after": "2024-01-01", "undated": "keep"}, 5),
        ({"undated": "drop"}, 1),
        ({"undated": "auto", "before": None, "after": None}, 5),
    ],
    ids=str,
)
def test_what_has_no_usable_date_is_kept_without_a_range_and_counted(options, kept):
    corpus("2024-05-05", None, "absent", "soon", "2099-01-01")
    record, rows = prepared(**options)
    counts = record["counts"]
    assert len(rows) == counts["documents"] == kept
    assert counts["malformed_dates"] == 2 and counts["undated"] == kept - 1
    assert counts["skipped"] == ({NO_DATE: 4} if kept == 1 else {})
    assert record["malformed_date_places"] == [
        "a.jsonl, line 4: 'date': expected a date such as 2024-01-15, got 'soon'",
        "a.jsonl, line 5: 'date': 2099-01-01 lies in the future",
    ]
    assert [row["date"] for row in rows] == ["2024-05-05", None, None, None, None][:kept]
