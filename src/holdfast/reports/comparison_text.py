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
from typing import TYPE_CHECKING

from holdfast.evaluation.compare.gate import by_rule, is_failed, outcome_of
from holdfast.records.comparison import Comparison, GateOutcome, StageMatrix
from holdfast.records.run import RunRecord
from holdfast.reports.figures import Row, interval_text, number, plural, row, verdict_sentence

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 100
FOLD_FROM = 25
"""Tables longer than this show what changed and fold the rest away."""
SYMBOLS = {"passed": "✅", "failed": "❌", "undecided": "⚠️"}
WORDS = {"passed": "PASS", "failed": "FAIL", "undecided": "UNDECIDED"}
STYLE = {"good": "green", "bad": "red", "flat": "dim"}
MEASURE_TITLES = {
    "average_accuracy": "Average accuracy",
    "backward_transfer": "Backward transfer",
    "forgetting": "Forgetting",
    "forward_transfer": "Forward transfer",
}


# ------------------------------------------------------------------------------------------------------------- shared


def what_decided(gates: Sequence[GateOutcome]) -> list[GateOutcome]:
    """The outcomes of one rule that made it what it is."""
    whole = outcome_of(gates)
    return [g for g in gates if g.outcome == whole]


def gate_line(gate: GateOutcome) -> str:
    """One outcome as `suite/name metric: reason`."""
    return f"{gate.suite}/{gate.name}{f' {gate.metric}' if gate.metric else ''}: {gate.reason}"


def headline(comparisons: Sequence[Comparison]) -> str:
    """What changed, in one sentence."""
    return verdict_sentence(RunRecord(name=""), comparisons) if comparisons else "Nothing was compared."


def _verdict_of_gates(gates: Sequence[GateOutcome], *, strict: bool) -> str:
    said = [outcome_of(found) for found in by_rule(gates).values()]
    counts = [f"{said.count(o)} {o}" for o in ("passed", "failed", "undecided") if o in said]
    undecided = " (undecided counts as failed)" if strict and "undecided" in said else ""
    return f"{plural(len(said), 'rule')}: {', '.join(counts)}{undecided}"


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
    from holdfast.reports.terminal import Printer

    out = Printer(console)
    out.line(f"{labels[0]} → {labels[1]}", "bold")
    out.line(headline(comparisons))
    out.line()
    rows = [row(c) for c in comparisons]
    for suite in dict.fromkeys(r.raw.suite for r in rows):
        columns = [
            ("Measure", False),
            ("Before", True),
            ("After", True),
            ("Difference", True),
            ("p, n", True),
            ("Verdict", False),
        ]
        mine = [r for r in rows if r.raw.suite == suite]
        out.table(mine[0].group, columns, [_cells(r) for r in mine])
    if rows:
        out.line(
            f"{_how(comparisons)} Under a verdict: samples lost / gained, where a sample is right or wrong.", "dim"
        )
        out.line()
    if matrix is not None:
        head = [("After", False), *((task, True) for task in matrix.tasks)]
        out.table(
            f"Scores ({matrix.unit}, higher is better)",
            head,
            [[(cell, "") for cell in cells] for cells in _matrix_rows(matrix)],
        )
        out.table(
            "Sequential training",
            [("Measure", False), ("Value", True), ("Interval", True), ("n", True)],
            [[(cell, "") for cell in cells] for cells in _measure_rows(matrix)],
        )
    for rule, found in by_rule(gates).items():
        outcome = outcome_of(found)
        style = {"passed": "green", "failed": "red", "undecided": "red" if strict else "yellow"}[outcome]
        counted = f" ({len(what_decided(found))} of {len(found)})" if len(found) > 1 else ""
        fails = ", which fails" if strict and outcome == "undecided" else ""
        out.line(f"{WORDS[outcome]:<10} {rule}{counted}{fails}", style)
        for gate in what_decided(found)[: 5 if outcome == "passed" else 20]:
            out.line(f"           {gate_line(gate)}")
    if gates:
        out.line()
    for text in (*(f"Not compared: {u}" for u in unmatched), *(f"Note: {n}" for n in notes)):
        out.line(text, "dim")


def _cells(r: Row) -> list[tuple[str, str]]:
    """Two lines a comparison, so that sixty of them can be read through."""
    quiet = "" if r.raw.primary else "dim"
    flips = f"{r.raw.flips_lost or 0:,} / {r.raw.flips_gained or 0:,}" if r.flips else ""
    return [
        (f"{r.name}\n{r.metric} {'↑' if r.raw.higher_is_better else '↓'}", quiet),
        (r.before, quiet),
        (r.after, quiet),
        (f"{r.difference}\n{r.interval}", quiet),
        (f"{r.p}\n{r.n}", quiet),
        (f"{r.verdict}\n{flips}".rstrip(), STYLE[r.tone]),
    ]


def _how(comparisons: Sequence[Comparison]) -> str:
    """What stands behind intervals and p values."""
    level = f"{100 * comparisons[0].confidence:g} %"
    return (
        f"Paired intervals at {level}; p by McNemar's exact test for right / wrong answers, else by paired bootstrap."
    )


def _matrix_rows(matrix: StageMatrix) -> list[list[str]]:
    return [
        [stage, *(number(score, 4) for score in scores)]
        for stage, scores in zip(matrix.stages, matrix.scores, strict=True)
    ]


def _measure_rows(matrix: StageMatrix) -> list[list[str]]:
    rows = []
    for name, metric in matrix.measures.items():
        better = "higher is better" if metric.higher_is_better else "lower is better"
        title = f"{MEASURE_TITLES.get(name, name)} ({better})"
        rows.append(
            [title, number(metric.value, 4), interval_text(metric.interval, 4), f"{metric.n:,}" if metric.n else "n/a"]
        )
    return rows


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
    lines = [f"### {_plain(labels[0])} → {_plain(labels[1])}", "", _plain(headline(comparisons)), ""]
    if gates:
        lines += [f"**{_verdict_of_gates(gates, strict=strict)}**", "", "| | rule | on |", "|---|---|---|"]
        for rule, found in by_rule(gates).items():
            outcome = outcome_of(found)
            decided = what_decided(found)
            shown = [_plain(gate_line(g)) for g in decided[:5]]
            more = [f"and {len(decided) - 5} more"] if len(decided) > 5 else []
            word = f"{outcome}, which fails" if strict and outcome == "undecided" else outcome
            lines.append(f"| {SYMBOLS[outcome]} {word} | {_code(rule)} | {'<br>'.join([*shown, *more])} |")
        lines.append("")
    rows = [row(c) for c in comparisons]
    first, folded = rows, []
    if len(rows) > FOLD_FROM:
        first = [r for r in rows if r.tone != "flat" and r.raw.primary]
        folded = [r for r in rows if r not in first]
    if first:
        lines += [*_table(first), ""]
    if folded:
        lines += [
            "<details>",
            f"<summary>{len(folded)} more, of which {sum(r.tone == 'flat' for r in folded)} within noise</summary>",
            "",
        ]
        lines += [*_table(folded), "", "</details>", ""]
    if matrix is not None:
        lines += [*_markdown_matrix(matrix), ""]
    if comparisons:
        lines += [_how(comparisons), ""]
    lines += [
        *(f"- Not compared: {_plain(u)}" for u in unmatched[:MOST_ROWS]),
        *(f"- {_plain(n)}" for n in notes[:MOST_ROWS]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| task | before | after | difference | p | lost / gained | n | verdict |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for r in rows[:MOST_ROWS]:
        mark = {"good": "▲ ", "bad": "▼ ", "flat": ""}[r.tone]
        flips = f"{r.raw.flips_lost or 0:,} / {r.raw.flips_gained or 0:,}" if r.flips else ""
        what = f"{_plain(f'{r.raw.suite}/{r.name}')} {_code(r.metric)} {'↑' if r.raw.higher_is_better else '↓'}"
        lines.append(
            f"| {what} | {r.before} | {r.after} | {r.difference} {_plain(r.interval)} | {_plain(r.p)} | {flips} | "
            f"{r.n} | {mark}{r.verdict} |"
        )
    if len(rows) > MOST_ROWS:
        lines += ["", f"{len(rows) - MOST_ROWS} more rows are not shown."]
    return lines


def _markdown_matrix(matrix: StageMatrix) -> list[str]:
    lines = [f"Scores after each stage ({_plain(matrix.unit)}, higher is better):", ""]
    lines += [f"| after | {' | '.join(_plain(t) for t in matrix.tasks)} |", f"|---|{'---:|' * len(matrix.tasks)}"]
    lines += [f"| {_plain(stage)} | {' | '.join(cells)} |" for stage, *cells in _matrix_rows(matrix)]
    lines += ["", "| measure | value | interval | n |", "|---|---:|---:|---:|"]
    return lines + [
        f"| {title} | {value} | {_plain(interval)} | {n} |" for title, value, interval, n in _measure_rows(matrix)
    ]


def _plain(text: str) -> str:
    """Text that Markdown and HTML leave alone, on one line."""
    one_line = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", one_line.replace("&", "&amp;").replace("<", "&lt;")).replace(
        "@", "@\u200b"
    )


def _code(text: str) -> str:
    """A code span for a table cell: backticks cannot be escaped inside, so they become quotes; a bar would end the
    cell."""
    return f"`{' '.join(text.split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


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
    r = row(c)
    flips = f", {r.flips}" if r.flips else ""
    change = f"{r.before} -> {r.after}, difference {r.difference} {r.interval}, p {r.p}"
    return f"{c.suite}/{c.name} {c.metric}: {change}, n {r.n}{flips}: {r.verdict}"


def _xml(text: str) -> str:
    """Without the control characters that XML 1.0 cannot hold in any form."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
