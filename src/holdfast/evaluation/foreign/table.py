"""Tables of scores: a CSV or JSON Lines file with a row a sample.

| column | |
|---|---|
| `id` | what pairs a sample with itself |
| `score` | a number |
| `cluster` | samples that depend on each other, such as several tries at one question |
| `category`, `source` | groups of samples, each shown by itself on the page |
| `metric` | the score's name; rows of each are an entry |
| `question` | what was asked; the same on both sides |
| `output` | what the model said |
| `answer` | the right answer, the same on both sides; what the model said where there is no `output` |

Cells of a CSV are separated by commas, semicolons or tabs, whichever give its header `id` and
`score`; a byte order mark is dropped. Other columns are not read, and named.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.foreign.files import hash_of, read_log_rows, read_log_text
from holdfast.evaluation.foreign.log import ForeignEntry, ForeignLog, column_of, score_of
from holdfast.records.metrics import is_lower_better, is_rate, is_share
from holdfast.statistics.estimates import Ratio

SUITE = "table"
REQUIRED = ("id", "score")
COLUMNS = (*REQUIRED, "cluster", "category", "source", "metric", "question", "output", "answer")

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
_TRUTH = {"true": 1.0, "false": 0.0}

Cells = dict[str, Any]
"""A row by column, all of them of `COLUMNS`; what is empty is not there."""


def recognises(path: Path) -> bool:
    """Whether it is a file that may hold a table."""
    return path.is_file() and path.suffix.lower() in _SUFFIXES


def read(path: Path) -> list[ForeignLog]:
    """The one model of a table.

    Raises:
        DataError: a column is missing, a row does not fit, two samples have one id, or a score is no
            number.
    """
    rows, unread = _csv_rows(path)
    by_metric: dict[str, list[tuple[str, Cells]]] = {}
    for where, row in rows:
        for column in REQUIRED:
            if column not in row:
                raise DataError(f"{where}: expected a value in the column {column}, got none.")
        metric = column_of(str(row.get("metric", "score")))
        by_metric.setdefault(metric, []).append((where, row))
    notes = [f"columns that are not read: {', '.join(unread)}."] if unread else []
    entries = []
    for metric, members in by_metric.items():
        if metric.endswith("stderr"):
            notes.append(f"{metric} is not read: it is a standard error, not a score.")
        else:
            entries.append(_entry(path, metric, members))
    if not entries:
        raise DataError(f"{path}: expected scores, got only standard errors.")
    return [ForeignLog(model=path.stem, path=path, entries=entries, notes=notes)]


def _entry(path: Path, metric: str, rows: Sequence[tuple[str, Cells]]) -> ForeignEntry:
    """The samples of one metric."""
    _check_ids(path, [row for _, row in rows])
    scores = []
    for where, row in rows:
        value = row["score"]
        scores.append(score_of(value, metric=metric, unit=metric, where=where))
    is_right_or_wrong = set(scores) <= {0.0, 1.0}
    unit = "accuracy" if is_right_or_wrong and not is_share(metric) else metric
    samples = []
    for (_, row), score in zip(rows, scores, strict=True):
        samples.append({**_sample(row), metric: score})
    higher_is_better = not is_lower_better(metric)
    notes = []
    if higher_is_better and (not is_share(metric) or is_rate(metric)):
        notes.append(f"a higher {metric} is assumed to be better.")
    return ForeignEntry(
        suite=SUITE,
        name=metric,
        rows=samples,
        figures={metric: Ratio(numerator=metric, unit=unit, higher_is_better=higher_is_better)},
        primary=metric,
        settings={"tool": "a table"},
        notes=notes,
    )


def _sample(row: Cells) -> dict[str, Any]:
    """A row as comparisons read it, without its score."""
    sample: dict[str, Any] = {"doc": str(row["id"])}
    output = "output" if "output" in row else "answer"
    if "cluster" in row:
        sample["cluster"] = str(row["cluster"])
    if "category" in row:
        sample["task"] = str(row["category"])
    if "source" in row:
        sample["source"] = str(row["source"])
    if "question" in row:
        sample |= {"question": str(row["question"]), "prompt": hash_of(str(row["question"]))}
    if output in row:
        sample["output"] = str(row[output])
    if output == "output" and "answer" in row:
        sample |= {"gold": str(row["answer"]), "target": hash_of(str(row["answer"]))}
    return sample


def _check_ids(path: Path, rows: Sequence[Cells]) -> None:
    """A sample that stands there several times needs a cluster, the same each time."""
    clusters: dict[str, set[Any]] = {}
    for row in rows:
        clusters.setdefault(str(row["id"]), set()).add(row.get("cluster"))
    counts = Counter([str(row["id"]) for row in rows])
    twice = []
    for sample, count in counts.items():
        if count > 1 and (len(clusters[sample]) > 1 or None in clusters[sample]):
            twice.append(sample)
    if twice:
        raise DataError(
            f"{path}: expected one id per sample, got {len(twice)} ids several times: "
            f"{', '.join(twice[:5])}{(', ...' if len(twice) > 5 else '')}. Give each sample its "
            "own id, and each model its own table. Use the column `cluster` for several attempts "
            "at one sample, and `metric` for several metrics."
        )


# ------------------------------------------------------------------------------------------ reading


def _csv_rows(path: Path) -> tuple[list[tuple[str, Cells]], list[str]]:
    """Every row with where it stands, and the columns that are not read."""
    rows: list[tuple[str, Cells]] = []
    records: list[tuple[str, dict[str, Any]]] = []
    if path.suffix.lower() in (".csv", ".tsv"):
        records = _records(path)
    else:
        for number, record in enumerate(read_log_rows(path), 1):
            records.append((f"{path}, row {number}", record))
    names: dict[str, None] = {}
    for where, record in records:
        row = {}
        for column, value in record.items():
            names.setdefault(column)
            name = column.strip().lower()
            if name in COLUMNS and value not in (None, ""):
                row[name] = value
        rows.append((where, row))
    columns = [name.strip().lower() for name in names]
    _check_columns(path, columns)
    return rows, [name for name in names if name.strip().lower() not in COLUMNS]


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    missing = [column for column in REQUIRED if column not in columns]
    if missing:
        raise DataError(
            f"{path}: expected the columns id and score, got {', '.join(columns)}. Rename your "
            "columns of sample ids and scores."
        )
    for column in COLUMNS:
        if columns.count(column) > 1:
            raise DataError(f"{path}: expected one column {column}, got {columns.count(column)}.")


def _records(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The records of a CSV by column, with the line that each begins at; scores are numbers."""
    text = read_log_text(path)
    delimiter = _delimiter(path, text.split("\n")[0])
    csv.field_size_limit(sys.maxsize)  # a cell may be a book
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    records: list[tuple[str, dict[str, Any]]] = []
    line = 1
    try:
        header = next(reader)
        if len(set(header)) < len(header):
            raise DataError(f"{path}: expected a different name for each column, got {header}.")
        line = reader.line_num + 1
        for cells in reader:
            where = f"{path}, line {line}"
            line = reader.line_num + 1
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{where}: expected {len(header)} cells ({', '.join(header)}), got "
                    f"{len(cells)}. Quote cells that hold a separator or a line break."
                )
            record: dict[str, Any] = dict(zip(header, cells, strict=True))
            for column in header:
                if column.strip().lower() == "score":
                    record[column] = _number(record[column])
            records.append((where, record))
    except csv.Error as error:
        raise DataError(f"{path}, line {line}: {error}. Check its quotes.") from error
    if not records:
        raise DataError(f"{path}: expected one row per sample under the header, got none.")
    return records


def _delimiter(path: Path, header: str) -> str:
    """What separates the cells of a header."""
    for delimiter in _DELIMITERS:
        names = [name.strip().strip('"').lower() for name in header.strip().split(delimiter)]
        if set(REQUIRED) <= set(names):
            return delimiter
    raise DataError(
        f"{path}: expected a header with the columns id and score, separated by "
        f"{', '.join(_DELIMITERS.values())}; got {header.strip()!r:.200}. Rename your columns of "
        "sample ids and scores."
    )


def _number(cell: str) -> Any:
    """A score as a number; as it is where it is none."""
    text = cell.strip()
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text
