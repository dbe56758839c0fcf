"""Alpaca (Taori et al. 2023): instructions, some with an input, and answers that a language model wrote.

`alpaca_data.json` is one array of `{"instruction", "input", "output"}`; exports as JSON Lines and Parquet have the same
columns. The instruction and its input become one turn of the user, for a model's own chat template. (`holdfast train`
also reads the file as it is, as prompt and completion without a template.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.data.prepare.reading import Malformed, PreparedRow, Reading, Skipped, made_of, text_of


def read(reading: Reading) -> Iterator[PreparedRow]:
    """`{"messages"}`."""
    return made_of(reading, _made)


def _made(record: Mapping[str, Any]) -> Iterator[PreparedRow]:
    instruction, given, output = text_of(record, "instruction"), record.get("input") or "", record.get("output")
    if not isinstance(given, str) or not isinstance(output, str):
        raise Malformed("expected 'input' and 'output' to be text")
    if not output.strip():
        raise Skipped("an empty answer")
    asked = f"{instruction.strip()}\n\n{given.strip()}".strip()
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": output.strip()}]
    yield PreparedRow(row={"messages": messages}, group=instruction.strip())
