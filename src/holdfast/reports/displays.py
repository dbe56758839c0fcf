"""What results of Python calls show of themselves: the blocks of the terminal and of the pages, the first few. Where
figures lie in a folder, the folder is named."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoints.build import Built
from holdfast.checkpoints.distance import CheckpointDistance
from holdfast.checkpoints.inspect import Inspection
from holdfast.records.comparison import Comparison, StageMatrix
from holdfast.records.evaluation import Evaluation, EvaluationFolder, EvaluationRecord
from holdfast.records.run import RunFolder
from holdfast.records.study import StudyRecord
from holdfast.reports.blocks import Block, Facts, Paragraph, Table, words
from holdfast.reports.charts import Col, moved, signs_kept, tabulate
from holdfast.reports.compared import AFTER, BEFORE, DIFFERENCE, ComparisonRow, measure_table, one_unit
from holdfast.reports.format import count, duration, flatten, joined, metric_texts, number, plural, significant
from holdfast.retention.fisher import SavedFisher
from holdfast.statistics.selection import Selection, select_all
from holdfast.support.display import fields_text
from holdfast.support.environment import shown_bytes

WIDTH = 120
LAYERS = 5
"""Layers of a distance that are shown, the most moved first."""


class Displays:
    """Shows values by `blocks`; see `holdfast.support.display`."""

    def text(self, value: Any) -> str:
        """As lines of plain text; of tables a row is a line."""
        from rich.console import Console

        from holdfast.reports.terminal import Printer

        file = io.StringIO()
        console = Console(file=file, width=WIDTH, force_terminal=False, force_jupyter=False, color_system=None)
        printer = Printer(console)
        printer.fancy = True  # what it is shown on is not known here
        printer.show(blocks(value))
        return "\n".join(line.rstrip() for line in file.getvalue().rstrip().split("\n"))

    def html(self, value: Any) -> str:
        """The same blocks as HTML, without a style sheet: a notebook has its own."""
        from holdfast.reports.html import join, part

        found = str(join(*(part(x) for x in blocks(value) if words_of(x))))
        return found.replace('<span class="sub">', '<span style="display: block; opacity: 0.7">')


def words_of(x: Block) -> bool:
    """Whether a block is more than an empty line."""
    return not isinstance(x, Paragraph) or bool(words(x.content))


@functools.singledispatch
def blocks(value: Any) -> list[Block]:
    """What a value shows: what is declared below, else the title and the settings that it gives as `displayed`, else
    its fields."""
    declared = getattr(value, "displayed", None)
    if declared is None:
        return [Paragraph(fields_text(value))]
    title, settings = declared
    return [Paragraph(title), Facts(flatten(settings))]


def _entries(rows: Sequence[tuple[str, Evaluation]]) -> Table:
    """A line an evaluation: the figure that leads."""
    return tabulate(
        [(name, e, *metric_texts(e.metrics[e.primary])) for name, e in rows],
        [
            Col("Measure", lambda r: r[0], numeric=False),
            Col("Metric", lambda r: r[1].primary, numeric=False),
            Col("Value", lambda r: r[2]),
            Col("Interval", lambda r: r[3]),
            Col("n", lambda r: f"{r[1].metrics[r[1].primary].n:,}"),
        ],
    )


@blocks.register
def _(value: RunFolder) -> list[Block]:
    from holdfast.reports.run_report import read_run

    if not value.exists():
        return [Paragraph(f"No run has begun in {value.path}.")]
    run = read_run(value)
    trained = run.trained
    spent = [f"{significant(trained['steps'])} steps"] if trained["steps"] is not None else []
    spent += [duration(trained["seconds"])] if trained["seconds"] is not None else []
    rows = [r for r in one_unit(run.rows)[0] if r.raw.primary]
    table = measure_table(rows, [Col("Measure", "label", numeric=False), BEFORE, AFTER, DIFFERENCE, _UNIT, _VERDICT])
    facts = [("Method", run.method), ("Training", ", ".join(spent)), ("Folder", str(value.path))]
    facts += [("Report", str(value.report_file))] if value.report_file.is_file() else []
    return [
        Paragraph(f"{run.title} ({run.record.status})"),
        *([table] if rows else [Paragraph(run.verdict)]),
        Facts([(label, text) for label, text in facts if text]),
    ]


_UNIT = Col("Unit", "unit", numeric=False)
_VERDICT = Col("Verdict", "verdict", numeric=False)


@blocks.register
def _(value: Comparison) -> list[Block]:
    row = ComparisonRow(value)
    change = " ".join(row.change() if row.share else (row.difference, row.interval))
    text = f"{value.suite}/{value.name} {value.metric}: {row.levels()}, {change}, {row.verdict} (p {row.p}, n {row.n})"
    return [Paragraph(text)]


@blocks.register
def _(value: Evaluation) -> list[Block]:
    metric = value.metrics[value.primary]
    figure = " ".join(metric_texts(metric))
    model = f" of {value.model['name']}" if value.model.get("name") else ""
    return [Paragraph(f"{value.suite}/{value.name}{model}: {value.primary} {figure}, n {metric.n:,}")]


@blocks.register
def _(value: EvaluationFolder) -> list[Block]:
    found = value.all()
    table = [_entries([(f"{e.suite}/{e.name}", e) for e in found])] if found else []
    return [Paragraph(f"{plural(len(found), 'evaluation')} in {value.path}"), *table]


@blocks.register
def _(value: EvaluationRecord) -> list[Block]:
    models = [
        (m["label"], joined(m.get("name"), f"{count(m['parameters'])} parameters" if m.get("parameters") else ""))
        for m in value.models
    ]
    title = f"Evaluation of {plural(len(models), 'model')} ({value.status})"
    return [Paragraph(f"{title}; suites: {', '.join(value.suites) or 'none'}"), Facts(models)]


@blocks.register
def _(value: Built) -> list[Block]:
    record = value.record
    plan, method = record.get("plan", {}), record.get("method", {})
    name = method.get("method") if isinstance(method, dict) else method
    parents = ", ".join(str(p.get("name")) for p in record.get("parents", []))
    size = f"{plan.get('tensors', 0):,} tensors, {count(plan.get('parameters'))} parameters"
    facts = [
        ("Size", f"{size}, {shown_bytes(plan.get('bytes_written', 0))}"),
        ("Time", duration(value.seconds.get("total"))),
        ("Folder", str(value.folder)),
        *(("Note", str(note)) for note in plan.get("notes", [])),
    ]
    return [Paragraph(f"{record.get('command') or 'checkpoint'}: {name or 'made'} of {parents}"), Facts(facts)]


@blocks.register
def _(value: CheckpointDistance) -> list[Block]:
    total = value.total
    signs = "" if math.isnan(total.sign_agreement) else f", signs kept {signs_kept(total.sign_agreement)}"
    how_far = f"{moved(total.relative)} of the norm, cosine {number(total.cosine, 4)}{signs}"
    text = f"{value.start} → {value.result}: {how_far}; {plural(len(value.tensors), 'tensor')}"
    layers = sorted(value.layers[:-1], key=lambda d: -d.relative)[:LAYERS]
    columns = [
        Col("Most moved layer", "layer", numeric=False),
        Col("Relative L2", lambda d: moved(d.relative)),
        Col("Cosine", lambda d: number(d.cosine, 4)),
    ]
    notes = [Paragraph(f"Note: {note}", "note") for note in value.notes]
    return [Paragraph(text), *([tabulate(layers, columns)] if layers else []), *notes]


@blocks.register
def _(value: Inspection) -> list[Block]:
    failed = [f"{check.name}: {check.detail}" for check in value.checks if check.passed is False]
    dtypes = ", ".join(f"{d.dtype} {count(d.parameters)}" for d in value.dtypes)
    size = f"{value.tensors:,} tensors, {count(value.parameters)} parameters ({dtypes}), {shown_bytes(value.bytes)}"
    sound = "yes" if value.verified else "as far as was looked (verify=True reads all bytes)"
    facts = [
        ("Kind", joined(value.kind, value.architecture)),
        ("Size", size),
        ("Sound", "no" if failed else sound),
        ("Folder", value.folder),
    ]
    return [Facts(facts), *(Paragraph(f"Failed: {text}", "bad") for text in failed)]


@blocks.register
def _(value: SavedFisher) -> list[Block]:
    record = value.record
    data = record.get("data")
    facts = [
        ("Model", str(record["model"].get("name", ""))),
        ("Data", joined((data or {}).get("name"), plural(int(record.get("samples", 0)), "sample"))),
        ("Estimator", str(record.get("estimator", ""))),
        ("Folder", str(value.folder)),
    ]
    return [Paragraph("Diagonal Fisher information"), Facts([f for f in facts if f[1]])]


@blocks.register
def _(value: StudyRecord) -> list[Block]:
    from holdfast.reports.study_figures import counts_text, lead

    selections = select_all(value)
    facts = [("Trials", f"{len(value.trials)}: {counts_text(value)}"), ("Seeds", ", ".join(map(str, value.seeds)))]
    folder = value.config.get("output_dir")
    facts += [("Folder", str(folder))] if folder else []
    return [Paragraph(f"{value.name} ({value.status})"), Paragraph(lead(value, selections)), Facts(facts)]


@blocks.register
def _(value: Selection) -> list[Block]:
    from holdfast.reports.study_figures import gain_texts, rule_title, share_text, typographic

    if value.chosen is None:
        return [Paragraph(f"{rule_title(value)}: no trial; {typographic(value.reason)}")]
    facts = [("Trial", f"{value.chosen}: {value.label}")]
    for name, gain in (("Target", value.target), ("Source", value.source)):
        if gain is not None:
            facts.append((name, f"{' '.join(gain_texts(gain))} {gain.unit}"))
    for name, share in (("Gain kept", value.kept), ("Loss avoided", value.avoided)):
        if share is not None and share.value is not None:
            facts.append((name, share_text(share)))
    return [Paragraph(f"{rule_title(value)}: {typographic(value.reason)}"), Facts(facts)]


@blocks.register
def _(value: StageMatrix) -> list[Block]:
    from holdfast.reports.comparison_text import matrix_tables

    titles = ("Scores ({unit}, higher is better)", "Sequential training")
    return matrix_tables(value, titles, "After", ("Measure", "Value", "Interval"))
