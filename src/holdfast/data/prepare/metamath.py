"""MetaMathQA (Yu et al. 2024, arXiv 2309.12284): mathematical questions rewritten in many ways, with worked answers.

`MetaMathQA-395K.json` is one array of `{"query", "response", "type", "original_question"}`; exports as JSON Lines and
Parquet have the same columns. All rewordings of one original question stay on one side of a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.prepare.reading import PreparedRow, Reading, made_of, text_of


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"question", "answer"}`, with `type`."""
    return made_of(reading, _made)


def _made(record: Mapping[str, Any]) -> Iterator[PreparedRow]:
    question, answer = text_of(record, "query"), text_of(record, "response")
    original, kind = record.get("original_question"), record.get("type")
    yield PreparedRow(
        row={"question": question, "answer": answer},
        group=original if isinstance(original, str) and original.strip() else question,
        notes={"type": kind} if isinstance(kind, str) else {},
    )
