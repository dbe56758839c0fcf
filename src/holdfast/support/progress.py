"""A progress bar that only slow work gets to show.

Reading a small file should print nothing; reading a large one should say how long is left. The bar appears after two
seconds, on stderr, and only where somebody is watching (a terminal); logs and tests stay clean.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

SHOW_AFTER_SECONDS = 2.0


@contextlib.contextmanager
def progress(description: str, *, total: float | None, unit: str | None = None) -> Iterator[Callable[[float], None]]:
    """Yields `advance(amount)`; the bar with its remaining time is drawn once the work has taken two seconds.

    Args:
        description: what is being done, for example "Reading train.jsonl".
        total: the sum of all amounts to come, in any unit; None where it is unknown (no remaining time then).
        unit: "bytes" shows amounts and speed in bytes; None shows per cent.
    """
    if not sys.stderr.isatty():
        yield lambda amount: None
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


def _open_bar(
    stack: contextlib.ExitStack, description: str, total: float | None, done: float, unit: str | None
) -> Callable[[float], None]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import TransferSpeedColumn as Speed

    amounts: list[ProgressColumn] = (
        [DownloadColumn(), Speed()] if unit == "bytes" else [TextColumn("{task.percentage:>3.0f}%")]
    )
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TimeElapsedColumn(), TimeRemainingColumn())
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task(description, total=total)
    bar.advance(task, done)
    return lambda amount: bar.advance(task, amount)
