"""Bars where somebody watches, a line now and then elsewhere."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from holdfast.support import progress
from holdfast.support.progress import ProgressLines, counted


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


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_come_at_most_every_half_a_minute_with_share_rate_and_time_left(clock):
    written = []
    lines = ProgressLines(written.append, done=100)
    for second in range(0, 100, 10):
        clock[0] = float(second)
        lines.update("  step", 100 + second, 200, unit="steps", detail="CE 2.1")
    assert written == [
        "  step: 65 %, 1 steps a second, 0:01:10 left  CE 2.1",
        "  step: 80 %, 1 steps a second, 0:00:40 left  CE 2.1",
        "  step: 95 %, 1 steps a second, 0:00:10 left  CE 2.1",
    ]


def test_lines_of_what_has_no_end_or_is_slow(clock):
    written = []
    lines = ProgressLines(written.append)
    clock[0] = 40.0
    lines.update("Reading", 8e7, None, unit="bytes")
    clock[0] = 80.0
    lines.update("Training", 2, 10, unit="steps")
    assert written == ["Reading: 80,000,000 bytes, 2.0 MB/s", "Training: 20 %, 1.5 steps a minute, 0:05:20 left"]


def test_slow_work_writes_lines_where_there_is_no_terminal(clock, capsys):
    console = Console(file=io.StringIO(), width=60)
    with progress.progress("Reading", total=4, unit="bytes") as advance, counted("Asking", console=console) as report:
        clock[0] = 31.0
        advance(1)
        report(3, 12, "0.02 USD")
    assert capsys.readouterr().err == "Reading: 25 %, 0.0 MB/s, 0:01:33 left\n"
    assert console.file.getvalue() == "Asking: 25 %, 0:01:33 left  3 of 12  0.02 USD\n"
