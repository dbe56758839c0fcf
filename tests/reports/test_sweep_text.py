"""A study in the terminal: the table fits, a file gets plain lines."""

from __future__ import annotations

import dataclasses
import io
import random

from rich.console import Console
from synthetic_studies import (
    finished_frontier,
    measured_runs,
    record,
    trial,
)

from holdfast.reports.sweep_figures import kept_text
from holdfast.reports.sweep_text import print_sweep
from holdfast.statistics.selection import select_all
from holdfast.statistics.shares import Share


def printed(what, *, terminal: bool, width: int = 80, encoding: str = "utf-8") -> str:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding)
    what(Console(file=file, force_terminal=terminal, width=width, legacy_windows=False))
    file.flush()
    return buffer.getvalue().decode(encoding)


def shown(study, **more) -> str:
    return printed(lambda console: print_sweep(study, select_all(study), console), **more)


def test_user_text_is_not_read_as_markup():
    study = record(
        [trial(0, "direct", "[bold]direct[/]", {}, measured_runs(random.Random(0), (0, 1, 2), 0.5, -0.3))],
        name="[red]x",
    )
    for terminal in (True, False):
        assert "[bold]direct[/]" in shown(study, terminal=terminal, width=140)


def test_a_share_of_a_loss_that_cannot_be_told_from_zero_is_not_said():
    study = finished_frontier()
    chosen = next(s for s in select_all(study) if s.chosen is not None and s.kept and s.kept.interval)
    untold = Share(
        value=5.8, interval=None, reason="direct fine-tuning's own loss is not significantly different from zero"
    )
    words = kept_text(dataclasses.replace(chosen, avoided=untold), study)
    assert words.startswith("keeps ") and f" and changes {study.keep.label} by " in words and "580" not in words
