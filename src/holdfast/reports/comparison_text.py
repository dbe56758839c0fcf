"""A comparison as text: for the terminal, for a pull request (Markdown), for a build server (JUnit XML). The figures
are those of the report pages.

- Markdown fits a comment: at most 65,536 characters on GitHub, so that what changed comes first, what did not is folded
  away, and tables end after `MOST_ROWS` rows with a sentence on how many more there are.
- JUnit: one test suite. With rules, a test case a rule: a failure where it failed (or is undecided and the gate is
  strict), skipped where it is undecided; without rules, a test case a comparison, which passes and carries its figures
  as output, because nobody said what would be too much. Attributes and elements are those that the schema of Jenkins'
  xUnit plugin knows; characters that XML 1.0 forbids are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.evaluation.compare.gate import by_rule, is_failed, outcome_of
from holdfast.records.comparison import Comparison, GateOutcome, StageMatrix
from holdfast.reports import markdown
from holdfast.reports.blocks import Block, Bullets, Fold, Heading, Paragraph, Span, Table, columns, figure, sub
from holdfast.reports.compared import Row, group_title, headline
from holdfast.reports.comparison_report import OUTCOMES, STAGE_MEASURES
from holdfast.reports.format import direction, interval_text, number, plural, tally
from holdfast.reports.terminal import Printer

if TYPE_CHECKING:
    from rich.console import Console

FOLD_FROM = 25
"""Tables longer than this show what changed and fold the rest away."""
SYMBOLS = {"passed": "✅", "failed": "❌", "undecided": "⚠️"}
WORDS = {"passed": "PASS", "failed": "FAIL", "undecided": "UNDECIDED"}


# ------------------------------------------------------------------------------------------------------------- shared


def what_decided(gates: Sequence[GateOutcome]) -> list[GateOutcome]:
    """The outcomes of one rule that made it what it is."""
    whole = outcome_of(gates)
    return [g for g in gates if g.outcome == whole]


def gate_line(gate: GateOutcome) -> str:
    """One outcome as `suite/name metric: reason`."""
    return f"{gate.suite}/{gate.name}{f' {gate.metric}' if gate.metric else ''}: {gate.reason}"


def how(comparisons: Sequence[Comparison]) -> str:
    """What stands behind intervals and p values."""
    level = f"{100 * comparisons[0].confidence:g} %"
    return (
        f"Paired intervals at {level}; p by McNemar's exact test for right / wrong answers, else by paired bootstrap."
    )


def _matrix_tables(matrix: StageMatrix, titles: tuple[str, str], heads: tuple[str, str]) -> list[Table]:
    scores = [[s, *(number(v, 4) for v in line)] for s, line in zip(matrix.stages, matrix.scores, strict=True)]
    rows = []
    for name, m in matrix.measures.items():
        title = f"{STAGE_MEASURES.get(name, (name,))[0]} ({direction(m.higher_is_better)})"
        rows.append([title, number(m.value, 4), interval_text(m.interval, 4), f"{m.n:,}" if m.n else "n/a"])
    said = [t.format(unit=matrix.unit) for t in titles]
    value = [heads[1], *(w if heads[1].islower() else w.capitalize() for w in ("value", "interval"))]
    return [
        Table(columns=columns(heads[0], *matrix.tasks), rows=scores, title=said[0]),
        Table(columns=columns(*value, "n"), rows=rows, title=said[1]),
    ]


def _flips(r: Row) -> str:
    return f"{r.raw.flips_lost or 0:,} / {r.raw.flips_gained or 0:,}" if r.flips else ""


def _arrow(r: Row) -> str:
    return "↑" if r.raw.higher_is_better else "↓"


# ----------------------------------------------------------------------------------------------------------- terminal


def print_comparison(
    comparisons: Sequence[Comparison],
    console: Console | None = None,
    *,
    labels: tuple[str, str],
    gates: Sequence[GateOutcome] = (),
    strict: bool = False,
    unmatched: Sequence[str] = (),
    notes: Sequence[str] = (),
    matrix: StageMatrix | None = None,
) -> None:
    """Prints tables, rules and what was left out; plain ASCII where the terminal cannot show more.

    Args:
        comparisons: in the order to show.
        console: where to print; the terminal by default.
        labels: of the model before and the one after.
        gates: outcomes of rules.
        strict: whether undecided rules fail.
        unmatched: sentences on what was not compared.
        notes: sentences on what to know.
        matrix: of sequential training, if it was asked for.
    """
    blank = Paragraph("")
    found: list[Block] = [Heading(f"{labels[0]} → {labels[1]}"), Paragraph(headline(comparisons)), blank]
    rows = [Row(c) for c in comparisons]
    for suite in dict.fromkeys(r.raw.suite for r in rows):
        found.append(brief_measures([r for r in rows if r.raw.suite == suite]))
    if rows:
        text = f"{how(comparisons)} Under a verdict: samples lost / gained, where a sample is right or wrong."
        found += [Paragraph(text, "note"), blank]
    if matrix is not None:
        titles = ("Scores ({unit}, higher is better)", "Sequential training")
        found += _matrix_tables(matrix, titles, ("After", "Measure"))
    for rule, held in by_rule(gates).items():
        outcome, decided = outcome_of(held), what_decided(held)
        tone = "bad" if strict and outcome == "undecided" else OUTCOMES[outcome]
        counted = f" ({len(decided)} of {len(held)})" if len(held) > 1 else ""
        fails = ", which fails" if strict and outcome == "undecided" else ""
        found.append(Paragraph(f"{WORDS[outcome]:<10} {rule}{counted}{fails}", tone))
        found += [Paragraph(f"{'':10} {gate_line(g)}") for g in decided[: 5 if outcome == "passed" else 20]]
    found += [blank] if gates else []
    found += [Paragraph(f"Not compared: {u}", "note") for u in unmatched] + [
        Paragraph(f"Note: {n}", "note") for n in notes
    ]
    Printer(console).show(found)


def brief_measures(rows: Sequence[Row]) -> Table:
    """Two lines a comparison, so that sixty of them can be read through in a terminal."""
    cells = [
        [
            (r.name, sub(f"{r.raw.metric} {_arrow(r)}")),
            r.before,
            r.after,
            figure(r.difference, r.interval),
            (r.p, sub(r.n)),
            Span((r.verdict, sub(_flips(r)) if r.flips else None), tone=r.tone),
        ]
        for r in rows
    ]
    heads = columns("Measure", "Before", "After", "Difference", "p, n", "Verdict", right=(1, 2, 3, 4))
    tones = ["" if r.raw.primary else "minor" for r in rows]
    return Table(columns=heads, rows=cells, title=group_title(rows[0].raw.suite), tones=tones)


# ----------------------------------------------------------------------------------------------------------- markdown


def comparison_markdown(
    comparisons: Sequence[Comparison],
    *,
    labels: tuple[str, str],
    gates: Sequence[GateOutcome] = (),
    strict: bool = False,
    unmatched: Sequence[str] = (),
    notes: Sequence[str] = (),
    matrix: StageMatrix | None = None,
) -> str:
    """The comparison for a pull request's comment; arguments as of `print_comparison`."""
    found: list[Block] = [Heading(f"{labels[0]} → {labels[1]}"), Paragraph(headline(comparisons))]
    if gates:
        outcomes = {rule: outcome_of(held) for rule, held in by_rule(gates).items()}
        counts = tally(list(outcomes.values()), ("passed", "failed", "undecided"))
        counted = " (undecided counts as failed)" if strict and "undecided" in outcomes.values() else ""
        found.append(Paragraph(Span(f"{plural(len(outcomes), 'rule')}: {counts}{counted}", "strong")))
        cells: list[list[Any]] = []
        for rule, held in by_rule(gates).items():
            decided = what_decided(held)
            lines = [gate_line(g) for g in decided[:5]]
            lines += [f"and {len(decided) - 5} more"] if len(decided) > 5 else []
            word = outcomes[rule] + (", which fails" if strict and outcomes[rule] == "undecided" else "")
            on = (lines[0], *(sub(line) for line in lines[1:]))
            cells.append([f"{SYMBOLS[outcomes[rule]]} {word}", Span(rule, "code"), on])
        found.append(Table(columns=columns("", "rule", "on", right=()), rows=cells))
    rows = [Row(c) for c in comparisons]
    first, folded = rows, []
    if len(rows) > FOLD_FROM:
        first = [r for r in rows if r.tone != "flat" and r.raw.primary]
        folded = [r for r in rows if r not in first]
    found += [_table(first)] if first else []
    if folded:
        noise = sum(r.tone == "flat" for r in folded)
        found.append(Fold(f"{len(folded)} more, of which {noise} within noise", [_table(folded)]))
    if matrix is not None:
        found += _matrix_tables(
            matrix, ("Scores after each stage ({unit}, higher is better):", ""), ("after", "measure")
        )
    found += [Paragraph(how(comparisons))] if comparisons else []
    said = [*(f"Not compared: {u}" for u in unmatched[: markdown.MOST_ROWS]), *notes[: markdown.MOST_ROWS]]
    return markdown.render([*found, Bullets(said)])


def _table(rows: Sequence[Row]) -> Table:
    cells = []
    for r in rows:
        what = (f"{r.raw.suite}/{r.name} ", Span(r.raw.metric, "code"), f" {_arrow(r)}")
        mark = {"good": "▲ ", "bad": "▼ ", "flat": ""}[r.tone]
        change = f"{r.difference} {r.interval}"
        cells.append([what, r.before, r.after, change, r.p, _flips(r), r.n, f"{mark}{r.verdict}"])
    heads = columns("task", "before", "after", "difference", "p", "lost / gained", "n", "verdict", right=range(1, 7))
    return Table(columns=heads, rows=cells)


# -------------------------------------------------------------------------------------------------------------- junit


def comparison_junit(
    comparisons: Sequence[Comparison],
    *,
    labels: tuple[str, str],
    gates: Sequence[GateOutcome] = (),
    strict: bool = False,
    seconds: float = 0.0,
) -> bytes:
    """The gate, or the comparisons where there is none, as JUnit XML (module docstring); `seconds` is what it took."""
    import xml.etree.ElementTree as ET

    name = _xml(f"holdfast compare {labels[0]} {labels[1]}")
    suite = ET.Element("testsuite", name=name)
    counts = {"failures": 0, "skipped": 0}
    for rule, found in by_rule(gates).items():
        case = ET.SubElement(suite, "testcase", classname="holdfast.compare", name=_xml(rule), time="0")
        outcome = outcome_of(found)
        lines = [_xml(gate_line(g)) for g in what_decided(found)]
        if is_failed(found, strict=strict):
            counts["failures"] += 1
            ET.SubElement(case, "failure", message=lines[0], type=outcome).text = "\n".join(lines)
        elif outcome == "undecided":
            counts["skipped"] += 1
            ET.SubElement(case, "skipped", message=f"undecided: {lines[0]}")
        else:
            ET.SubElement(case, "system-out").text = "\n".join(lines)
    if not gates:
        for c in comparisons:
            case = ET.SubElement(
                suite,
                "testcase",
                classname=_xml(f"holdfast.compare.{c.suite}"),
                name=_xml(f"{c.name} {c.metric}"),
                time="0",
            )
            ET.SubElement(case, "system-out").text = _xml(comparison_line(c))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(counts["failures"]))
    suite.set("errors", "0")
    suite.set("skipped", str(counts["skipped"]))
    suite.set("time", f"{seconds:.3f}")
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def comparison_line(c: Comparison) -> str:
    """One comparison as a line of text."""
    r = Row(c)
    flips = f", {r.flips}" if r.flips else ""
    change = f"{r.before} -> {r.after}, difference {r.difference} {r.interval}, p {r.p}"
    return f"{c.suite}/{c.name} {c.metric}: {change}, n {r.n}{flips}: {r.verdict}"


def _xml(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold in any form."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
