"""What is in the rows and is not read: columns, and keys of messages, each with the number of rows
that have a value there.

A layout takes the columns that it knows, and a chat template the keys that it knows; the rest never
reaches the model. Whoever wrote a weight, a passage or an earlier turn there has to hear of it.
Null, empty text and empty lists are no values.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from holdfast.data.layouts import content_key, message_keys, role_in
from holdfast.data.messages import says_trained
from holdfast.printable import printable

Counts = dict[str, int | None]
"""What is not read -> in how many rows or messages; None where rows are streamed."""

_LOOKED = 200
"""Rows by which a share of text is estimated."""
_FIRST = 1000
"""Streamed rows that are looked at."""
_SHOWN, _LONGEST = 12, 80
"""Names that a sentence has at most, and characters of one."""


def columns_with_values(dataset: Any, columns: Sequence[str]) -> Counts:
    """Of some columns those that have a value in some row.

    Args:
        dataset: the rows; of streamed ones nothing is counted.
        columns: its own.
    """
    import datasets

    if isinstance(dataset, datasets.IterableDataset):
        return dict.fromkeys(columns)
    if not columns:
        return {}
    counts = dict.fromkeys(columns, 0)
    for table in dataset.select_columns(list(columns)).with_format("arrow").iter(batch_size=10_000):
        for column in columns:
            counts[column] += _values(table.column(column).combine_chunks())
    return {column: count for column, count in counts.items() if count}


def _values(column: Any) -> int:
    """How many entries of an Arrow array are a value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column.drop_null()
    empty = None
    if isinstance(column, pa.ExtensionArray):
        values = values.storage
        if pa.types.is_string(values.type):
            empty = pc.is_in(values, pa.array(["null", '""', "[]", "{}"], values.type))
    elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        empty = pc.equal(values, "")
    elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        empty = pc.equal(pc.list_value_length(values), 0)
    return len(values) - (0 if empty is None else int(pc.sum(empty).as_py() or 0))


def keys_of_messages(
    dataset: Any, columns: Sequence[str], system: str | None, *, heeded: bool = False
) -> Counts:
    """Keys of messages that are not read, as "weight of messages", with the number of messages that
    have a value there; and the system column's name with the number of rows whose messages begin
    with another system prompt.

    Args:
        dataset: the rows; of streamed ones the first thousand say which keys there are.
        columns: those that hold lists of messages.
        system: the column with the system prompt, where there is one.
        heeded: whether keys that say what is trained are read.
    """
    import datasets

    if isinstance(dataset, datasets.IterableDataset):
        counts: Counts = {}
        for row in itertools.islice(dataset, _FIRST):
            counts.update(dict.fromkeys(_keys(_messages_in(row, columns), heeded=heeded)))
        return counts
    if system is None and all(_known_keys(dataset.features[column]) for column in columns):
        return {}
    keys = Counter[str]()
    for row in dataset.select_columns([*columns] if system is None else [*columns, system]):
        messages = _messages_in(row, columns)
        keys.update(_keys(messages, heeded=heeded))
        if system is not None and messages and row[system]:
            content = messages[0].get(content_key(messages[0]))
            keys[system] += (
                role_in(messages[0]) in ("system", "developer") and content != row[system]
            )
    return dict(+keys)


def _messages_in(row: Mapping[str, Any], columns: Collection[str]) -> list[Mapping[str, Any]]:
    """The objects in those columns of a row that are lists."""
    messages: list[Mapping[str, Any]] = []
    for column in columns:
        value = row.get(column)
        if isinstance(value, list):
            messages += [message for message in value if isinstance(message, Mapping)]
    return messages


def of_row(row: Mapping[str, Any], columns: Collection[str]) -> list[str]:
    """Of one row, the names of what has a value and is not read, as often as it has one.

    Args:
        row: plain values.
        columns: those that are read.
    """
    names = [name for name, value in row.items() if name not in columns and value not in _NO_VALUES]
    return names + _keys(_messages_in(row, columns))


_NO_VALUES: tuple[Any, ...] = (None, "", [], {})


def _keys(messages: Iterable[Mapping[str, Any]], *, heeded: bool = False) -> list[str]:
    """The keys that are not read, once for each message that has a value there."""
    read, unread = message_keys(), list[str]()
    for message in messages:
        for key, value in message.items():
            if (
                key not in read
                and value not in _NO_VALUES
                and not (heeded and says_trained(key, value))
            ):
                unread.append(f"{key} of messages")
    return unread


def _known_keys(feature: Any) -> bool:
    """Whether messages stored under a feature can have no other keys than those that are read."""
    import datasets

    if not isinstance(feature, datasets.List) or not isinstance(feature.feature, dict):
        return False
    return set(feature.feature) <= message_keys()


def share_of_text(dataset: Any, columns: Sequence[str], others: Sequence[str]) -> float:
    """The share of the characters of all of these columns that stands in `columns`, by the first
    rows."""
    size = total = 0
    for row in itertools.islice(dataset, _LOOKED):
        of_columns = _characters([row[name] for name in columns])
        size += of_columns
        total += of_columns + _characters([row[name] for name in others])
    return size / max(1, total)


def _characters(value: Any) -> int:
    """Of text, also within lists and objects; numbers are no text."""
    if isinstance(value, Mapping):
        return sum(map(_characters, value.values()))
    if isinstance(value, list):
        return sum(map(_characters, value))
    return len(value) if isinstance(value, str) else 0


def sentence(counts: Mapping[str, int | None], name: str = "") -> str:
    """What is not read, for people.

    Args:
        counts: not empty.
        name: of the data; "": the training data.
    """
    parts = []
    for what, count in itertools.islice(counts.items(), _SHOWN):
        name_shown = printable(what[:_LONGEST])
        unit = "" if what.endswith(" of messages") else " row" if count == 1 else " rows"
        parts.append(name_shown if count is None else f"{name_shown} ({count:,}{unit})")
    more = f" and {len(counts) - _SHOWN} more" if len(counts) > _SHOWN else ""
    whose = f" of {printable(name)}" if name else ""
    return f"Not read{whose}: {', '.join(parts)}{more}."
