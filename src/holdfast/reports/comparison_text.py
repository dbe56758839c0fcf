"""A comparison as text: for the terminal, for a pull request (Markdown), for a build server (JUnit XML). The figures
are those of the report pages.

- Markdown fits a comment: at most 65,536 characters on GitHub, so that what changed comes first, what did not is folded
  away, and tables end after `MOST_ROWS` rows with a sentence on how many more there are.
- JUnit: one test suite, a test case a benchmark, which carries its figures: a failure where a rule failed on it (or is
  undecided and the gate is strict), skipped where one is undecided, passed where all passed or none speaks of it. What
  is NaN or infinite is an error: a benchmark that a rule speaks of, and in any case a test case of its own for every
  such entry. The sentence of the decision over all tests is the suite's output. Attributes and elements are those that
  the schema of Jenkins' xUnit plugin knows; characters that XML 1.0 forbids are left out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.evaluation.compare.gate import by_rule, outcome_of
from holdfast.printable import Lines, lines, printable
from holdfast.records.comparison import NOT_FINITE, NOT_MEASURED, Comparison, GateOutcome, StageMatrix
from holdfast.records.measure import interval_text, number
from holdfast.reports import markdown
from holdfast.reports.blocks import Block, Bullets, Fold, Heading, Paragraph, Span, Table, Text, columns, sub
from holdfast.reports.charts import Col, fold, tabulate
from holdfast.reports.compared import (
    ADJUSTED,
    AFTER,
    BEFORE,
    DIFFERENCE,
    ComparisonRow,
    N,
    P,
    arrow,
    by_suite,
    decision_note,
    group_title,
    headline,
    measure_table,
)
from holdfast.reports.comparison_report import OUTCOMES, STAGE_MEASURES
from holdfast.reports.format import direction, plural, tally
from holdfast.reports.terminal import Printer

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.evaluation.compare.result import Result

FOLD_FROM = 25
"""Tables longer than this show what changed and fold the rest away."""
SYMBOLS = {"passed": "✅", "failed": "❌", "undecided": "⚠️", NOT_FINITE: "⛔", NOT_MEASURED: "❌"}
WORDS = {"passed": "PASS", "failed": "FAIL", "undecided": "UNDECIDED"}
WORDS |= {NOT_FINITE: "NOT FINITE", NOT_MEASURED: "FAIL"}


# ------------------------------------------------------------------------------------------------------------- shared


def how(comparisons: Sequence[Comparison]) -> str:
    """What stands behind intervals and p values."""
    level = f"{100 * comparisons[0].confidence:g} %"
    return (
        f"Paired intervals at {level} and p of one test: McNemar's exact one for right / wrong answers, else Student's "
        f"t with its skewness removed. Adjusted p: one-sided, of a loss, for all entries together."
    )


def not_finite_text(sentences: Sequence[str]) -> Lines:
    """What is said of a comparison in which something is not finite; `sentences` are those of `Result.not_finite`."""
    entries = f"{len(sentences)} entr{'y' if len(sentences) == 1 else 'ies'}"
    first = f"NaN or infinity in {entries}: the comparison has failed, whatever its rules say."
    last = "Look at the model (its weights, its dtype), and evaluate it again."
    return lines(first, *(f"  - {sentence}" for sentence in sentences), last)


def matrix_tables(matrix: StageMatrix, titles: tuple[str, str], after: str, heads: Sequence[str]) -> list[Table]:
    """Scores after every stage, and what they say of the sequence; `after` and `heads` title the columns."""
    title = Col(
        heads[0], lambda m: f"{STAGE_MEASURES.get(m[0], (m[0],))[0]} ({direction(m[1].higher_is_better)})", False
    )
    value, interval = (
        Col(heads[1], lambda m: number(m[1].value, 4)),
        Col(heads[2], lambda m: interval_text(m[1].interval, 4)),
    )
    n = Col("n", lambda m: f"{m[1].n:,}" if m[1].n else "n/a")
    scores = [[s, *(number(v, 4) for v in line)] for s, line in zip(matrix.stages, matrix.scores, strict=True)]
    return [
        Table(columns=columns(after, *matrix.tasks), rows=scores, title=titles[0].format(unit=matrix.unit)),
        tabulate(matrix.measures.items(), [title, value, interval, n], title=titles[1]),
    ]


def _flips(r: ComparisonRow) -> str:
    return f"{r.raw.flips_lost or 0:,} / {r.raw.flips_gained or 0:,}" if r.flips else ""


@dataclasses.dataclass(frozen=True)
class _Rule:
    """A rule with its outcomes, one an entry."""

    text: str
    gates: list[GateOutcome]
    strict: bool

    @property
    def outcome(self) -> str:
        return outcome_of(self.gates)

    @property
    def fails(self) -> bool:
        """Whether it is undecided and that counts as failed."""
        return self.strict and self.outcome == "undecided"

    @property
    def consequence(self) -> str:
        """What an undecided rule comes to, to be put after it."""
        if self.outcome != "undecided":
            return ""
        return ", which fails" if self.strict else ", which passes without --strict"

    @property
    def decided(self) -> list[str]:
        """The outcomes that made it what it is, each as `suite/name metric: reason`."""
        return [
            f"{g.suite}/{g.name}{f' {g.metric}' if g.metric else ''}: {g.reason}"
            for g in self.gates
            if g.outcome == self.outcome
        ]


def _rules(result: Result) -> list[_Rule]:
    return [_Rule(text, held, result.settings.strict) for text, held in by_rule(result.gates).items()]


# ----------------------------------------------------------------------------------------------------------- terminal


def print_comparison(found: Result, console: Console | None = None) -> None:
    """Prints tables, rules and what was left out; plain ASCII where the terminal cannot show more."""
    Printer(console).show(comparison_blocks(found))


def comparison_blocks(result: Result) -> list[Block]:
    """The same as blocks."""
    comparisons, matrix, labels = result.comparisons, result.matrix, result.labels
    blank = Paragraph("")
    rows = [ComparisonRow(c) for c in comparisons]
    found: list[Block] = [Heading(f"{labels[0]} → {labels[1]}"), Paragraph(headline(comparisons))]
    found += [note] if (note := decision_note(result.decision)) is not None else []
    found.append(blank)
    broken = [Paragraph(f"Not finite: {sentence}", "bad") for sentence in result.not_finite]
    found += [brief_measures(held) for held in by_suite(rows)]
    if rows:
        text = f"{how(comparisons)} Under a verdict: samples lost / gained of all, where a sample is right or wrong."
        found += [Paragraph(text, "note"), *(Paragraph(power, "note") for power in powers(rows)), blank]
    if matrix is not None:
        titles = ("Scores ({unit}, higher is better)", "Sequential training")
        found += matrix_tables(matrix, titles, "After", ("Measure", "Value", "Interval"))
    for rule in _rules(result):
        of = f" ({len(rule.decided)} of {len(rule.gates)})" if len(rule.gates) > 1 else ""
        tone = "bad" if rule.fails else OUTCOMES[rule.outcome]
        found.append(Paragraph(f"{WORDS[rule.outcome]:<10} {rule.text}{of}{rule.consequence}", tone))
        found += [Paragraph(f"{'':10} {line}") for line in rule.decided[: 5 if rule.outcome == "passed" else 20]]
    found += [blank] if result.gates else []
    remarks = [*(f"Not compared: {u}" for u in result.unmatched), *(f"Note: {n}" for n in result.notes)]
    return [*found, *broken, *(Paragraph(text, "note") for text in remarks)]


def brief_measures(rows: Sequence[ComparisonRow]) -> Table:
    """Two lines a comparison, so that sixty of them can be read through in a terminal."""
    what = Col("Measure", lambda r: (r.name, sub(f"{r.raw.metric} {arrow(r)}")), numeric=False)
    adjusted = any(r.adjusted for r in rows)
    p = Col(("p", sub("adjusted") if adjusted else None), lambda r: (r.p, sub(r.adjusted) if adjusted else None))

    def verdict(r: ComparisonRow) -> Text:
        samples = f"{_flips(r)} of {r.n}" if r.flips else f"n {r.n}"
        return Span((r.verdict, sub(samples)), tone=r.tone)

    columns = [what, Col("Verdict", verdict, numeric=False), BEFORE, AFTER, DIFFERENCE, p]
    return measure_table(rows, columns, title=group_title(rows[0].raw.suite))


def powers(rows: Sequence[ComparisonRow]) -> list[str]:
    """What would have been seen where nothing is shown, a sentence each."""
    return [f"Not shown: {r.raw.suite}/{r.name} {r.raw.metric}: {r.power}." for r in rows if r.power]


# ----------------------------------------------------------------------------------------------------------- markdown


def comparison_markdown(result: Result) -> str:
    """The comparison for a pull request's comment."""
    comparisons, matrix, labels = result.comparisons, result.matrix, result.labels
    found: list[Block] = [Heading(f"{labels[0]} → {labels[1]}"), Paragraph(headline(comparisons))]
    found += [note] if (note := decision_note(result.decision)) is not None else []
    rules = _rules(result)
    if result.not_finite:
        title = "Not finite: the comparison has failed, whatever its rules say."
        found += [Paragraph(Span(f"{SYMBOLS[NOT_FINITE]} {title}", "strong")), Bullets(result.not_finite)]
    if rules:
        counts = tally([r.outcome for r in rules], ("passed", "failed", NOT_MEASURED, "undecided", NOT_FINITE))
        counted = " (undecided counts as failed)" if any(r.fails for r in rules) else ""
        found.append(Paragraph(Span(f"{plural(len(rules), 'rule')}: {counts}{counted}", "strong")))
        outcome = Col("", lambda r: f"{SYMBOLS[r.outcome]} {r.outcome}{r.consequence}", numeric=False)
        rule = Col("rule", lambda r: Span(r.text, "code"), numeric=False)
        found.append(tabulate(rules, [outcome, rule, Col("on", lambda r: _first_lines(r.decided), numeric=False)]))
    rows = [ComparisonRow(c) for c in comparisons]
    shown = [r for r in rows if len(rows) <= FOLD_FROM or (r.tone != "flat" and r.raw.primary)]
    rest = [r for r in rows if r not in shown]
    adjusted = [ADJUSTED] if any(r.adjusted for r in rows) else []
    columns_ = [*_COLUMNS, *fold(P, *adjusted, Col("lost / gained", _flips), N)]
    found += [tabulate(shown, columns_)] if shown else []
    if rest:
        verdicts = tally([r.verdict for r in rest])
        found.append(Fold(f"{len(rest)} more: {verdicts}", [tabulate(rest, columns_)]))
    if matrix is not None:
        titles = ("Scores after each stage ({unit}, higher is better):", "")
        found += matrix_tables(matrix, titles, "after", ("measure", "value", "interval"))
    found += [Paragraph(how(comparisons))] if comparisons else []
    most = markdown.MOST_ROWS
    remarks = [*(f"Not compared: {u}" for u in result.unmatched[:most]), *result.notes[:most]]
    return markdown.render([*found, Bullets(remarks)])


def _first_lines(texts: Sequence[str], most: int = 5) -> list[Any]:
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return [texts[0], *(sub(text) for text in (*texts[1:most], *more))]


MARKS = {"good": "▲ ", "bad": "▼ ", "flat": ""}
_COLUMNS = [
    Col("task", lambda r: (f"{r.raw.suite}/{r.name} ", Span(r.raw.metric, "code"), f" {arrow(r)}"), numeric=False),
    Col("verdict", lambda r: (f"{MARKS[r.tone]}{r.verdict}", sub(r.power) if r.power else None), numeric=False),
    Col("before", "before"),
    Col("after", "after"),
    Col("difference", lambda r: f"{r.difference} {r.interval}"),
]


# -------------------------------------------------------------------------------------------------------------- junit


def comparison_junit(result: Result, *, seconds: float = 0.0) -> bytes:
    """The comparisons, as the gate judges them, as JUnit XML (module docstring); `seconds` is what it took."""
    import xml.etree.ElementTree as ET

    suite = ET.Element("testsuite", name=_xml(" ".join(["holdfast compare", *result.labels])))

    def case(kind: str, classname: str, name: str, text: str = "", **attributes: str) -> None:
        found = ET.SubElement(suite, "testcase", classname=_xml(classname), name=_xml(name), time="0")
        ET.SubElement(found, kind, {k: _xml(v) for k, v in attributes.items()}).text = _xml(text) or None

    for (suite_name, name, metric), held in _by_benchmark(result).items():
        place, title = f"{_CLASS}.{suite_name}", f"{name} {metric}".strip()
        outcome = outcome_of(held.gates) if held.gates else "passed"
        reasons = [f"{g.rule}: {g.reason}" for g in held.gates if g.outcome == outcome]
        text = lines(*reasons, *(comparison_line(c) for c in held.comparisons))
        if outcome == NOT_FINITE:
            case("error", place, title, text, message=reasons[0], type=NOT_FINITE)
        elif outcome in ("failed", NOT_MEASURED) or (outcome == "undecided" and result.settings.strict):
            case("failure", place, title, text, message=reasons[0], type=outcome)
        elif outcome == "undecided":
            case("skipped", place, title, message=f"undecided: {reasons[0]}")
        else:
            case("system-out", place, title, text)
    for sentence in result.not_finite:
        case("error", _CLASS, sentence.partition(": ")[0], message=sentence, type=NOT_FINITE)
    if result.decision is not None:
        ET.SubElement(suite, "system-out").text = _xml(result.decision.sentence)
    counts = {name: len(suite.findall(f"testcase/{kind}")) for name, kind in _COUNTED.items()}
    counts = {"tests": len(suite.findall("testcase")), "failures": 0, "errors": 0} | counts
    for name, value in (counts | {"time": f"{seconds:.3f}"}).items():
        suite.set(name, str(value))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


@dataclasses.dataclass
class _Benchmark:
    """What there is to say of one."""

    comparisons: list[Comparison] = dataclasses.field(default_factory=list)
    gates: list[GateOutcome] = dataclasses.field(default_factory=list)


def _by_benchmark(result: Result) -> dict[tuple[str, str, str], _Benchmark]:
    """By suite, name and metric: what was compared, then what rules speak of beside it."""
    found: dict[tuple[str, str, str], _Benchmark] = {}
    for c in result.comparisons:
        if c.failed is None:
            found.setdefault((c.suite, c.name, c.metric), _Benchmark()).comparisons.append(c)
    for gate in result.gates:
        found.setdefault((gate.suite, gate.name, gate.metric), _Benchmark()).gates.append(gate)
    return found


_CLASS = "holdfast.compare"
_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def comparison_line(c: Comparison) -> str:
    """One comparison as a line of text."""
    r = ComparisonRow(c)
    flips = f", {r.flips}" if r.flips else ""
    change = f"{r.before} -> {r.after}, difference {r.difference} {r.interval}, p {r.p}"
    adjusted = f", adjusted for a loss {r.adjusted}" if r.adjusted else ""
    power = f"; {r.power}" if r.power else ""
    return f"{c.suite}/{c.name} {c.metric}: {change}{adjusted}, n {r.n}{flips}: {r.verdict}{power}"


def _xml(text: str) -> str:
    """Without the two characters that XML 1.0 cannot hold and that are not control characters."""
    return re.sub("[\ufffe\uffff]", "", printable(text))
