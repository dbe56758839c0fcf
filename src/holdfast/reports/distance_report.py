"""How far a checkpoint moved from another: a table for a terminal.

Reads a `CheckpointDistance`, never a tensor. What it does not do: say whether a move is large. That is a question of
evaluations, not of weights.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.reports.blocks import Block, Paragraph, Table, Text
from holdfast.reports.charts import Col, moved, signs_kept, tabulate
from holdfast.reports.format import number, significant

if TYPE_CHECKING:
    from holdfast.checkpoints.distance import CheckpointDistance

FIGURES = (
    Col("Relative", lambda d: moved(d.relative)),
    Col("L2", lambda d: significant(d.l2)),
    Col("Cosine", lambda d: number(d.cosine, 6)),
    Col("Signs kept", lambda d: signs_kept(d.sign_agreement)),
)


def distance_blocks(found: CheckpointDistance, *, per: str) -> list[Block]:
    """The distances as a table for a terminal, the total last, and the notes.

    Args:
        found: the distances.
        per: what has a row, "layer" or "tensor".
    """
    rows: list[tuple[str, Any]] = []
    if per == "tensor":
        rows += [(tensor.name, tensor) for tensor in found.tensors]
    else:
        rows += [(layer.layer, layer) for layer in found.layers[:-1]]
    table = _table(per, [*rows, ("total", found.total)])
    title = f"{found.start} -> {found.result}: {len(found.tensors)} tensors, {found.total.parameters:,} parameters"
    return [Paragraph(title), table, *(x for note in found.notes for x in (Paragraph(f"note: {note}"), Paragraph("")))]


def _table(per: str, rows: Sequence[tuple[str, Any]]) -> Table:
    figures = [Col(column.title, functools.partial(_cell, column)) for column in FIGURES]
    tones = ["taken" if name == "total" else "" for name, _ in rows]
    return tabulate(rows, [Col(per, lambda row: row[0], numeric=False), *figures], tones=tones)


def _cell(column: Col, row: tuple[str, Any]) -> Text:
    return column.cell(row[1])
