"""One page on how far a checkpoint moved from another: totals, a heat map of layers and modules, bars per layer, every
tensor. The same figures as a table for a terminal.

Reads the plain record of a `CheckpointDistance` (its `to_jsonable` form), never a tensor. The definitions are those of
the record:

    L2 = |b - a|     relative norm = |b - a| / |a|     cosine = a.b / (|a| |b|)
                     signs kept = share of i with sign(a_i) = sign(b_i)

A cell of the heat map is one tensor: one layer, and the tensor's name after the layer's number. Experts of one layer
share a cell: L2 is that of all of them, the relative norm their root mean square and the rest their mean, weighted by
parameters, because the record has no norms to combine them exactly.

What it does not do: say whether a move is large. That is a question of evaluations, not of weights.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.reports.blocks import (
    Block,
    Bullets,
    Page,
    Panel,
    Paragraph,
    Section,
    Span,
    Table,
    Tabs,
    Text,
    Tile,
    Tiles,
    sub,
)
from holdfast.reports.charts import Axis, Chart, Col, Mark, Note, layer_chart, moved, rounded, signs_kept, tabulate
from holdfast.reports.format import count, duration, number, plural, shorten, significant
from holdfast.reports.html import write_page

MOST_STRIPS = 12
"""With more tensors than this outside the numbered layers, the heat map shows them by group (embed, norm, head,
other)."""

SPAN = 20
"""Figures of one view that differ by more than this factor get a logarithmic colour axis."""


def write_distance_report(distance: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Writes the page and returns its path.

    Args:
        distance: as for `read_distance`.
        path: the HTML file.

    Raises:
        DataError: `distance` is not such a record.
        StorageError: the page could not be written; an earlier one is intact.
    """
    return write_page(distance_page(read_distance(distance)), Path(path))


def distance_page(record: DistanceRecord) -> Page:
    """The distances as a page; checkpoints are called by the last parts of their folders."""
    start, result = _names(record.start, record.result)
    record = dataclasses.replace(record, start=start, result=result)
    found: list[Any] = [Tiles(_tiles(record))]
    if record.total.l2 > 0:
        found += [_heat(record), Section("Layer by layer", [layer_chart(record.layers, heading=False)])]
    found.append(Section("Every tensor", [_tensors(record), Paragraph(DEFINITIONS, "note")]))
    nothing = Paragraph("Nothing: every tensor of the one is in the other, in the same shape.", "note")
    notes = Panel([Bullets(record.notes)], "card") if record.notes else nothing
    details: list[Text] = [f"{plural(len(record.tensors), 'tensor')} compared"]
    if record.notes:
        details += [" · ", Span((plural(len(record.notes), "note"), " on what was not"), link="#notes")]
    title = f"{record.start} → {record.result}"
    return Page(
        tab=f"{title}: holdfast distance report",
        eyebrow="holdfast distance report",
        title=title,
        lead=_verdict(record),
        details=details,
        blocks=[*found, Section("What was not compared", [notes], anchor="notes")],
        footer=f"Compared in {duration(record.seconds)} by holdfast.",
    )


DEFINITIONS = (
    "With a the start's tensor and b the result's: L2 = |b \u2212 a|, relative norm = |b \u2212 a| / |a|, cosine = "
    "a·b / (|a| |b|), signs kept = share of parameters whose sign (\u22121, 0 or 1) is the same in both. n/a: the "
    "cosine with a tensor of zeros; ∞: a move away from zeros."
)


# --------------------------------------------------------------------------------------------------------- the record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
    """How far something moved: a tensor, the tensors that share a cell of the heat map, a layer, the whole."""

    layer: str
    """As in `LayerDistance`."""
    parameters: int
    l2: float
    relative: float
    cosine: float
    sign_agreement: float
    name: str = ""
    """Of a tensor."""
    shape: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    tensors: int = 1
    """How many it is made of, in a cell of the heat map."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistanceRecord:
    """What a page or a table says."""

    start: str
    result: str
    """Names of the two."""
    tensors: list[Move]
    layers: list[Move]
    total: Move
    notes: list[str]
    seconds: float


def read_distance(distance: Mapping[str, Any]) -> DistanceRecord:
    """The record of a distance.

    Args:
        distance: a `CheckpointDistance` as `to_jsonable` or `read_json` gives it: `start`, `result`, `tensors`,
            `layers` ("total" last), `notes`, `seconds`.

    Raises:
        DataError: `distance` is not such a record.
    """
    try:
        layers = [_move(d, parameters=int(d["parameters"])) for d in distance["layers"]]
        tensors = [
            _move(
                t,
                name=str(t["name"]),
                shape=tuple(t["shape"]),
                dtypes=tuple(t["dtypes"]),
                parameters=math.prod(t["shape"]),
            )
            for t in distance["tensors"]
        ]
        start, result = str(distance["start"]), str(distance["result"])
        notes, seconds = [str(n) for n in distance["notes"]], _number(distance["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"Expected the record of a distance between two checkpoints (what holdfast distance --json writes): "
            f"{error!r}."
        ) from error
    if not layers or layers[-1].layer != "total":
        raise DataError(
            "Expected the record of a distance with its total as the last layer. Have holdfast distance --json write "
            "it again."
        )
    *layers, total = layers
    return DistanceRecord(
        start=start, result=result, tensors=tensors, layers=layers, total=total, notes=notes, seconds=seconds
    )


def _move(found: Mapping[str, Any], **fields: Any) -> Move:
    figures: dict[str, Any] = {key: _number(found[key]) for key in ("l2", "relative", "cosine", "sign_agreement")}
    return Move(layer=str(found["layer"]), **figures, **fields)


def _number(value: Any) -> float:
    """A float, or the `{"float": "NaN"}` that `to_jsonable` makes of one that JSON cannot hold."""
    return float(value["float"] if isinstance(value, Mapping) else value)


def _names(start: str, result: str) -> tuple[str, str]:
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
        short.append(
            f"{hub[1]}/{hub[2]}"
            if hub
            else "/".join([p for p in re.split(r"[/\\]", folder) if p not in ("", ".")][-depth:]) or folder
        )
    return " on ".join(short)


# ------------------------------------------------------------------------------------------------------------- words


OUTSIDE = {"embed": "the embeddings", "norm": "the final norm", "head": "the head"}
"""Layers without a number, in the order of the model; the rest follows."""


def _place(layer: str) -> str:
    return f"layer {layer}" if layer.isdigit() else OUTSIDE.get(layer, "what belongs to no layer")


def _largest(record: DistanceRecord) -> Move | None:
    return max((d for d in record.layers if math.isfinite(d.relative)), key=lambda d: d.relative, default=None)


def _verdict(record: DistanceRecord) -> str:
    if record.total.l2 == 0:
        return f"{record.start} and {record.result} are the same: no compared parameter differs."
    text = f"From {record.start} to {record.result} the weights moved by {moved(record.total.relative)} of their norm"
    largest = _largest(record)
    if largest is not None and largest.l2 > 0:
        text += f", {_place(largest.layer)} the most, by {moved(largest.relative)}"
    same = sum(t.l2 == 0 for t in record.tensors)
    return text + (f". {plural(same, 'tensor')} of {len(record.tensors):,} did not move." if same else ".")


def _tiles(record: DistanceRecord) -> list[Tile]:
    total, largest = record.total, _largest(record)
    most = (moved(largest.relative), f"of its norm, in {_place(largest.layer)}") if largest else None
    return [
        Tile("Relative norm", moved(total.relative), "of the start's norm"),
        Tile("L2 norm", significant(total.l2), "of result \u2212 start"),
        Tile("Largest move of a layer", *(most or ("n/a", "the start's layers are zero"))),
        Tile("Cosine", number(total.cosine, 6), "between start and result"),
        Tile("Signs kept", signs_kept(total.sign_agreement), "of the parameters"),
        Tile("Parameters compared", count(total.parameters), f"in {plural(len(record.tensors), 'tensor')}"),
    ]


# ------------------------------------------------------------------------------------------------------------- tables


def _shape(t: Move, times: str) -> str:
    return f" {times} ".join(map(str, t.shape)) or "scalar"


def _tensors(record: DistanceRecord) -> Table:
    def name(t: Move) -> Text:
        return t.name, sub(f"{_shape(t, '×')} · {' → '.join(dict.fromkeys(t.dtypes))}")

    def column(title: str, view: _View) -> Col:
        return Col(title, lambda t: Span(view.text(t), value=getattr(t, view.of)))

    relative, cosine, signs, l2 = VIEWS
    figures = [column("Relative", relative), column("L2", l2), column("Cosine", cosine), column("Signs kept", signs)]
    held = sorted(record.tensors, key=lambda t: (math.isnan(t.relative), -t.relative))
    return tabulate(held, [Col("Tensor", name, numeric=False), *figures], kind="tensors", find="tensor")


def distance_blocks(record: DistanceRecord, *, per: str, sort: str = "none", top: int | None = None) -> list[Block]:
    """The distances as a table for a terminal, with the total and the notes below.

    Args:
        record: the distances.
        per: what has a row: "layer", "tensor", or "total" for the total alone.
        sort: see `ordered`.
        top: rows at most.
    """
    rows = {"tensor": record.tensors, "layer": record.layers}.get(per, [])
    shown = ordered(rows, sort)[:top]
    total = dataclasses.replace(record.total, name="total", layer="total")
    size = [Col("parameters", lambda d: f"{d.parameters:,}")]
    if per == "tensor":
        shape = Col("shape", lambda t: _shape(t, "x") if t is not total else "")
        size = [shape, Col("dtypes", lambda t: ", ".join(dict.fromkeys(t.dtypes)))]
    columns = [Col(per, lambda d: d.name or d.layer, numeric=False), *size, *_FIGURES]
    title = f"{record.start} -> {record.result}: {len(record.tensors)} tensors, {record.total.parameters:,} parameters"
    left_out = [Paragraph(f"\n{len(shown)} of {len(rows)} {per}s shown (--top)")] if len(shown) < len(rows) else []
    table = tabulate([*shown, total], columns, tones=[*[""] * len(shown), "taken"])
    return [Paragraph(title), table, *left_out, *(Paragraph(f"note: {n}\n") for n in record.notes)]


def _figure(title: str, of: str, form: str) -> Col:
    return Col(title, lambda d: "-" if math.isnan(getattr(d, of)) else format(getattr(d, of), form))


_FIGURES = [
    _figure("L2", "l2", ".4g"),
    _figure("relative", "relative", ".4g"),
    _figure("cosine", "cosine", ".8f"),
    _figure("sign agreement", "sign_agreement", ".4%"),
]


def ordered(rows: Sequence[Any], sort: str) -> list[Any]:
    """Rows with what moved most first: largest norm, smallest cosine; by name in natural order; "none" leaves them. NaN
    comes last."""
    if sort == "none":
        return list(rows)
    if sort == "name":
        return sorted(rows, key=lambda row: _natural(getattr(row, "name", "") or row.layer))
    sign = 1 if sort == "cosine" else -1
    return sorted(rows, key=lambda row: (math.isnan(getattr(row, sort)), sign * getattr(row, sort)))


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


# ---------------------------------------------------------------------------------------------------------- heat map


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Row:
    """One kind of module; `layer` None stands for the tensors outside the numbered layers, drawn as a strip across
    all."""

    label: str
    cells: dict[int | None, Move]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _View:
    """One of the figures that the heat map can show."""

    title: str
    unit: str
    of: str
    """The field of a `Move`."""
    form: Callable[[float], str]
    scaled: Callable[[float], float]
    """What the colour stands for; it grows with the distance, whatever the figure."""
    reversed: bool = False
    """Colours show the negative of that: the figure itself falls as the distance grows."""

    def text(self, move: Move) -> str:
        return self.form(getattr(move, self.of))

    def shade(self, move: Move) -> float:
        return self.scaled(getattr(move, self.of))


VIEWS = (
    _View(
        title="Relative norm",
        unit="% of the tensor's norm",
        of="relative",
        form=moved,
        scaled=lambda v: 100 * v,
    ),
    _View(
        title="Cosine",
        unit="1 \u2212 cosine",
        of="cosine",
        form=lambda v: number(v, 6),
        scaled=lambda v: v if math.isnan(v) else max(0.0, 1 - v),
    ),
    _View(
        title="Signs kept",
        unit="% of the signs kept",
        of="sign_agreement",
        form=signs_kept,
        scaled=lambda v: -100 * v,
        reversed=True,
    ),
    _View(title="L2 norm", unit="L2 norm of result \u2212 start", of="l2", form=significant, scaled=float),
)

Groups = list[list[_Row]]


def _heat(record: DistanceRecord) -> Section | None:
    groups = _groups(record)
    if not any(groups):
        return None
    layers = sorted({layer for row in groups[1] for layer in row.cells if layer is not None}) or [0]
    charts = [_heat_chart(view, groups, range(layers[0], layers[-1] + 1)) for view in VIEWS]
    return Section("Where it moved", [Tabs(charts, [view.title for view in VIEWS])])


def _groups(record: DistanceRecord) -> Groups:
    """Rows of the heat map: embeddings, the kinds of the numbered layers, then what follows them."""
    outside = [t for t in record.tensors if not t.layer.isdigit()]
    found: dict[tuple[str, str], dict[int, list[Move]]] = {}
    for t in record.tensors:
        if t.layer.isdigit():
            found.setdefault(_kind(t), {}).setdefault(int(t.layer), []).append(t)
    kinds = sorted(found, key=_rank)
    blocks = [
        _Row(label=label, cells={layer: _together(tensors) for layer, tensors in found[kind].items()})
        for kind, label in zip(kinds, _labels(kinds), strict=True)
    ]
    strips, labels = outside, _labels([("", t.name) for t in outside])
    if len(outside) > MOST_STRIPS:
        held = [t.layer for t in outside]
        strips = [dataclasses.replace(d, tensors=held.count(d.layer)) for d in record.layers if not d.layer.isdigit()]
        labels = [d.layer for d in strips]
    order = [*OUTSIDE, "other"]
    rows = sorted(
        zip(strips, labels, strict=True), key=lambda r: order.index(r[0].layer) if r[0].layer in order else len(order)
    )
    first, last = (
        [_Row(label=label, cells={None: t}) for t, label in rows if (t.layer == "embed") == is_first]
        for is_first in (True, False)
    )
    return [first, blocks, last]


def _kind(t: Move) -> tuple[str, str]:
    """(stack, kind): what stands before and after the layer's number; an expert's own number is left out."""
    parts = t.name.split(".")
    at = parts.index(t.layer) if t.layer in parts else -1
    rest = parts[at + 1 :]
    kept = [p for i, p in enumerate(rest) if not (p.isdigit() and i and "expert" in rest[i - 1])]
    return ".".join(parts[: max(0, at - 1)]), ".".join(kept)


def _together(tensors: Sequence[Move]) -> Move:
    """Several tensors as one (module docstring)."""
    if len(tensors) == 1:
        return tensors[0]
    size = sum(t.parameters for t in tensors) or 1

    def mean(values: Iterable[float]) -> float:
        return sum(v * t.parameters for v, t in zip(values, tensors, strict=True)) / size

    return Move(
        layer=tensors[0].layer,
        parameters=size,
        l2=math.hypot(*(t.l2 for t in tensors)),
        relative=math.sqrt(mean(t.relative**2 for t in tensors)),
        cosine=mean(t.cosine for t in tensors),
        sign_agreement=mean(t.sign_agreement for t in tensors),
        tensors=len(tensors),
    )


_ATTENTION = (
    *("q", "q_proj", "query", "query_key_value", "qkv", "qkv_proj", "c_attn", "k", "k_proj", "key"),
    *("v", "v_proj", "value", "o", "o_proj", "out_proj", "c_proj", "dense"),
)
_MLP = (
    "gate",
    "gate_proj",
    "gate_up_proj",
    "up_proj",
    "c_fc",
    "fc1",
    "dense_h_to_4h",
    "down_proj",
    "fc2",
    "dense_4h_to_h",
)
"""Modules in the order of the computation."""


def _rank(kind: tuple[str, str]) -> tuple[Any, ...]:
    """Attention, then the MLP, then norms, biases last; files hold their tensors in the order of the alphabet."""
    stack, name = kind
    module, _, parameter = name.rpartition(".")
    last = module.rpartition(".")[2]
    lowered = module.lower()
    norm = "norm" in lowered or last.startswith("ln_")
    attention = "attn" in lowered or "attention" in lowered
    known = _ATTENTION if attention else _MLP
    place = known.index(last) if last in known else len(known)
    return stack, parameter not in ("weight", ""), 2 if norm else 0 if attention else 1, place, name


def _labels(kinds: Sequence[tuple[str, str]]) -> list[str]:
    """The shortest endings of the modules' names that tell them apart; ".weight" goes without saying, several stacks
    are named."""
    split = [(name.rpartition(".")[0], name.rpartition(".")[2]) for _, name in kinds]
    split = [(m, p) if p in ("weight", "bias") else (f"{m}.{p}".lstrip("."), "weight") for m, p in split]
    modules = {module for module, _ in split}
    stacks = {stack for stack, _ in kinds}
    labels = []
    for (stack, _), (module, parameter) in zip(kinds, split, strict=True):
        parts = module.split(".")
        depth = next((n for n in range(1, len(parts)) if _is_alone(parts[-n:], modules)), len(parts))
        label = ".".join(parts[-depth:]) + ("" if parameter == "weight" else f".{parameter}")
        if len(stacks) > 1:
            label = f"{_short_stack(stack, stacks)} {label}".strip()
        labels.append(label)
    return labels


def _is_alone(ending: list[str], modules: set[str]) -> bool:
    return sum(m.split(".")[-len(ending) :] == ending for m in modules) == 1


def _short_stack(stack: str, stacks: set[str]) -> str:
    """The first part of a stack's name that the others do not begin with."""
    parts = stack.split(".")
    others = [s.split(".") for s in stacks if s != stack]
    return next((part for n, part in enumerate(parts, 1) if all(other[:n] != parts[:n] for other in others)), parts[-1])


def _heat_chart(view: _View, groups: Groups, across: range) -> Chart:
    rows = [row for group in groups for row in group]
    scale, colours = _colours(view, [view.shade(cell) for row in rows for cell in row.cells.values()])
    drawn: list[dict[str, Any]] = []
    marks: list[Mark] = []
    ticks: list[tuple[float, str]] = []
    top = 0.0
    ends = (across[0] - 0.5, across[-1] + 0.5)
    for place, group in enumerate(g for g in groups if g):
        layers: list[int | None] = [None] if None in group[0].cells else list(across)
        edges = list(ends) if layers == [None] else [n - 0.5 for n in across] + [ends[1]]
        for row in group:
            z = [scale(view.shade(row.cells[n])) if n in row.cells else None for n in layers]
            texts = [_hover(view, row, n) for n in layers]
            drawn.append({"row": row, "group": place, "z": z, "texts": texts})
        ticks += [(top + n + 0.5, _tick(row.label)) for n, row in enumerate(group)]
        more = {"x": edges, "y": [top + n for n in range(len(group) + 1)], "coloraxis": "coloraxis"}
        gaps = {"xgap": 1 if len(across) <= 64 else 0, "ygap": 1}
        marks.append(Mark(kind="heat", y="z", text="texts", where={"group": place}, more={**more, **gaps}))
        top += len(group) + 0.3
    inside = bool(groups[1])
    below = {"xref": "paper", "yref": "paper", "yshift": -34, "yanchor": "middle", "visible": inside}
    quiet = {"showgrid": False}
    few = {"dtick": 1} if len(across) < 10 else {}

    def cell(place: int | None) -> Callable[[Mapping[str, Any]], str]:
        return lambda r: view.text(r["row"].cells[place]) if place in r["row"].cells else ""

    known = sorted({n for row in rows for n in row.cells}, key=lambda n: -1 if n is None else n)
    return Chart(
        title=f"{view.title} by layer and module",
        heading=False,
        rows=drawn,
        columns=[
            Col("Layer", lambda r: r["row"].label, numeric=False),
            *(Col("outside" if n is None else str(n), cell(n)) for n in known),
        ],
        across=True,
        marks=marks,
        x=Axis(range=ends, more={**quiet, **few, "visible": inside, "automargin": False}),
        y=Axis(range=(top - 0.3, 0), ticks=ticks, more={**quiet, "ticklen": 4}),
        # Plotly's own title of the axis lands on the tick labels beside a colour bar.
        notes=[Note(text="layer", x=0.5, y=0, more=below)],
        caption=_caption(view, rows),
        height=round(21 * top) + 92,
        layout={"coloraxis": colours, "margin": {"l": 0, "r": 8, "t": 4, "b": 44 if inside else 8}},
    )


def _hover(view: _View, row: _Row, layer: int | None) -> str:
    cell = row.cells.get(layer)
    if cell is None:
        return ""
    where = "outside the layers" if layer is None else f"layer {layer}"
    others = [f"{v.title if v.of == 'l2' else v.title.lower()} {v.text(cell)}" for v in VIEWS if v is not view]
    many = [f"{cell.tensors} tensors"] if cell.tensors > 1 else []
    return "\n".join([f"{row.label}, {where}", f"{view.title} {view.text(cell)}", *others, *many])


def _tick(label: str) -> str:
    """A label that leaves a phone some room for the cells."""
    return shorten(label if len(label) <= 19 else label.replace("layernorm", "norm"), 22)


def _caption(view: _View, rows: Sequence[_Row]) -> str:
    cells = [(layer, cell) for row in rows for layer, cell in row.cells.items()]
    together = (
        "Cells of several tensors (experts): L2 of all together, root mean square of the relative norms, means of the "
        "rest."
    )
    sentences = {
        "The stronger the colour, the further from the start; see the bar for the range.": True,
        "Strips across all layers: tensors outside them.": any(layer is None for layer, _ in cells),
        together: any(layer is not None and cell.tensors > 1 for layer, cell in cells),
        "Where the start is zero and the result is not, the strongest colour.": any(
            math.isinf(view.shade(cell)) for _, cell in cells
        ),
    }
    return " ".join(text for text, holds in sentences.items() if holds)


def _colours(view: _View, shades: Sequence[float]) -> tuple[Callable[[float], float | None], dict[str, Any]]:
    """How a shade becomes a place on the colour axis, and that axis: logarithmic where the figures span more than a
    factor of `SPAN`."""
    shades = [s for s in shades if math.isfinite(s)]
    sign = -1 if view.reversed else 1
    low, high = min(shades, default=0.0), max(shades, default=1.0)
    if not view.reversed and low < high / 2:
        low = 0.0
    bar: dict[str, Any] = {}
    least = min((s for s in shades if s > 0), default=math.inf)
    log = not view.reversed and high / least > SPAN
    if log:
        low, high = math.log10(max(least, high * 1e-4)), math.log10(high)
        steps, every = ((1, 2, 5), 1) if high - low <= 2 else ((1,), 1 if high - low <= 4 else 2)
        powers = [p for p in range(math.floor(low), math.ceil(high) + 1) if p % every == 0]
        ticks = [p + math.log10(step) for p in powers for step in steps]
        ticks = [t for t in ticks if low - 1e-9 <= t <= high + 1e-9]
        bar = {"tickvals": ticks, "ticktext": [significant(float(f"{10**t:.3g}")) for t in ticks]}
    elif high <= low:
        low, high = (low, low + 1) if view.reversed or low == 0 else (0.0, high)

    def scale(shade: float) -> float | None:
        if math.isnan(shade):
            return None
        if log:
            shade = math.log10(shade) if shade > 0 else low
        return rounded(sign * min(high, max(low, shade)))

    cmin, cmax = sorted((sign * low, sign * high))
    stops = [f"var(--heat-{n})" for n in range(4)][::sign]
    muted = "var(--muted)"
    place = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom", "xpad": 0, "ypad": 7}
    title = {"text": view.unit, "side": "top", "font": {"size": 12, "color": muted}}
    look = {"thickness": 9, "outlinewidth": 0, "tickfont": {"size": 11, "color": muted}, "nticks": 5}
    return scale, {
        "cmin": cmin,
        "cmax": cmax,
        "colorscale": [[n / 3, colour] for n, colour in enumerate(stops)],
        "colorbar": {**place, **look, "title": title, "exponentformat": "e", **bar},
    }
