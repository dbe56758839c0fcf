"""Bars: a count where somebody watches, nothing elsewhere."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from holdfast.support import progress
from holdfast.support.progress import counted


@pytest.mark.parametrize("terminal", [True, False])
def test_a_count_is_drawn_after_the_first_report_on_a_terminal_only(terminal, monkeypatch):
    monkeypatch.setattr(progress, "SHOW_AFTER_SECONDS", 0.02)
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    with counted("Asking the judge", console=console) as report:
        time.sleep(0.1)
        assert console.file.getvalue() == "", "the input may still draw a bar of its own"
        report(0)
        end = time.monotonic() + (10 if terminal else 0.2)
        while not console.file.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
        report(3, 7, "0.02 USD")
    drawn = console.file.getvalue()
    assert all((word in drawn) == terminal for word in ("Asking the judge", "3/7", "0.02 USD"))


def test_quick_work_draws_no_count():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with counted("Asking the judge", console=console) as report:
        for done in range(8):
            report(done, 7)
    assert console.file.getvalue() == ""
