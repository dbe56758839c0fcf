"""A comparison as text: for the terminal, for a pull request (Markdown), for a build server (JUnit
XML). The figures are those of the report pages.

- Markdown fits a comment: at most 65,536 characters on GitHub, so that what changed comes first,
  what did not is folded away, and tables end after `MOST_ROWS` rows with a sentence on how many
  more there are.
- JUnit: one test suite, a test case a benchmark, which carries its figures: a failure where a rule
  failed on it (or is undecided and the gate is strict), skipped where one is undecided, passed
  where all passed or none speaks of it. What is NaN or infinite is an error: a benchmark that a
  rule speaks of, and in any case a test case of its own for every such entry. The sentence of the
  decision over all tests is the suite's output. Attributes and elements are those that the schema
  of Jenkins' xUnit plugin knows; characters that XML 1.0 forbids are left out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.evaluation.compare.gate import by_rule, outcome_of
from holdfast.printable import Lines, lines, printable
from holdfast.records.comparison import (
    ACCEPTED,
    NOT_FINITE,
    NOT_MEASURED,
    Comparison,
    GateOutcome,
)
from holdfast.reports import markdown
from holdfast.reports.answers import answers_in_words
from holdfast.reports.blocks import (
    Block,
    Bullets,
    Code,
    Fold,
    Heading,
    Paragraph,
    Span,
    paragraphs,
    sub,
)
from holdfast.reports.charts import Col, fold, heads, tabulate
from holdfast.reports.compared import (
    ADJUSTED,
    ComparisonRow,
    N,
    P,
    Rows,
    arrow,
    brief_tables,
    decision_note,
    headline,
    lost_and_gained,
    summary,
    verdicts_of,
)
from holdfast.reports.comparison_report import OUTCOMES, VERDICT_TONES
from holdfast.reports.decision_text import decision_in_words, reason_in_words, verdict_reason
from holdfast.reports.format import plural, tally
from holdfast.reports.terminal import Printer

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.evaluation.compare.result import Result

FOLD_FROM = 25
"""Tables longer than this show what changed and fold the rest away."""
SYMBOLS = {"passed": "✅", "failed": "❌", "undecided": "⚠️", NOT_FINITE: "⛔", NOT_MEASURED: "❌"}
SYMBOLS |= {ACCEPTED: "☑️"}
WORDS = {"passed": "PASS", "failed": "FAIL", "undecided": "UNDECIDED", ACCEPTED: "ACCEPTED"}
WORDS |= {NOT_FINITE: "NOT FINITE", NOT_MEASURED: "FAIL"}
COUNTED = ("passed", ACCEPTED, "failed", NOT_MEASURED, "undecided", NOT_FINITE)


# ------------------------------------------------------------------------------------------- shared


def how(comparisons: Sequence[Comparison]) -> str:
    """What stands behind intervals and p values."""
    level = f"{100 * comparisons[0].confidence:g} %"
    return (
        f"Intervals are paired, at {level}. An interval and its p come from the same test: "
        "McNemar's exact test for right / wrong answers, else Student's t test, corrected for "
        "skewness. The adjusted p is one-sided: it tests for a loss, and is adjusted for all "
        "entries."
    )


def not_finite_text(sentences: Sequence[str]) -> Lines:
    """What is said of a comparison in which something is not finite; `sentences` are those of
    `Result.not_finite`."""
    entries = f"{len(sentences)} entr{'y' if len(sentences) == 1 else 'ies'}"
    first = f"NaN or infinity in {entries}: the comparison failed, whatever the rules say."
    last = "Check the model's weights and dtype, or the log's values, and evaluate it again."
    return lines(first, *(f"  - {sentence}" for sentence in sentences), last)


def _head(result: Result) -> list[Block]:
    """Who was compared, what changed, and what all tests say together."""
    note = decision_note(result.decision)
    head: list[Block] = [Heading(" → ".join(result.labels))]
    if result.answers is not None and result.asks_only:
        return [*head, Paragraph(answers_in_words(result.answers))]
    head.append(Paragraph(summary(result.comparisons)))
    if result.verdict is not None:
        tone = VERDICT_TONES[result.verdict.word]
        word = Span(result.verdict.word, "strong")
        head.append(Paragraph((word, f": {verdict_reason(result.verdict)}"), tone))
    head.append(Paragraph(headline(result.comparisons)))
    if result.answers is not None:
        head.append(Paragraph(answers_in_words(result.answers)))
    return head if note is None else [*head, note]


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
        return self.strict and self.outcome == "undecided" and not self.gates[0].of_policy

    @property
    def consequence(self) -> str:
        """What an undecided rule comes to, to be put after it."""
        if self.outcome != "undecided" or self.gates[0].of_policy:
            return ""
        return (
            ", which counts as failed"
            if self.strict
            else ", which counts as passed without --strict"
        )

    @property
    def decided(self) -> list[str]:
        """The outcomes that made it what it is, each as `suite/name metric: reason`."""
        texts = []
        for gate in self.gates:
            if gate.outcome == self.outcome:
                metric = f" {gate.metric}" if gate.metric else ""
                texts.append(f"{gate.suite}/{gate.name}{metric}: {reason_in_words(gate)}")
        return texts


def _rules(result: Result) -> list[_Rule]:
    rules = []
    for text, gates in by_rule(result.gates).items():
        rules.append(_Rule(text, gates, result.settings.strict))
    return rules


# ----------------------------------------------------------------------------------------- terminal


def print_comparison(result: Result, console: Console | None = None) -> None:
    """Prints tables, rules and what was left out; plain ASCII where the terminal cannot show
    more."""
    Printer(console).show(comparison_blocks(result))


def comparison_blocks(result: Result) -> list[Block]:
    """The same as blocks."""
    blank = Paragraph("")
    rows = list(map(ComparisonRow, result.comparisons))
    blocks = [*_head(result), blank, *brief_tables(rows)]
    if rows:
        below = (
            "For right / wrong answers, the numbers below a verdict are samples lost, samples "
            "gained, and all samples."
        )
        blocks.append(Paragraph(f"{how(result.comparisons)} {below}", "note"))
        for row in rows:
            if row.power:
                where = f"{row.raw.suite}/{row.name} {row.raw.metric}"
                title = "" if row.raw.at_chance else "Not shown: "
                blocks.append(Paragraph(f"{title}{where}: {row.power}.", "note"))
        blocks.append(blank)
    for rule in _rules(result):
        blocks += _rule_lines(rule)
    blocks += [blank] if result.gates else []
    blocks += paragraphs(result.not_finite, "bad", before="Not finite: ")
    blocks += paragraphs(result.unmatched, before="Not compared: ")
    blocks += paragraphs(result.notes, before="Note: ")
    return blocks + _next_step(result)


def _next_step(result: Result) -> list[Block]:
    """What to do about a loss, and the command that does it."""
    step = result.next_step
    if step is None:
        return []
    paragraph = Paragraph((Span("Next step", "strong"), f": {step.text}"))
    return [paragraph, Code(step.command, "bash")] if step.command else [paragraph]


def _rule_lines(rule: _Rule) -> list[Block]:
    """A rule, and below it the outcomes that decided it."""
    of = f" ({len(rule.decided)} of {len(rule.gates)})" if len(rule.gates) > 1 else ""
    tone = "bad" if rule.fails else OUTCOMES[rule.outcome]
    title = Paragraph(f"{WORDS[rule.outcome]:<10} {rule.text}{of}{rule.consequence}", tone)
    most = 5 if rule.outcome == "passed" else 20
    return [title, *paragraphs(rule.decided[:most], "", before=" " * 11)]


# ----------------------------------------------------------------------------------------- markdown


def comparison_markdown(result: Result) -> str:
    """The comparison for a pull request's comment."""
    blocks = _head(result)
    if result.not_finite:
        title = f"{SYMBOLS[NOT_FINITE]} Not finite: the comparison failed, whatever the rules say."
        blocks += [Paragraph(Span(title, "strong")), Bullets(result.not_finite)]
    rules = _rules(result)
    if rules:
        counts = tally([rule.outcome for rule in rules], COUNTED)
        counted = " (undecided counts as failed)" if any(rule.fails for rule in rules) else ""
        blocks.append(Paragraph(Span(f"{plural(len(rules), 'rule')}: {counts}{counted}", "strong")))
        blocks.append(tabulate(rules, RULE_COLUMNS))
    blocks += _markdown_measures(list(map(ComparisonRow, result.comparisons)))
    if result.comparisons:
        blocks.append(Paragraph(how(result.comparisons)))
    most = markdown.MOST_ROWS
    remarks = [f"Not compared: {entry}" for entry in result.unmatched[:most]]
    blocks.append(Bullets([*remarks, *result.notes[:most]]))
    return markdown.render([*blocks, *_next_step(result)])


def _markdown_measures(rows: Rows) -> list[Block]:
    """The comparisons; of many those that changed, the rest folded away."""
    statistics = [P, ADJUSTED, Col("lost / gained", lost_and_gained), N]
    if not any(row.adjusted for row in rows):
        statistics.remove(ADJUSTED)
    table_columns = [*MEASURE_COLUMNS, *fold(statistics)]
    first: list[ComparisonRow] = []
    rest: list[ComparisonRow] = []
    for row in rows:
        changed = row.tone != "flat" and row.raw.primary
        (first if changed or len(rows) <= FOLD_FROM else rest).append(row)
    blocks: list[Block] = [tabulate(first, table_columns)] if first else []
    if rest:
        title = f"{len(rest)} more: {verdicts_of(rest)}"
        blocks.append(Fold(title, [tabulate(rest, table_columns)]))
    return blocks


def _first_lines(texts: Sequence[str], most: int = 5) -> list[Any]:
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return [texts[0], *map(sub, (*texts[1:most], *more))]


RULE_COLUMNS = heads(
    {
        "": lambda rule: f"{SYMBOLS[rule.outcome]} {rule.outcome}{rule.consequence}",
        "rule": lambda rule: Span(rule.text, "code"),
        "on": lambda rule: _first_lines(rule.decided),
    },
    words=3,
)
MARKS = {"good": "▲ ", "bad": "▼ ", "flat": ""}
MEASURE_COLUMNS = heads(
    {
        "task": lambda r: (f"{r.raw.suite}/{r.name} ", Span(r.raw.metric, "code"), f" {arrow(r)}"),
        "verdict": lambda r: (f"{MARKS[r.tone]}{r.verdict}", sub(r.power) if r.power else None),
        "before": "before",
        "after": "after",
        "difference": lambda r: f"{r.difference} {r.interval}",
    },
    words=2,
)


# -------------------------------------------------------------------------------------------- junit

_CLASS = "holdfast.compare"
_KINDS = {"error": "errors", "failure": "failures", "skipped": "skipped"}
"""Element of a test case, and the attribute that counts it."""


def comparison_junit(result: Result, *, seconds: float = 0.0) -> bytes:
    """The comparisons, as the gate judges them, as JUnit XML (module docstring); `seconds` is what
    it took."""
    import xml.etree.ElementTree as ET

    root = ET.Element("testsuites")
    suite = ET.SubElement(
        root, "testsuite", name=_xml(" ".join(["holdfast compare", *result.labels]))
    )
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for case in _cases(result):
        names = {"classname": _xml(case.classname), "name": _xml(case.name), "time": "0"}
        element = ET.SubElement(ET.SubElement(suite, "testcase", names), case.kind)
        for name, value in case.about.items():
            element.set(name, _xml(value))
        element.text = _xml(case.text) or None
        counts["tests"] += 1
        if case.kind in _KINDS:
            counts[_KINDS[case.kind]] += 1
    if result.decision is not None:
        ET.SubElement(suite, "system-out").text = _xml(decision_in_words(result.decision))
    for kind, count in counts.items():
        suite.set(kind, str(count))
    suite.set("time", f"{seconds:.3f}")
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


@dataclasses.dataclass(frozen=True)
class _Case:
    """A test case of the suite, with the element in it."""

    kind: str
    """"error", "failure", "skipped" or "system-out"."""
    classname: str
    name: str
    text: str = ""
    about: dict[str, str] = dataclasses.field(default_factory=dict)
    """Attributes of the element."""


def _cases(result: Result) -> list[_Case]:
    """One a benchmark: what was compared, then what rules speak of beside it; and one for every
    entry that is not finite."""
    benchmarks: dict[tuple[str, str, str], tuple[list[Comparison], list[GateOutcome]]] = {}
    for c in result.comparisons:
        if c.failed is None:
            benchmarks.setdefault((c.suite, c.name, c.metric), ([], []))[0].append(c)
    for gate in result.gates:
        benchmarks.setdefault((gate.suite, gate.name, gate.metric), ([], []))[1].append(gate)
    cases = []
    because = [] if result.verdict is None else result.verdict.because
    for (suite, name, metric), (comparisons, gates) in benchmarks.items():
        cases.append(
            _case(
                f"{_CLASS}.{suite}",
                f"{name} {metric}".strip(),
                comparisons,
                gates,
                result.settings.strict,
                because,
            )
        )
    for sentence in result.not_finite:
        about = {"message": sentence, "type": NOT_FINITE}
        cases.append(_Case("error", _CLASS, sentence.partition(": ")[0], about=about))
    return cases


def _case(
    classname: str,
    name: str,
    comparisons: Sequence[Comparison],
    gates: Sequence[GateOutcome],
    strict: bool,
    because: Sequence[GateOutcome],
) -> _Case:
    outcome = outcome_of(gates) if gates else "passed"
    reasons = [f"{gate.rule}: {reason_in_words(gate)}" for gate in gates if gate.outcome == outcome]
    text = lines(*reasons, *map(comparison_line, comparisons))
    passes = not any(gate in because for gate in gates)
    if passes and outcome != "undecided":
        return _Case("system-out", classname, name, text)
    if passes:
        return _Case("skipped", classname, name, about={"message": f"undecided: {reasons[0]}"})
    kind = "error" if outcome == NOT_FINITE else "failure"
    return _Case(kind, classname, name, text, {"message": reasons[0], "type": outcome})


def comparison_line(c: Comparison) -> str:
    """One comparison as a line of text."""
    r = ComparisonRow(c)
    flips = f", {r.flips}" if r.flips else ""
    change = f"{r.before} -> {r.after}, difference {r.difference} {r.interval}, p {r.p}"
    adjusted = f", adjusted p of a loss {r.adjusted}" if r.adjusted else ""
    power = f"; {r.power}" if r.power else ""
    entry = f"{c.suite}/{c.name} {c.metric}"
    return f"{entry}: {change}{adjusted}, n {r.n}{flips}: {r.verdict}{power}"


def _xml(text: str) -> str:
    """Without the two characters that XML 1.0 cannot hold and that are not control characters."""
    return re.sub("[\ufffe\uffff]", "", printable(text))
