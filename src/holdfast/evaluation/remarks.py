"""What a figure says nothing of by itself: copies among its samples, few samples, the part of a
file that was asked, prompts that lost their beginning, questions that stand among their own
examples. Each is a sentence of an entry's notes, which stand in its record, the terminal, the page
and every comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.data.layouts import Row
from holdfast.statistics.estimates import Rows, clusters_of

FEW = 10
"""Below so many samples no interval and no verdict is to be relied on."""
_LOOKED_AT = 20_000
"""Rows of a file that are looked at, evenly spaced."""
_DRAWS = 199
"""Random parts that the first rows are held against: where no one is further from the whole, p is 1
/ 200."""
_MOST_KINDS = 100
"""Values of a column of labels or groups."""
_LONGEST_KIND = 40
"""Letters of such a value."""
_WORDS = 4
"""A question of fewer words may stand in another one by chance."""


def mark_copies(rows: Sequence[dict[str, Any]]) -> None:
    """Names in each row that repeats the `content` of an earlier one under another `doc` (ids,
    other white space) the row that it is a copy of, as `copy_of`; takes `content` out."""
    first: dict[str, str] = {}
    for row in rows:
        content = row.pop("content", None)
        doc = (
            row["doc"]
            if content is None
            else first.setdefault(" ".join(content.split()), row["doc"])
        )
        if doc != row["doc"]:
            row["copy_of"] = doc


def remarks_on_samples(rows: Rows) -> list[str]:
    """What is to be said of the samples behind figures."""
    clusters = clusters_of(rows)
    distinct = len(rows) if clusters is None else int(clusters.max()) + 1
    remarks = []
    if distinct < len(rows) and any("cluster" in row for row in rows):
        remarks.append(
            f"{len(rows):,} samples in {distinct:,} clusters: intervals and comparisons treat "
            "clusters, not samples, as independent."
        )
    elif distinct < len(rows):
        remarks.append(
            f"{len(rows) - distinct:,} of {len(rows):,} samples are duplicates of others: "
            f"intervals and comparisons count each of the {distinct:,} distinct samples once."
        )
    if 0 < distinct < FEW:
        remarks.append(
            f"Only {distinct} distinct sample{'s' if distinct > 1 else ''}: too few for a verdict."
        )
    return remarks


def remarks_on_part(rows: Any, limit: int | None, *, setting: str) -> list[str]:
    """What is to be said where only the first rows of a file are asked.

    Args:
        rows: all rows, a data set or a list of mappings.
        limit: how many are asked; None: all.
        setting: the one that says so.
    """
    if limit is None or limit >= len(rows):
        return []
    different = differing_columns(rows, limit)
    text = f"The first {limit:,} of {len(rows):,} rows ({setting})."
    if different:
        text += (
            " They are not a random sample of all rows: they differ in "
            f"{', '.join(different)}. Shuffle the file, or use all rows."
        )
    return [text]


def differing_columns(rows: Any, limit: int) -> list[str]:
    """Columns of labels and groups, and "length", in which the first rows differ from the whole
    more than 199 random parts of the same size do."""
    from holdfast.data.vision import undecoded

    step = -(-len(rows) // _LOOKED_AT)
    numbers = range(0, len(rows), step)
    examples = (
        undecoded(rows.select(numbers))
        if hasattr(rows, "select")
        else [rows[number] for number in numbers]
    )
    kinds: dict[str, list[str | None]] = {}
    for number, row in enumerate(examples):
        for column, kind in _kinds(row).items():
            kinds.setdefault(column, [None] * len(numbers))[number] = kind
    first = len(range(0, limit, step))
    return [column for column, values in kinds.items() if _differs(values, first)]


def _kinds(row: Row) -> dict[str, str]:
    """A row's value in each column that may sort it, as text; of a column of columns each. Its
    length in letters counts by half powers of two."""
    kinds = {}
    letters = 0
    for column, value in row.items():
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        for name, item in inner:
            if isinstance(item, (str, int, bool, list, tuple)):
                text = str(item)
                letters += len(text)
                if len(text) <= _LONGEST_KIND:
                    kinds[f"{column}.{name}" if name else column] = text
    return {**kinds, "length": str(round(2 * np.log2(letters + 1)))}


def _differs(kinds: Sequence[str | None], first: int) -> bool:
    """Whether the first so many values are no random part of all."""
    all_counts, first_counts = Counter(kinds), Counter(kinds[:first])
    if not 1 < len(all_counts) <= min(_MOST_KINDS, len(kinds) // 2) or not 0 < first < len(kinds):
        return False
    counts = np.array(list(all_counts.values()))
    expected = counts * (first / len(kinds))
    draws = np.random.default_rng(0).multivariate_hypergeometric(
        counts, first, size=_DRAWS, method="marginals"
    )
    observed = [first_counts[kind] for kind in all_counts]
    distances = ((np.vstack([observed, draws]) - expected) ** 2 / expected).sum(1)
    return bool((distances[1:] < distances[0]).all())


def remarks_on_cut(cut: int, prompts: int, room: int) -> list[str]:
    """What is to be said where prompts are longer than the tokens that the model's context leaves
    for them."""
    if not cut:
        return []
    return [
        f"{cut:,} of {prompts:,} prompts are longer than the {room:,} tokens that fit into the "
        "model's context. They were cut at the beginning."
    ]


def remarks_on_examples(asked: Iterable[tuple[str, str]], pool: Iterable[str]) -> list[str]:
    """What is to be said of examples that are shown before questions.

    Args:
        asked: of every question the whole prompt, and the question itself.
        pool: the texts of the examples that prompts are made of.
    """
    remarks = []
    prompts = among_own = 0
    for prompt, question in asked:
        prompts += 1
        question = question.strip()
        if len(question.split()) >= _WORDS and prompt.count(question) > 1:
            among_own += 1
    if among_own:
        remarks.append(
            f"{among_own:,} of {prompts:,} questions appear among their own few-shot examples, "
            "with their answers."
        )
    examples = [" ".join(text.split()) for text in pool]
    if copies := len(examples) - len(set(examples)):
        remarks.append(
            f"{copies:,} of {len(examples):,} available few-shot examples are duplicates of others."
        )
    return remarks
