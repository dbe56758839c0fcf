"""Progress bars: one that only slow work gets to show (`progress`), and one that counts
(`counted`).

Reading a small file should print nothing; reading a large one should say how long is left. The bar
appears after two seconds, on stderr. Without a terminal there is a line at most every half a
minute, with the share done, the rate and the time left, so that a log says how far it is and stays
short.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.support.environment import say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

SHOW_AFTER_SECONDS = 2.0
LINE_EVERY_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class ProgressDisplay:
    """Where a long call shows its progress."""

    console: Any = None
    """A `rich.console.Console` for progress bars; None: standard error."""
    say: Callable[[str], None] = lambda line: None
    """Called with one line about each step of the work."""


class ProgressLines:
    """Where there is no terminal: a line at most every `LINE_EVERY_SECONDS`.

    Args:
        write: gets each line.
        done: how much was done before, of a run that continues.
    """

    def __init__(self, write: Callable[[str], None], *, done: float = 0.0) -> None:
        self.write, self.first = write, done
        self.began = self.last = time.monotonic()

    def update(
        self, what: str, done: float, total: float | None, *, unit: str = "", detail: str = ""
    ) -> None:
        """Writes a line if it is time.

        Args:
            what: is being done.
            done: how much of it.
            total: of how much; None: not known.
            unit: of both: "bytes", a word such as "steps", or "" for a rate that says nothing.
            detail: behind the time left.
        """
        now = time.monotonic()
        if now - self.last < LINE_EVERY_SECONDS:
            return
        self.last = now
        rate = (done - self.first) / (now - self.began)
        parts = [f"{100 * done / total:.0f} %" if total else f"{done:,.0f} {unit}".rstrip()]
        if unit:
            parts.append(_rate(rate, unit))
        if total and rate > 0:
            parts.append(f"{timedelta(seconds=round((total - done) / rate))} left")
        self.write(f"{what}: {', '.join(parts)}{f'  {detail}' if detail else ''}")


def _rate(rate: float, unit: str) -> str:
    if unit == "bytes":
        return f"{rate / 1e6:.1f} MB/s"
    return f"{rate:.3g} {unit} a second" if rate >= 1 else f"{60 * rate:.3g} {unit} a minute"


@contextlib.contextmanager
def progress(
    description: str, *, total: float | None, unit: str | None = None
) -> Iterator[Callable[[float], None]]:
    """Yields `advance(amount)`; the bar with its remaining time is drawn once the work has taken
    two seconds.

    Args:
        description: what is being done, for example "Reading train.jsonl".
        total: the sum of all amounts to come, in any unit; None where it is unknown (no remaining
            time then).
        unit: "bytes" shows amounts and speed in bytes; None shows per cent.
    """
    if not sys.stderr.isatty():
        yield _advancing_lines(description, total, unit)
        return
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        done = 0.0
        update: Callable[[float], None] | None = None

        def advance(amount: float) -> None:
            nonlocal done, update
            done += amount
            if update is None and time.monotonic() - started > SHOW_AFTER_SECONDS:
                update = _open_bar(stack, description, total, done, unit)
            elif update is not None:
                update(amount)

        yield advance


def _to_stderr(line: str) -> None:
    from rich.console import Console

    say(Console(stderr=True), line)


def _advancing_lines(
    description: str, total: float | None, unit: str | None
) -> Callable[[float], None]:
    lines = ProgressLines(_to_stderr)
    done = 0.0

    def advance(amount: float) -> None:
        nonlocal done
        done += amount
        lines.update(description, done, total, unit=unit or "")

    return advance


class CountReport(Protocol):
    """`report(done, total, detail)`: how much is done, of how much (None: not known), and a text
    behind the count."""

    def __call__(self, done: int, total: int | None = None, detail: str = "") -> None: ...


@contextlib.contextmanager
def counted(description: str, *, console: Console | None = None) -> Iterator[CountReport]:
    """Yields a `CountReport`. Two seconds after the first report a bar with the count and the
    remaining time is drawn, which disappears at the end; without a terminal, lines are written.

    Args:
        description: what is being done, in front of the bar.
        console: where to draw; None: standard error.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, TextColumn

    console = console or Console(stderr=True)
    lines = ProgressLines(functools.partial(say, console))
    bar = _bar(console, MofNCompleteColumn(), TextColumn("{task.fields[detail]}"))
    row = bar.add_task(description, total=None, detail="")
    timer = threading.Timer(SHOW_AFTER_SECONDS, bar.start)  # the next report may be minutes away
    timer.daemon = True

    def report(done: int, total: int | None = None, detail: str = "") -> None:
        if bar.disable:
            lines.update(
                description,
                done,
                total,
                detail=f"{done:,} of {total:,}  {detail}".rstrip() if total else detail,
            )
        bar.update(row, completed=done, total=total, detail=detail)
        if timer.ident is None and not bar.disable:
            timer.start()  # not before there is something to report: reading the input has a bar of its own

    try:
        yield report
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        if bar.live.is_started:
            bar.stop()


def _open_bar(
    stack: contextlib.ExitStack,
    description: str,
    total: float | None,
    done: float,
    unit: str | None,
) -> Callable[[float], None]:
    from rich.console import Console
    from rich.progress import DownloadColumn, TextColumn, TransferSpeedColumn

    in_bytes = (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else ()
    bar = stack.enter_context(
        _bar(Console(stderr=True), *(in_bytes or [TextColumn("{task.percentage:>3.0f}%")]))
    )
    task = bar.add_task(description, total=total)
    bar.advance(task, done)
    return lambda amount: bar.advance(task, amount)


def _bar(console: Console, *amounts: ProgressColumn) -> Progress:
    """A bar with amounts, the time so far and the time left, which disappears at the end; none
    without a terminal."""
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *amounts,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
