"""How far a checkpoint moved from another: a table for a terminal, and a page with a heat map of
layers and modules.

Reads a `CheckpointDistance`, never a tensor. A cell of the heat map is one module's tensor in one
layer; the experts of a layer share a cell, which shows the root mean square of their relative
norms, weighted by parameters. Tensors outside the numbered layers stand in a table below it.

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

from holdfast.reports.blocks import Block, Page, Paragraph, Section, Table, notes
from holdfast.reports.charts import Axis, Chart, Col, Mark, heads, tabulate
from holdfast.reports.format import duration, moved, plural
from holdfast.reports.html import write_page
from holdfast.reports.training_charts import distance_texts

if TYPE_CHECKING:
    from holdfast.checkpoints.distance import CheckpointDistance, TensorDistance

DEFINITIONS = (
    "For a tensor a of the initial model and the same tensor b of the result, L2 = |b \u2212 a|, "
    "relative norm = |b \u2212 a| / |a|, cosine = a·b / (|a| |b|), and signs kept is the share of "
    "parameters whose sign (\u22121, 0 or 1) is the same in both. n/a means the cosine with a "
    "tensor of zeros, and ∞ means that the initial tensor is zero."
)
FIGURES = {"Relative": "relative", "L2": "l2", "Cosine": "cosine", "Signs kept": "signs"}


def distance_blocks(distance: CheckpointDistance, *, per: str) -> list[Block]:
    """The distances as a table for a terminal, the total last, and the notes.

    Args:
        distance: of two checkpoints.
        per: what has a row, "layer" or "tensor".
    """
    rows: list[tuple[str, Any]] = []
    if per == "tensor":
        rows += [(tensor.name, tensor) for tensor in distance.tensors]
    else:
        rows += [(layer.layer, layer) for layer in distance.layers[:-1]]
    table = _table(per, rows, distance.total)
    size = f"{len(distance.tensors)} tensors, {distance.total.parameters:,} parameters"
    blocks: list[Block] = [Paragraph(f"{distance.start} -> {distance.result}: {size}"), table]
    for note in distance.notes:
        blocks += [Paragraph(f"note: {note}"), Paragraph("")]
    return blocks


def write_distance_report(distance: CheckpointDistance, path: str | os.PathLike[str]) -> Path:
    """Writes the page and returns its path.

    Raises:
        StorageError: the page could not be written; an earlier one is intact.
    """
    return write_page(distance_page(distance), Path(path))


def distance_page(distance: CheckpointDistance) -> Page:
    """The distances as a page; checkpoints are called by the last parts of their folders."""
    start, result = _short_names(distance.start, distance.result)
    outside = [(tensor.name, tensor) for tensor in distance.tensors if not tensor.layer.isdigit()]
    table = _table("tensor", outside, distance.total)
    return Page(
        tab=f"{start} → {result}: holdfast inspect",
        eyebrow="holdfast inspect",
        title=f"{start} → {result}",
        lead=_lead(distance, start, result),
        details=f"{plural(len(distance.tensors), 'tensor')} compared",
        blocks=[
            _heat_map(distance.tensors) if distance.total.l2 > 0 else None,
            Section("Outside the layers, and in total", [table, Paragraph(DEFINITIONS, "note")]),
            notes(distance.notes, "What was not compared"),
        ],
        footer=f"Compared in {duration(distance.seconds)} by holdfast.",
    )


def _table(per: str, rows: Sequence[tuple[str, Any]], total: Any) -> Table:
    lines = []
    for name, distance in (*rows, ("total", total)):
        lines.append({"name": name} | distance_texts(distance))
    return tabulate(lines, heads({per: "name"} | FIGURES), tones=[*[""] * len(rows), "taken"])


def _lead(distance: CheckpointDistance, start: str, result: str) -> str:
    if distance.total.l2 == 0:
        return f"{start} and {result} are the same: no compared parameter differs."
    text = (
        f"From {start} to {result} the weights moved by {moved(distance.total.relative)} of their "
        "norm"
    )
    layers = [layer for layer in distance.layers[:-1] if math.isfinite(layer.relative)]
    largest = max(layers, key=lambda layer: layer.relative, default=None)
    if largest is not None and largest.l2 > 0:
        name = (
            f"layer {largest.layer}" if largest.layer.isdigit() else f"the module {largest.layer}"
        )
        text += f", {name} the most, by {moved(largest.relative)}"
    same = sum(tensor.l2 == 0 for tensor in distance.tensors)
    return text + (
        f". {plural(same, 'tensor')} of {len(distance.tensors):,} did not move." if same else "."
    )


def _heat_map(tensors: Sequence[TensorDistance]) -> Chart | None:
    """Relative norms by module (down) and layer (across); None without numbered layers."""
    modules: dict[str, dict[int, list[TensorDistance]]] = {}
    last = 0
    for tensor in tensors:
        if tensor.layer.isdigit():
            modules.setdefault(_module(tensor), {}).setdefault(int(tensor.layer), []).append(tensor)
            last = max(last, int(tensor.layer))
    if not modules:
        return None
    rows: list[dict[str, Any]] = []
    for module, by_layer in modules.items():
        shades, cells, texts = [], [], []
        for layer in range(last + 1):
            shades.append(_relative(by_layer.get(layer, [])))
            cells.append("" if math.isnan(shades[-1]) else moved(shades[-1]))
            texts.append(f"{module}, layer {layer}\n{cells[-1]}" if cells[-1] else "")
        rows.append({"name": module, "z": shades, "cells": cells, "texts": texts})
    columns = heads({"Module": "name"})
    for layer in range(last + 1):
        columns.append(Col(str(layer), functools.partial(_cell, layer)))
    across = {"showgrid": False}
    return Chart(
        title="Relative norm by layer and module",
        rows=rows,
        columns=columns,
        marks=[Mark(kind="heat", y="z")],
        x=Axis(title="layer", more=across),
        y=Axis(names=list(modules), length=28, more=across | {"range": [len(rows) - 0.5, -0.5]}),
        caption="Colour: distance from the initial model, as a share of the tensor's norm.",
        height=92 + 21 * len(rows),
    )


def _cell(layer: int, row: dict[str, Any]) -> str:
    return row["cells"][layer]


def _module(tensor: TensorDistance) -> str:
    """A tensor's name without its layer's number and its expert's."""
    before, _, after = tensor.name.partition(f".{tensor.layer}.")
    stack = before.rpartition(".")[0].rpartition(".")[2]
    inner = re.sub(r"(experts?)\.\d+\.", r"\1.", after).removesuffix(".weight")
    return f"{stack}: {inner}" if stack not in ("", "model", "transformer") else inner


def _relative(tensors: Sequence[TensorDistance]) -> float:
    """Root mean square of relative norms, weighted by parameters; NaN without any."""
    parameters, squares = 0, 0.0
    for tensor in tensors:
        size = math.prod(tensor.shape)
        parameters += size
        squares += size * tensor.relative**2
    return math.sqrt(squares / parameters) if parameters else math.nan


def _short_names(start: str, result: str) -> tuple[str, str]:
    """Short names of the two: the last part of a folder, more of it where that is the same for
    both. Whose folder it was says nothing."""
    for depth in (1, 2, 3):
        pair = _short(start, depth), _short(result, depth)
        if pair[0] != pair[1]:
            return pair
    return _short(start, 1), _short(result, 1)


def _short(label: str, depth: int) -> str:
    short = []
    for folder in label.split(" on "):  # an adapter on its base
        hub = re.search(r"models--([\w.-]+?)--([\w.-]+)[/\\]snapshots[/\\]", folder)
        parts = [name for name in re.split(r"[/\\]", folder) if name not in ("", ".")]
        short.append(f"{hub[1]}/{hub[2]}" if hub else "/".join(parts[-depth:]) or folder)
    return " on ".join(short)
