"""A progress bar that only slow work gets to show.

Reading a small file should print nothing; reading a large one should say how long is left. The bar appears after two seconds, on stderr, and
only where somebody is watching (a terminal); logs and tests stay clean. The bars of `datasets`, which always show, are silenced meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

SHOW_AFTER_SECONDS = 2.0


@contextlib.contextmanager
def progress(description: str, *, total: float | None) -> Iterator[Callable[[float], None]]:
    """Yields `advance(amount)`; the bar with its remaining time is drawn once the work has taken two seconds.

    Args:
        description: what is being done, for example "Reading train.jsonl".
        total: the sum of all amounts to come, in any unit; None where it is unknown (no remaining time then).
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
                update = _open_bar(stack, description, total, done)
            elif update is not None:
                update(amount)

        yield advance


def _open_bar(stack: contextlib.ExitStack, description: str, total: float | None, done: float) -> Callable[[float], None]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), TimeRemainingColumn())
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task(description, total=total)
    bar.advance(task, done)
    return lambda amount: bar.advance(task, amount)


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Silences the bars of `datasets` inside the block, unless HF_DATASETS_DISABLE_PROGRESS_BARS has decided about them."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from datasets.utils.tqdm import HF_DATASETS_DISABLE_PROGRESS_BARS

    if are_progress_bars_disabled() or HF_DATASETS_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
