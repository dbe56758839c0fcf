"""The trade-off of arms in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.reports.arms import Arm, read_tradeoff, side_title, table_cells
from holdfast.reports.terminal import STYLE, Printer

if TYPE_CHECKING:
    from rich.console import Console


def print_tradeoff(
    arms: Sequence[Arm],
    console: Console | None = None,
    *,
    source: tuple[str, str],
    target: tuple[str, str],
    metric: str = "nats_per_token",
) -> None:
    """Prints the table and the sentences of the trade-off page.

    Args:
        arms: as for `write_tradeoff_report`.
        console: where to print; the terminal by default.
        source: (suite, name) of what must be kept.
        target: (suite, name) of what is learnt.
        metric: key of the metric of both.

    Raises:
        UserError: no arms.
        DataError: a folder has no readable run.json.
    """
    figures = read_tradeoff(arms, source=source, target=target, metric=metric)
    out = Printer(console)
    rows = []
    if figures.start is not None and not any(f.arm.kind == "start" for f in figures.arms):
        rows.append(
            [
                ("start", "dim"),
                (figures.start.source_text, "dim"),
                (figures.start.target_text, "dim"),
                ("", ""),
                ("", ""),
            ]
        )
    for f in figures.arms:
        c = table_cells(f)
        tones = [STYLE[r.tone] if r is not None else "dim" for r in (f.source, f.target)]
        sides = [
            f"{c[f'{side} after']}\n{c[f'{side} change']}\n{c[f'{side} interval']}".rstrip()
            for side in ("Source", "Target")
        ]
        if f.arm.kind == "start" and figures.start is not None:
            sides = [figures.start.source_text, figures.start.target_text]
        shares = [c[k].partition(" [")[0] for k in ("Gain kept", "Loss share")]
        rows.append(
            [
                (f"{f.arm.label}\n{c['Time']}", ""),
                (sides[0], tones[0]),
                (sides[1], tones[1]),
                (shares[0], ""),
                (shares[1], ""),
            ]
        )
    columns = [("Arm, time", False), ("Source", True), ("Target", True), ("Gain kept", True), ("Loss share", True)]
    direction = next(
        (f"{r.unit}, {r.direction}" for f in figures.measured for r in (f.source,) if r is not None), figures.metric
    )
    out.table(f"{side_title(source)} and {side_title(target)}: {direction}", columns, rows)
    out.line(figures.verdict)
    out.line()
    for f in figures.arms:
        out.line(f"- {f.reading}")
    for note in figures.notes:
        out.line(f"Note: {note}", "dim")
