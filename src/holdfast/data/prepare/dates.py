"""The day on which a document appeared, out of the many ways in which dates are written; and
cut-off dates.

| what is written | read as |
|---|---|
| 2024-01-15, 20240115, 2024/01/15, 2024-01-15 12:00, 2024-01-15T12:00:00+02:00 | ISO 8601 |
| Mon, 15 Jan 2024 10:00:00 GMT | RFC 2822, as in feeds and mail |
| 1705312800, 1705312800000 | seconds since 1970; thousandths and smaller parts are known by their size |
| a date or timestamp column of Parquet | as it is |

The day is that of UTC where a time zone is given, else the day as written. What leaves the day open
(a year, a month, 01/02/2024) is no date, and neither is a day in the future: a clock or a parser
was wrong, and no text can be placed by it.
"""

from __future__ import annotations

import email.utils
import math
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

from holdfast.errors import Problem

_SECONDS_FROM = 1e8
"""Smaller numbers (before March 1973) are years and the like, not seconds since 1970."""
_SECONDS_TO = 1e11
"""Larger numbers (after the year 5138) are thousandths of seconds, or smaller parts."""
_PARTS_TO = 1e20
"""The smallest parts are nanoseconds."""
_AHEAD = timedelta(days=1)
"""A day as written may be one ahead of UTC's."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_PLAIN_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_SLASHES = re.compile(r"(\d{4})[/.](\d{1,2})[/.](\d{1,2})(?!\d)")
_UTC_BY_NAME = re.compile(r"\s*(?:UTC|GMT)$", re.IGNORECASE)
_SPACE_BEFORE_ZONE = re.compile(r"\s+([+-]\d{2}:?\d{2})$")


def today() -> date:
    """The day in UTC."""
    return datetime.now(UTC).date()


def day_of(value: Any, *, now: date) -> date | None:
    """The day that a value says; None where it says nothing (null, blank text).

    Args:
        value: of a date column.
        now: today; later days are refused.

    Raises:
        ValueError: it is no date, leaves the day open, or lies in the future; the text says which.
    """
    not_a_number = isinstance(value, float) and math.isnan(value)
    if value is None or not_a_number or (isinstance(value, str) and not value.strip()):
        return None
    try:
        day = _day(value)
    except (OverflowError, OSError):
        day = None
    if day is None:
        raise ValueError(f"expected a date such as 2024-01-15, got {_shown(value)}")
    if day > now + _AHEAD:
        raise ValueError(f"{day} lies in the future")
    return day


def cut_off(value: Any) -> date:
    """A day that a request names.

    Raises:
        ValueError: it is not written as 2024-01-15, or there is no such day.
    """
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if not isinstance(value, str) or not _PLAIN_DAY.fullmatch(value.strip()):
        raise ValueError(f"expected a date such as 2024-01-15, got {_shown(value)}")
    try:
        return date.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(
            f"expected a date such as 2024-01-15, got {_shown(value)}, and there is no such day"
        ) from None


def range_problems(after: Any, before: Any) -> list[Problem]:
    """Mistakes in two cut-off dates, one sentence each; None: not given."""
    problems, days = [], {}
    for name, value in (("after", after), ("before", before)):
        try:
            days[name] = cut_off(value) if value is not None else None
        except ValueError as error:
            problems.append(Problem(name, f"{error}"))
    first, end = days.get("after"), days.get("before")
    if first is not None and end is not None and first >= end:
        sentence = f"expected a day earlier than --before ({end}), got {first}"
        problems.append(Problem("after", sentence))
    return problems


def _day(value: Any) -> date | None:
    if isinstance(value, datetime):
        return value.astimezone(UTC).date() if value.tzinfo is not None else value.date()
    if isinstance(value, date):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return _day_of_number(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if _NUMBER.fullmatch(text) and len(text) < 30:
        return _day_of_number(float(text))
    text = _SLASHES.sub(lambda match: f"{match[1]}-{match[2]:0>2}-{match[3]:0>2}", text)
    text = _SPACE_BEFORE_ZONE.sub(r"\1", _UTC_BY_NAME.sub("+00:00", text))
    for read in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        try:
            return _day(read(text))
        except (ValueError, TypeError, IndexError):
            continue
    return None


def _day_of_number(value: float) -> date | None:
    """Of seconds since 1970 or parts of them, and of 20240115."""
    if not math.isfinite(value) or value >= _PARTS_TO:
        return None
    if value < _SECONDS_FROM:
        digits = str(int(value))
        try:
            return (
                datetime.strptime(digits, "%Y%m%d").date()
                if len(digits) == 8 and value == int(value)
                else None
            )
        except ValueError:
            return None
    while value >= _SECONDS_TO:
        value /= 1000
    return datetime.fromtimestamp(value, UTC).date()


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
