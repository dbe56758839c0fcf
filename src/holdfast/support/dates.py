"""The date that chat templates write. A template that writes today's date writes other text every
day: inside `dates_of` it is the day on which the folder was begun.

transformers' chat templates read the time from `Clock`, which `use_clock` puts there: `dates_of`
where transformers is imported already, `holdfast.support.rendering.guard_models` before a tokenizer
is loaded. Nothing is imported here.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

_day: datetime | None = None


class Clock:
    """Stands in for `datetime` where templates ask for the time."""

    @staticmethod
    def now() -> datetime:
        """The date of the block around (`dates_of`), else the time that it is."""
        return _day or datetime.now()


def use_clock() -> None:
    """From now on transformers' chat templates ask `Clock` for the time, if transformers is
    imported."""
    if (templates := sys.modules.get("transformers.utils.chat_template_utils")) is not None:
        templates.datetime = Clock  # type: ignore[attr-defined]


@contextlib.contextmanager
def dates_of(created: str) -> Iterator[None]:
    """Templates that write a date write this one within the block, unless a block around it says
    another.

    Args:
        created: ISO 8601, of the record of the folder that is written to; empty: now.
    """
    global _day
    use_clock()
    if _day is not None:
        yield
        return
    _day = datetime.fromisoformat(created) if created else datetime.now()
    try:
        yield
    finally:
        _day = None


def dates_in(template: Any) -> list[str]:
    """The dates that a template writes now: what tells apart two texts of one template."""
    formats = re.findall(r"strftime_now\(\s*['\"](.*?)['\"]", str(template or ""))
    return [Clock.now().strftime(pattern) for pattern in formats]
