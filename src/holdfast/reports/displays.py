"""What a notebook shows of a run, a comparison and a study: the first blocks of their pages, and the folder."""

from __future__ import annotations

from holdfast.records.comparison import Comparison
from holdfast.records.run import RunFolder
from holdfast.records.study import StudyRecord
from holdfast.reports.blocks import Block, Facts, Paragraph
from holdfast.reports.charts import heads
from holdfast.reports.compared import AFTER, BEFORE, DIFFERENCE, ComparisonRow, measure_table, one_unit
from holdfast.reports.html import join, part
from holdfast.reports.run_figures import read_run
from holdfast.reports.run_report import brief_facts
from holdfast.reports.sweep_figures import counts_text, summary
from holdfast.statistics.selection import select_all

WORDS = heads({"Measure": "label", "Verdict": "verdict", "Unit": "unit"}, words=3)
COLUMNS = [*WORDS[:2], BEFORE, AFTER, DIFFERENCE, *WORDS[2:]]


def html(value: RunFolder | Comparison | StudyRecord) -> str:
    """HTML without a style sheet: a notebook has its own.

    Raises:
        DataError: the run's record cannot be read.
    """
    match value:
        case RunFolder():
            blocks = _run_blocks(value)
        case Comparison():
            blocks = [_comparison_line(value)]
        case StudyRecord():
            blocks = _study_blocks(value)
    text = str(join(*(part(block) for block in blocks)))
    return text.replace('<span class="sub">', '<span style="display: block; opacity: 0.7">')


def _run_blocks(folder: RunFolder) -> list[Block]:
    if not folder.exists():
        return [Paragraph(f"No run has begun in {folder.path}.")]
    run = read_run(folder)
    facts = [*brief_facts(run), ("Folder", str(folder.path))]
    if folder.report_file.is_file():
        facts.append(("Report", str(folder.report_file)))
    rows = [row for row in one_unit(run.rows)[0] if row.raw.primary]
    result = measure_table(rows, COLUMNS) if rows else Paragraph(run.verdict)
    return [Paragraph(f"{run.title} ({run.record.status})"), result, Facts(facts)]


def _comparison_line(comparison: Comparison) -> Block:
    row = ComparisonRow(comparison)
    change = " ".join(row.change() if row.share else (row.difference, row.interval))
    name = f"{comparison.suite}/{comparison.name} {comparison.metric}"
    return Paragraph(f"{name}: {row.levels()}, {change}, {row.verdict} (p {row.p}, n {row.n})")


def _study_blocks(study: StudyRecord) -> list[Block]:
    facts = [
        ("Trials", f"{len(study.trials)}: {counts_text(study)}"),
        ("Seeds", ", ".join(map(str, study.seeds))),
    ]
    folder = study.config.get("output_dir")
    if folder:
        facts.append(("Folder", str(folder)))
    return [
        Paragraph(f"{study.name} ({study.status})"),
        Paragraph(summary(study, select_all(study))),
        Facts(facts),
    ]
