"""Instructions to write code with their solutions, as StarCoder2-Instruct's self-alignment made them (bigcode
self-oss-instruct).

Rows have `prompt` or `instruction`, and `response`. The data set on the hub has both; its `instruction` is the one that
people read, so it goes first. Rows made from the same `seed` function stay on one side of a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.prepare.reading import PreparedRow, Reading, made_of, text_of


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"prompt", "completion"}`."""
    return made_of(reading, _made)


def _made(record: Mapping[str, Any]) -> Iterator[PreparedRow]:
    prompt, response = text_of(record, "instruction", "prompt"), text_of(record, "response")
    seed = record.get("seed")
    # the line breaks end the prompt, so that no token spans the border to what is learnt
    yield PreparedRow(
        row={"prompt": f"{prompt.rstrip()}\n\n", "completion": response},
        group=seed if isinstance(seed, str) and seed.strip() else prompt,
    )
