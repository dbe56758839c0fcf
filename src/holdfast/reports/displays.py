"""What a notebook shows of a run, a comparison and a study: the first blocks of their pages, and
the folder."""

from __future__ import annotations

from holdfast.records.comparison import Comparison
from holdfast.records.run import RunFolder
from holdfast.records.study import StudyRecord
from holdfast.reports.blocks import Block, Facts, Paragraph
from holdfast.reports.compared import ComparisonRow, brief_tables, one_unit
from holdfast.reports.html import join, part
from holdfast.reports.run_figures import read_run
from holdfast.reports.run_report import brief_facts
from holdfast.reports.sweep_figures import summary
from holdfast.statistics.selection import select_all


def html(value: RunFolder | Comparison | StudyRecord) -> str:
    """HTML without a style sheet: a notebook has its own.

    Raises:
        DataError: the run's record cannot be read.
    """
    match value:
        case RunFolder():
            blocks = _run_blocks(value)
        case Comparison():
            blocks = [*brief_tables([ComparisonRow(value)])]
        case StudyRecord():
            blocks = [
                Paragraph(f"{value.name} ({value.status})"),
                Paragraph(summary(value, select_all(value))),
            ]
    text = str(join(*(part(block) for block in blocks)))
    return text.replace('<span class="sub">', '<span style="display: block; opacity: 0.7">')


def _run_blocks(folder: RunFolder) -> list[Block]:
    if not folder.exists():
        return [Paragraph(f"No run has begun in {folder.path}.")]
    run = read_run(folder)
    head = [Paragraph(f"{run.title} ({run.record.status})"), Paragraph(run.verdict)]
    return [
        *head,
        *brief_tables(one_unit(run.rows)[0]),
        Facts([*brief_facts(run), ("Folder", str(folder.path))]),
    ]
