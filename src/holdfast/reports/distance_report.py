"""How far a checkpoint moved from another: a table for a terminal, and a page with a heat map of layers and modules.

Reads a `CheckpointDistance`, never a tensor. A cell of the heat map is one module's tensor in one layer; the experts of
a layer share a cell, which shows the root mean square of their relative norms, weighted by parameters. Tensors outside
the numbered layers stand in a table below it.

What it does not do: say whether a move is large. That is a question of evaluations, not of weights.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.records.measure import number
from holdfast.reports.blocks import Block, Bullets, Page, Panel, Paragraph, Section, Table, Text
from holdfast.reports.charts import Axis, Chart, Col, Mark, moved, signs_kept, tabulate
from holdfast.reports.format import duration, plural, shorten, significant
from holdfast.reports.html import write_page

if TYPE_CHECKING:
    from holdfast.checkpoints.distance import CheckpointDistance, TensorDistance

DEFINITIONS = (
    "With a the start's tensor and b the result's: L2 = |b \u2212 a|, relative norm = |b \u2212 a| / |a|, cosine = "
    "a·b / (|a| |b|), signs kept = share of parameters whose sign (\u22121, 0 or 1) is the same in both. n/a: the "
    "cosine with a tensor of zeros; ∞: a move away from zeros."
)
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


def write_distance_report(found: CheckpointDistance, path: str | os.PathLike[str]) -> Path:
    """Writes the page and returns its path.

    Raises:
        StorageError: the page could not be written; an earlier one is intact.
    """
    return write_page(distance_page(found), Path(path))


def distance_page(found: CheckpointDistance) -> Page:
    """The distances as a page; checkpoints are called by the last parts of their folders."""
    start, result = _short_names(found.start, found.result)
    blocks: list[Block] = []
    if found.total.l2 > 0:
        blocks.append(_heat_map(found.tensors))
    outside = [(tensor.name, tensor) for tensor in found.tensors if not tensor.layer.isdigit()]
    rows = [*outside, ("total", found.total)]
    blocks.append(Section("Outside the layers, and in total", [_table("tensor", rows), Paragraph(DEFINITIONS, "note")]))
    if found.notes:
        blocks.append(Section("What was not compared", [Panel([Bullets(found.notes)], "card")]))
    return Page(
        tab=f"{start} → {result}: holdfast inspect",
        eyebrow="holdfast inspect",
        title=f"{start} → {result}",
        lead=_lead(found, start, result),
        details=f"{plural(len(found.tensors), 'tensor')} compared",
        blocks=blocks,
        footer=f"Compared in {duration(found.seconds)} by holdfast.",
    )


def _table(per: str, rows: Sequence[tuple[str, Any]]) -> Table:
    figures = [Col(column.title, functools.partial(_cell, column)) for column in FIGURES]
    tones = ["taken" if name == "total" else "" for name, _ in rows]
    return tabulate(rows, [Col(per, lambda row: row[0], numeric=False), *figures], tones=tones)


def _cell(column: Col, row: tuple[str, Any]) -> Text:
    return column.cell(row[1])


def _lead(found: CheckpointDistance, start: str, result: str) -> str:
    if found.total.l2 == 0:
        return f"{start} and {result} are the same: no compared parameter differs."
    text = f"From {start} to {result} the weights moved by {moved(found.total.relative)} of their norm"
    layers = [layer for layer in found.layers[:-1] if math.isfinite(layer.relative)]
    largest = max(layers, key=lambda layer: layer.relative, default=None)
    if largest is not None and largest.l2 > 0:
        name = f"layer {largest.layer}" if largest.layer.isdigit() else f"what belongs to {largest.layer}"
        text += f", {name} the most, by {moved(largest.relative)}"
    same = sum(tensor.l2 == 0 for tensor in found.tensors)
    return text + (f". {plural(same, 'tensor')} of {len(found.tensors):,} did not move." if same else ".")


def _heat_map(tensors: Sequence[TensorDistance]) -> Chart | None:
    """Relative norms by module (down) and layer (across); None without numbered layers."""
    cells: dict[str, dict[int, list[TensorDistance]]] = {}
    for tensor in tensors:
        if tensor.layer.isdigit():
            module = _module(tensor)
            cells.setdefault(module, {}).setdefault(int(tensor.layer), []).append(tensor)
    if not cells:
        return None
    last = max(layer for by_layer in cells.values() for layer in by_layer)
    rows: list[dict[str, Any]] = []
    for module, by_layer in cells.items():
        shades = [_relative(by_layer.get(layer, [])) for layer in range(last + 1)]
        texts = [
            "" if math.isnan(shade) else f"{module}, layer {layer}\n{moved(shade)}"
            for layer, shade in enumerate(shades)
        ]
        rows.append({"module": module, "z": shades, "texts": texts})

    def column(layer: int) -> Col:
        return Col(str(layer), lambda row: "" if math.isnan(row["z"][layer]) else moved(row["z"][layer]))

    return Chart(
        title="Relative norm by layer and module",
        rows=rows,
        columns=[Col("Module", "module", numeric=False), *(column(layer) for layer in range(last + 1))],
        marks=[Mark(kind="heat", y="z", text="texts")],
        x=Axis(title="layer", more={"showgrid": False}),
        y=Axis(
            names=[shorten(row["module"], 28) for row in rows],
            length=28,
            more={"range": [len(rows) - 0.5, -0.5], "showgrid": False},
        ),
        caption="The stronger the colour, the further from the start, as a share of the tensor's norm.",
        height=92 + 21 * len(rows),
    )


def _module(tensor: TensorDistance) -> str:
    """A tensor's name without its layer's number and its expert's."""
    before, _, after = tensor.name.partition(f".{tensor.layer}.")
    stack = before.rpartition(".")[0].rpartition(".")[2]
    inner = re.sub(r"(experts?)\.\d+\.", r"\1.", after).removesuffix(".weight")
    return f"{stack}: {inner}" if stack not in ("", "model", "transformer") else inner


def _relative(tensors: Sequence[TensorDistance]) -> float:
    """Root mean square of relative norms, weighted by parameters; NaN without any."""
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    if not sum(sizes):
        return math.nan
    squares = sum(size * tensor.relative**2 for size, tensor in zip(sizes, tensors, strict=True))
    return math.sqrt(squares / sum(sizes))


def _short_names(start: str, result: str) -> tuple[str, str]:
    """Short names of the two: the last part of a folder, more of it where that is the same for both. Whose folder it
    was says nothing."""
    for depth in (1, 2, 3):
        pair = _short(start, depth), _short(result, depth)
        if pair[0] != pair[1]:
            return pair
    return _short(start, 1), _short(result, 1)


def _short(label: str, depth: int) -> str:
    short = []
    for folder in label.split(" on "):  # an adapter on its base
        hub = re.search(r"models--([\w.-]+?)--([\w.-]+)[/\\]snapshots[/\\]", folder)
        parts = [part for part in re.split(r"[/\\]", folder) if part not in ("", ".")]
        short.append(f"{hub[1]}/{hub[2]}" if hub else "/".join(parts[-depth:]) or folder)
    return " on ".join(short)
