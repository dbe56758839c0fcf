"""Rows that are measured and trained on: such a figure is none of held-out data, and its gain is
memory.

Rows are compared by what they say (`holdfast.data.overlap.content_of`), not by their files. Of a
question counts its prompt, with and without the right answer. Rows about images are left out: their
words may be alike by design.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.data.layouts import Row
from holdfast.data.overlap import content_of, contents_of, texts_of
from holdfast.errors import UserError
from holdfast.evaluation.entries import DataEntry, Entry
from holdfast.evaluation.kinds.perplexity import PerplexityEntry, documents_of
from holdfast.evaluation.kinds.task import TaskEntry

_MOST = 1_000_000
"""Training rows that are looked at."""


def remarks_on_training_rows(
    entries: Sequence[Entry], tokenizer: Any, training: Mapping[str, Iterable[Row]]
) -> list[str]:
    """Which rows of entries are trained on, and which are kept and learnt at once; a sentence each.

    Args:
        entries: of which those that read a file here are looked at.
        tokenizer: of the model.
        training: rows by what they are called, as "training rows".
    """
    held_out: list[tuple[Entry, list[set[int]]]] = []
    for entry in entries:
        if contents := _contents(entry, tokenizer):
            held_out.append((entry, contents))
    remarks = []
    for name, rows in training.items() if held_out else ():
        known = contents_of(itertools.islice(rows, _MOST))
        for entry, contents in held_out:
            if count := sum(not known.isdisjoint(forms) for forms in contents):
                remarks.append(
                    f"{entry.path}: {count:,} of {len(contents):,} rows are {name}, so this "
                    "entry is not held-out data."
                )
    for (kept_entry, contents), (learnt_entry, others) in itertools.permutations(held_out, 2):
        if (kept_entry.suite, learnt_entry.suite) != ("keep", "learn"):
            continue
        known = set[int]().union(*contents)
        if count := sum(not known.isdisjoint(forms) for forms in others):
            remarks.append(
                f"{learnt_entry.path}: {count:,} of {len(others):,} rows are also in "
                f"{kept_entry.path}, so learn and keep entries measure the same data."
            )
    return remarks


def _contents(entry: Entry, tokenizer: Any) -> list[set[int]]:
    """Of every row that an entry measures the contents by which training data may hold it; empty
    where no file here has them."""
    from holdfast.data.sources import is_path, load_rows
    from holdfast.evaluation.text.documents import ChatDocument
    from holdfast.evaluation.text.question_files import first_rows

    data = getattr(entry, "data", None)
    if data is None or not is_path(data):
        return []
    try:
        if isinstance(entry, PerplexityEntry):
            contents = []
            for document in documents_of(entry, tokenizer).documents:
                text = document.messages if isinstance(document, ChatDocument) else document
                contents.append({content_of(text)} - {0})
            return contents
        rows = first_rows(entry) if isinstance(entry, DataEntry) else load_rows(data)
        limit = entry.limit if isinstance(entry, TaskEntry) else None
        if "images" in rows.column_names or "image" in rows.column_names:
            return []
        return [_forms(row) for row in itertools.islice(rows, limit)]
    except UserError:  # whoever measures it says what is wrong
        return []


def _forms(row: Row) -> set[int]:
    """The contents of a question: its prompt (the longest text where no column is called so), with
    and without the right option."""
    prompt = row.get("prompt") or row.get("messages") or max(texts_of(row), key=len, default="")
    options, right = row.get("options"), row.get("answer")
    if isinstance(options, list) and isinstance(right, int) and 0 <= right < len(options):
        right = options[right]
    return {content_of(prompt), content_of([prompt, right])} - {0}
