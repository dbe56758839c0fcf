"""The win rate of a contest before a judge, with what qualifies it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from holdfast.reports.blocks import Block, Facts, Paragraph
from holdfast.reports.charts import Col, tabulate

if TYPE_CHECKING:
    from holdfast.evaluation.judge.contest import Outcome


def judge_blocks(outcome: Outcome) -> list[Block]:
    """The figures as a table, what stands behind them, and the notes."""
    found, judged, controlled = outcome.found, outcome.judged, outcome.found.length_controlled
    labels = f"{outcome.candidate.label} against {outcome.reference.label}"
    share = "-" if found.order_changes is None else f"{found.order_changes:.1%}"
    mass = "" if judged.mean_mass is None else f", {judged.mean_mass:.1%} of it on the two letters"
    lengths = f"{found.mean_length_candidate:,.0f} against {found.mean_length_reference:,.0f}"
    tokens = f"{judged.prompt_tokens:,} tokens sent and {judged.completion_tokens:,} received"
    shown_first = f"the output shown first wins {_percent(found.first_preferred)}"
    facts = [
        ("wins, ties, losses", f"{found.wins}, {found.ties} ({found.identical} with equal answers), {found.losses}"),
        ("left out", f"{found.refused} pairs without a verdict, {found.failed} that failed"),
        ("position", f"{shown_first}; {share} of the pairs change winners with the order"),
        ("length", f"{lengths} characters on average"),
        ("verdicts", f"{judged.by_logprobs} of {judged.judged} by log-probability{mass}"),
        (
            "requests",
            f"{judged.asked} now, {judged.questions - judged.asked} from before; {tokens}, as the endpoint counts them",
        ),
    ]
    columns = [
        Col("", lambda row: row[0], numeric=False),
        Col("value", lambda row: _percent(row[1].value)),
        Col(f"{found.confidence:.0%} interval", lambda row: _interval(row[1].interval)),
        Col("standard error", lambda row: _percent(row[1].standard_error)),
        Col("n", lambda row: str(found.n)),
    ]
    rows = [("win rate", found), ("  at equal lengths*", controlled)]
    return [
        Paragraph(f"{labels}, judged by {outcome.contest.settings.model}", "strong"),
        tabulate(rows, columns, tones=["taken", ""]),
        Facts([*facts, *([("cost", f"{outcome.cost:,.4f}")] if outcome.cost is not None else [])]),
        Paragraph(f"\n* {controlled.label}", "note"),
        *(Paragraph(f"note: {note}") for note in outcome.notes),
        Paragraph(f"\nWritten to {outcome.path}"),
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.1%}"


def _interval(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{pair[0]:.1%} to {pair[1]:.1%}"
