"""What the paper of the instruction residual prints in its tables 2, 3 and 4, figure by figure, for
the page to put ours beside.

"Balancing Continuous Pre-Training and Instruction Fine-Tuning: Optimizing Instruction-Following in
LLMs" (Jindal et al., Samsung Research). All figures are percentages, printed with two decimals and
without intervals, as they stand in `printed_figures.yaml`. Sub-average 1 is the mean of the first
eight, sub-average 2 of the next seven, the average of all sixteen.

What the paper leaves open: whether table 3's "+ residual" columns add the residual to the base as
it was (so section 4.3: "merged with the LLaMa 3 base model") or to one that was continued
("continuously pre-trained base model", same section). They are taken as the first here. Qwen models
of 0.5B and 7B are said to have been run; no figure of them is printed.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MILLION = 1_000_000
TOLERANCE = 0.05
"""A token count within this share of the paper's budget is taken for it: packing and whole
documents move it a little."""
AVERAGES = {"sub_average_1": slice(0, 8), "sub_average_2": slice(8, 15), "average": slice(0, 16)}
"""The paper's averages -> the rows that they are over: instruction following, reasoning, all."""
SMALL = 3_000_000_000
"""Below this many parameters the page shows `small_models` of the file."""


@functools.cache
def printed() -> dict[str, Any]:
    """`printed_figures.yaml`."""
    import yaml

    content: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    )
    return content


@dataclasses.dataclass(frozen=True)
class PaperRow:
    """One of the sixteen figures, in the order of the tables."""

    benchmark: str
    metric: str
    """As printed."""
    entry: str
    """The entry of the suite `instruction_residual`."""
    key: str
    """The metric's name there."""
    words: str
    """What it is, for readers."""


@functools.cache
def rows() -> tuple[PaperRow, ...]:
    """The sixteen figures."""
    return tuple(PaperRow(*row) for row in printed()["rows"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """One column of one table."""

    table: int
    start: str
    """The paper's name of the model that it began with, one of the file's `models`."""
    tokens: int
    """New tokens it was continued on; 0: none."""
    residual: str | None
    """The instruct model whose residual was added; None: none was."""
    values: tuple[float, ...]
    """The sixteen figures, in percent."""
    averages: Mapping[str, float]
    """As printed, by the names in `AVERAGES`; table 4 prints no sub-averages."""


@functools.cache
def columns() -> tuple[PaperColumn, ...]:
    """Every column of tables 2, 3 and 4, in the order of print; two of table 3 are in table 2 as
    well."""
    printed_columns = []
    for table, content in printed()["tables"].items():
        lines = [map(float, line.split()) for line in content["figures"].splitlines()]
        for (start, millions, residual), figures in zip(
            content["columns"], zip(*lines, strict=True), strict=True
        ):
            values, averages = figures[:16], {"average": figures[-1]}
            if len(figures) == len(rows()) + len(AVERAGES):
                values = (*figures[:8], *figures[9:16], figures[17])
                averages = dict(zip(AVERAGES, (figures[8], figures[16], figures[-1]), strict=True))
            about = {
                "tokens": millions * MILLION,
                "residual": residual,
                "values": values,
                "averages": averages,
            }
            printed_columns.append(PaperColumn(table=table, start=start, **about))
    return tuple(printed_columns)


def recognise(name: str) -> str | None:
    """The paper's name of a model, by its name or the last part of its folder's; None where it is
    none of the paper's.

    Args:
        name: "meta-llama/Meta-Llama-3-8B", a folder of that name, or one of the hub's cache
            ("models--meta-llama--Meta-Llama-3-8B/snapshots/...").
    """
    cached = re.search(r"models--[\w.-]+?--([\w.-]+)", name)
    last = cached[1] if cached else re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    names: dict[str, str] = {}
    for key, hubs in printed()["models"].items():
        for hub in hubs:
            names[hub.rsplit("/", 1)[-1].lower()] = key
    return names.get(last.lower())


def find_column(start: str | None, tokens: int, residual: str | None) -> PaperColumn | None:
    """The printed column of a model that was made the same way; None where the paper has none.

    Args:
        start: the paper's name of the model it began with; None: not one of the paper's.
        tokens: new tokens it was continued on.
        residual: the paper's name of the instruct model whose residual was added at scale 1; None:
            none was.
    """
    for column in columns():
        near = abs(tokens - column.tokens) <= TOLERANCE * column.tokens
        if near and (column.start, column.residual) == (start, residual):
            return column
    return None
