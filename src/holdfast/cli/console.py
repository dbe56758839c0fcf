"""Where commands write: tables and results to stdout, everything else to stderr where results are
JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.errors import Interrupted
from holdfast.printable import json_escaped, lines, printable

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 120
"""Columns in a file or a pipe, so that tables are not squeezed into 80."""


def stdout_console() -> Console:
    """Where results go: the terminal as it is, else `WIDTH` columns."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def stderr_console() -> Console:
    """Where everything else goes when results are JSON."""
    from rich.console import Console

    return Console(stderr=True) if sys.stderr.isatty() else Console(stderr=True, width=WIDTH)


def quiet_console() -> Console:
    """Nowhere: for the processes that another one speaks for."""
    from rich.console import Console

    return Console(quiet=True)


def print_line(target: Console, text: str = "", **style: Any) -> None:
    """A line as it is: not wrapped, no markup, no colours but those of `style`."""
    from holdfast.support.environment import say

    say(target, text, **style)


def write(*parts: str, to_stderr: bool = False) -> None:
    """Parts, one a line, without a console: helps, plans, converted files."""
    print(lines(*parts), file=sys.stderr if to_stderr else sys.stdout, flush=to_stderr)


def print_counts(target: Console, rows: Iterable[tuple[int, str]]) -> None:
    """Numbers and what they count, one a line; long texts are wrapped beside their number."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for count, text in rows:
        table.add_row(f"{count:,}", printable(text))
    target.print(table, markup=False)


def print_json(value: Any) -> None:
    """A value as JSON on stdout."""
    from holdfast.support.files import to_jsonable

    print(
        json_escaped(json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False))
    )


@contextlib.contextmanager
def stoppable(text: str = "Stopped. No partial output was left.") -> Iterator[None]:
    """Says what Ctrl-C leaves behind.

    Raises:
        Interrupted: Ctrl-C, with `text`.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(text) from None
