"""A paper's theory as one page: every statement with its closed form, the number, how far they are
apart, the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.papers.claims.page import TONES
from holdfast.papers.theory.results import Check, Finding, Theory
from holdfast.records.measure import interval_text, number
from holdfast.reports.blocks import (
    Code,
    Page,
    Paragraph,
    Section,
    Table,
    Text,
    chip,
    columns,
    figure,
    sub,
)
from holdfast.reports.terminal import Printer

if TYPE_CHECKING:
    from rich.console import Console

CHECKS = (
    "These equations must hold. The table shows the closed form and the computed number where "
    "the two differ most, with their relative deviation. A failed check means a mistake in "
    "holdfast or in the theory."
)
FINDINGS = (
    "These statements are what the paper observes or what follows from its theory. They are "
    "tested on random problems. Each statement has a ratio that should be below 1. It holds if the "
    "whole 95 % interval of this ratio over seeds is below 1, and does not hold if the whole "
    'interval is above 1. Otherwise the verdict is "cannot tell". No statement is a prediction for '
    "a language model."
)


def theory_page(theory: Theory) -> Page:
    """The page as blocks."""
    sections = [
        Section("Formulas", [Code(theory.equations)]),
        Section("Checks", [checks_table(theory.checks)], intro=CHECKS, anchor="checks"),
        Section(
            "Statements", [statements_table(theory.findings)], intro=FINDINGS, anchor="statements"
        ),
    ]
    return Page(
        tab=f"{theory.title} (holdfast)",
        eyebrow="holdfast reproduce --theory",
        title=theory.title,
        lead=summary(theory),
        status=("all checks hold", "good") if theory.passed else ("a check fails", "bad"),
        details=f"{theory.source} · {theory.problems}; {theory.seeds} seeds",
        blocks=[*sections],
        footer="Computed by holdfast in float64.",
    )


def print_theory(theory: Theory, console: Console | None = None) -> None:
    """The same in a terminal, without the formulas."""
    tables = []
    for table in (checks_table(theory.checks), statements_table(theory.findings)):
        rows = [[head[0], *cells] for head, *cells in table.rows]
        tables.append(dataclasses.replace(table, rows=rows))
    Printer(console).show([Paragraph(summary(theory)), *tables, Paragraph("")])


def summary(theory: Theory) -> str:
    """How many checks and statements hold."""
    passed = sum(check.passed for check in theory.checks)
    verdicts = [finding.verdict for finding in theory.findings]
    holds, fails, open_ones = map(verdicts.count, TONES)
    return (
        f"{passed} of {len(theory.checks)} checks hold. Of {len(verdicts)} statements about "
        f"random problems, {holds} hold, {fails} do not hold and {open_ones} cannot be judged."
    )


def checks_table(checks: Sequence[Check]) -> Table:
    """A check a row."""
    rows = []
    for check in checks:
        verdict = chip("holds", "good") if check.passed else chip("fails", "bad")
        figures = [f"{value:.4g}" for value in (check.closed, check.number)]
        limits = [f"{value:.1e}" for value in (check.deviation, check.allowed)]
        rows.append([(check.name, sub(check.formula), sub(check.note)), *figures, *limits, verdict])
    heads = columns(
        "Check", "Closed form", "Number", "Deviation", "Allowed", "Verdict", right=(1, 2, 3, 4)
    )
    return Table(columns=heads, rows=rows, kind="dense")


def statements_table(findings: Sequence[Finding]) -> Table:
    """A statement a row, with its ratio."""
    rows: list[list[Text]] = []
    for finding in findings:
        verdict = chip(finding.verdict, TONES[finding.verdict])
        interval = interval_text((finding.low, finding.high), 3)
        rows.append(
            [
                (finding.name, sub(finding.formula)),
                verdict,
                figure(number(finding.ratio, 3), interval),
            ]
        )
    return Table(
        columns=columns("Statement", "Verdict", "Ratio", right=(2,)), rows=rows, kind="dense"
    )
