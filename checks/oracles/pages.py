"""The page of every committed record as data: its lead, what its charts draw, and the cells of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tree

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def records(file: str) -> Iterator[tuple[str, Path]]:
    """The folders below docs/examples that have such a record, by their path there."""
    for path in sorted(EXAMPLES.rglob(file)):
        yield str(path.parent.relative_to(EXAMPLES)), path.parent


def read_record(file: str, folder: Path) -> Any:
    """A committed record."""
    reader = tree.READ_STUDY if file == tree.STUDY_FILE else tree.PAGES[file][0]
    return tree.load(reader)(folder)


def pages() -> dict[str, Any]:
    """Every page as data, by the path of its record."""
    return {name: page_data(page) for name, page in record_pages()}


def record_pages() -> Iterator[tuple[str, Any]]:
    """Every page, and the path of its record below docs/examples."""
    for file, (_, make_page) in tree.PAGES.items():
        for name, folder in records(file):
            yield f"{name}/{file}", tree.load(make_page)(read_record(file, folder))
    for name, folder in records(tree.STUDY_FILE):
        record = read_record(tree.STUDY_FILE, folder)
        selections = tree.load(tree.SELECT_ALL)(record)
        yield f"{name}/{tree.STUDY_FILE}", tree.load(tree.STUDY_PAGE)(record, folder, selections=selections)
    for name, folder in records(tree.RUN_FILE):
        run = tree.load(tree.READ_RUN)(tree.load(tree.RUN_FOLDER)(folder))
        yield f"{name}/{tree.RUN_FILE}", tree.load(tree.RUN_PAGE)(run)


def page_data(page: Any) -> dict[str, Any]:
    """A page's lead, charts and tables; charts and tables by title, tables without one by their columns."""
    words, chart_class = tree.load(tree.BLOCKS).plain_text, tree.load(tree.CHARTS).Chart
    table_class = tree.load(tree.BLOCKS).Table
    charts: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for block in blocks_of(page):
        if isinstance(block, chart_class):
            charts[free_name(block.title, charts)] = chart_data(block)
        elif isinstance(block, table_class):
            data = table_data(block)
            name = words(block.title) or " | ".join(data["columns"])
            tables[free_name(name, tables)] = data
            if block.numbers is not None:
                tables[free_name(f"{name}: numbers", tables)] = table_data(block.numbers)
    return {"lead": page.lead, "charts": charts, "tables": tables}


def table_data(table: Any) -> dict[str, Any]:
    """The titles of a table's columns and the text of its cells."""
    titles = [tree.load(tree.BLOCKS).plain_text(column.title) for column in table.columns]
    return {"columns": titles, "rows": cells(table)}


def blocks_of(block: Any) -> Iterator[Any]:
    """A block and all within it, in the order of the page."""
    yield block
    for inner in (*(getattr(block, "blocks", None) or ()), *(getattr(block, "charts", None) or ())):
        yield from blocks_of(inner)


def free_name(name: str, names: dict[str, Any]) -> str:
    """The name, with a number where there is one like it."""
    number = 2
    free = name
    while free in names:
        free = f"{name} ({number})"
        number += 1
    return free


def cells(table: Any) -> list[list[str]]:
    """The text of every cell."""
    words = tree.load(tree.BLOCKS).plain_text
    return [[words(cell) for cell in row] for row in table.rows]


def chart_data(chart: Any) -> dict[str, Any]:
    """What a chart draws: its axes, its points mark by mark, and the table below it."""
    return {
        "axes": [chart.x.title, chart.y.title],
        "names": list(chart.y.names),
        "marks": [mark_data(mark, chart) for mark in chart.marks],
        "rules": [[rule.x, rule.y] for rule in chart.rules],
        "shades": [[shade.start, shade.end, shade.text] for shade in chart.shades],
        "rows": cells(chart.table),
    }


def mark_data(mark: Any, chart: Any) -> dict[str, Any]:
    """The kind, the name and the points of a mark; a point is x and y, each with its interval where it has one."""
    rows = chart.rows if mark.rows is None else mark.rows
    points = []
    for row in rows:
        if all(row.get(key) == value for key, value in mark.where.items()):
            points.append([number(row.get(mark.x)), number(row.get(mark.y))])
    return {"kind": mark.kind, "name": mark.name, "points": points}


def number(value: Any) -> Any:
    """A value of a chart as plain JSON: lists for lists, and [value, low, high] for a value with an interval."""
    if isinstance(value, (list, tuple)):
        return [number(item) for item in value]
    if isinstance(value, tree.load(tree.CHARTS).Value):
        return [value.value, value.low, value.high]
    return value
