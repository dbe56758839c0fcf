"""A sweep in a terminal: blocks of its page. Where no terminal is watching, the same words come
without colours, boxes and line breaks, so that `grep` and logs can have them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.records.study import StudyRecord
from holdfast.reports.blocks import Block, Fold, Panel, Paragraph, paragraphs
from holdfast.reports.sweep_figures import (
    read_trials,
    summary,
)
from holdfast.reports.sweep_report import rule_panels, trials_section
from holdfast.reports.terminal import Printer
from holdfast.statistics.selection import Selection

if TYPE_CHECKING:
    from rich.console import Console


def print_sweep(
    record: StudyRecord, selections: Sequence[Selection], console: Console | None = None
) -> None:
    """Prints every trial, what the rules choose, and how firmly.

    Args:
        record: finished or not.
        selections: the study's own rule first, as `holdfast.statistics.selection.select_all` gives
            it.
        console: where to print; the terminal by default.
    """
    out = Printer(console)
    trials = read_trials(record)
    blocks: list[Block] = [
        Paragraph(f"{record.name} ({record.status})", "strong"),
        Paragraph(summary(record, selections)),
    ]
    blocks += trials_section(record, trials, selections, Path()).blocks
    for panel in rule_panels(record, selections):
        blocks.append(Panel([block for block in panel.blocks if not isinstance(block, Fold)]))
    blocks.append(Paragraph(""))
    out.show([*blocks, *paragraphs(record.notes, before="Note: ")])
